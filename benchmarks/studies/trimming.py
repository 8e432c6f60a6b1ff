"""What trimming saves: the same system with each way of saving, with all, and with none, to equal quality."""

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from studies._base import Options, StudyReport
from studies._judged import judge
from studies._kept import Kept
from studies._trimmed import ARMS, ENOUGH, KINDS, STAGES, Run, Saving, TasksAudit, plain_run, run_of, savings, tuned
from tunery._errors import UsageError
from tunery._settings import cache_directory
from tunery.accounting.prices import load_prices
from tunery.domain import Task, digest
from tunery.domain.request import Request
from tunery.reports.format import as_text, energy, money, new_table
from tunery.service.session import extract

NETWORKS = ("zoo:resnet18", "zoo:mobilenet_v2", "zoo:bert-small")
QUICK_NETWORKS = ("zoo:mlp-mnist",)
LEAST_SAVED, MOST_FALSE = 0.6, 0.02
CLAIMED = {"wall_s": "wall time", "core_s": "core-seconds", "joules": "energy"}
_SHOWN = {"wall_s": "wall", "core_s": "core", "joules": "energy", "search": "search core"}
_WIDTH = 190  # the spreads need it, and a narrower table would drop the names
Curve = Sequence[tuple[float, float, float]]
"""Wall seconds, core-seconds and the network's latency in seconds, in their order."""


def run(
    options: Options,
    networks: Sequence[str] = (),
    trials: int = 64,
    dialect: str = "metaschedule",
    threads: int = 0,
    stock: str = "",
) -> StudyReport:
    """Tune each network with each arm, `options.repeats` seeds each, `trials` for each task in the mean.

    What is trimmed may take half of the untrimmed run's time. Then the winners of all arms are timed in turns.

    `stock` is a file of `make study-stock`, whose curves are drawn beside ours. An interrupted study goes on with the
    run that was cut short.

    Raises:
        UsageError: `stock` cannot be read.
    """
    chosen = tuple(networks) or (QUICK_NETWORKS if options.quick else NETWORKS)
    seeds = range(options.seed, options.seed + (1 if options.quick else options.repeats))
    per_task = min(trials, 16) if options.quick else trials
    others = stock_curves(stock) if stock else {}
    kept = Kept(cache_directory(), "trimming", f"{dialect} {threads} {per_task}")
    runs: list[Run] = []
    tasks = {network: _tasks(Request(network, dialect=dialect, threads=threads)) for network in chosen}
    for seed in seeds:
        for network in chosen:
            # The untrimmed run sets the goal; the others in an order that turns with the seed.
            first, *trimmed = ARMS
            turn = seed % len(trimmed)
            request = Request(network, dialect=dialect, threads=threads, seed=seed)
            name = f"{digest(network)[:16]}-{seed}"
            size = max(sum(task.tunable for task in tasks[network]), 1) * per_task
            seconds: float | None = None
            found: dict[str, Run] = {}
            for arm in (first, *trimmed[turn:], *trimmed[:turn]):
                known = kept.results(f"{name}-{arm}")
                options.say(f"{network}, seed {seed}, {arm}{': done by an interrupted study' if known else ''}")
                found[arm] = run_of(known) if known else tuned(request, arm, size, seconds)
                if not known:
                    kept.keep_results(f"{name}-{arm}", plain_run(found[arm]))
                seconds = found[first].enough_s
            worth = kept.results(f"{name}-worth")
            if not worth:
                options.say(f"{network}, seed {seed}: the winners of all arms in turns")
                worth = judge(request, tasks[network], {arm: run.ways for arm, run in found.items()})
                kept.keep_results(f"{name}-worth", worth)
            runs += judged(found, worth)
    report = _report(runs, per_task, others)
    kept.remove()
    return report


def _tasks(request: Request) -> Sequence[Task]:
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as folder:
        return extract(replace(request, store=str(Path(folder, "store.db")))).tasks


def judged(runs: Mapping[str, Run], worth: Mapping[str, Mapping[str, float]]) -> list[Run]:
    """Return the runs of one network and seed by what their winners are worth (seconds by task and arm).

    A task that could not be timed so counts with what each run's own finals held.
    """
    return [
        run.judged({key: by_arm[arm] for key, by_arm in worth.items() if arm in by_arm}) for arm, run in runs.items()
    ]


