"""One run of one arm of the trimming study, what it used on the way to which latency, and how arms compare."""

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tunery._errors import WorkError
from tunery.budgets import NONE, Audit, Trimming
from tunery.domain import Budget, JobStatus, Spend
from tunery.jobs import Progress, Request, bench, compile_model, tune
from tunery.store import Charge, open_store

WITHIN = 1.01
"""Quality counts as equal within 1 % of the untrimmed run's last sum of task latencies."""
ARMS: Mapping[str, Trimming] = {
    "untrimmed": NONE,
    "filter": replace(NONE, filter=True),
    "abandonment": replace(NONE, abandon=True),
    "allocation": replace(NONE, allocate=True),
    "all": Trimming(),
}
KINDS = ("wall_s", "core_s", "joules", "money")
STAGES = ("propose", "build", "measure")
_BENCH_S = 5.0


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
    """One run of one arm. `last_s` is the curve's end, `final_s` by the finals.

    The curve is of the search: what finals took is in `whole` only, the run's end with all that it used but the import.
    `in_vain` is by stage what candidates took and the shares of those that did not help; `stages` are all core-seconds.
    `modelled` says that no meter counted the joules. `networks_s` are medians of compiled networks timed in turns: this
    run's, the untrimmed run's and ONNX Runtime's; empty where they were not.
    """

    network: str
    seed: int
    arm: str
    curve: tuple[Point, ...]
    last_s: float | None
    final_s: float | None
    trials: int
    audit: Audit
    whole: Point
    modelled: bool = True
    in_vain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    networks_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def promise(self) -> float:
        """How far the finals are above what the races promised: races with few samples are lucky more often."""
        return self.final_s / self.last_s if self.final_s and self.last_s else 1.0

    @property
    def reached_s(self) -> float | None:
        """The latency in the end, by the finals where they were held."""
        return self.final_s or self.last_s

    def spend_to(self, goal_s: float) -> Point | None:
        """Return where a run without a goal first was as fast as that, by what its finals made of its races."""
        found = (p for p in self.curve if p.latency_s is not None and p.latency_s * self.promise <= goal_s * (1 + 1e-9))
        return next(found, None)

    def holds(self, goal_s: float) -> bool:
        """Whether the run ended as fast as that, by its finals."""
        return self.final_s is not None and self.final_s <= goal_s * (1 + 1e-9)


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as plain data, which `run_of` turns back."""
    return asdict(run)


def run_of(data: Mapping[str, Any]) -> Run:
    """Return the run that `plain_run` was given."""
    points = tuple(Point(**point) for point in data["curve"])
    whole = Point(**data["whole"])
    return Run(**{**data, "curve": points, "audit": Audit(**data["audit"]), "whole": whole})


def tuned(request: Request, arm: str, trials: int, goal_s: float | None = None, compiled: Path | None = None) -> Run:
    """Tune from an empty store, until finals hold `goal_s` or the trials are used up.

    The import is in nobody's curve, for it is the same for all. The network is `compiled` to that file, which is in no
    curve either; it is not there where the model has none, or does not compile.
    """
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        place = str(Path(folder, "store.db"))
        seen: list[tuple[str, Point]] = []

        def note(progress: Progress) -> None:
            if progress.spend is not None and progress.phase in ("baseline", "search", "finals"):
                seen.append((progress.phase, _point(progress.spend, progress.trials, progress.best_s)))

        budget = Budget(trials=trials)
        report = tune(
            replace(request, store=place, budget=budget, trimming=ARMS[arm], latency_target_s=goal_s), note
        )  # fmt: skip
        if compiled is not None and report.network.path:
            with suppress(WorkError):
                compile_model(replace(request, store=place), compiled)
        with open_store(place) as store:
            charges = store.ledger(report.job.job_id)
        curve = of_search(seen)
        known = [point.latency_s for point in curve if point.latency_s is not None]
        spend = report.job.spend
        whole = _point(spend, spend.trials, report.after_s)
        return Run(
            report.network.name, request.seed, arm, curve, known[-1] if known else None, report.after_s, spend.trials,
            _audit(report.job), _minus(whole, seen[0][1]) if seen else whole, spend.modelled, _in_vain(charges),
            _stages(charges),
        )  # fmt: skip


def in_turns(request: Request, files: Mapping[str, Path]) -> dict[str, float]:
    """Return the median seconds of compiled networks by arm, and ONNX Runtime's, timed in turns; {} if one is missing.

    What a machine's state does to finals that are minutes apart, it does to all of these.
    """
    if not all(file.exists() for file in files.values()):
        return {}
    (first, compiled), *others = files.items()
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        found = bench(
            replace(request, store=str(Path(folder, "store.db"))), ("onnxruntime",), _BENCH_S, compiled,
            others=dict(others),
        )  # fmt: skip
    return {first if label == "tunery" else label: spread.median for label, spread in found.latency_s.items()}


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


def _audit(job: JobStatus) -> Audit:
    """Return what is known of the filter over all tasks in which it dropped something and something ran."""
    tasks = [task for task in job.tasks if task.dropped and task.best_candidate]
    return Audit(
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
    """What an arm used to reach equal quality: a ratio for each run, infinite for one whose finals did not hold it.

    `ratios` are the searches', over what the untrimmed one had used when it first was that good, which only hindsight
    tells; `of_whole` those of the whole runs, finals included.
    """

    arm: str
    ratios: Mapping[str, tuple[float, ...]]
    of_whole: Mapping[str, tuple[float, ...]]
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
        reached = 0
        for one in mine:
            base = plain[one.network, one.seed]
            goal_s = (base.reached_s or 0.0) * WITHIN
            then = base.spend_to(goal_s)
            there = then if one is base else one.curve[-1] if one.holds(goal_s) and one.curve else None
            reached += there is not None
            for kind in KINDS:
                for sums, used, point in ((ratios, there, then), (of_whole, there and one.whole, base.whole)):
                    if point is None or getattr(point, kind) <= 0:
                        continue
                    sums[kind].append(getattr(used, kind) / getattr(point, kind) if used else math.inf)
        found.append(Saving(arm, _frozen(ratios), _frozen(of_whole), reached, len(mine)))
    return found


def _frozen(sums: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {kind: tuple(values) for kind, values in sums.items()}
