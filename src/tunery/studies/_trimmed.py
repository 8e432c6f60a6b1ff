"""One run of one arm of the trimming study, what it used on the way to which latency, and how arms compare."""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tunery.budgets import NONE, Audit, Trimming
from tunery.domain import Budget, JobStatus
from tunery.jobs import Progress, Request, tune
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
    """One run of one arm. `last_s` is by races, as the curve is; `final_s` by the finals.

    `in_vain` is by stage what candidates took and the shares of those that did not help; `stages` are all core-seconds.
    """

    network: str
    seed: int
    arm: str
    curve: tuple[Point, ...]
    last_s: float | None
    final_s: float | None
    trials: int
    audit: Audit
    in_vain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def promise(self) -> float:
        """How far the finals are above what the races promised: races with few samples are lucky more often."""
        return self.final_s / self.last_s if self.final_s and self.last_s else 1.0

    @property
    def reached_s(self) -> float | None:
        """The latency in the end, by the finals where they were held."""
        return self.final_s or self.last_s

    def spend_to(self, goal_s: float) -> Point | None:
        """Return where the run first was as fast as that, by what its finals made of its races; None: it never was."""
        found = (p for p in self.curve if p.latency_s is not None and p.latency_s * self.promise <= goal_s * (1 + 1e-9))
        return next(found, None)


def plain_run(run: Run) -> dict[str, Any]:
    """Return a run as plain data, which `run_of` turns back."""
    return asdict(run)


def run_of(data: Mapping[str, Any]) -> Run:
    """Return the run that `plain_run` was given."""
    points = tuple(Point(**point) for point in data["curve"])
    return Run(**{**data, "curve": points, "audit": Audit(**data["audit"])})


def tuned(request: Request, arm: str, trials: int, goal_s: float | None = None) -> Run:
    """Tune from an empty store, until finals hold `goal_s` or the trials are used up.

    The import is in nobody's curve, for it is the same for all.
    """
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        place = str(Path(folder, "store.db"))
        points: list[Point] = []
        began: list[float] = []

        def note(progress: Progress) -> None:
            if progress.phase not in ("baseline", "search"):
                return
            began[:] = began or [time.monotonic()]
            spend = progress.spend
            if spend is not None:
                points.append(
                    Point(
                        time.monotonic() - began[0], spend.core_s, spend.joules or 0.0, spend.money or 0.0,
                        progress.trials, progress.best_s,
                    )
                )  # fmt: skip

        budget = Budget(trials=trials)
        report = tune(
            replace(request, store=place, budget=budget, trimming=ARMS[arm], latency_target_s=goal_s), note
        )  # fmt: skip
        with open_store(place) as store:
            charges = store.ledger(report.job.job_id)
        known = [point.latency_s for point in points if point.latency_s is not None]
        return Run(
            report.network.name, request.seed, arm, _rebased(points), known[-1] if known else None, report.after_s,
            report.job.spend.trials, _audit(report.job), _in_vain(charges), _stages(charges),
        )  # fmt: skip


def _rebased(points: Sequence[Point]) -> tuple[Point, ...]:
    """Count from the first point: what came before it is the import."""
    if not points:
        return ()
    first = points[0]
    return tuple(
        replace(p, **{kind: getattr(p, kind) - getattr(first, kind) for kind in KINDS}) for p in points
    )  # fmt: skip


def _audit(job: JobStatus) -> Audit:
    dropped = sum(task.outcomes.get("filtered", 0) for task in job.tasks)
    return Audit(dropped, sum(task.audited for task in job.tasks), sum(task.false_drops for task in job.tasks))


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
    """What an arm used to reach equal quality: one ratio per run that reached it.

    `ratios` are over what the untrimmed run had used when it first was that good, `of_whole` over all that it used: it
    has no way to know that it could stop.
    """

    arm: str
    ratios: Mapping[str, tuple[float, ...]]
    of_whole: Mapping[str, tuple[float, ...]]
    reached: int
    runs: int

    def saved(self, kind: str) -> float | None:
        """Return the median share that was saved, None where no run reached the quality."""
        return 1 - statistics.median(self.ratios[kind]) if self.ratios[kind] else None

    def saved_of_whole(self, kind: str) -> float | None:
        """Return the median share of the untrimmed runs' whole spend that was saved."""
        return 1 - statistics.median(self.of_whole[kind]) if self.of_whole[kind] else None


def savings(runs: Sequence[Run]) -> list[Saving]:
    """Compare every arm with the untrimmed run of the same network and seed; runs that fell short are counted apart."""
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
            there, then = one.spend_to(goal_s), base.spend_to(goal_s)
            if there is None or then is None:
                continue
            reached += 1
            for kind in KINDS:
                used = getattr(there, kind)
                for sums, point in ((ratios, then), (of_whole, base.curve[-1])):
                    if getattr(point, kind) > 0:
                        sums[kind].append(used / getattr(point, kind))
        found.append(Saving(arm, _frozen(ratios), _frozen(of_whole), reached, len(mine)))
    return found


def _frozen(sums: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, ...]]:
    return {kind: tuple(values) for kind, values in sums.items()}
