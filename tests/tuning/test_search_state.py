"""A task's search as a state machine: any order of steps keeps it whole."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from search_tools import fake_tasks

from tunery.dialects import Observation
from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome, Provenance, Record
from tunery.tuning.allocation.allocator import Cost
from tunery.tuning.search.state import SearchState

TASK = fake_tasks("fake:states?tasks=1")[0]
FAILURES_BORNE, IDLE_BORNE = 2, 2
KEYS = [f"c{number}" for number in range(12)]
JOBS = ["a", "b", "c"]
ENDED = st.sampled_from([Outcome.OK, Outcome.ABANDONED, Outcome.BUILD_FAILED, Outcome.CRASHED])
some_keys = st.lists(st.sampled_from(KEYS), max_size=6, unique=True)


def candidate(key: str, origin: Origin = Origin.SEARCH) -> Candidate:
    return Candidate(key, TASK.key, key, origin)


def result(outcome: Outcome = Outcome.OK, latency_s: float = 1e-3) -> Measurement:
    ran = outcome in (Outcome.OK, Outcome.ABANDONED)
    return Measurement(outcome, (latency_s,) if ran else (), build_s=0.1)


def record(key: str, measurement: Measurement, job_id: str = "job", origin: Origin = Origin.SEARCH) -> Record:
    return Record(candidate(key, origin), measurement, Provenance("fake", "compiler", "device", "settings"), job_id)


class AnySearch(RuleBasedStateMachine):
    """Drives a search as its driver would, batches of several jobs at once, and keeps its own account."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SearchState(TASK)
        self.batches: list[tuple[str, ...]] = []
        self.measured: dict[str, Measurement] = {}
        self.untold: dict[str, Observation] = {}
        self.trials: dict[str, set[str]] = {}
        self.weights: dict[str, int] = {}
        self.failed_in_a_row = 0

    @property
    def in_flight(self) -> set[str]:
        return {key for batch in self.batches for key in batch}

    def joined(self, job: str, weight: int) -> None:
        self.state.join(job, weight, {})
        self.weights[job], self.trials[job] = weight, set()

    @initialize()
    def begins(self) -> None:
        self.joined("a", 1)
        self.state.restore("a", ())

    @rule(job=st.sampled_from(JOBS), weight=st.integers(1, 9))
    def job_joins(self, job: str, weight: int) -> None:
        if job not in self.weights:
            self.joined(job, weight)

    @precondition(lambda self: len(self.weights) > 1)
    @rule(data=st.data())
    def job_leaves(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.weights)))
        self.state.leave(job)
        del self.weights[job], self.trials[job]

    def handed_out(self, candidates: Sequence[Candidate]) -> None:
        keys = [one.key for one in candidates]
        assert len(keys) == len(set(keys))
        assert not self.in_flight.intersection(keys), "a candidate that is on its way is handed out again"
        assert not self.measured.keys() & set(keys), "a candidate that is known is handed out again"
        self.batches.append(tuple(keys))

    @rule(size=st.integers(1, 6), hints=some_keys, proposed=some_keys, dropped=some_keys)
    def batch_begins(self, size: int, hints: list[str], proposed: list[str], dropped: list[str]) -> None:
        if self.state.hints is None:
            self.state.hints = tuple(map(candidate, hints))
        build = self.state.take_hints(size)
        if not build:
            assert {one.candidate.key: one for one in self.state.known.unheard()} == self.untold
            self.untold.clear()
            taken = self.measured.keys() | self.in_flight
            left = [key for key in dropped if key not in taken and key not in proposed]
            fresh = [key for key in proposed if key not in taken]
            none = not proposed and not dropped
            build = self.state.propose(map(candidate, proposed), left, len(fresh), empty=none)
            self.failed_in_a_row = 0
        self.handed_out(build)

    @rule()
    def proposer_fails(self) -> None:
        before = self.state.problem
        again = self.state.proposer_failed("it crashed")
        self.failed_in_a_row += 1
        gives_up = self.failed_in_a_row > FAILURES_BORNE
        assert again != gives_up
        if gives_up:
            assert self.state.progress.exhausted
            assert "it crashed" in self.state.problem
        else:
            assert self.state.problem == before, "a failure that is tried again is no problem of the task"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), outcome=ENDED, latency_s=st.floats(1e-6, 1.0), open_to=st.sets(st.sampled_from(JOBS)))
    def candidate_is_measured(self, data: st.DataObject, outcome: Outcome, latency_s: float, open_to: set[str]) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_flight)))
        payer = data.draw(st.sampled_from(sorted(self.weights)))
        found = result(outcome, latency_s)
        before_s = self.fastest_s()
        counted, helped = self.state.measure(payer, candidate(key), found, open_to)
        fresh = key not in self.measured
        expected = {job for job in self.weights if fresh and (job == payer or job in open_to)}
        assert set(counted) == expected, "a trial counts once, for who pays and for who takes part"
        faster = found.latency_s is not None and (before_s is None or found.latency_s < before_s)
        assert helped == (outcome is Outcome.OK and faster)
        for job in expected:
            self.trials[job].add(key)
        self.measured[key] = found
        self.untold[key] = Observation(candidate(key), outcome, found.latency_s)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def batch_ends(self, data: st.DataObject) -> None:
        batch = self.batches.pop(data.draw(st.integers(0, len(self.batches) - 1)))
        self.state.end_batch(batch, Cost(1.0))
        assert self.state.progress.trials[-1] == sum(key in self.measured for key in batch)

    @rule(data=st.data(), news=st.booleans(), latency_s=st.floats(1e-6, 1.0))
    def finals_are_held(self, data: st.DataObject, news: bool, latency_s: float) -> None:
        self.state.begin_finals()
        ok = sorted(key for key, one in self.measured.items() if one.outcome is Outcome.OK)
        if not self.state.finals_decide(ok):
            assert not ok or not self.state.finals_due
            return
        assert ok
        if news and self.in_flight:
            self.candidate_is_measured(data, Outcome.OK, latency_s, set())
        else:
            news = False
        best = record(ok[0], Measurement(Outcome.OK, (latency_s,), Mode.FINAL))
        self.state.end_finals(ok, (), 2.0, best)
        assert self.state.finals_due == news, "finals are due again only for what was measured meanwhile"
        assert self.state.proven_s == latency_s

    def fastest_s(self) -> float | None:
        return min((one.latency_s for one in self.measured.values() if one.latency_s), default=None)

    @invariant()
    def is_whole(self) -> None:
        progress = self.state.progress
        assert len(progress.best_s) == len(progress.trials) == len(progress.costs)
        assert progress.exhausted or not self.state.problem, "a task with a problem is searched"
        assert self.state.fastest_s() == self.fastest_s()
        assert self.state.progress.weight == sum(self.weights.values())
        for job, keys in self.trials.items():
            ended = self.state.outcomes(job)
            assert ended.total() - ended[Outcome.FILTERED] == len(keys)


