"""Candidates without a measurement: the best of few looks."""

import numpy as np
import pytest

from tunery.costmodels import BoostedModel, Dataset, load_cost_model, with_task
from tunery.dialects import get_dialect
from tunery.dialects.metaschedule.codegen.calibration import _matmul
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.dialects.metaschedule.search.suggestions import suggest
from tunery.domain import Task

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    target = get_dialect("metaschedule").resolve_target("native", 1)
    return [_matmul("product", *sizes, target) for sizes in ((64, 96, 128), (128, 96, 32))]


@pytest.fixture(scope="module")
def model(tasks: list[Task]) -> str:
    dialect = get_dialect("metaschedule")
    candidates = dialect.open(tasks[0], (), None, 0).propose(24)
    rows = with_task(dialect.features(tasks[0], candidates), tasks[0])
    dataset = Dataset(rows.layout)
    for number, (candidate, row) in enumerate(zip(candidates, rows, strict=True)):
        dataset.add(tasks[0].key, candidate.key, row, 1e-3 * (1 + number % 7))
    return BoostedModel.fit(dataset).dumps()


def test_candidates_come_best_first_and_can_be_built(tasks: list[Task], model: str) -> None:
    dialect = get_dialect("metaschedule")
    found = dialect.suggest(tasks[0], 10, model, 0).candidates
    scores = [candidate.score for candidate in found]
    assert all(score and score > 0 for score in scores)
    assert scores == sorted(scores, key=lambda score: -(score or 0))
    assert 4 <= len({candidate.key for candidate in found}) <= 10
    again = load_cost_model(model).predict(with_task(dialect.features(tasks[0], found), tasks[0]))
    np.testing.assert_allclose(again, scores, rtol=1e-5)


def test_few_looks_are_few(tasks: list[Task], model: str) -> None:
    assert 1 <= len(suggest(tasks[0], 4, model, 0, FeatureCache()).candidates) <= 6
