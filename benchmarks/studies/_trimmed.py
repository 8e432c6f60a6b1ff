"""One run of one arm of the trimming study, what it used on the way to which latency, and how arms compare."""

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from studies._judged import Way, ways
from tunery.domain import Budget, JobStatus, Spend
from tunery.domain.request import NO_TRIMMING, Progress, Request, Trimming
from tunery.service.session import tune
from tunery.store import Charge, open_store
from tunery.tuning.allocation.trimming import Audit


@dataclass(frozen=True, slots=True)
class TasksAudit(Audit):
    """A filter's errors in `tasks` tasks."""

    tasks: int = 0

    def __add__(self, other: "TasksAudit") -> "TasksAudit":
        return TasksAudit(
            self.dropped + other.dropped, self.audited + other.audited, self.winners + other.winners,
            self.tasks + other.tasks,
        )  # fmt: skip

    @property
    def rate(self) -> float | None:
        """A task has one winner, so this falls with the number of candidates whatever the filter knows: `lost` does
        not."""
        return self.winners / self.audited if self.audited else None

    @property
    def lost(self) -> float | None:
        """A dropped winner is seen only if it is audited, so each counts for as many as were dropped for one
        audited."""
        if not self.audited or not self.tasks:
            return None
        return min(self.winners * self.dropped / self.audited / self.tasks, 1.0)

    def lost_interval(self) -> tuple[float, float]:
        if not self.audited or not self.tasks:
            return 0.0, 1.0
        low, high = Audit(self.dropped, self.tasks, self.winners).interval()
        return min(low * self.dropped / self.audited, 1.0), min(high * self.dropped / self.audited, 1.0)


