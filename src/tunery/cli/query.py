"""`tunery query`: what the store already knows."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import NothingFoundError
from tunery.cli.console import options
from tunery.cli.console.output import emit, say, width

if TYPE_CHECKING:
    from tunery.domain import Record, Task
    from tunery.service.session import Answer

_KEY = re.compile(r"[0-9a-f]{4,16}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query", epilog="Example: tunery query zoo:resnet18 --json")(query)


def query(
    subject: Annotated[
        str, typer.Argument(metavar="MODEL|TASK", help="A model, or the key of a task or workload, or its start.")
    ],
    *,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Predict and verify a schedule where there is no record.")
    ] = False,
    few_shot: options.FewShot = 0,
    few_shot_budget: options.FewShotBudget = None,
    target: options.TargetName = "native",
    on: options.HostName = "",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show the best verified records for a model on this machine, or of one task under all conditions."""
    if _KEY.fullmatch(subject) and not Path(subject).exists():
        _query_task(subject, store, json)
        return
    from tunery.service.session import query as query_model

    request = options.make_request(
        subject, target=target, on=on, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust
    )
    answer = query_model(request, options.guess(few_shot, few_shot_budget, wanted=zero_shot))
    if json:
        emit(_data(answer))
    else:
        _print(answer)
        if answer.open and not (zero_shot or few_shot):
            say(f"{len(answer.open)} have no tuned candidate; `tunery compile` predicts one, as --zero-shot shows")


def _rows(answer: "Answer") -> list[dict[str, Any]]:
    names = {task.key: task for task in answer.tasks}
    return [
        {
            "name": names[choice.task_key].workload.name,
            "task": choice.task_key,
            "weight": names[choice.task_key].weight,
            "rung": choice.rung.value,
            "candidate": choice.candidate.key if choice.candidate else None,
            "latency_s": choice.latency_s,
            "baseline_s": choice.baseline_s,
        }
        for choice in answer.choices
    ]


def _data(answer: "Answer") -> dict[str, Any]:
    skipped = [{"task": key, "reason": str(why)} for key, why in answer.skipped]
    return {
        "network": answer.network.name,
        "target": str(answer.target),
        "tasks": _rows(answer),
        "skipped": skipped,
        "refused": dict(answer.refused),
    }


def _print(answer: "Answer") -> None:
    from tunery.delivery.query import skipped_lines
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text, milliseconds, new_table, ratio, short

    table = new_table("task", "key", "#calls", "from", "#untuned ms", "#tuned ms", "#speed-up", "candidate")
    rows = _rows(answer)
    for row in rows:
        table.add_row(
            row["name"], short(row["task"]), str(row["weight"]), row["rung"], milliseconds(row["baseline_s"]),
            milliseconds(row["latency_s"]), ratio(row["baseline_s"], row["latency_s"]), row["candidate"] or "-",
        )  # fmt: skip
    from tunery.domain import Rung

    guessed = sum(row["rung"] == Rung.ZERO_SHOT.value for row in rows)
    known = sum(row["candidate"] is not None for row in rows) - guessed
    also = f", {guessed} a prediction that is verified, not measured" if guessed else ""
    say(f"{answer.network.name} on {answer.target}: {known} of {len(rows)} tasks have a verified record{also}")
    say(as_text(table, width()))
    for line in batch_lines(answer.network.batch_of_one):
        say(line)
    names = {task.key: task.workload.name for task in answer.tasks}
    for reason in skipped_lines(answer.skipped, names):
        say(f"not used: {reason}")
    for key, why in answer.refused.items():
        say(f"{names[key]} has no prediction: {why}")


def _query_task(key: str, store_url: str, as_json: bool) -> None:
    from tunery.reports.format import as_text, milliseconds, new_table, short
    from tunery.store import open_store

    with open_store(store_url, create=False, keep=False) as store:
        tasks = store.tasks_like(key)
        found = [(task, record) for task in tasks for record in _best(store.records(task.key), task, store)]
    if not found:
        raise NothingFoundError(f"no verified record of {key}; tune a network that holds it")
    if as_json:
        emit({"records": [_record_data(task, record) for task, record in found]})
        return
    table = new_table("task", "key", "target", "compiler", "device", "#latency ms", "candidate")
    for task, record in found:
        table.add_row(task.workload.name, short(task.key), str(task.target), record.provenance.compiler,
                      record.provenance.device, milliseconds(record.measurement.latency_s),
                      record.candidate.key)  # fmt: skip
    say(as_text(table, width()))


def _best(records: "list[Record]", task: "Task", store: Any) -> "list[Record]":
    """Return the best record under each of the conditions that the task was measured under."""
    conditions = dict.fromkeys(record.provenance for record in records)
    return [best for provenance in conditions for best in store.best(task.key, provenance)]


def _record_data(task: "Task", record: "Record") -> dict[str, Any]:
    return {
        "name": task.workload.name,
        "task": task.key,
        "target": str(task.target),
        "candidate": record.candidate.key,
        "latency_s": record.measurement.latency_s,
        "provenance": record.provenance,
        "verification": record.measurement.verification,
        "job": record.job_id,
    }
