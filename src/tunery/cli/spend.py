"""`tunery spend`: what jobs have cost, by stage, by task and by outcome."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery.cli import _options as options
from tunery.cli._output import emit, say, width

if TYPE_CHECKING:
    from tunery.store import Charge, Store


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("spend", epilog="Example: tunery spend 3f2a9c01b7de")(spend)


def spend(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="A job's id; without one, all jobs together.")] = "",
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show what a job, or all of them, has used: worker seconds, core seconds and device seconds."""
    from tunery._report import as_text, duration, new_table
    from tunery.store import open_store

    with open_store(store) as opened:
        if job:
            opened.job(job)
        charges = opened.ledger(job or None)
        names = _names(opened, charges)
    views = {
        "stages": _sums(charges, lambda charge: charge.stage),
        "tasks": _sums(charges, lambda charge: names.get(charge.task_key, charge.task_key) or "the network"),
        "outcomes": _sums(charges, lambda charge: charge.outcome or "all"),
    }
    total = _sums(charges, lambda _: "all")
    if json:
        emit({"job": job or None, "total": total[0] if total else None, **views})
        return
    if not charges:
        say("nothing was spent yet")
        return
    for title, rows in {**views, "in all": total}.items():
        if len(rows) < 2 and title in views:
            continue  # it would say what the total says
        table = new_table(f"by {title[:-1]}" if title in views else title, "#runs", "#worker time", "#core time",
                          "#device time")  # fmt: skip
        for row in rows:
            times = (duration(row[name]) for name in ("wall_s", "core_s", "device_s"))
            table.add_row(row["name"], str(row["count"]), *times)
        say(as_text(table, width()) + "\n")


def _names(store: "Store", charges: "Sequence[Charge]") -> dict[str, str]:
    wanted = {charge.task_key for charge in charges}
    return {task.key: f"{task.workload.name} {task.key[:6]}" for task in store.tasks() if task.key in wanted}


def _sums(charges: "Sequence[Charge]", name: "Callable[[Charge], str]") -> list[dict[str, Any]]:
    """Add up charges of the same name, largest first; joules are None where none were recorded."""
    sums: dict[str, dict[str, Any]] = {}
    for charge in charges:
        row = sums.setdefault(
            name(charge),
            {"name": name(charge), "count": 0, "wall_s": 0.0, "core_s": 0.0, "device_s": 0.0, "joules": None},
        )
        for field in ("count", "wall_s", "core_s", "device_s"):
            row[field] += getattr(charge, field)
        if charge.joules is not None:
            row["joules"] = (row["joules"] or 0.0) + charge.joules
    return sorted(sums.values(), key=lambda row: -row["wall_s"])