WITHIN = 1.01
"""Quality counts as equal within 1 % of the untrimmed run's last sum of task latencies."""
ENOUGH = 0.5
"""Of the untrimmed run's time the other arms may use: what needs more is not worth waiting for."""
ARMS: Mapping[str, Trimming] = {
    "untrimmed": NO_TRIMMING,
    "filter": replace(NO_TRIMMING, filter=True),
    "abandonment": replace(NO_TRIMMING, abandon=True),
    "allocation": replace(NO_TRIMMING, allocate=True),
    "all": Trimming(),
}
KINDS = ("wall_s", "core_s", "joules", "money")
STAGES = ("propose", "build", "measure")


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run stood: what it had used, and the network's latency (a sum over tasks; None while one is missing)."""

    wall_s: float
    core_s: float
    joules: float
    money: float
    trials: int
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one arm. `final_s` is the network's latency by its finals; once it was judged, by winners in turns.

    The curve is of the search: what finals took is in `whole` only, the run's end with all that it used but the import.
    `in_vain` is by stage what candidates took and the shares of those that did not help; `stages` are all core-seconds.
    `modelled` says that no meter counted the joules. `ways` are its tasks', `import_s` is the
    time before the first point of the curve.
    """

    network: str
    seed: int
    arm: str
    curve: tuple[Point, ...]
    final_s: float | None
    trials: int
    audit: TasksAudit
    whole: Point
    modelled: bool = True
    in_vain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()
    import_s: float = 0.0

    @property
    def enough_s(self) -> float:
        """The time that the other arms may take, with that of the import."""
        return ENOUGH * self.whole.wall_s + self.import_s

    @property
    def unproven(self) -> int:
        """How many tasks end with what only races held: no time was left for their finals."""
        return sum(bool(way.winner) and not way.proven for way in self.ways)

    def spend_to(self, goal_s: float) -> Point | None:
        """Return what the search had used when it first was as fast as that, None if it never was."""
        found = (p for p in self.curve if p.latency_s is not None and p.latency_s <= goal_s * (1 + 1e-9))
        return next(found, None)

    def after(self, core_s: float) -> float | None:
        """Return the network's latency after so many core-seconds of search, None while there was none."""
        return next((p.latency_s for p in reversed(self.curve) if p.core_s <= core_s), None)

    def ended_at(self, point: Point) -> Point:
        """Return what the run would have used had its search ended there: its finals come on top."""
        left = _minus(self.whole, self.curve[-1])
        return replace(point, **{kind: getattr(point, kind) + getattr(left, kind) for kind in KINDS})

    def judged(self, worth: Mapping[str, float]) -> "Run":
        """Return this run with each task's latencies by what its winner is worth (seconds by task key)."""
        factors = {way.task_key: worth[way.task_key] / way.final_s for way in self.ways if way.task_key in worth}

        def latency_s(trials: int) -> float | None:
            total = sum(way.weight * way.at(trials) * factors.get(way.task_key, 1.0) for way in self.ways)
            return total if math.isfinite(total) else None

        curve = tuple(replace(point, latency_s=latency_s(point.trials)) for point in self.curve)
        return replace(self, curve=curve, final_s=latency_s(self.trials))


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as plain data, which `run_of` turns back."""
    return asdict(run)


def run_of(data: Mapping[str, Any]) -> Run:
    """Return the run that `plain_run` was given."""
    points = tuple(Point(**point) for point in data["curve"])
    found = tuple(Way(**{**way, "steps": tuple(tuple(step) for step in way["steps"])}) for way in data["ways"])
    parts = {"curve": points, "audit": TasksAudit(**data["audit"]), "whole": Point(**data["whole"]), "ways": found}
    return Run(**{**data, **parts})


def tuned(request: Request, arm: str, trials: int, seconds: float | None = None) -> Run:
    """Tune from an empty store, until the trials or the time are used up.

    The import is in nobody's curve, for it is the same for all.
    """
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        place = str(Path(folder, "store.db"))
        seen: list[tuple[str, Point]] = []

        def note(progress: Progress) -> None:
            if progress.spend is not None and progress.phase in ("baseline", "search", "finals"):
                seen.append((progress.phase, _point(progress.spend, progress.trials, progress.best_s)))

        budget = Budget(seconds=seconds, trials=trials)
        report = tune(replace(request, store=place, budget=budget, trimming=ARMS[arm]), note)
        with open_store(place) as store:
            charges, records = store.ledger(report.job.job_id), store.records()
        best = {state.task_key: state.best_candidate for state in report.job.tasks}
        spend = report.job.spend
        whole = _point(spend, spend.trials, report.after_s)
        return Run(
            report.network.name, request.seed, arm, of_search(seen), report.after_s, spend.trials,
            _audit(report.job), _minus(whole, seen[0][1]) if seen else whole, spend.modelled, _in_vain(charges),
            _stages(charges), ways(report.tasks, records, best), seen[0][1].wall_s if seen else 0.0,
        )  # fmt: skip


def _point(spend: Spend, trials: int, latency_s: float | None) -> Point:
    return Point(spend.wall_s, spend.core_s, spend.joules or 0.0, spend.money or 0.0, trials, latency_s)


def _minus(point: Point, other: Point) -> Point:
    return replace(point, **{kind: getattr(point, kind) - getattr(other, kind) for kind in KINDS})


def of_search(seen: Sequence[tuple[str, Point]]) -> tuple[Point, ...]:
    """Return the points of a run's search by phase and point: what it had used since the first, but in finals.

    The first point of finals still is the search's: up to there it had batches on their way.
    """
    points: list[Point] = []
    before, was = None, ""
    for phase, point in seen:
        if phase != "finals" or was != "finals":
            used = _minus(point, before if before and was != "finals" else point)
            last = points[-1] if points else used
            points.append(replace(point, **{kind: getattr(last, kind) + getattr(used, kind) for kind in KINDS}))
        before, was = point, phase
    return tuple(points)


def _audit(job: JobStatus) -> TasksAudit:
    """Return what is known of the filter over all tasks in which it dropped something and something ran."""
    tasks = [task for task in job.tasks if task.dropped and task.best_candidate]
    return TasksAudit(
        sum(task.dropped for task in tasks), sum(task.audited for task in tasks),
        sum(task.false_drops for task in tasks), len(tasks),
    )  # fmt: skip


def _stages(charges: Sequence[Charge]) -> dict[str, float]:
    found: dict[str, float] = {}
    for charge in charges:
        if charge.core_s:
            found[charge.stage] = found.get(charge.stage, 0.0) + charge.core_s
    return found


def _in_vain(charges: Sequence[Charge]) -> dict[str, dict[str, float]]:
    """Return, by stage, worker seconds, core-seconds and joules, and the shares of candidates that did not help.

    A proposal is shared out evenly: it is made before its candidates are known.
    """
    tried = sum(c.count for c in charges if c.stage == "measure")
    vain = 1 - sum(c.count for c in charges if c.stage == "measure" and c.helped) / tried if tried else 0.0
    found: dict[str, dict[str, float]] = {}
    for stage in STAGES:
        mine = [c for c in charges if c.stage == stage and (c.outcome or stage == "propose")]
        found[stage] = {}
        for kind in ("wall_s", "core_s", "joules"):
            whole = sum(float(getattr(c, kind) or 0.0) for c in mine)
            lost = sum(float(getattr(c, kind) or 0.0) for c in mine if not c.helped)
            found[stage][kind] = whole
            found[stage][f"{kind}_in_vain"] = vain if stage == "propose" else (lost / whole if whole else 0.0)
    return found


@dataclass(frozen=True, slots=True)
class Saving:
    """What an arm used to reach equal quality: a ratio for each run, infinite for one that did not get there.

    All is in hindsight. `ratios` are the searches' alone, over what the untrimmed one had used when it first was that
    good; `of_whole` are with the run's finals, over the whole untrimmed run: its own say what
    hindsight alone saves. `quality` is how slow the networks are in the end, over the untrimmed runs', and
    `beside` over what these had for the same core-seconds of search.
    """

    arm: str
    ratios: Mapping[str, tuple[float, ...]]
    of_whole: Mapping[str, tuple[float, ...]]
    quality: tuple[float, ...]
    beside: tuple[float, ...]
    reached: int
    runs: int

    def saved(self, kind: str) -> float | None:
        """Return the median share that was saved, None where half of the runs or more did not get there."""
        return _saved(self.ratios[kind])

    def saved_of_whole(self, kind: str) -> float | None:
        """Return the median share of the whole untrimmed runs' spend that was saved, None as for `saved`."""
        return _saved(self.of_whole[kind])


