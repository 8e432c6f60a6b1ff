"""One task's search: what is known of it, and what follows from that. Pure: no I/O, no clock, no random numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tunery.dialects import Observation
from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome, Record, Task
from tunery.tuning.allocation.allocator import Cost, TaskProgress

_RAN = frozenset({Outcome.OK, Outcome.ABANDONED})


class KnownCandidates:
    """One result for each candidate."""

    def __init__(self) -> None:
        self._results: dict[str, Observation] = {}
        self._unheard: dict[str, Observation] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __len__(self) -> int:
        return len(self._results)

    def keys(self) -> KeysView[str]:
        return self._results.keys()

    def get(self, key: str) -> Observation | None:
        return self._results.get(key)

    @property
    def default(self) -> Observation | None:
        return next((result for result in self._results.values() if not is_trial(result.candidate)), None)

    def fastest_s(self) -> float | None:
        """Return the latency to beat, measured alone or beside others; None if nothing ran right yet."""
        return min((result.latency_s for result in self._ran() if result.latency_s), default=None)

    def best_s(self) -> float | None:
        return min((result.latency_s for result in self._ended() if result.latency_s), default=None)

    def near_best(self, drift: float) -> list[str]:
        bound_s = (self.best_s() or 0.0) * (1 + drift)
        fastest = sorted(self._ran(), key=lambda result: result.latency_s or 0.0)
        return [r.candidate.key for r in fastest if is_trial(r.candidate) and 0.0 < (r.latency_s or 0.0) <= bound_s]

    @property
    def any_ended(self) -> bool:
        """Whether a candidate besides the compiler's default was measured to the end: there is a finalist."""
        return any(is_trial(result.candidate) for result in self._ended())

    @property
    def any_ran(self) -> bool:
        """Whether a candidate besides the compiler's default ran right, in this job or before."""
        return any(is_trial(result.candidate) for result in self._ran())

    def _ran(self) -> list[Observation]:
        return [result for result in self._results.values() if result.outcome in _RAN]

    def _ended(self) -> list[Observation]:
        return [result for result in self._ran() if result.outcome is Outcome.OK]

    def remember(self, result: Observation) -> None:
        self._results[result.candidate.key] = result

    def served(self, result: Observation) -> None:
        """Take in what another job has measured: the proposer is to hear it, and nobody here is charged for it."""
        self._results[result.candidate.key] = self._unheard[result.candidate.key] = result

    def keep(self, result: Observation, *, tell: bool = True) -> bool:
        """Return whether it is the candidate's first result; `tell` says that the proposer is to hear it."""
        key, before = result.candidate.key, self._results.get(result.candidate.key)
        self._results[key] = result
        if tell:
            self._unheard[key] = result
        return before is None

    def unheard(self) -> list[Observation]:
        """Return what the proposer has not heard, oldest first, and take it as heard."""
        news, self._unheard = list(self._unheard.values()), {}
        return news

    def opening(self) -> list[Observation]:
        """Return what a new proposer is opened with, fastest first. What was filtered has no row worth a replay, nor
        anything to teach a model: it is left for it to hear."""
        self._unheard = {key: result for key, result in self._results.items() if result.outcome is Outcome.FILTERED}
        history = [result for result in self._results.values() if result.outcome is not Outcome.FILTERED]
        # Rows are asked for the best and an even share of the rest: replaying all would take minutes.
        return sorted(history, key=lambda result: result.latency_s or math.inf)


def is_trial(candidate: Candidate) -> bool:
    """Whether it is a try of the search, and not the compiler's default."""
    return candidate.origin is not Origin.BASELINE


def tried(records: Sequence[Record], job_id: str) -> dict[str, Outcome]:
    return {
        record.candidate.key: record.measurement.outcome
        for record in records
        if record.job_id == job_id and is_trial(record.candidate) and record.measurement.mode is not Mode.FINAL
    }


_PROPOSER_TRIES = 3
NOTHING_RIGHT = "all of it was tried, and none is right"
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted
_FREE = Cost(0.0)
_REFUSED = 0.2  # what one counts for of which all that was new is not worth a build


@dataclass
class _Job:
    """A job that takes part: its weight, and how each candidate ended that is a trial of it, or was dropped."""

    weight: int
    tried: dict[str, Outcome]


@dataclass
class _Finals:
    """What finals have decided, and the state of the search when they were begun: its news, its best by races. `best`
    is the task's best verified record, which may be of a race."""

    best: Record | None = None
    stale: bool = True
    held: set[str] = field(default_factory=set)
    raced_s: float | None = None  # the best by races when the last finals were held
    news: int = 0
    begun: tuple[int, float | None] = (0, None)

    def add_news(self) -> None:
        self.stale = True
        self.news += 1

    def decided(self, challengers: Iterable[str]) -> bool:
        return self.best is not None and self.held.issuperset(challengers)

    @property
    def winner(self) -> Measurement | None:
        measured = self.best.measurement if self.best else None
        return measured if measured and measured.mode is Mode.FINAL else None

    def best_s(self, raced_s: float | None) -> float | None:
        held_s = self.winner.latency_s if self.winner else None
        if held_s is None or raced_s is None or not self.stale:
            return held_s or raced_s
        if self.raced_s is None:  # a delivery has held them, of what was never raced
            return min(held_s, raced_s)
        return held_s * min(raced_s / self.raced_s, 1.0)


