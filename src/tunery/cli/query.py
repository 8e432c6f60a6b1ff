"""`tunery query`: what the store already knows."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tunery._errors import NothingFoundError, UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, width
from tunery.cli.console.remote import Server, answered, server_of, source
from tunery.domain.request import QueryOptions, Request

_DOCUMENTED = ("network", "target", "tasks", "skipped", "refused", "latency_s", "unknown", "target_s", "met", "tuning")
_OPERATOR_FIELDS = (
    "operator", "name", "task", "workload", "target", "dialect", "compiler", "device", "device_name", "best", "best_s",
    "baseline_s",
)  # fmt: skip
_KEY = re.compile(r"[0-9a-f]{4,16}")
_OPERATOR = re.compile(r"[a-z][a-z0-9_]*:([^/\\]*=[^/\\]*)?")


@command("query", "query zoo:resnet18 --json")
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
    fill: Annotated[QueryOptions, Only("predict", *options.Few)],
    request: Annotated[
        Request, Only("latency_target_s", "target", "on", "store", "threads", "shapes", "trust", "dialect")
    ],
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Show what is known of a model on this machine, how fast it would be, and what tuning the rest would take.

    Of a task or an operator, show the best verified records under all conditions.
    """
    if _KEY.fullmatch(subject) and not Path(subject).exists():
        with source(server, request.store) as known:
            return _of_task(subject, known.records(subject))
    if _is_operator(subject):
        from tunery.reports.records import pattern_of

        pattern_of(subject)  # what is no operator is refused before anybody is asked
        with source(server, request.store) as known:
            return _operators(
                known.operators(subject), f"no verified record of {subject}; tune a network that holds it"
            )
    options.check_model(subject)
    request = options.of_model(request, subject)
    fills, url = fill.policy is not None, server_of(server, request.store)
    if all_known:
        if fills or request.latency_target_s:
            raise UsageError("--all shows what was measured; leave out --zero-shot, --few-shot and --latency-target")
        tasks = answered(url, replace(request, kind="extract"), verbose=verbose)["tasks"]
        with source(server, request.store) as known:
            found = known.operators(workloads=[task["workload"] for task in tasks])
        return _operators(found, f"no verified record of any operator of {subject}; tune it first")
    asked_for = replace(request, kind="query", options=asdict(fill))
    answer = answered(url, asked_for, create=fills, verbose=verbose)
    if answer["nothing"]:
        from tunery.reports.text import asked

        expected = "".join(f"; {line}" for line in _tuning_line(answer))
        again = [shlex.quote(subject), *asked(request), *([f"--server {shlex.quote(server)}"] if server else [])]
        raise NothingFoundError(f"{answer['nothing']}{expected}; run `tunery tune {' '.join(again)}`")
    return Result({name: answer[name] for name in _DOCUMENTED}, _lines(answer, fills=fills))


def _lines(answer: Mapping[str, Any], *, fills: bool) -> Iterator[str]:
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
    yield f"{answer['network']} on {answer['target']}: {known} of {len(rows)} tasks have a verified record{also}"
    yield as_text(table, width())
    yield from equal_device_lines((row["rung"], row["source"]) for row in rows)
    if borrowed:
        yield (
            f"{borrowed} measured on a device of this type: `tunery compile` verifies it here, `tunery tune` times it"
        )
    yield from (*_expected(answer), *batch_lines(answer["batch_of_one"]))
    yield from (f"not used: {reason}" for reason in answer["not_used"])
    names = {row["task"]: row["name"] for row in rows}
    yield from (f"{names[key]} has no prediction: {why}" for key, why in answer["refused"].items())
    if answer["open"] and not fills:
        yield f"{len(answer['open'])} have no tuned candidate; `tunery compile` predicts one, as --zero-shot shows"


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


def _of_task(key: str, records: list[dict[str, Any]]) -> Result:
    from tunery.reports.format import as_text, milliseconds, new_table, short

    if not records:
        raise NothingFoundError(f"no verified record of {key}; tune a network that holds it")
    table = new_table("task", "key", "target", "compiler", "device", "host", "#latency ms", "candidate")
    for record in records:
        made = record["provenance"]
        table.add_row(record["name"], short(record["task"]), record["target"], made["compiler"], made["device"],
                      record.get("host") or "-", milliseconds(record["latency_s"]), record["candidate"])  # fmt: skip
    return Result({"records": records}, [as_text(table, width())])


def _is_operator(subject: str) -> bool:
    """Say whether a subject is an operator key or a part of one: `conv2d:`, with fields `name=value` behind it."""
    from tunery.dialects import named_dialect

    return bool(_OPERATOR.fullmatch(subject)) and not (
        subject.startswith("zoo:") or Path(subject).exists() or named_dialect(subject)
    )


def _operators(known: list[dict[str, Any]], nothing: str) -> Result:
    from tunery.reports.format import as_text, milliseconds, new_table, ratio, short

    rows = [row for row in known if row["best"] is not None]
    if not rows:
        raise NothingFoundError(nothing)
    rows.sort(key=lambda row: (row["operator"] or f"~{row['name']}", row["best_s"], row["task"]))
    table = new_table("operator", "dialect", "target", "device", "key", "#untuned ms", "#tuned ms", "#speed-up")
    for before, row in zip([None, *rows], rows, strict=False):
        what = row["operator"] or row["name"]
        again = before is not None and what == (before["operator"] or before["name"])
        table.add_row(
            "" if again else what, row["dialect"], row["target"], row["device_name"] or short(row["device"]),
            short(row["task"]), milliseconds(row["baseline_s"]), milliseconds(row["best_s"]),
            ratio(row["baseline_s"], row["best_s"]),
        )  # fmt: skip
    data = {"operators": [{name: row[name] for name in _OPERATOR_FIELDS} for row in rows]}
    return Result(data, [as_text(table, width())])