def stock_curves(path: str) -> dict[str, list[Curve]]:
    """Read stock MetaSchedule's curves by network from the `stock.json` that `make study-stock` writes.

    Raises:
        UsageError: it cannot be read, or holds no curves.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        found: dict[str, list[Curve]] = {}
        for side in (row["stock"] for row in document["rows"]):
            points = [p for p in side["curve"] if p["latency_s"] is not None]
            found.setdefault(str(side["network"]), []).append(
                [(float(p["wall_s"]), float(p["cpu_s"]), float(p["latency_s"])) for p in points]
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"{path!r} has no curves of stock MetaSchedule ({why}); make them with `make study-stock --out DIR`"
        ) from error
    return found


def _report(runs: Sequence[Run], per_task: int, stock: Mapping[str, Sequence[Curve]]) -> StudyReport:
    compared = savings(runs)
    audits = {arm: sum((run.audit for run in runs if run.arm == arm), TasksAudit()) for arm in ARMS}
    whole = next(one for one in compared if one.arm == "all")
    saved = {kind: whole.saved(kind) for kind in KINDS}
    watched = audits["untrimmed"]
    claims: dict[str, bool | None] = {}
    for kind, name in CLAIMED.items():
        marked = f"{name} (modelled)" if kind == "joules" and any(run.modelled for run in runs) else name
        claims[
            f"all together save at least {LEAST_SAVED:.0%} of a whole run's {marked} to equal quality, in hindsight"
        ] = (whole.saved_of_whole(kind) or 0.0) >= LEAST_SAVED
        claims[f"the same of the search's {marked} alone, over the untrimmed one's until it was that good"] = (
            saved[kind] or 0.0
        ) >= LEAST_SAVED
    # Nothing is dropped there, so that every winner is seen: the filtering arms see a tenth.
    claims[f"at most {MOST_FALSE:.0%} of what the filter drops would have been its task's best"] = (
        watched.rate is not None and watched.rate <= MOST_FALSE
    )
    claims[f"at most {MOST_FALSE:.0%} of the tasks' winners would have been dropped"] = (
        watched.lost is not None and watched.lost <= MOST_FALSE
    )
    prices = load_prices()
    data = {
        "trials_per_task": per_task,
        "prices": asdict(prices),
        "runs": [asdict(run) for run in runs],
        "savings": [
            {
                **asdict(one),
                "saved": {kind: one.saved(kind) for kind in KINDS},
                "saved_of_whole": {kind: one.saved_of_whole(kind) for kind in KINDS},
            }
            for one in compared
        ],
        "stock": stock,
        "false_drops": {
            arm: {
                **asdict(a),
                "rate": a.rate,
                "interval": a.interval(),
                "lost": a.lost,
                "lost_interval": a.lost_interval(),
            }
            for arm, a in audits.items()
        },
    }
    parts = [
        _vain_text(runs), _stages_text(runs), _savings_text(runs, compared), _false_text(audits),
        f"prices: {prices.machine}",
    ]  # fmt: skip
    text = "\n\n".join(parts)
    return StudyReport("trimming", data, text, claims, _plots(runs, stock))


def _vain_text(runs: Sequence[Run]) -> str:
    table = new_table("untrimmed: on candidates that did not help", "#worker time", "#core time", "#energy")
    plain = [run for run in runs if run.arm == "untrimmed"]
    for stage in STAGES:
        shares = []
        for kind in ("wall_s", "core_s", "joules"):
            values = [run.in_vain[stage][f"{kind}_in_vain"] for run in plain]
            shares.append(f"{statistics.median(values):.0%} ({min(values):.0%} to {max(values):.0%})")
        table.add_row(stage, *shares)
    return as_text(table)


def _stages_text(runs: Sequence[Run]) -> str:
    """Show what the whole runs of each arm took, by stage: means over networks and seeds."""
    names = list(dict.fromkeys(stage for run in runs for stage in run.stages))
    table = new_table("core-seconds of a run", *(f"#{name}" for name in names), "#in all", "#trials")
    for arm in ARMS:
        mine = [run for run in runs if run.arm == arm]
        means = [statistics.fmean(run.stages.get(name, 0.0) for run in mine) for name in names]
        trials = statistics.fmean(run.trials for run in mine)
        table.add_row(arm, *(f"{mean:.1f}" for mean in means), f"{sum(means):.1f}", f"{trials:.0f}")
    return as_text(table, _WIDTH)


def _savings_text(runs: Sequence[Run], compared: Sequence[Saving]) -> str:
    table = new_table(
        "to equal quality", "#runs", "#reached", *(f"#{name}" for name in _SHOWN.values()), "#in the end", "#beside"
    )
    for one in compared:
        cells = [_spread(one.of_whole[kind]) for kind in _SHOWN if kind != "search"]
        table.add_row(
            one.arm,
            str(one.runs),
            str(one.reached),
            *cells,
            _spread(one.ratios["core_s"]),
            _spread(one.quality),
            _spread(one.beside),
        )
    lines = [
        as_text(table, _WIDTH),
        "In hindsight, of the whole untrimmed run of the same network and seed: what was used when the sum of tasks",
        "first was within 1 % of that run's, and the finals; median (least to most). never: not in "
        f"{ENOUGH:.0%} of its time.",
        "search core: the searches alone, over the untrimmed one's until it was that good. in the end: the sum of",
        "tasks over the untrimmed run's; beside: over what its search had for the same core-seconds. All winners of a",
        "task are timed in turns, and curves corrected by that.",
        f"Tasks for whose finals no time was left: {sum(run.unproven for run in runs)} of "
        f"{sum(bool(way.winner) for run in runs for way in run.ways)}. "
        f"Energy is {'modelled' if any(run.modelled for run in runs) else 'metered'}.",
    ]
    for run in (run for run in runs if run.arm in ("untrimmed", "all")):
        end = run.whole
        cost = f"{energy(end.joules)}, {money(end.money, load_prices().currency)}"
        held = f"{1e3 * run.final_s:.4g} ms" if run.final_s else "nothing"
        lines.append(
            f"{run.network}, seed {run.seed}, {run.arm}: {held} after {run.trials} trials, {end.wall_s:.0f} s, "
            f"{end.core_s:.0f} core-s, {cost}"
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    words = [
        "never" if math.isinf(value) else f"{value:.2f}x"
        for value in (statistics.median(values), min(values), max(values))
    ]
    return words[0] if len(values) == 1 else f"{words[0]} ({words[1]} to {words[2]})"


def _false_text(audits: Mapping[str, TasksAudit]) -> str:
    table = new_table(
        "filter", "#dropped", "#of them measured", "#were the best", "#of these, 95 %", "#tasks", "#winners dropped"
    )
    for arm, audit in audits.items():
        low, high = audit.interval()
        least, most = audit.lost_interval()
        table.add_row(
            arm, str(audit.dropped), str(audit.audited), str(audit.winners),
            f"{low:.1%} to {high:.1%}" if audit.audited else "-", str(audit.tasks),
            "-" if audit.lost is None else f"{audit.lost:.0%} ({least:.0%} to {most:.0%})",
        )  # fmt: skip
    return f"{as_text(table, _WIDTH)}\nuntrimmed and without a filter: what it would have dropped, all of it measured"


def _plots(runs: Sequence[Run], stock: Mapping[str, Sequence[Curve]]) -> dict[str, Callable[[Any], None]]:
    def curves(network: str) -> Callable[[Any], None]:
        def draw(figure: Any) -> None:
            axes = figure.subplots(1, 2)
            for part, (axis, kind) in enumerate(zip(axes, ("wall_s", "core_s"), strict=True)):
                for number, arm in enumerate(ARMS):
                    for run in (r for r in runs if r.network == network and r.arm == arm):
                        known = [p for p in run.curve if p.latency_s is not None]
                        axis.step(
                            [getattr(p, kind) for p in known], [1e3 * (p.latency_s or 0.0) for p in known],
                            where="post", color=f"C{number}", alpha=0.7, label=f"{arm}, seed {run.seed}",
                        )  # fmt: skip
                for curve in stock.get(network, ()):
                    spent, latency_ms = [point[part] for point in curve], [1e3 * point[2] for point in curve]
                    axis.step(spent, latency_ms, where="post", color="black", label="stock MetaSchedule")
                axis.set(xlabel=kind, ylabel="sum of task latencies, ms", xscale="log", yscale="log", title=network)
                axis.legend(fontsize="x-small")

        return draw

    return {f"trimming-{name}.png": curves(name) for name in dict.fromkeys(run.network for run in runs)}
