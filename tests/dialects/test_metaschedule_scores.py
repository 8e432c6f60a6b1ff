"""Scores that MetaSchedule's sampler would mishandle never reach it."""

from types import SimpleNamespace

import numpy as np
import pytest

from tunery.costmodels import CostModel
from tunery.domain import Target, Task, Workload

pytestmark = pytest.mark.tvm


TASK = Task(Workload("w", "n", "conv2d", "", (), 0, 1.0), Target("metaschedule", {}, 1))


class Scripted(CostModel):
    def __init__(self, scores):
        self.scores = np.asarray(scores, dtype=np.float64)

    def predict(self, features):
        return self.scores

    def dumps(self):
        raise AssertionError


@pytest.mark.parametrize("scores", [[0, 0, 0], [-1, -2, 0.5], [np.nan, np.inf, 1.0], [np.nan] * 3])
def test_scores_are_positive_and_finite_whatever_the_model_says(scores, monkeypatch):
    from tunery.dialects.metaschedule import cost_model

    features = SimpleNamespace(rows=lambda context, candidates, keys: np.zeros((len(keys), 4), np.float32))
    monkeypatch.setattr(cost_model, "program_key", lambda module: module)
    model = cost_model.SteeringModel(features, seed=0, task=TASK)
    model._model = Scripted(scores)
    candidates = [SimpleNamespace(sch=SimpleNamespace(mod=name)) for name in "abc"]
    given = model.predict(None, candidates)
    assert np.isfinite(given).all()
    assert (given > 0).all()
