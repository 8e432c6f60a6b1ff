import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from tunery.tuning.allocation.trimming import MOST, Audit, CandidateFilter

PRIOR_TAU = 0.52


def taught(tau: float, count: int, audit_share: float = 0.0) -> CandidateFilter:
    """A filter whose model ranked `count` candidates: perfectly with tau 1, at random with 0, the wrong way with -1."""
    draw, one = random.Random(3), CandidateFilter(audit_share, 1)
    for _ in range(count // 8):
        latencies = [1.1**i for i in range(8)]
        scores = [-latency for latency in latencies]
        if tau <= 0:
            scores = [-score for score in scores] if tau < 0 else [draw.random() for _ in scores]
        one.learn(list(zip(scores, latencies, strict=True)))
    return one


def test_an_unproven_model_drops_nothing() -> None:
    for filter_ in (CandidateFilter(0.1, 0), taught(1.0, 8)):
        assert filter_.share() == 0
        assert filter_.ask(16) == 16
        sorted_ = filter_.sort([float(i) for i in range(16)], 16)
        assert (len(sorted_.kept), sorted_.dropped, sorted_.audited) == (16, (), ())


def test_a_model_proven_elsewhere_drops_from_the_first_batch_on_until_this_task_says_otherwise() -> None:
    filter_ = CandidateFilter(0.0, 0, PRIOR_TAU)
    assert 0.3 < filter_.share() < MOST, "within a proposal it knows half as much as over random candidates"
    assert filter_.ask(4) > 5
    sorted_ = filter_.sort([float(i) for i in range(filter_.ask(4))], 4)
    assert min(sorted_.kept) > max(sorted_.dropped)
    for _ in range(6):
        filter_.learn([(float(i), 1.1**i) for i in range(8)])  # the wrong way round
    assert filter_.share() == 0


def test_the_share_that_is_dropped_follows_how_well_the_model_has_ranked_lately() -> None:
    partly = taught(1.0, 32)
    for _ in range(2):
        partly.learn([(float(i), 1.1**i) for i in range(8)])  # the wrong way round
    assert MOST == taught(1.0, 48).share() > partly.share() > 0.2
    assert taught(-1.0, 48).share() == 0
    assert taught(0.0, 48).share() < 0.15
    fallen = taught(1.0, 48)
    for _ in range(6):
        fallen.learn([(float(i), 1.1**i) for i in range(8)])  # now the wrong way round
    assert fallen.share() == 0


def test_the_best_by_score_are_kept_and_what_has_no_score_is_never_dropped() -> None:
    filter_ = taught(1.0, 48)
    assert filter_.ask(8) > 12
    scores: list[float | None] = [float(i) for i in range(filter_.ask(8) - 1)] + [None]
    sorted_ = filter_.sort(scores, 8)
    assert len(sorted_.kept) == 8
    assert len(scores) - 1 in sorted_.kept
    assert min(sorted_.kept) > max(sorted_.dropped)


def test_a_random_part_of_what_would_be_dropped_is_measured_all_the_same() -> None:
    filter_ = taught(1.0, 48, audit_share=0.2)
    audited = dropped = 0
    seen: set[int] = set()
    for _ in range(200):
        sorted_ = filter_.sort([float(i) for i in range(20)], 10)
        assert set(sorted_.audited) <= set(sorted_.kept)
        assert len(sorted_.kept) <= 10
        audited, dropped = audited + len(sorted_.audited), dropped + len(sorted_.dropped)
        seen.update(sorted_.audited)
    assert 0.12 < audited / (audited + dropped) < 0.28
    assert seen == set(range(max(seen) + 1)), "each of the tail has its chance"


def test_whatever_is_not_built_for_its_score_may_be_audited() -> None:
    filter_ = taught(1.0, 48, audit_share=0.5)
    dropped: set[int] = set()
    audited: list[int] = []
    for _ in range(400):
        sorted_ = filter_.sort([float(i) for i in range(16)], 8)
        dropped.update(sorted_.dropped)
        audited += sorted_.audited
    assert dropped <= set(audited), "those too whose place an audited one takes"
    counts = [audited.count(i) for i in range(8)]
    assert max(counts) < 2 * min(counts)


@given(
    st.lists(st.none() | st.floats(-1e3, 1e3), max_size=40), st.integers(1, 40), st.sampled_from([-1.0, 0.0, 1.0]),
    st.floats(0, 1),
)  # fmt: skip
def test_every_candidate_is_kept_or_dropped_once(
    scores: list[float | None], wanted: int, tau: float, share: float
) -> None:
    filter_ = taught(tau, 48, share)
    sorted_ = filter_.sort(scores, wanted)
    assert sorted([*sorted_.kept, *sorted_.dropped]) == list(range(len(scores)))
    assert len(sorted_.kept) <= wanted
    assert len(sorted_.kept) >= min(wanted, len(scores)) * (1 - filter_.share()) - 1


@pytest.mark.parametrize(("audited", "winners"), [(0, 0), (20, 0), (20, 1), (20, 20), (300, 4)])
def test_the_interval_is_that_of_clopper_and_pearson(audited: int, winners: int) -> None:
    low, high = Audit(1000, audited, winners).interval()
    if not audited:
        assert (low, high) == (0.0, 1.0)
        return
    expected = binomtest(winners, audited).proportion_ci(0.95, method="exact")
    assert (low, high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_failure_counts_as_slower_than_everything() -> None:
    filter_ = CandidateFilter(0.0, 0)
    for _ in range(3):
        filter_.learn([(float(i), math.inf if i < 4 else 1.0 - i / 100) for i in range(8)])
    assert filter_.tau()[0] == 1.0
