"""`tunery query`: what the store already knows."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import NothingFoundError, UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, say, width
from tunery.cli.console.remote import Server, answered, server_of

if TYPE_CHECKING:
    from tunery.domain.request import Request

_DOCUMENTED = ("network", "target", "tasks", "skipped", "refused", "latency_s", "unknown", "target_s", "met", "tuning")
_OPERATOR_FIELDS = (
    "operator", "name", "task", "workload", "target", "dialect", "compiler", "device", "device_name", "best", "best_s",
    "baseline_s",
)  # fmt: skip
_KEY = re.compile(r"[0-9a-f]{4,16}")
_OPERATOR = re.compile(r"[a-z][a-z0-9_]*:([^/\\]*=[^/\\]*)?")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("query", epilog="Example: tunery query zoo:resnet18 --json")(query)


def query(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|TASK|OPERATOR",
            help="A model; the key of a task or workload, or its start; or an operator, as conv2d:w=64x64x3x3.",
        ),
    ],
    *,
    all_known: Annotated[
        bool, typer.Option("--all", help="Show the best of each operator by every dialect, on every device.")
    ] = False,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Predict and verify a schedule where there is no record.")
    ] = False,
    few_shot: options.FewShot = 0,
    few_shot_budget: options.FewShotBudget = None,
    latency_target: options.LatencyTarget = "",
    target: options.TargetName = "native",
    on: options.HostName = "",
    store: options.StoreUrl = "",
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    trust: options.Trust = False,
    dialect: options.DialectName = options.DIALECT,
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Show what is known of a model on this machine, how fast it would be, and what tuning the rest would take.

    Of a task or an operator, show the best verified records under all conditions.
    """
    if _KEY.fullmatch(subject) and not Path(subject).exists():
        _query_task(subject, store, server, as_json=json)
        return
    if _is_operator(subject):
        _query_operator(subject, store, server, as_json=json)
        return
    request = options.make_request(
        subject, target=target, on=on, store=store, threads=threads, shapes=shape, dialect=dialect, trust=trust,
        latency_target=latency_target,
    )  # fmt: skip
    fill = options.fill_options(few_shot, few_shot_budget, predict=zero_shot)
    fills = zero_shot or few_shot > 0
    url = server_of(server, store)
    if all_known:
        if fills or latency_target:
            raise UsageError("--all shows what was measured; leave out --zero-shot, --few-shot and --latency-target")
        _query_all(url, request, as_json=json, verbose=verbose)
        return
    asked_for = replace(request, kind="query", options=fill)
    answer = answered(url, asked_for, create=fills, verbose=verbose)
    if answer["nothing"]:
        from tunery.reports.text import asked

        expected = "".join(f"; {line}" for line in _tuning_line(answer))
        again = [shlex.quote(subject), *asked(request), *([f"--server {shlex.quote(server)}"] if server else [])]
        raise NothingFoundError(f"{answer['nothing']}{expected}; run `tunery tune {' '.join(again)}`")
    if json:
        emit({name: answer[name] for name in _DOCUMENTED})
    else:
        _print(answer)
        if answer["open"] and not fills:
            say(f"{len(answer['open'])} have no tuned candidate; `tunery compile` predicts one, as --zero-shot shows")


def _print(answer: Mapping[str, Any]) -> None:
    from tunery.domain import Rung
    from tunery.reports.comparison import batch_lines
    from tunery.reports.format import as_text, milliseconds, new_table, ratio, short
    from tunery.reports.text import equal_device_lines, said_source

    table = new_table("task", "key", "#calls", "from", "#untuned ms", "#tuned ms", "#speed-up", "candidate")
    rows = answer["tasks"]
    for row in rows:
        table.add_row(
            row["name"], short(row["task"]), str(row["weight"]), said_source(row["rung"], row["source"]),
            milliseconds(row["baseline_s"]), milliseconds(row["latency_s"]), ratio(row["baseline_s"], row["latency_s"]),
            row["candidate"] or "-",
        )  # fmt: skip
    guessed = sum(row["rung"] == Rung.ZERO_SHOT.value for row in rows)
    borrowed = sum(row["rung"] == Rung.COMPATIBLE.value for row in rows)
    known = sum(row["candidate"] is not None for row in rows) - guessed - borrowed
    also = f", {guessed} a prediction that is verified, not measured" if guessed else ""
    say(f"{answer['network']} on {answer['target']}: {known} of {len(rows)} tasks have a verified record{also}")
    say(as_text(table, width()))
    for line in equal_device_lines((row["rung"], row["source"]) for row in rows):
        say(line)
    if borrowed:
        say(f"{borrowed} measured on a device of this type: `tunery compile` verifies it here, `tunery tune` times it")
    for line in (*_expected(answer), *batch_lines(answer["batch_of_one"])):
        say(line)
    for reason in answer["not_used"]:
        say(f"not used: {reason}")
    names = {row["task"]: row["name"] for row in rows}
    for key, why in answer["refused"].items():
        say(f"{names[key]} has no prediction: {why}")


