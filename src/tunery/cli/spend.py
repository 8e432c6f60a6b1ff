"""`tunery spend`: what jobs have cost, by stage, by task and by outcome."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, output_path, say, width

if TYPE_CHECKING:
    from tunery.domain import JobStatus
    from tunery.reports.spending import Row
    from tunery.store import Charge, Store

Chart = Annotated[str, typer.Option("--chart", metavar="FILE", help="Also draw it to this PNG, SVG or PDF file.")]
_MOST_JOBS = 100_000
_VIEWS = {"stages": "stage", "tasks": "task", "outcomes": "outcome"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("spend", epilog="Example: tunery spend 3f2a9c01b7de --chart spend.png")(spend)


def spend(  # noqa: PLR0917 - Typer reads the options from the signature
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="A job's id; without one, all jobs together.")] = "",
    prices: options.PriceSheet = "",
    chart: Chart = "",
    force: options.Force = False,
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show where a job's time, energy and money went, or all jobs', and what went into candidates that did not help.

    Money is what was charged then; with --prices, what it would cost by that sheet.
    """
    from tunery._outputs import CHART, check_output
    from tunery.reports.spending import by_outcome, counted, draw, helpless, sums
    from tunery.store import file_of, open_store

    file, inputs = output_path(chart, "spend.png") if chart else None, [Path(prices)] if prices else []
    kept_in = file_of(store)
    inputs += [kept_in] if kept_in else []
    if file:
        check_output(file, CHART, inputs=inputs, force=force)
    with open_store(store, create=False, keep=False) as opened:
        jobs = [opened.job(job)] if job else opened.jobs(_MOST_JOBS)
        outcomes = Counter[str]()
        charges = opened.ledger(job or None)
        for one in jobs:
            outcomes.update(counted(one, charges))
        names = _names(opened, charges)
    charges = _repriced(charges, jobs, prices) if prices else charges
    views = {
        "stages": sums(charges, lambda charge: charge.stage),
        "tasks": sums(charges, lambda charge: names.get(charge.task_key, charge.task_key) or "the network"),
        "outcomes": by_outcome(charges, outcomes),
    }
    total, wasted = sums(charges, lambda _: "all"), helpless(charges)
    if file:
        draw({_VIEWS[title]: rows for title, rows in views.items()}, wasted, file, inputs=inputs, force=force)
    if json:
        emit({"job": job or None, "total": total[0] if total else None, **views, "did_not_help": wasted})
    elif charges:
        _print(views, total, wasted)
    else:
        say("nothing was spent yet")


def _print(views: "dict[str, list[Row]]", total: "list[Row]", wasted: list[dict[str, Any]]) -> None:
    from tunery.reports.format import as_text, duration, energy, money, new_table
    from tunery.reports.spending import SHARED, bar

    for title, rows in {**views, "in all": total}.items():
        if len(rows) < 2 and title in views:
            continue  # it would say what the total says
        heading = f"by {_VIEWS[title]}" if title in views else title
        what = "#candidates" if title == "outcomes" else "#runs"
        table = new_table(heading, what, "#worker time", "#core time", "#device time", "#energy", "#money", "")
        most = max(row["core_s"] for row in rows) or 1.0
        for row in rows:
            times = (duration(row[name]) for name in ("wall_s", "core_s", "device_s"))
            joules = "-" if row["joules"] is None else energy(row["joules"])
            paid = " + ".join(money(amount, currency) for currency, amount in row["money"].items()) or "-"
            count = "" if row["name"] == SHARED else str(row["count"])
            table.add_row(row["name"], count, *times, joules, paid, bar(row["core_s"] / most))
        say(as_text(table, width()) + "\n")
    say(f"{SHARED}: import, proposals, baselines, finals, learning, workers' starts\n")
    if total[0]["modelled"]:
        say("energy is modelled from core time: this machine has no counter that tunery may read\n")
    if wasted:
        table = new_table("on candidates that did not help", "#runs", "#worker time", "#core time", "#energy", "")
        for row in wasted:
            shares = (f"{row[name]:.0%}" for name in ("count_share", "wall_share", "core_share", "energy_share"))
            name = "these three" if row["stage"] == "all" else row["stage"]
            table.add_row(name, *shares, bar(row["core_share"]))
        say(as_text(table, width()))


def _repriced(charges: "Sequence[Charge]", jobs: "Sequence[JobStatus]", sheet: str) -> "list[Charge]":
    """Return charges by another price sheet: a job pays for its cores all the time, what no stage held is idle.

    A stage is priced by core time where it used more than one core, else by the time it held its worker.
    """
    from dataclasses import replace

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
        rest = prices.of_machine(job.spend.cores * job.spend.wall_s - held[job.job_id])
        if not job.spend.cores:  # stored before it was known: what was idle then is left as it was charged
            priced += [c for c in charges if (c.job_id, c.stage, c.currency) == (job.job_id, IDLE, prices.currency)]
        elif rest > 0:
            priced.append(Charge(job.job_id, "", IDLE, "", 0.0, 0.0, 0.0, money=rest, currency=prices.currency))
    return priced


def _names(store: "Store", charges: "Sequence[Charge]") -> dict[str, str]:
    from tunery.reports.format import short

    wanted = {charge.task_key for charge in charges}
    return {task.key: f"{task.workload.name} {short(task.key)}" for task in store.tasks() if task.key in wanted}
