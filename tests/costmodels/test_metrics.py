import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.costmodels.training.evaluation import kendall, ndcg, quality, regret

LABELS = np.array([1.0, 0.5, 0.25, 0.0])


def test_a_perfect_ranking() -> None:
    assert ndcg(LABELS, LABELS) == pytest.approx(1.0)
    assert regret(LABELS, LABELS) == 0.0
    assert kendall(LABELS, LABELS) == pytest.approx(1.0)


def test_a_reversed_ranking() -> None:
    assert kendall(LABELS, -LABELS) == pytest.approx(-1.0)
    assert regret(LABELS, -LABELS) == pytest.approx(1.0)
    assert regret(LABELS, -LABELS, 2) == pytest.approx(0.75)
    assert regret(LABELS, -LABELS, 8) == 0.0


def test_scores_that_are_no_numbers_rank_last() -> None:
    assert regret(LABELS, np.array([np.nan, 0.2, 0.1, 0.0])) == pytest.approx(0.5)


def test_means_over_tasks() -> None:
    found = quality([(LABELS, LABELS), (LABELS, -LABELS)])
    assert (found.tasks, found.regret1, found.kendall) == (2, pytest.approx(0.5), pytest.approx(0.0))
    assert np.isnan(quality([]).ndcg8)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=30), st.integers(0, 2**20))
def test_bounds_hold_for_any_ranking(labels: list[float], seed: int) -> None:
    y = np.asarray(labels)
    scores = np.random.default_rng(seed).random(len(y))
    assert 0.0 <= ndcg(y, scores) <= 1.0 + 1e-9
    assert 0.0 <= regret(y, scores, 8) <= regret(y, scores, 1) <= 1.0
