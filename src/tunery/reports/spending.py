"""Sums and charts of what was spent."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery._errors import UsageError
from tunery._extras import pip_install
from tunery._outputs import CHART, whole_file
from tunery.domain import JobStatus

if TYPE_CHECKING:
    from tunery.store import Charge, Store

Row = dict[str, Any]
VIEWS = {"stages": "stage", "tasks": "task", "outcomes": "outcome", "hosts": "host"}
_NO_HOST = "no one host"
_MOST_JOBS = 100_000
_ADDED = {"count": "count", "worker_s": "wall_s", "core_s": "core_s", "device_s": "device_s"}
_CANDIDATE_STAGES = ("propose", "build", "measure")
_OF_ONE = ("build", "measure")
SHARED = "of no single candidate"
_BAR = 24
_SHOWN = 12
_IMAGES = ("png", "svg", "pdf")


def spend_data(store: "Store", job_id: str = "", *, account: str | None = None, prices: str = "") -> dict[str, Any]:
    """Return what a job has spent, or all of an account's, or all that are: the documented JSON of `spend`. With
    `prices`, a price sheet, money is what it would cost by that."""
    jobs = [store.job(job_id)] if job_id else store.jobs(_MOST_JOBS, account=account)
    charges = store.ledger(job_id or None, account=account)
    outcomes = Counter[str]()
    for one in jobs:
        outcomes.update(counted(one, charges))
    names = _names(store, charges)
    charges = _repriced(charges, jobs, prices) if prices else charges
    total = sums(charges, lambda _: "all")
    return {
        "job": job_id or None,
        "total": total[0] if total else None,
        "stages": sums(charges, lambda charge: charge.stage),
        "tasks": sums(charges, lambda charge: names.get(charge.task_key, charge.task_key) or "the network"),
        "outcomes": by_outcome(charges, outcomes),
        "hosts": sums(charges, lambda charge: charge.host or _NO_HOST),
        "did_not_help": helpless(charges),
    }


def sums(charges: "Iterable[Charge]", name: "Callable[[Charge], str]") -> list[Row]:
    """Add up charges of the same name, most core time first; joules are None where none were recorded."""
    rows: dict[str, Row] = {}
    for charge in charges:
        row = rows.setdefault(
            name(charge),
            {"name": name(charge), **dict.fromkeys(_ADDED, 0), "joules": None, "modelled": False, "money": {}},
        )
        for title, field in _ADDED.items():
            row[title] += getattr(charge, field)
        if charge.joules is not None:
            row["joules"] = (row["joules"] or 0.0) + charge.joules
            row["modelled"] = row["modelled"] or charge.modelled
        if charge.money is not None:
            row["money"][charge.currency] = row["money"].get(charge.currency, 0.0) + charge.money
    return sorted(rows.values(), key=lambda row: (-row["core_s"], -row["worker_s"]))


def by_outcome(charges: "Iterable[Charge]", outcomes: Mapping[str, int]) -> list[Row]:
    """Add up by how candidates ended; what belongs to no single one is `SHARED`. The counts are the jobs' own
    (`outcomes`), so that all but the filtered ones are their trials: each candidate once, as it ended last, though it
    may have been raced again after a disturbance, or a kill have taken its charge."""

    def name(charge: "Charge") -> str:
        return charge.outcome if charge.outcome and charge.stage in _OF_ONE else SHARED

    rows = sums(charges, name)
    for row in (row for row in rows if row["name"] != SHARED):
        row["count"] = outcomes.get(row["name"], 0)
    nothing: Row = {**dict.fromkeys(_ADDED, 0), "joules": None, "modelled": False}
    free = {outcome: count for outcome, count in outcomes.items() if count} | {row["name"]: 0 for row in rows}
    rows += [{"name": outcome, **nothing, "money": {}, "count": count} for outcome, count in free.items() if count]
    return rows


def counted(job: "JobStatus", charges: "Iterable[Charge]") -> Counter[str]:
    """Return how many of a job's candidates ended how; before it has said so itself, by the builds it has paid for."""
    said = Counter[str]()
    for task in job.tasks:
        said.update(task.outcomes)
    if said:
        return said
    paid = Counter[str]()
    for charge in charges:
        if charge.job_id == job.job_id and charge.stage == "build" and charge.outcome:
            paid[charge.outcome] += charge.count
    return paid


def tried(charges: "Iterable[Charge]") -> Counter[str]:
    found = Counter[str]()
    for charge in charges:
        if charge.stage == "measure" or (charge.stage == "build" and charge.outcome not in _RACED):
            found[charge.outcome] += charge.count
    found.pop("", None)
    return found