class SearchState:
    """What is known of one task, and what follows from it. `hints` are candidates that imported records call fast,
    None until somebody looks them up; `generic_only_reason` says why a new proposer is given generic programs alone."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.progress = TaskProgress(task.key, 0, task.workload.flop)
        self.baseline_s: float | None = None
        self.problem = ""
        self.known = KnownCandidates()
        self.timings: Counter[bool] = Counter()  # by whether others disturbed them
        self.restored = False
        self.hints: Sequence[Candidate] | None = None
        self.generic_only_reason: str | None = None
        self._jobs: dict[str, _Job] = {}
        self._proposed: set[str] = set()
        self._failures, self._stale = 0, 0.0  # of the proposer in a row; proposals in a row without news
        self._finals = _Finals()
        self._builds, self._build_s = 0, 0.0

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def best(self) -> Record | None:
        return self._finals.best

    @property
    def finals_due(self) -> bool:
        return self._finals.stale

    def weight_of(self, job_id: str) -> int:
        return self._jobs[job_id].weight

    def outcomes(self, job_id: str) -> Counter[Outcome]:
        return Counter(self._jobs[job_id].tried.values())

    def taken(self) -> Set[str]:
        return self.known.keys() | self._proposed

    def fastest_s(self) -> float | None:
        return self.known.fastest_s()

    def helps(self, outcome: Outcome, latency_s: float | None) -> bool:
        return outcome is Outcome.OK and latency_s is not None and latency_s < (self.fastest_s() or math.inf)

    def raced_s(self) -> float | None:
        return _least(self.known.best_s(), self.baseline_s)

    @property
    def best_s(self) -> float | None:
        """The best latency known. Once finals were held it is what others would give: races may all be as lucky as
        those of that time."""
        return self._finals.best_s(self.raced_s())

    @property
    def had_finals(self) -> bool:
        return self._finals.winner is not None

    @property
    def nothing_right(self) -> bool:
        """Whether all that it has was tried, the untuned kernel included, and none of it was right."""
        return self.progress.exhausted and len(self.known) > 0 and self.best_s is None

    @property
    def untried(self) -> bool:
        """Whether it can be tuned, and no candidate of it was measured yet."""
        return self.task.tunable and not self.progress.exhausted and not any(self.progress.trials)

    @property
    def proven_s(self) -> float | None:
        """The latency of what would be delivered: of the best verified record, or of the compiler's default. Where all
        candidates were given up against the default there are no finals to be held."""
        if self._finals.winner is not None:
            return self._finals.winner.latency_s
        stays = not self.task.tunable or self.progress.exhausted or any(self.progress.trials)
        return self.baseline_s if stays and not self.known.any_ended else None

    def mean_build_s(self) -> float:
        return self._build_s / max(self._builds, 1)

    # -- jobs and records -----------------------------------------------------------------------------------------

    def join(self, job_id: str, weight: int, tried: Mapping[str, Outcome]) -> None:
        """Let a job take part that tried these candidates in an earlier run."""
        self._jobs[job_id] = _Job(weight, dict(tried))
        self.progress.weight += weight

    def leave(self, job_id: str) -> None:
        self.progress.weight -= self._jobs.pop(job_id).weight

    def restore(
        self,
        job_id: str,
        records: Iterable[Record],
        finalists: Iterable[str] = (),
        best: Record | None = None,
        cost: Cost = _FREE,
    ) -> None:
        """Take in the store's records of this task under the same conditions, oldest first; those of a delivery have no
        job. `finalists` are those that finals would be held of, `cost` what the trials took."""
        self.restored = True
        trials = set[str]()
        for record in records:
            candidate, result = record.candidate, record.measurement
            if record.job_id == job_id:
                self._count_timing(result)
            if not is_trial(candidate):
                self.baseline_s = result.latency_s or self.baseline_s
            if result.mode is Mode.FINAL:
                if record.job_id:  # those of a delivery were not held beside the baseline
                    self._finals.held.add(candidate.key)
                self._finals.raced_s = self.raced_s()  # oldest first: what comes later was raced since
                continue
            if result.outcome is Outcome.FILTERED and record.job_id != job_id:
                continue  # another job's model dropped it: this one's may think otherwise
            self.known.remember(Observation(candidate, result.outcome, result.latency_s))
            self._note_build(result)
            if is_trial(candidate) and result.outcome is not Outcome.FILTERED:
                trials.add(candidate.key)
        best_s = self.fastest_s()
        if trials and best_s is not None:
            self.progress.ended(best_s, len(trials), cost)
        self._finals.best = best
        self._finals.stale = not self._finals.decided(finalists)

    # -- proposals ------------------------------------------------------------------------------------------------

    def take_hints(self, size: int) -> tuple[Candidate, ...]:
        fresh = self._new(self.hints or ())
        build, self.hints = fresh[:size], fresh[size:]
        self._proposed.update(candidate.key for candidate in build)
        return build

    def propose(
        self, selected: Iterable[Candidate], dropped: Collection[str], fresh: int, *, empty: bool = False
    ) -> tuple[Candidate, ...]:
        """Take in what was selected of a proposal, `fresh` of whose candidates were worth a build, and return what is
        to be built of it; the proposal was `empty` if it had no candidate."""
        for job in self._jobs.values():
            job.tried.update((key, Outcome.FILTERED) for key in dropped)
        build = self._new(selected)
        self._failures = 0
        self._proposed.update(candidate.key for candidate in build)
        self._proposed.update(dropped)
        self._stale = 0 if fresh else self._stale + (_REFUSED if dropped else 1)
        self.progress.exhausted |= empty or self._stale >= _STALE_TRIES
        return build

    def proposer_failed(self, detail: str) -> bool:
        """Return whether the proposer is to be asked again."""
        self._failures += 1
        if self._failures >= _PROPOSER_TRIES:
            self.give_up(f"gave up: {detail}")
            return False
        if self._failures == _PROPOSER_TRIES - 1:
            self.generic_only_reason = f"its search failed twice: {detail}"[:200]
        return True

    def give_up(self, problem: str) -> None:
        self.progress.exhausted = True
        self.problem = problem[:200]

    def _new(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return those that are neither known nor on their way, each once."""
        taken = self.taken()
        return tuple({candidate.key: candidate for candidate in candidates if candidate.key not in taken}.values())

    # -- results --------------------------------------------------------------------------------------------------

    def serve(self, observations: Iterable[Observation]) -> None:
        """Take in what others have measured of candidates that were proposed here."""
        for observation in observations:
            self.known.served(observation)
            self._finals.add_news()

    def measure(
        self, job_id: str, candidate: Candidate, result: Measurement, open_to: Collection[str] = ()
    ) -> tuple[Sequence[str], bool]:
        """Take in a measurement that a job paid for, which counts for the jobs in `open_to` as well. Return of which
        jobs it is a new trial, and whether nothing was as fast before."""
        helped = self.helps(result.outcome, result.latency_s)
        self._count_timing(result)
        self._note_build(result)
        trial = is_trial(candidate)
        fresh = self.known.keep(Observation(candidate, result.outcome, result.latency_s), tell=trial)
        if not trial:
            return (), helped
        self._finals.add_news()
        counted = []
        key, outcome = candidate.key, result.outcome
        # Once for each job, as it ended last; of another job's, one that is not open is merely served.
        for other, job in self._jobs.items():
            if job.tried.get(key, Outcome.FILTERED) is not Outcome.FILTERED:
                job.tried[key] = outcome
            elif fresh and (other == job_id or other in open_to):
                job.tried[key] = outcome
                counted.append(other)
        return counted, helped

    def end_batch(self, keys: Collection[str], cost: Cost) -> None:
        """Take in that a batch ended: what was cut short with its job may come again for another one."""
        self._proposed.difference_update(key for key in keys if key not in self.known)
        self.progress.ended(self.fastest_s(), sum(key in self.known for key in keys), cost)

    # -- finals ---------------------------------------------------------------------------------------------------

    def begin_finals(self) -> None:
        """What is measured from here on is news after these finals."""
        self._finals.begun = self._finals.news, self.known.best_s()

    def finals_decide(self, challengers: Collection[str]) -> bool:
        if not challengers:
            return False  # nothing ran right: the compiler's default stays
        if self._finals.decided(challengers):
            self._finals.stale = self._finals.news != self._finals.begun[0]
            return False
        return True

    def end_finals(
        self, challengers: Iterable[str], results: Iterable[Measurement], baseline_s: float | None, best: Record | None
    ) -> None:
        finals = self._finals
        self.baseline_s = baseline_s
        for result in results:
            self._count_timing(result)
        finals.held.update(challengers)
        finals.best = best
        finals.raced_s = _least(finals.begun[1], baseline_s)
        finals.stale = finals.news != finals.begun[0]  # another job's batch may have ended meanwhile

    def _note_build(self, result: Measurement) -> None:
        self._builds += result.build_s > 0
        self._build_s += result.build_s

    def _count_timing(self, result: Measurement) -> None:
        if result.samples_s:
            self.timings[bool(result.context.get("contaminated"))] += 1


def _least(*latencies_s: float | None) -> float | None:
    return min((s for s in latencies_s if s), default=None)
