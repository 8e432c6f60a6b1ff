"""What trimming saves: the same system with each way of saving, with all, and with none, to equal quality."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tunery._report import as_text, energy, money, new_table
from tunery.budgets import NONE, Audit, Trimming, load_prices
from tunery.domain import Budget, JobStatus
from tunery.jobs import Progress, Request, extract, tune
from tunery.store import Charge, open_store
from tunery.studies._base import Options, StudyReport

NETWORKS = ("zoo:resnet18", "zoo:mobilenet_v2", "zoo:bert-small")
QUICK_NETWORKS = ("zoo:mlp-mnist",)
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
LEAST_SAVED, MOST_FALSE = 0.6, 0.02
_WIDTH = 160  # the spreads need it, and a narrower table would drop the names
_STAGES = ("propose", "build", "measure")


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
    """One run of one arm. `last_s` is by races, as the curve is; `final_s` by the finals."""

    network: str
    seed: int
    arm: str
    curve: tuple[Point, ...]
    last_s: float | None
    final_s: float | None
    trials: int
    audit: Audit
    in_vain: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def spend_to(self, goal_s: float) -> Point | None:
        """Return where the run first was as fast as that, None if it never was."""
        return next((p for p in self.curve if p.latency_s is not None and p.latency_s <= goal_s), None)


def run(
    options: Options, networks: Sequence[str] = (), trials: int = 64, dialect: str = "metaschedule", threads: int = 0
) -> StudyReport:
    """Tune each network with each arm, `options.repeats` seeds each, `trials` for each task in the mean."""
    chosen = tuple(networks) or (QUICK_NETWORKS if options.quick else NETWORKS)
    seeds = range(options.seed, options.seed + (1 if options.quick else options.repeats))
    per_task = min(trials, 16) if options.quick else trials
    runs: list[Run] = []
    tunable = {network: _tunable(Request(network, dialect=dialect, threads=threads)) for network in chosen}
    for seed in seeds:
        for network in chosen:
            # In an order that turns with the seed, so that a drift of the machine favours no arm.
            names = list(ARMS)
            turned = names[seed % len(names) :] + names[: seed % len(names)]
            for arm in turned:
                options.say(f"{network}, seed {seed}, {arm}")
                request = Request(network, dialect=dialect, threads=threads, seed=seed)
                runs.append(_tuned(request, arm, max(tunable[network], 1) * per_task))
    return _report(runs, per_task)


def _tuned(request: Request, arm: str, trials: int) -> Run:
    """Tune from an empty store; the import is in nobody's curve, for it is the same for all."""
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

        report = tune(replace(request, store=place, budget=Budget(trials=trials), trimming=ARMS[arm]), note)
        with open_store(place) as store:
            charges = store.ledger(report.job.job_id)
        known = [point.latency_s for point in points if point.latency_s is not None]
        return Run(
            report.network.name, request.seed, arm, _rebased(points), known[-1] if known else None, report.after_s,
            report.job.spend.trials, _audit(report.job), _in_vain(charges),
        )  # fmt: skip


def _tunable(request: Request) -> int:
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        return sum(task.tunable for task in extract(replace(request, store=str(Path(folder, "store.db")))).tasks)


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


def _in_vain(charges: Sequence[Charge]) -> dict[str, dict[str, float]]:
    """Return, by stage, worker seconds, core-seconds and joules, and the shares of candidates that did not help.

    A proposal is shared out evenly: it is made before its candidates are known.
    """
    tried = sum(c.count for c in charges if c.stage == "measure")
    vain = 1 - sum(c.count for c in charges if c.stage == "measure" and c.helped) / tried if tried else 0.0
    found: dict[str, dict[str, float]] = {}
    for stage in _STAGES:
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
    """What an arm used to reach equal quality, over what the untrimmed run used: one ratio per run that reached it."""

    arm: str
    ratios: Mapping[str, tuple[float, ...]]
    reached: int
    runs: int

    def saved(self, kind: str) -> float | None:
        """Return the median share that was saved, None where no run reached the quality."""
        return 1 - statistics.median(self.ratios[kind]) if self.ratios[kind] else None


def savings(runs: Sequence[Run]) -> list[Saving]:
    """Compare every arm with the untrimmed run of the same network and seed; runs that fell short are counted apart."""
    plain = {(run.network, run.seed): run for run in runs if run.arm == "untrimmed"}
    found = []
    for arm in ARMS:
        ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
        mine = [run for run in runs if run.arm == arm]
        reached = 0
        for one in mine:
            base = plain[one.network, one.seed]
            goal_s = (base.last_s or 0.0) * WITHIN
            there, then = one.spend_to(goal_s), base.spend_to(goal_s)
            if there is None or then is None:
                continue
            reached += 1
            for kind in KINDS:
                if getattr(then, kind) > 0:
                    ratios[kind].append(getattr(there, kind) / getattr(then, kind))
        found.append(Saving(arm, {kind: tuple(values) for kind, values in ratios.items()}, reached, len(mine)))
    return found