def helpless(charges: "Sequence[Charge]") -> list[Row]:
    """Return, by stage and in all, the share spent on candidates that were not their task's best when measured. A
    proposal is made before its candidates are known: its share is that of the candidates that were tried."""
    ours = [c for c in charges if c.stage in _CANDIDATE_STAGES and (c.outcome or c.stage == "propose")]
    tried = sum(c.count for c in ours if c.stage == "measure" or (c.stage == "build" and c.outcome not in _RACED))
    helped = sum(c.count for c in ours if c.stage == "measure" and c.helped)
    if not tried:
        return []
    vain = 1 - helped / tried
    rows = []
    for stage in (*_CANDIDATE_STAGES, "all"):
        mine = [c for c in ours if stage in (c.stage, "all")]
        waste = [vain if c.stage == "propose" else float(not c.helped) for c in mine]
        shares = {f"{what}_share": _share([_amount(c, what) for c in mine], waste) for what in _AMOUNTS}
        rows.append({"stage": stage, **shares})
    return rows


_AMOUNTS = ("count", "worker", "core", "energy", "money")
_RACED = frozenset({"ok", "abandoned", "wrong-result", "run-failed", "timeout", "crashed"})


def _amount(charge: "Charge", what: str) -> float:
    amounts = {"count": charge.count, "worker": charge.wall_s, "core": charge.core_s, "energy": charge.joules,
               "money": charge.money}  # fmt: skip
    return float(amounts[what] or 0.0)


def _share(amounts: Sequence[float], shares: Sequence[float]) -> float:
    total = sum(amounts)
    return sum(amount * share for amount, share in zip(amounts, shares, strict=True)) / total if total > 0 else 0.0


def bar(share: float) -> str:
    return "█" * round(_BAR * min(max(share, 0.0), 1.0))


def draw(
    views: Mapping[str, Sequence[Row]],
    wasted: Sequence[Row],
    path: Path,
    *,
    inputs: Iterable[Path] = (),
    force: bool = False,
) -> None:
    """Draw core time by stage, task, outcome and host, and the shares that did not help, to an image file."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _IMAGES:
        raise UsageError(f"cannot draw {str(path)!r}; name a .png, .svg or .pdf file")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"a chart needs matplotlib: {pip_install('study')}") from None
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(len(views) // 2 + 1, 2).ravel()
    for axis, (title, rows) in zip(axes, views.items(), strict=False):
        shown = list(reversed(rows[:_SHOWN]))
        axis.barh([row["name"] for row in shown], [row["core_s"] for row in shown])
        axis.set(title=f"core-seconds by {title}", xlabel="s")
    rows = list(reversed(wasted))
    axes[-1].barh([row["stage"] for row in rows], [100 * row["core_share"] for row in rows], color="tab:red")
    axes[-1].set(title="share of core time on candidates that did not help", xlabel="%", xlim=(0, 100))
    with whole_file(path, CHART, inputs=inputs, force=force) as file:
        figure.savefig(file, format=kind)


def _repriced(charges: "Sequence[Charge]", jobs: Sequence[JobStatus], sheet: str) -> "list[Charge]":
    """Return charges by another price sheet: a job pays its part of the machine's time, what no stage held is idle. A
    stage is priced by core time where it used more than one core, else by the time it held its worker."""
    from tunery.accounting.prices import load_prices
    from tunery.store import Charge
    from tunery.tuning.account import IDLE, MANAGE, OVERHEAD

    prices = load_prices(sheet)
    priced: list[Charge] = []
    held: defaultdict[str, float] = defaultdict(float)
    for charge in (charge for charge in charges if charge.stage != IDLE):
        held_s = 0.0 if charge.stage in {MANAGE, OVERHEAD} else max(charge.core_s, charge.wall_s)
        held[charge.job_id] += held_s
        money = prices.of_machine(held_s) + prices.of_energy(charge.joules)
        priced.append(replace(charge, money=money, currency=prices.currency))
    for job in (job for job in jobs if job.job_id in held):
        machine_s = job.spend.machine_s or job.spend.wall_s
        rest = prices.of_machine(job.spend.cores * machine_s - held[job.job_id])
        if not job.spend.cores:  # stored before it was known: what was idle then is left as it was charged
            priced += [c for c in charges if (c.job_id, c.stage, c.currency) == (job.job_id, IDLE, prices.currency)]
        elif rest > 0:
            host = next((c.host for c in charges if (c.job_id, c.stage) == (job.job_id, IDLE)), "")
            idle = Charge(job.job_id, "", IDLE, "", 0.0, 0.0, 0.0, money=rest, currency=prices.currency, host=host)
            priced.append(idle)
    return priced


def _names(store: "Store", charges: "Sequence[Charge]") -> dict[str, str]:
    from tunery.reports.format import short

    wanted = {charge.task_key for charge in charges}
    return {task.key: f"{task.workload.name} {short(task.key)}" for task in store.tasks() if task.key in wanted}