def _expected(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield how fast the network would be, whether that is good enough, and what tuning the rest would take."""
    from tunery.reports.format import milliseconds

    if answer["latency_s"]:
        yield f"sum of tasks as known: {milliseconds(answer['latency_s'])} ms"
    else:
        yield f"{answer['unknown']} of {len(answer['tasks'])} tasks have no latency yet"
    if answer["met"]:
        yield f"the latency target of {milliseconds(answer['target_s'])} ms is met: nothing needs to be tuned"
    elif answer["met"] is False:
        yield f"the latency target of {milliseconds(answer['target_s'])} ms is not met by what is known"
    yield from _tuning_line(answer)


def _tuning_line(answer: Mapping[str, Any]) -> Iterator[str]:
    from tunery.reports.format import duration, milliseconds, money

    if (one := answer["tuning"]) is None:
        return
    price = f", {money(one['money'], one['currency'])}" if one["money"] is not None else ""
    gain = f", {one['speedup']:.2g} times faster" if one["speedup"] else ""
    then = f", {milliseconds(one['latency_s'])} ms in all" if one["latency_s"] else ""
    past = "the last job" if one["jobs"] == 1 else f"the last {one['jobs']} jobs"
    what = f"{'its' if answer['nothing'] else 'the other'} {one['tasks']} tasks"
    yield (
        f"tuning {what} would take about {duration(one['wall_s'])}{price} for {one['trials']} "
        f"trials{gain}{then}, going by {past}"
    )


def _query_task(key: str, store_url: str, server: str, *, as_json: bool) -> None:
    from tunery.reports.format import as_text, milliseconds, new_table, short

    if url := server_of(server, store_url):
        from tunery.web.client import connect

        with connect(url) as service:
            found = service.records(key)
    else:
        from tunery.reports.records import best_records
        from tunery.store import open_store

        with open_store(store_url, create=False, keep=False) as store:
            found = best_records(store, key)
    if not found:
        raise NothingFoundError(f"no verified record of {key}; tune a network that holds it")
    if as_json:
        emit({"records": found})
        return
    table = new_table("task", "key", "target", "compiler", "device", "host", "#latency ms", "candidate")
    for one in found:
        made = one["provenance"]
        table.add_row(one["name"], short(one["task"]), one["target"], made["compiler"], made["device"],
                      one.get("host") or "-", milliseconds(one["latency_s"]), one["candidate"])  # fmt: skip
    say(as_text(table, width()))


def _is_operator(subject: str) -> bool:
    """Say whether a subject is an operator key or a part of one: `conv2d:`, with fields `name=value` behind it."""
    from tunery.dialects import named_dialect

    return bool(_OPERATOR.fullmatch(subject)) and not (
        subject.startswith("zoo:") or Path(subject).exists() or named_dialect(subject)
    )


def _query_operator(subject: str, store_url: str, server: str, *, as_json: bool) -> None:
    from tunery.reports.records import best_operators, pattern_of

    pattern = pattern_of(subject)
    if url := server_of(server, store_url):
        from tunery.web.client import connect

        with connect(url) as service:
            found = service.operators(subject)
    else:
        from tunery.store import open_store

        with open_store(store_url, create=False, keep=False) as store:
            found = best_operators(store, pattern)
    _print_operators(found, f"no verified record of {subject}; tune a network that holds it", as_json=as_json)


def _query_all(url: str, request: "Request", *, as_json: bool, verbose: bool) -> None:
    """Show what is known of a model's operators by every dialect, on every device."""
    tasks = answered(url, replace(request, kind="extract"), verbose=verbose)["tasks"]
    workloads = [task["workload"] for task in tasks]
    if url:
        from tunery.web.client import connect

        with connect(url) as service:
            found = service.operators(workloads=workloads)
    else:
        from tunery.reports.records import best_operators
        from tunery.store import open_store

        with open_store(request.store, create=False, keep=False) as store:
            found = best_operators(store, workloads=workloads)
    _print_operators(found, f"no verified record of any operator of {request.model}; tune it first", as_json=as_json)


def _print_operators(found: list[dict[str, Any]], nothing: str, *, as_json: bool) -> None:
    from tunery.reports.format import as_text, milliseconds, new_table, ratio, short

    rows = [row for row in found if row["best"] is not None]
    if not rows:
        raise NothingFoundError(nothing)
    rows.sort(key=lambda row: (row["operator"] or f"~{row['name']}", row["best_s"], row["task"]))
    if as_json:
        emit({"operators": [{name: row[name] for name in _OPERATOR_FIELDS} for row in rows]})
        return
    table = new_table("operator", "dialect", "target", "device", "key", "#untuned ms", "#tuned ms", "#speed-up")
    for before, row in zip([None, *rows], rows, strict=False):
        what = row["operator"] or row["name"]
        again = before is not None and what == (before["operator"] or before["name"])
        table.add_row(
            "" if again else what, row["dialect"], row["target"], row["device_name"] or short(row["device"]),
            short(row["task"]), milliseconds(row["baseline_s"]), milliseconds(row["best_s"]),
            ratio(row["baseline_s"], row["best_s"]),
        )  # fmt: skip
    say(as_text(table, width()))
