"""`tunery extract`: the tasks of models."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command
from tunery.cli.console.output import width
from tunery.cli.console.remote import Server, answered, server_of
from tunery.domain.request import Request


@command("extract", "extract zoo:resnet18 --json")
def extract(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, .pt2 files, or zoo:NAME.")],
    *,
    request: Annotated[Request, Only("target", "store", "threads", "shapes", "trust", "dialect")],
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """List the tasks of a model: its distinct operators, how often each is called, and whether it can be tuned."""
    url = server_of(server, request.store)
    networks = [
        answered(url, replace(options.of_model(request, model), kind="extract"), verbose=verbose) for model in models
    ]
    data = networks[0] if len(networks) == 1 else {"networks": networks}
    return Result(data, (line for network in networks for line in _lines(network)))


def _lines(network: Mapping[str, Any]) -> Iterator[str]:
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text, new_table, short
    from tunery.reports.text import elsewhere_lines

    table, tasks = new_table("task", "key", "kind", "#calls", "#Mflop", "tunable", "workload"), network["tasks"]
    for task in tasks:
        flop = task["flop"]  # null: more than a number holds
        table.add_row(
            task["name"], short(task["task"]), task["kind"], str(task["weight"]),
            "-" if flop is None else f"{flop / 1e6:.1f}", "yes" if task["tunable"] else "no", task["workload"],
        )  # fmt: skip
    tunable = sum(task["tunable"] for task in tasks)
    several = f" for {network['bindings']} bindings of its shapes" if network["bindings"] > 1 else ""
    yield (f"{network['network']} on {network['target']}: {len(tasks)} tasks{several}, {tunable} of them tunable")
    if tasks:
        yield as_text(table, width())
    yield from (*batch_lines(network["batch_of_one"]), *elsewhere_lines(network["elsewhere"]))
