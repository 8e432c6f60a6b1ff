"""`tunery extract`: the tasks of models."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery.cli.console import options
from tunery.cli.console.output import emit, say, width

if TYPE_CHECKING:
    from tunery.runtime.importing import ImportedModel


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("extract", epilog="Example: tunery extract zoo:resnet18 --json")(extract)


def extract(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, .pt2 files, or zoo:NAME.")],
    *,
    target: options.TargetName = "native",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the tasks of a model: its distinct operators, how often each is called, and whether it can be tuned."""
    from tunery.service.session import extract as extract_model

    found = [
        extract_model(
            options.make_request(
                model, target=target, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust
            )
        )
        for model in models
    ]  # fmt: skip
    if json:
        emit(_data(found[0]) if len(found) == 1 else {"networks": [_data(one) for one in found]})
    else:
        for one in found:
            _print(one)


def _data(found: "ImportedModel") -> dict[str, Any]:
    return {
        "network": found.network.name,
        "target": str(found.target),
        "tasks": [
            {
                "name": task.workload.name,
                "workload": task.workload.key,
                "operator": task.workload.operator,
                "weight": task.weight,
                "tunable": task.tunable,
                "task": task.key,
                "kind": task.workload.kind,
                "flop": task.workload.flop,
            }
            for task in found.tasks
        ],
        "elsewhere": dict(found.elsewhere),
        "batch_of_one": list(found.network.batch_of_one),
    }


def _print(found: "ImportedModel") -> None:
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text, new_table, short
    from tunery.reports.text import elsewhere_lines

    table = new_table("task", "key", "kind", "#calls", "#Mflop", "tunable", "workload")
    for task in found.tasks:
        work = task.workload
        table.add_row(work.name, short(task.key), work.kind, str(task.weight), f"{work.flop / 1e6:.1f}",
                      "yes" if task.tunable else "no", work.key)  # fmt: skip
    tunable = sum(task.tunable for task in found.tasks)
    several = f" for {len(found.parts)} bindings of its shapes" if found.parts else ""
    say(f"{found.network.name} on {found.target}: {len(found.tasks)} tasks{several}, {tunable} of them tunable")
    if found.tasks:
        say(as_text(table, width()))
    for line in (*batch_lines(found.network.batch_of_one), *elsewhere_lines(found.elsewhere)):
        say(line)