def _saved(ratios: Sequence[float]) -> float | None:
    middle = statistics.median(ratios) if ratios else math.inf
    return None if math.isinf(middle) else 1 - middle


def savings(runs: Sequence[Run]) -> list[Saving]:
    """Compare every arm with the untrimmed run of the same network and seed."""
    plain = {(run.network, run.seed): run for run in runs if run.arm == "untrimmed"}
    found = []
    for arm in ARMS:
        ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
        of_whole: dict[str, list[float]] = {kind: [] for kind in KINDS}
        mine = [run for run in runs if run.arm == arm]
        reached, quality, beside = 0, [], []
        for one in mine:
            base = plain[one.network, one.seed]
            goal_s = (base.final_s or 0.0) * WITHIN
            then, there = base.spend_to(goal_s), one.spend_to(goal_s)
            reached += there is not None
            quality.append((one.final_s or math.inf) / base.final_s if base.final_s else math.nan)
            then_s = base.after(one.curve[-1].core_s) if one.curve else None
            beside += [(one.final_s or math.inf) / then_s] if then_s else []
            ended = one.ended_at(there) if there else None
            for kind in KINDS:
                for sums, used, point in ((ratios, there, then), (of_whole, ended, base.whole)):
                    if point is None or getattr(point, kind) <= 0:
                        continue
                    sums[kind].append(getattr(used, kind) / getattr(point, kind) if used else math.inf)
        found.append(Saving(arm, _frozen(ratios), _frozen(of_whole), tuple(quality), tuple(beside), reached, len(mine)))
    return found


def _frozen(sums: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {kind: tuple(values) for kind, values in sums.items()}
