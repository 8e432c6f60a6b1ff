"""`tunery extract`: the tasks of models; `tunery zoo`: networks that come with tunery, and theirs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError, WorkError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, width
from tunery.cli.console.remote import Server, answered, server_of
from tunery.domain.request import Request

if TYPE_CHECKING:
    from tunery.runtime.extraction import Extracted, Extraction


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


@command("zoo list", "zoo list")
def list_() -> Result:
    """List the zoo's networks; use one as zoo:NAME, or zoo:NAME@8 with a batch of 8."""
    from tunery.models import zoo
    from tunery.reports.format import as_text, new_table

    entries = zoo.names()
    table = new_table("name", "kind", "#parameters")
    for entry in entries:
        table.add_row(entry.name, entry.kind, f"{entry.parameters / 1e6:.1f}M")
    return Result({"networks": entries}, [as_text(table, width())])


@command("zoo extract", "zoo extract --target native --batch 1,8")
def extract_zoo(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Networks; all without names.")] = None,
    *,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, joined by commas.")] = "1",
    request: Annotated[Request, Only("target", "store", "threads")],
    verbose: bool = False,
) -> Result:
    """Extract the tasks of the zoo's networks into the store, and count them by kind of operator.

    Networks that the store knows already are only counted, so a run that was stopped goes on.
    """
    from tunery.cli.console.live import LiveLine
    from tunery.runtime.extraction import extract_many

    models = _models(names or [], _batches(batch))
    with LiveLine(verbose=verbose) as live:
        count = _Count(len(models), live)
        extraction = extract_many(request, models, count.add)
    if not any(one.tasks for one in extraction.models):
        raise WorkError(f"no network could be extracted; the first one: {extraction.models[0].failure}")
    return Result(_data(extraction), _zoo_lines(extraction))


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < int(part) < 2**16 for part in parts):
        raise UsageError(f"--batch {text!r} is not a list of batch sizes; write for example --batch 1,8")
    return list(dict.fromkeys(int(part) for part in parts))


def _models(names: Sequence[str], batches: Sequence[int]) -> list[str]:
    from tunery.models import zoo

    wanted = [name.removeprefix("zoo:") for name in names]
    for name in wanted:
        zoo.check(name)
    chosen = list(dict.fromkeys(wanted)) or [entry.name for entry in zoo.names()]
    return [f"zoo:{name}" if size == 1 else f"zoo:{name}@{size}" for size in batches for name in chosen]


class _Count:
    """Keeps the live line: how many models are done, and what came of them."""

    def __init__(self, models: int, live: Any) -> None:
        self._models, self._live, self._began = models, live, time.monotonic()
        self._done = self._failed = 0
        self._unique: set[str] = set()

    def add(self, one: "Extracted") -> None:
        from tunery.reports.format import duration

        self._done += 1
        self._failed += bool(one.failure)
        self._unique.update(task.workload.key for task in one.tasks)
        failed = f", {self._failed} failed" if self._failed else ""
        gone = duration(time.monotonic() - self._began)
        said = f"{self._done}/{self._models} extracted{failed} | {len(self._unique)} unique tasks | {gone} gone"
        self._live.say(f"{said} | {one.model}" + (f": {one.failure}" if one.failure else ""))


def _data(found: "Extraction") -> dict[str, Any]:
    from tunery.runtime.extraction import count_by_kind, count_tasks

    return {
        "target": str(found.target),
        "networks": _networks(found),
        **{name: value for name, value in asdict(count_tasks("all", found.models)).items() if name != "kind"},
        "wall_s": found.wall_s,
        "kinds": count_by_kind(found.models),
        "extracted": [
            {"model": one.model, "tasks": len(one.tasks), "cached": one.cached, "wall_s": one.wall_s}
            for one in found.models
            if not one.failure
        ],
        "failures": [{"model": one.model, "reason": one.failure} for one in found.models if one.failure],
    }


def _networks(found: "Extraction") -> int:
    return len({one.model.partition("@")[0] for one in found.models if not one.failure})


def _zoo_lines(found: "Extraction") -> Iterator[str]:
    from tunery.reports.format import as_text, duration, new_table
    from tunery.runtime.extraction import count_by_kind, count_tasks

    table = new_table("kind", "#extractions", "#tasks", "#unique", "#of them tunable", "#calls")
    rows = count_by_kind(found.models)
    for row in (*rows, count_tasks("all", found.models)):
        if row.kind == "all":
            table.add_section()
        numbers = (row.models, row.tasks, row.unique, row.tunable, row.calls)
        table.add_row(row.kind, *(f"{number:,}" for number in numbers))
    cached = sum(one.cached for one in found.models)
    yield (f"{_networks(found)} networks on {found.target} in {duration(found.wall_s)}; the store knew {cached} of "
        f"{len(found.models)} extractions")  # fmt: skip
    yield as_text(table, width())
    failures = [one for one in found.models if one.failure]
    if failures:
        yield f"\nnot extracted: {len(failures)} of {len(found.models)}"
        table = new_table("model", "reason")
        for one in failures:
            table.add_row(one.model, one.failure)
        yield as_text(table, width())
