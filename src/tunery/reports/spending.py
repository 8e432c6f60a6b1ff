"""Sums and charts of what was spent."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery._errors import UsageError
from tunery._extras import pip_install
from tunery._outputs import CHART, whole_file

if TYPE_CHECKING:
    from tunery.domain import JobStatus
    from tunery.store import Charge

Row = dict[str, Any]
_ADDED = ("count", "wall_s", "core_s", "device_s")
_CANDIDATE_STAGES = ("propose", "build", "measure")
_OF_ONE = ("build", "measure")
SHARED = "of no single candidate"
_BAR = 24
_SHOWN = 12
_IMAGES = ("png", "svg", "pdf")


def sums(charges: "Iterable[Charge]", name: "Callable[[Charge], str]") -> list[Row]:
    """Add up charges of the same name, most core time first; joules are None where none were recorded."""
    rows: dict[str, Row] = {}
    for charge in charges:
        row = rows.setdefault(
            name(charge),
            {"name": name(charge), **dict.fromkeys(_ADDED, 0), "joules": None, "modelled": False, "money": {}},
        )
        for field in _ADDED:
            row[field] += getattr(charge, field)
        if charge.joules is not None:
            row["joules"] = (row["joules"] or 0.0) + charge.joules
            row["modelled"] = row["modelled"] or charge.modelled
        if charge.money is not None:
            row["money"][charge.currency] = row["money"].get(charge.currency, 0.0) + charge.money
    return sorted(rows.values(), key=lambda row: (-row["core_s"], -row["wall_s"]))


def by_outcome(charges: "Iterable[Charge]", outcomes: Mapping[str, int]) -> list[Row]:
    """Add up by how candidates ended; what belongs to no single one is `SHARED`.

    The counts are the jobs' own (`outcomes`), so that all but the filtered ones are their trials: each candidate once,
    as it ended last, though it may have been raced again after a disturbance, or a kill have taken its charge.
    """

    def name(charge: "Charge") -> str:
        return charge.outcome if charge.outcome and charge.stage in _OF_ONE else SHARED

    rows = sums(charges, name)
    for row in (row for row in rows if row["name"] != SHARED):
        row["count"] = outcomes.get(row["name"], 0)
    nothing: Row = {**dict.fromkeys(_ADDED, 0), "joules": None, "modelled": False}
    free = {outcome: count for outcome, count in outcomes.items() if count} | {row["name"]: 0 for row in rows}
    rows += [{"name": outcome, **nothing, "money": {}, "count": count} for outcome, count in free.items() if count]
    return rows


def counted(job: "JobStatus", charges: "Iterable[Charge]") -> "Counter[str]":
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


def tried(charges: "Iterable[Charge]") -> "Counter[str]":
    """Return how many candidates ended how, by what was charged for them."""
    found = Counter[str]()
    for charge in charges:
        if charge.stage == "measure" or (charge.stage == "build" and charge.outcome not in _RACED):
            found[charge.outcome] += charge.count
    found.pop("", None)
    return found


def helpless(charges: "Sequence[Charge]") -> list[Row]:
    """Return, by stage and in all, the share spent on candidates that were not their task's best when measured.

    A proposal is made before its candidates are known: its share is that of the candidates that were tried.
    """
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


_AMOUNTS = ("count", "wall", "core", "energy", "money")
_RACED = frozenset({"ok", "abandoned", "wrong-result", "run-failed", "timeout", "crashed"})


def _amount(charge: "Charge", what: str) -> float:
    amounts = {"count": charge.count, "wall": charge.wall_s, "core": charge.core_s, "energy": charge.joules,
               "money": charge.money}  # fmt: skip
    return float(amounts[what] or 0.0)


def _share(amounts: Sequence[float], shares: Sequence[float]) -> float:
    total = sum(amounts)
    return sum(amount * share for amount, share in zip(amounts, shares, strict=True)) / total if total > 0 else 0.0


def bar(share: float) -> str:
    """Return a bar of text for a share between 0 and 1."""
    return "█" * round(_BAR * min(max(share, 0.0), 1.0))


def draw(
    views: Mapping[str, Sequence[Row]],
    wasted: Sequence[Row],
    path: Path,
    *,
    inputs: Iterable[Path] = (),
    force: bool = False,
) -> None:
    """Draw core time by stage, task and outcome, and the shares that did not help, to an image file.

    Raises:
        UsageError: matplotlib is not installed or knows no such kind of file, or `path` must not be replaced.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _IMAGES:
        raise UsageError(f"cannot draw {str(path)!r}; name a .png, .svg or .pdf file")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"a chart needs matplotlib: {pip_install('study')}") from None
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    for axis, (title, rows) in zip(axes, views.items(), strict=False):
        shown = list(reversed(rows[:_SHOWN]))
        axis.barh([row["name"] for row in shown], [row["core_s"] for row in shown])
        axis.set(title=f"core-seconds by {title}", xlabel="s")
    rows = list(reversed(wasted))
    axes[-1].barh([row["stage"] for row in rows], [100 * row["core_share"] for row in rows], color="tab:red")
    axes[-1].set(title="share of core time on candidates that did not help", xlabel="%", xlim=(0, 100))
    with whole_file(path, CHART, inputs=inputs, force=force) as file:
        figure.savefig(file, format=kind)
