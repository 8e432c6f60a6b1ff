"""What a cost model says of candidates reaches the search as positive, finite scores."""

from types import SimpleNamespace

import numpy as np
import pytest

from tunery.costmodels import CostModel
from tunery.costmodels.columns import STORES
from tunery.domain import Target, Task, Workload

pytestmark = pytest.mark.tvm


TASK = Task(Workload("w", "n", "conv2d", "", (), 0, 1.0), Target("metaschedule", {}, 1))


class Scripted(CostModel):
    def __init__(self, scores):
        self.scores = np.asarray(scores, dtype=np.float64)

    def predict(self, rows):
        return self.scores

    def dumps(self):
        raise AssertionError


@pytest.mark.parametrize("scores", [[0, 0, 0], [-1, -2, 0.5], [np.nan, np.inf, 1.0], [np.nan] * 3])
def test_scores_are_positive_and_finite_whatever_the_model_says(scores):
    from tunery.dialects.metaschedule.features.features import SteeringModel

    features = SimpleNamespace(get=lambda key: np.zeros(len(STORES.columns), np.float32) if key in "abc" else None)
    model = SteeringModel(features, TASK)
    model._model = Scripted(scores)
    given = model.scores(["a", "b", "c", "unknown"])
    assert np.isfinite(given[:3]).all()
    assert (given[:3] > 0).all()
    assert np.isnan(given[3])