def _report(runs: Sequence[Run], per_task: int) -> StudyReport:
    compared = savings(runs)
    audits = {arm: sum((run.audit for run in runs if run.arm == arm), Audit()) for arm in ARMS}
    whole = next(one for one in compared if one.arm == "all")
    saved = {kind: whole.saved(kind) for kind in KINDS}
    shadow = audits["untrimmed"] + audits["filter"] + audits["all"]
    claims = {
        f"all together save at least {LEAST_SAVED:.0%} of {kind} to equal quality": (saved[kind] or 0.0) >= LEAST_SAVED
        and whole.reached == whole.runs
        for kind in KINDS
    }
    claims[f"at most {MOST_FALSE:.0%} of what the filter drops would have been its task's best"] = (
        shadow.rate is not None and shadow.rate <= MOST_FALSE
    )
    prices = load_prices()
    data = {
        "trials_per_task": per_task,
        "prices": asdict(prices),
        "runs": [asdict(run) for run in runs],
        "savings": [{**asdict(one), "saved": {kind: one.saved(kind) for kind in KINDS}} for one in compared],
        "false_drops": {arm: {**asdict(a), "rate": a.rate, "interval": a.interval()} for arm, a in audits.items()},
    }
    parts = [_vain_text(runs), _savings_text(runs, compared), _false_text(audits), f"prices: {prices.machine}"]
    text = "\n\n".join(parts)
    return StudyReport("trimming", data, text, claims, _plots(runs))


def _vain_text(runs: Sequence[Run]) -> str:
    table = new_table("untrimmed: on candidates that did not help", "#worker time", "#core time", "#energy")
    plain = [run for run in runs if run.arm == "untrimmed"]
    for stage in _STAGES:
        shares = []
        for kind in ("wall_s", "core_s", "joules"):
            values = [run.in_vain[stage][f"{kind}_in_vain"] for run in plain]
            shares.append(f"{statistics.median(values):.0%} ({min(values):.0%} to {max(values):.0%})")
        table.add_row(stage, *shares)
    return as_text(table)


def _savings_text(runs: Sequence[Run], compared: Sequence[Saving]) -> str:
    table = new_table("to equal quality", "#runs", "#reached", "#wall", "#core", "#energy", "#money", "#final ms")
    for one in compared:
        cells = []
        for kind in KINDS:
            values = one.ratios[kind]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.2f}x{spread}" if values else "-")
        finals = [run.final_s for run in runs if run.arm == one.arm and run.final_s is not None]
        last = f"{1e3 * statistics.geometric_mean(finals):.4g}" if finals else "-"
        table.add_row(one.arm, str(one.runs), str(one.reached), *cells, last)
    lines = [
        as_text(table, _WIDTH),
        "x: of what the untrimmed run of the same network and seed used; median (least to most)",
    ]
    for run in (run for run in runs if run.arm in ("untrimmed", "all") and run.curve):
        end = run.curve[-1]
        cost = f"{energy(end.joules)}, {money(end.money, load_prices().currency)}"
        lines.append(f"{run.network}, seed {run.seed}, {run.arm}: {end.wall_s:.0f} s, {end.core_s:.0f} core-s, {cost}")
    return "\n".join(lines)


def _false_text(audits: Mapping[str, Audit]) -> str:
    table = new_table("filter", "#dropped", "#measured all the same", "#were the best", "#95 % interval")
    for arm, audit in audits.items():
        low, high = audit.interval()
        table.add_row(
            arm, str(audit.dropped), str(audit.audited), str(audit.winners),
            f"{low:.1%} to {high:.1%}" if audit.audited else "-",
        )  # fmt: skip
    return as_text(table)


def _plots(runs: Sequence[Run]) -> dict[str, Callable[[Any], None]]:
    def curves(network: str) -> Callable[[Any], None]:
        def draw(figure: Any) -> None:
            axes = figure.subplots(1, 2)
            for axis, kind in zip(axes, ("wall_s", "joules"), strict=True):
                for number, arm in enumerate(ARMS):
                    for run in (r for r in runs if r.network == network and r.arm == arm):
                        known = [p for p in run.curve if p.latency_s is not None]
                        axis.step(
                            [getattr(p, kind) for p in known], [1e3 * (p.latency_s or 0.0) for p in known],
                            where="post", color=f"C{number}", alpha=0.7, label=f"{arm}, seed {run.seed}",
                        )  # fmt: skip
                axis.set(xlabel=kind, ylabel="sum of task latencies, ms", yscale="log", title=network)
                axis.legend(fontsize="x-small")

        return draw

    return {f"trimming-{name}.png": curves(name) for name in dict.fromkeys(run.network for run in runs)}
