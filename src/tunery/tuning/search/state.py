"""One task's search as a state machine: events in, decisions out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from tunery.domain import Candidate, Mode, Origin, Outcome, Task
from tunery.tuning.allocation.allocator import TaskProgress
from tunery.tuning.search import events as ev
from tunery.tuning.search.events import Best, Build, CandidateResult, Counted, Decision, Event, SearchStep, Tell
from tunery.tuning.search.known import KnownCandidates

_PROPOSER_TRIES = 3
NOTHING_RIGHT = "all of it was tried, and none is right"
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted
_REFUSED = 0.2  # what one counts for of which all that was new is not worth a build


@dataclass
class _Job:
    """A job that takes part: its weight, and how each candidate ended that is a trial of it, or was dropped."""

    weight: int
    tried: dict[str, Outcome]


@dataclass
class _Proposals:
    """How the proposals went: failures in a row, proposals in a row without news, hints still to be tried."""

    known: KnownCandidates
    failures: int = 0
    stale: float = 0.0
    hints: tuple[Candidate, ...] | None = None
    proposed: set[str] = field(default_factory=set)
    generic_only_reason: str | None = None  # a search of more has crashed

    @property
    def over(self) -> bool:
        return self.failures >= _PROPOSER_TRIES or self.stale >= _STALE_TRIES

    def ask(self, size: int) -> Decision:
        """Return where the next candidates come from: of hints, once they are looked up, or of the proposer."""
        if self.hints is None:
            self.hints = ()  # another batch of the task goes on meanwhile
            return ev.FetchHints()
        fresh = self._new(self.hints)
        build, self.hints = fresh[:size], fresh[size:]
        self.proposed.update(one.key for one in build)
        return Build(build) if build else ev.AskProposer()

    def take(self, event: ev.Proposed) -> Build:
        build = self._new(event.build)
        self.failures = 0
        self.proposed.update(one.key for one in build)
        self.proposed.update(event.dropped)
        self.stale = 0 if event.fresh else self.stale + (_REFUSED if event.dropped else 1)
        return Build(build)

    def fail(self, detail: str) -> Decision:
        self.failures += 1
        if self.failures >= _PROPOSER_TRIES:
            return Build(())
        if self.failures == _PROPOSER_TRIES - 1:
            self.generic_only_reason = f"its search failed twice: {detail}"[:200]
        return ev.AskProposer()

    def end(self, keys: Iterable[str]) -> None:
        """Take in that a batch ended: those that were cut short with their job may come again for another one."""
        self.proposed.difference_update(key for key in keys if key not in self.known)

    def _new(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        fresh = {one.key: one for one in candidates if one.key not in self.known and one.key not in self.proposed}
        return tuple(fresh.values())


@dataclass
class _Finals:
    """What finals have decided, and the state of the search when they were begun: its news, its best by races."""

    best: Best | None = None
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

    def ask(self, challengers: Sequence[str]) -> ev.HoldFinals | None:
        if not challengers:
            return None  # nothing ran right: the compiler's default stays
        if self.decided(challengers):
            self.stale = self.news != self.begun[0]
            return None
        return ev.HoldFinals()

    def end(self, event: ev.FinalsHeld) -> None:
        news, raced_s = self.begun
        self.held.update(event.challengers)
        self.best = event.best
        self.raced_s = _least(raced_s, event.baseline_s)
        self.stale = self.news != news  # another job's batch may have ended meanwhile

    def best_s(self, raced_s: float | None) -> float | None:
        held_s = self.best.latency_s if self.best and self.best.final else None
        if held_s is None or raced_s is None or not self.stale:
            return held_s or raced_s
        if self.raced_s is None:  # a delivery has held them, of what was never raced
            return min(held_s, raced_s)
        return held_s * min(raced_s / self.raced_s, 1.0)


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
        self.log: list[SearchStep] | None = [] if keep_log else None
        self._jobs: dict[str, _Job] = {}
        self._restored = False
        self._proposals, self._finals = _Proposals(self.known), _Finals()
        self._builds, self._build_s = 0, 0.0

    def handle(self, event: Event) -> Decision | None:
        decision = self._take_in(event)
        if self.log is not None:
            self.log.append(SearchStep(event, decision))
        return decision

    @classmethod
    def replay(cls, task: Task, log: Sequence[SearchStep]) -> SearchState:
        state = cls(task, keep_log=True)
        for number, entry in enumerate(log):
            decision = state.handle(entry.event)
            if decision != entry.decision:
                raise AssertionError(f"entry {number} of the log led to {decision}, recorded was {entry.decision}")
        return state

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        return self._restored

    @property
    def best(self) -> Best | None:
        return self._finals.best

    @property
    def generic_only_reason(self) -> str | None:
        return self._proposals.generic_only_reason

    @property
    def finals_due(self) -> bool:
        return self._finals.stale

    def weight_of(self, job_id: str) -> int:
        return self._jobs[job_id].weight

    def outcomes(self, job_id: str) -> Counter[Outcome]:
        return Counter(self._jobs[job_id].tried.values())

    def taken(self) -> Set[str]:
        return self.known.keys() | self._proposals.proposed

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
        return self._finals.best is not None and self._finals.best.final

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
        if self._finals.best is not None and self._finals.best.final:
            return self._finals.best.latency_s
        stays = not self.task.tunable or self.progress.exhausted or any(self.progress.trials)
        return self.baseline_s if stays and not self.known.any_ended else None

    def mean_build_s(self) -> float:
        return self._build_s / max(self._builds, 1)

    def validate_state(self) -> None:
        proposals, progress = self._proposals, self.progress
        weight = sum(job.weight for job in self._jobs.values())
        checks = {
            "the task's weight is not that of its jobs": progress.weight == weight,
            "batches have no trials or no cost": len(progress.best_s) == len(progress.trials) == len(progress.costs),
            "a search goes on that has nothing more to try": progress.exhausted or not proposals.over,
            "a proposer that failed twice is given all programs": proposals.failures < _PROPOSER_TRIES - 1
            or proposals.generic_only_reason is not None,
            "a task with a problem is searched": not self.problem or progress.exhausted,
            "a build took time and none was made": self._builds > 0 or self._build_s <= 0.0,
            "finals began after the last news": self._finals.begun[0] <= self._finals.news,
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
                return self._proposals.ask(event.size)
            case ev.HintsFound():
                self._proposals.hints = event.candidates
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
            case ev.CandidateMeasured():
                return self._measured(event)
            case ev.BaselineTimed():
                self.baseline_s = event.latency_s
            case ev.BatchEnded():
                self._batch_ended(event)
            case ev.LeftOut():
                self._give_up(f"left out: {event.reason}")
            case ev.FinalsBegun():
                self._finals.begun = self._finals.news, self.known.best_s()
            case ev.FinalsAsked():
                return self._finals.ask(event.challengers)
            case ev.FinalsHeld():
                self.baseline_s = event.baseline_s
                self.timings.update(event.contaminated)
                self._finals.end(event)
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

    def _proposed(self, event: ev.Proposed) -> Build:
        for job in self._jobs.values():
            job.tried.update((key, Outcome.FILTERED) for key in event.dropped)
        build = self._proposals.take(event)
        self.progress.exhausted |= event.empty or self._proposals.over
        return build

    def _failed(self, detail: str) -> Decision:
        decision = self._proposals.fail(detail)
        if isinstance(decision, Build):
            self._give_up(f"gave up: {detail}")
        return decision

    def _give_up(self, problem: str) -> None:
        self.progress.exhausted = True
        self.problem = problem[:200]

    def _serve(self, event: ev.Served) -> None:
        for told in event.results:
            self.known.served(told)
            self._finals.add_news()

    def _measured(self, event: ev.CandidateMeasured) -> Counted:
        result = event.result
        told = result.told
        helped = self.helps(told.outcome, told.latency_s)
        self._count_timing(result)
        self._note_build(result)
        fresh = self.known.keep(told, tell=result.trial)
        if not result.trial:
            return Counted((), helped)
        self._finals.add_news()
        return Counted(tuple(self._count_trial(event, fresh=fresh)), helped)

    def _count_trial(self, event: ev.CandidateMeasured, *, fresh: bool) -> Iterable[str]:
        """Count a candidate once for each job, as it ended last; another job's only where that job is open to it. What
        is beyond that a job is merely served: it learns from it and may deliver it."""
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
        self._proposals.end(event.keys)
        count = sum(key in self.known for key in event.keys)
        self.progress.ended(self.fastest_s(), count, event.cost)

    def _note_build(self, result: CandidateResult) -> None:
        self._builds += result.build_s > 0
        self._build_s += result.build_s

    def _count_timing(self, result: CandidateResult) -> None:
        if result.timed:
            self.timings[result.contaminated] += 1


def _least(*latencies_s: float | None) -> float | None:
    return min((s for s in latencies_s if s), default=None)
