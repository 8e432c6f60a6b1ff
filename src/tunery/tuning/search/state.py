"""One task's search as a state machine: events in, decisions out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, KeysView, Sequence, Set
from dataclasses import dataclass, field

from tunery.domain import Candidate, Mode, Origin, Outcome, Task
from tunery.tuning.allocation.allocator import TaskProgress
from tunery.tuning.search import events as ev
from tunery.tuning.search.events import Best, Build, Counted, Decision, Event, LogEntry, Result, Tell
from tunery.tuning.search.known import KnownCandidates

_PROPOSER_TRIES = 3
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted
_REFUSED = 0.2  # what one counts for of which all that was new is not worth a build


@dataclass
class _Job:
    """A job that takes part: its weight, and how each candidate ended that is a trial of it, or was dropped."""

    weight: int
    tried: dict[str, Outcome]


@dataclass
class _Proposing:
    """How the proposals went: failures in a row, proposals in a row without news, hints still to be tried."""

    failures: int = 0
    stale: float = 0.0
    hints: tuple[Candidate, ...] | None = None
    proposed: set[str] = field(default_factory=set)
    generic_only_reason: str | None = None  # a search of more has crashed


@dataclass
class _Finals:
    """What finals have decided, and the state of the search when they were begun: its news, its best by races."""

    best: Best | None = None
    stale: bool = True
    held: set[str] = field(default_factory=set)
    raced_s: float | None = None  # the best by races when the last finals were held
    begun: tuple[int, float | None] = (0, None)

    def decided(self, challengers: Iterable[str]) -> bool:
        """Whether all of them have been in finals already."""
        return self.best is not None and self.held.issuperset(challengers)


class SearchState:
    """What is known of one task, and what follows from it; pure: no I/O, no clock, no random numbers.

    With `keep_log` every event is kept with its decision, for `replay`.
    """

    def __init__(self, task: Task, *, keep_log: bool = False) -> None:
        self.task = task
        self.progress = TaskProgress(task.key, 0, task.workload.flop)
        self.baseline_s: float | None = None
        self.problem = ""
        self.known = KnownCandidates()
        self.timings: Counter[bool] = Counter()  # by whether others disturbed them
        self.log: list[LogEntry] | None = [] if keep_log else None
        self._jobs: dict[str, _Job] = {}
        self._restored = False
        self._proposing, self._finals = _Proposing(), _Finals()
        self._builds, self._build_s = 0, 0.0
        self._news = 0

    def handle(self, event: Event) -> Decision | None:
        """Take in what happened, and return what is to be done now, if anything."""
        decision = self._take_in(event)
        if self.log is not None:
            self.log.append(LogEntry(event, decision))
        return decision

    @classmethod
    def replay(cls, task: Task, log: Sequence[LogEntry]) -> SearchState:
        """Run a recorded log again and return the search in its final state.

        Raises:
            AssertionError: an event led to another decision than recorded.
        """
        state = cls(task, keep_log=True)
        for number, entry in enumerate(log):
            decision = state.handle(entry.event)
            if decision != entry.decision:
                raise AssertionError(f"entry {number} of the log led to {decision}, recorded was {entry.decision}")
        return state

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        """Whether the store's records were taken in."""
        return self._restored

    @property
    def best(self) -> Best | None:
        """The best verified record."""
        return self._finals.best

    @property
    def generic_only_reason(self) -> str | None:
        """Why the proposer is to search generic programs only."""
        return self._proposing.generic_only_reason

    @property
    def finals_due(self) -> bool:
        """Whether anything was measured since the last finals that they were not held of."""
        return self._finals.stale

    def job_ids(self) -> KeysView[str]:
        """Return the jobs that take part."""
        return self._jobs.keys()

    def weight_of(self, job_id: str) -> int:
        """Return how often the task occurs in a job's network."""
        return self._jobs[job_id].weight

    def outcomes(self, job_id: str) -> Counter[Outcome]:
        """Return how the candidates of a job that takes part ended."""
        return Counter(self._jobs[job_id].tried.values())

    def taken(self) -> Set[str]:
        """Return the keys of the candidates that are known or on their way."""
        return self.known.keys() | self._proposing.proposed

    def fastest_s(self) -> float | None:
        """Return the latency to beat."""
        return self.known.fastest_s()

    def raced_s(self) -> float | None:
        """Return the best latency by races, the compiler's default included."""
        return _least(self.known.best_s(), self.baseline_s)

    @property
    def best_s(self) -> float | None:
        """The best latency known. Once finals were held it is what others would give: races may all be as lucky as
        those of that time."""
        raced_s, final = self.raced_s(), self._finals
        held_s = final.best.latency_s if final.best else None
        if held_s is None or raced_s is None or final.raced_s is None or not final.stale:
            return held_s or raced_s
        return held_s * min(raced_s / final.raced_s, 1.0)

    @property
    def untried(self) -> bool:
        """Whether it can be tuned, and no candidate of it was measured yet."""
        return self.task.tunable and not self.progress.exhausted and not any(self.progress.trials)

    @property
    def proven_s(self) -> float | None:
        """The latency of what would be delivered: of the best verified record, or of the compiler's default.

        Where all candidates were given up against the default there are no finals to be held.
        """
        if self._finals.best is not None and self._finals.best.final:
            return self._finals.best.latency_s
        stays = not self.task.tunable or self.progress.exhausted or any(self.progress.trials)
        return self.baseline_s if stays and not self.known.any_ended else None

    def mean_build_s(self) -> float:
        """Return the mean seconds of a build; 0 before the first."""
        return self._build_s / max(self._builds, 1)

    def validate_state(self) -> None:
        """Check every invariant of the state.

        Raises:
            AssertionError: one does not hold.
        """
        proposing, progress = self._proposing, self.progress
        weight = sum(job.weight for job in self._jobs.values())
        checks = {
            "the task's weight is not that of its jobs": progress.weight == weight,
            "batches have no trials or no cost": len(progress.best_s) == len(progress.trials) == len(progress.costs),
            "a search goes on whose proposer failed too often": proposing.failures < _PROPOSER_TRIES
            or progress.exhausted,
            "a search goes on that finds nothing new": proposing.stale < _STALE_TRIES or progress.exhausted,
            "a proposer that failed twice is given all programs": proposing.failures < _PROPOSER_TRIES - 1
            or proposing.generic_only_reason is not None,
            "a task with a problem is searched": not self.problem or progress.exhausted,
            "a build took time and none was made": self._builds > 0 or self._build_s <= 0.0,
            "finals began after the last news": self._finals.begun[0] <= self._news,
            "something waits to be told that is not known": self.known.consistent(),
        }
        for problem, holds in checks.items():
            if not holds:
                raise AssertionError(f"task {self.task.key}: {problem}")

    # -- events ---------------------------------------------------------------------------------------------------

    def _take_in(self, event: Event) -> Decision | None:  # noqa: C901, PLR0911, PLR0912 - one case for each event
        match event:
            case ev.Joined():
                self._jobs[event.job_id] = _Job(event.weight, dict(event.tried))
                self.progress.weight += event.weight
            case ev.Left():
                self.progress.weight -= self._jobs.pop(event.job_id).weight
            case ev.Restored():
                self._restore(event)
            case ev.BatchAsked():
                return self._ask(event.size)
            case ev.HintsFound():
                self._proposing.hints = event.candidates
            case ev.ProposerOpening():
                return Tell(tuple(self.known.opening()))
            case ev.NewsAsked():
                return Tell(tuple(self.known.unheard()))
            case ev.Proposed():
                return self._proposed(event)
            case ev.ProposerFailed():
                return self._failed(event.detail)
            case ev.Served():
                self._serve(event)
            case ev.Measured():
                return self._measured(event)
            case ev.BaselineTimed():
                self.baseline_s = event.latency_s
            case ev.BatchEnded():
                self._batch_ended(event)
            case ev.LeftOut():
                self._give_up(f"left out: {event.reason}")
            case ev.FinalsBegun():
                self._finals.begun = self._news, self.known.best_s()
            case ev.FinalsAsked():
                return self._ask_finals(event.challengers)
            case ev.FinalsHeld():
                self._finals_held(event)
        return None

    def _restore(self, event: ev.Restored) -> None:
        self._restored = True
        trials = set[str]()
        for job_id, result in event.results:
            if job_id == event.job_id:
                self._count_timing(result)
            if result.candidate.origin is Origin.BASELINE:
                self.baseline_s = result.latency_s or self.baseline_s
            if result.mode is Mode.FINAL:
                if job_id:  # those of a delivery were not held beside the baseline
                    self._finals.held.add(result.candidate.key)
                self._finals.raced_s = self.raced_s()  # oldest first: what comes later was raced since
                continue
            if result.outcome is Outcome.FILTERED and job_id != event.job_id:
                continue  # another job's model dropped it: this one's may think otherwise
            self.known.remember(result.told)
            self._note_build(result)
            if result.trial and result.outcome is not Outcome.FILTERED:
                trials.add(result.candidate.key)
        best_s = self.fastest_s()
        if trials and best_s is not None:
            self.progress.ended(best_s, len(trials), event.cost)
        self._finals.best = event.best
        self._finals.stale = not self._finals.decided(event.finalists)

    def _ask(self, size: int) -> Decision:
        proposing = self._proposing
        if proposing.hints is None:
            proposing.hints = ()  # another batch of the task goes on meanwhile
            return ev.FetchHints()
        fresh = self._new(proposing.hints)
        build, proposing.hints = fresh[:size], fresh[size:]
        if not build:
            return ev.AskProposer()
        proposing.proposed.update(one.key for one in build)
        return Build(build)

    def _proposed(self, event: ev.Proposed) -> Build:
        proposing, build = self._proposing, self._new(event.build)
        proposing.failures = 0
        proposing.proposed.update(one.key for one in build)
        proposing.proposed.update(event.dropped)
        for job in self._jobs.values():
            job.tried.update((key, Outcome.FILTERED) for key in event.dropped)
        proposing.stale = 0 if event.fresh else proposing.stale + (_REFUSED if event.dropped else 1)
        if event.empty or proposing.stale >= _STALE_TRIES:
            self.progress.exhausted = True
        return Build(build)

    def _failed(self, detail: str) -> Decision:
        proposing = self._proposing
        proposing.failures += 1
        if proposing.failures >= _PROPOSER_TRIES:
            self._give_up(f"gave up: {detail}")
            return Build(())
        if proposing.failures == _PROPOSER_TRIES - 1:
            proposing.generic_only_reason = f"its search failed twice: {detail}"[:200]
        return ev.AskProposer()

    def _new(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return those that are neither known nor on their way, each once."""
        known, proposed = self.known, self._proposing.proposed
        fresh = {one.key: one for one in candidates if one.key not in known and one.key not in proposed}
        return tuple(fresh.values())

    def _give_up(self, problem: str) -> None:
        self.progress.exhausted = True
        self.problem = problem[:200]

    def _serve(self, event: ev.Served) -> None:
        for told in event.results:
            self.known.served(told)
            self._finals.stale = True
            self._news += 1

    def _measured(self, event: ev.Measured) -> Counted:
        result = event.result
        told, best_s = result.told, self.fastest_s() or math.inf
        self._count_timing(result)
        self._note_build(result)
        fresh = self.known.keep(told, tell=result.trial)
        helped = told.outcome is Outcome.OK and told.latency_s is not None and told.latency_s < best_s
        if not result.trial:
            return Counted((), helped)
        self._finals.stale = True
        self._news += 1
        return Counted(tuple(self._count_trial(event, fresh=fresh)), helped)

    def _count_trial(self, event: ev.Measured, *, fresh: bool) -> Iterable[str]:
        """Count a candidate once for each job, as it ended last; another job's only where that job is open to it.

        What is beyond that a job is merely served: it learns from it and may deliver it.
        """
        key, outcome = event.result.candidate.key, event.result.outcome
        counted = []
        for job_id, job in self._jobs.items():
            if job.tried.get(key, Outcome.FILTERED) is not Outcome.FILTERED:
                job.tried[key] = outcome
            elif fresh and (job_id == event.job_id or job_id in event.open_to):
                job.tried[key] = outcome
                counted.append(job_id)
        return counted

    def _batch_ended(self, event: ev.BatchEnded) -> None:
        # Those that were cut short with their job may come again for another one.
        self._proposing.proposed.difference_update(key for key in event.keys if key not in self.known)
        count = sum(key in self.known for key in event.keys)
        self.progress.ended(self.fastest_s(), count, event.cost)

    def _ask_finals(self, challengers: Sequence[str]) -> ev.HoldFinals | None:
        if not challengers:
            return None  # nothing ran right: the compiler's default stays
        if self._finals.decided(challengers):
            self._finals.stale = self._news != self._finals.begun[0]
            return None
        return ev.HoldFinals()

    def _finals_held(self, event: ev.FinalsHeld) -> None:
        finals, (news, raced_s) = self._finals, self._finals.begun
        self.baseline_s = event.baseline_s
        self.timings.update(event.contaminated)
        finals.held.update(event.challengers)
        finals.best = event.best
        finals.raced_s = _least(raced_s, event.baseline_s)
        finals.stale = self._news != news  # another job's batch may have ended meanwhile

    def _note_build(self, result: Result) -> None:
        self._builds += result.build_s > 0
        self._build_s += result.build_s

    def _count_timing(self, result: Result) -> None:
        if result.timed:
            self.timings[result.contaminated] += 1


def _least(*latencies_s: float | None) -> float | None:
    return min((s for s in latencies_s if s), default=None)
