"""`tunery extract`: the tasks of models."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, say, width
from tunery.cli.console.remote import Server, answered, server_of


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
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the tasks of a model: its distinct operators, how often each is called, and whether it can be tuned."""
    url = server_of(server, store)
    found = []
    for model in models:
        request = options.make_request(
            model, target=target, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust
        )
        found.append(answered(url, replace(request, kind="extract"), verbose=verbose))
    if json:
        emit(found[0] if len(found) == 1 else {"networks": found})
    else:
        try:
            for one in found:
                _print(one)
        except KeyError:
            if not url:
                raise
            raise UsageError(f"the service at {url} cannot do that: it is of an older version of tunery") from None


def _print(found: Mapping[str, Any]) -> None:
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text, new_table, short
    from tunery.reports.text import elsewhere_lines

    table, tasks = new_table("task", "key", "kind", "#calls", "#Mflop", "tunable", "workload"), found["tasks"]
    for task in tasks:
        flop = task["flop"]  # null: more than a number holds
        table.add_row(
            task["name"], short(task["task"]), task["kind"], str(task["weight"]),
            "-" if flop is None else f"{flop / 1e6:.1f}", "yes" if task["tunable"] else "no", task["workload"],
        )  # fmt: skip
    tunable = sum(task["tunable"] for task in tasks)
    several = f" for {found['bindings']} bindings of its shapes" if found["bindings"] > 1 else ""
    say(f"{found['network']} on {found['target']}: {len(tasks)} tasks{several}, {tunable} of them tunable")
    if tasks:
        say(as_text(table, width()))
    for line in (*batch_lines(found["batch_of_one"]), *elsewhere_lines(found["elsewhere"])):
        say(line)