TestAnySearch = AnySearch.TestCase
TestAnySearch.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_search_that_finds_nothing_new_ends() -> None:
    state = SearchState(TASK)
    for _ in range(IDLE_BORNE):
        state.propose((candidate("a"),), (), 0)
        assert not state.progress.exhausted
    state.propose((candidate("a"),), (), 0)
    assert state.progress.exhausted
    assert state.proposer_failed("it crashed")
    assert not state.problem, "what another batch meets then is no problem of the task"


def test_what_was_cut_short_may_be_proposed_again_and_what_was_measured_may_not() -> None:
    state = SearchState(TASK)
    build = (candidate("a"), candidate("b"))
    assert state.propose(build, (), 2) == build
    assert state.propose(build, (), 2) == ()
    state.measure("job", candidate("a"), result())
    state.end_batch(("a", "b"), Cost(1.0))
    assert state.propose(build, (), 2) == (candidate("b"),)


def test_a_record_of_before_is_neither_news_nor_proposed_again() -> None:
    state = SearchState(TASK)
    state.join("job", 3, {"a": Outcome.OK})
    dropped = record("b", result(Outcome.FILTERED), "other")
    state.restore("job", (record("a", result()), dropped), ("a",), cost=Cost(2.0))
    assert (state.progress.trials, state.best_s, state.finals_due) == ([1], 1e-3, True)
    assert state.known.unheard() == []
    assert state.known.opening() == [Observation(candidate("a"), Outcome.OK, 1e-3)]
    build = (candidate("a"), candidate("b"))
    assert state.propose(build, (), 1) == (candidate("b"),), "another's filter is not ours"


def test_a_stored_race_of_the_default_hides_no_race_that_is_faster() -> None:
    default = record("default", result(latency_s=1e-2), origin=Origin.BASELINE)
    state = SearchState(TASK)
    state.join("job", 1, {})
    state.restore("job", (default,), best=default)
    state.measure("job", candidate("a"), result())
    assert state.best_s == pytest.approx(1e-3)


def test_what_a_delivery_has_timed_hides_no_race_that_is_faster() -> None:
    delivered = record("near", Measurement(Outcome.OK, (5e-3,), Mode.FINAL), "")
    state = SearchState(TASK)
    state.join("job", 1, {})
    state.restore("job", (delivered,), best=delivered)
    state.baseline_s = 1e-2
    assert state.best_s == pytest.approx(5e-3)
    state.measure("job", candidate("a"), result())
    assert state.best_s == pytest.approx(1e-3)
