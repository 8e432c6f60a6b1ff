"""What was reached, as plain data for programs and as a table for people."""

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunery._errors import brief
from tunery.domain import WHOLE, JobState, JobStatus, Network, Rung, TaskState, shape_text
from tunery.domain.request import DEFAULT_DIALECT, GOES_ON
from tunery.reports.comparison import batch_lines, bench_text
from tunery.reports.data import by_dialect, reached_of, total
from tunery.reports.format import (
    ENDED_EARLY,
    as_text,
    duration,
    energy,
    file_name,
    milliseconds,
    money,
    new_table,
    ratio,
    shape_texts,
    short,
)

if TYPE_CHECKING:
    from rich.table import Table

    from tunery.domain.request import BenchReport, CompileReport, Request, ShapeResult, TuneReport


_USUAL = frozenset({"ok", "abandoned"})
PLAINLY = {"filtered": "predicted slow"}
"""What people are told instead of an outcome's name."""
_SHOWN_INPUTS = 3
_SHOWN_NODES = 4


# -- tables -----------------------------------------------------------------------------------------------------------


def tune_text(
    report: "TuneReport",
    request: "Request",
    compiled: "CompileReport | None" = None,
    compared: "BenchReport | None" = None,
    width: int | None = None,
    *,
    verbose: bool = False,
    left_out: Sequence[str] = (),
    server: str = "",
    output: Path | None = None,
) -> str:
    """Return the table of a finished or stopped job, what was `compiled` and `compared`, and how to use it. A command
    that is advised names the `server` ("": none need be named) and the `output` that was asked for. With `verbose` it
    also says how often the filter was wrong; `left_out` are the lines of `left_out_lines`."""

    job, no_kernels = report.job, compiled is not None and compiled.no_kernels
    message = job.message.replace(GOES_ON, "") if no_kernels else job.message
    lines = [
        f"{report.network.name}: {job.state.value}{', resumed' if report.resumed else ''}"
        f"  (job {job.job_id}, {job.spend.trials} trials, {duration(job.spend.wall_s)})",
        *([message] if message else []),
        *(headlines(compiled) if compiled else []),
        *_tasks_text(job.tasks, width),
        *(dialect_lines(compiled) if compiled else []),
        *([f"\n{bench_text(compared, width, headline=not compiled)}\n"] if compared else []),
        *best_host_lines(job.tasks),
        *parameter_lines(job.tasks),
        *_at_once(report, server),
        *_noise(job),
        *(filter_lines(job) if verbose else []),
        *([] if compared else batch_lines(report.network.batch_of_one)),
        *(refused_lines(compiled) if compiled else []),
        *elsewhere_lines(compiled.elsewhere if compiled else report.elsewhere),
        *left_out,
        *cost_lines(replace(job, outlook=()) if no_kernels else job, verbose=verbose),
        f"stored in   {report.store}",
        *(
            []
            if job.state is JobState.FAILED
            else _usage(report, request, Path(compiled.path) if compiled else output, server, build=compiled is None)
        ),
    ]
    return "\n".join(lines)


def parameter_lines(tasks: Sequence[TaskState]) -> Iterator[str]:
    """Say what the best candidates choose where a user knows it by name, beside the default, and if all were tried."""
    for task in tasks:
        names = list(task.parameters) if task.kind == "kernel" else []
        if names:
            table = new_table("parameters", "#ms", *(f"#{name}" for name in names))
            for what, latency_s, chosen in (
                ("best", task.best_s, task.parameters), ("default", task.baseline_s, task.default)
            ):  # fmt: skip
                table.add_row(what, milliseconds(latency_s), *(str(chosen.get(name, "-")) for name in names))
            yield as_text(table)
        if task.all_tried is not None:
            yield f"searched    all {task.all_tried} configurations of {task.name} were tried"


def _tasks_text(tasks: Sequence[TaskState], width: int | None) -> list[str]:
    each = by_dialect(tasks) if tasks else {}
    tables = {name: as_text(tasks_table(found), width) for name, found in each.items()}
    return [f"{name}:\n{text}" if len(tables) > 1 else text for name, text in tables.items()]


def _at_once(report: "TuneReport", server: str) -> list[str]:
    """Say how many kernels were measured at once, and why not more."""
    degrees = Counter(task.degree for task in report.job.tasks if task.measured)
    if not degrees:
        return []
    threads = report.threads
    kernels = f"kernels of {threads} thread{'s' if threads > 1 else ''}"
    if report.slots == 1:
        return [f"measured    one at a time: the device has one slot for {kernels}"]
    if report.calibrated_at is None:
        where = " on the service's machine" if server else ""
        return [
            f"measured    one at a time; `tunery devices calibrate --threads {threads}`{where} finds out whether up to "
            f"{report.slots} {kernels} may be measured at once"
        ]
    day = time.strftime("%Y-%m-%d", time.localtime(report.calibrated_at))
    if set(degrees) == {1}:
        return [f"measured    one at a time, as calibrated for {kernels} on {day}, or found while tuning"]
    found = ", ".join(
        f"{degree} at once in {count} task{'s' if count > 1 else ''}"
        for degree, count in sorted(degrees.items(), reverse=True)
    )
    return [f"measured    {found}, from what was calibrated for {kernels} on {day}; the best again one at a time"]


def _noise(job: JobStatus) -> list[str]:
    dirty, timed = (sum(getattr(task, name) for task in job.tasks) for name in ("contaminated", "timings"))
    said = (
        f"disturbed   {dirty} of {timed} timings were taken while others used the machine: they may be too high; "
        "for clean ones let nothing else run, or leave it cores with fewer --threads"
    )
    return [said] if dirty else []


def filter_lines(job: JobStatus) -> list[str]:
    """Say how many candidates the filter dropped, and how often it was wrong as far as that is known."""
    from tunery.tuning.allocation.trimming import Audit

    dropped, audited, wrong = (
        sum(getattr(task, name) for task in job.tasks) for name in ("dropped", "audited", "false_drops")
    )
    if not dropped and not audited:
        return []
    if not audited:
        return [f"filter      {dropped} dropped, none of them measured all the same"]
    low, high = Audit(dropped, audited, wrong).interval()
    best = "was its task's best" if wrong == 1 else "were their tasks' best"
    return [
        f"filter      {dropped} dropped, {audited} of them measured all the same, {wrong} {best} "
        f"({100 * low:.2g} % to {100 * high:.2g} %)"
    ]


def left_out_lines(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Say by task what its search did without, in a line per reason; `found` has the reason by what was left out.

    >>> left_out_lines({"conv2d:04f1c0de": {"winograd4": "the stride is not 1", "winograd2": "the stride is not 1"}})
    ['left out    conv2d:04f1c0de: winograd4, winograd2 (the stride is not 1)']
    """
    names: dict[tuple[str, str], list[str]] = {}
    for task, reasons in found.items():
        for name, why in reasons.items():
            names.setdefault((task, why), []).append(name)
    return [f"left out    {task}: {', '.join(which)} ({why})" for (task, why), which in names.items()]


def failed_rules(report: "CompileReport") -> list[str]:
    return left_out_lines({task: why for task, why in report.left_out.items() if task == WHOLE})


def headlines(report: "CompileReport") -> list[str]:
    """Say who runs a compiled network and how fast it is beside ONNX Runtime, for each of its shapes."""
    lines = [line for shape in report.shapes for line in _headline(shape, f"for {_named(shape.shapes)} ")]
    return [*([report.left_as_it_was] if report.left_as_it_was else []), *(lines or _headline(report))]


def _headline(one: "CompileReport | ShapeResult", which: str = "") -> list[str]:
    if one.verdict is None:
        return []
    lines = [f"{which}{one.verdict.headline}"]
    if one.verdict.by_onnxruntime:
        return lines
    if one.latency_s is not None and one.onnxruntime_s is not None:
        lines.append(f"latency     {milliseconds(one.latency_s)} ms, ONNX Runtime {milliseconds(one.onnxruntime_s)} ms")
    if one.verdict.not_judged:
        lines.append("            `tunery bench` compares it with ONNX Runtime, and so does the next compilation")
    return lines


def _named(shapes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name}{list(shape)}" for name, shape in [*shapes.items()][:_SHOWN_INPUTS])


def dialect_lines(report: "CompileReport") -> list[str]:
    """Say what each of several dialects made of the network, beside ONNX Runtime, and whose file it is."""
    if not report.dialects:
        return []
    table = new_table("compiled by", "#ms", "#ONNX Runtime ms", "")
    lines = []
    for one in report.dialects:
        if one.refused:
            lines.append(f"without     {one.dialect}: {one.refused}")
            continue
        note = "ONNX Runtime runs its file, which is faster" if one.by_onnxruntime else ""
        note = "in the file" + (f": {note}" if note else "") if one.dialect == report.dialect else note
        table.add_row(one.dialect, milliseconds(one.latency_s), milliseconds(report.onnxruntime_s), note)
    return [as_text(table), *lines]


def target_lines(report: "CompileReport") -> Iterator[str]:
    for one in report.further:
        if not one.kept:
            yield f"{one.target} is left out: for it, ONNX Runtime has to run the whole network"
            continue
        error = "not compared" if one.max_abs_error is None else f"a deviation of {one.max_abs_error:.3g}"
        times = ""
        if one.latency_s is not None and one.onnxruntime_s is not None:
            times = f"{ratio(one.onnxruntime_s, one.latency_s)} as fast here ({milliseconds(one.latency_s)} ms), "
        yield f"{one.target} beside ONNX Runtime: {times}{error}"


def value_lines(report: "CompileReport") -> list[str]:
    """Return lines about values that the file does not keep, and that ONNX Runtime's optimiser does not."""
    lines = [f"a kind of value is not kept: {line}" for line in report.not_kept]
    changed = f"ONNX Runtime's optimiser changes what this model computes: {report.optimiser}"
    return [*lines, changed] if report.optimiser else lines


def elsewhere_lines(found: Mapping[str, str]) -> list[str]:
    """Say which nodes run in ONNX Runtime and why, in a line per reason.

    >>> elsewhere_lines({"If cond": "control flow", "Loop a": "control flow", "IsNaN b": "no program"})
    ['elsewhere   2 nodes run in ONNX Runtime, control flow: If cond, Loop a', \
'elsewhere   1 node runs in ONNX Runtime, no program: IsNaN b']
    """
    nodes: dict[str, list[str]] = {}
    for node, why in found.items():
        nodes.setdefault(why, []).append(node)
    lines = []
    for why, which in nodes.items():
        more = f" and {len(which) - _SHOWN_NODES} more" if len(which) > _SHOWN_NODES else ""
        count = "1 node runs" if len(which) == 1 else f"{len(which)} nodes run"
        lines.append(f"elsewhere   {count} in ONNX Runtime, {why}: {', '.join(which[:_SHOWN_NODES])}{more}")
    return lines


def refused_lines(report: "CompileReport") -> list[str]:
    """Say how many operators run as the compiler's default, as no better design of theirs is right or builds."""
    if not report.refused:
        return []
    count, of = len(report.refused), f"{len(report.coverage)} operators" if report.coverage else "the operators"
    reasons = Counter(map(brief, report.refused.values())).most_common(_SHOWN_NODES)
    said = "; ".join(f"{why} ({number})" if len(reasons) > 1 else why for why, number in reasons)
    default = "runs as the compiler makes it" if count == 1 else "run as the compiler makes them"
    return [f"refused     {count} of {of} {default}: {said}"]


def said_source(rung: str, source: str) -> str:
    """Return where a task's candidate comes from: its rung, and where it was measured if that was elsewhere.

    >>> said_source("exact", ""), said_source("exact", "host pi"), said_source("compatible-device", "EPYC, host big")
    ('exact', 'exact, host pi', 'EPYC, host big')
    """
    return f"{rung}, {source}" if rung == Rung.EXACT and source else source or rung


def equal_device_lines(found: Iterable[tuple[str, str]]) -> list[str]:
    """Say of how many tasks, by their rungs and sources, the record is another host's, whose device is equal."""
    counts = Counter(source for rung, source in found if rung == Rung.EXACT and source)
    return [f"{count} measured on {source}: its device has the same fingerprint" for source, count in counts.items()]


def best_host_lines(tasks: Iterable[TaskState]) -> list[str]:
    """Say of how many of a job's tasks another host has measured the best, whose device is equal."""
    return equal_device_lines((Rung.EXACT, f"host {task.best_host}") for task in tasks if task.best_host)


def cost_lines(job: JobStatus, *, verbose: bool) -> list[str]:
    """Say what a job has spent, what is left of its limits, and what more would probably buy. Energy and money are told
    where they are limited, else only where more is asked for."""
    spend, left = job.spend, job.remaining
    used = [duration(spend.wall_s), f"{spend.trials} trials"]
    if spend.joules is not None and (verbose or "joules" in left):
        used.append(energy(spend.joules, modelled=spend.modelled))
    if spend.money is not None and (verbose or "money" in left):
        used.append(money(spend.money, spend.currency))
    show: dict[str, Callable[[float], str]] = {
        "seconds": duration,
        "trials": lambda count: f"{count:.0f} trials",
        "joules": energy,
        "money": lambda amount: money(amount, spend.currency),
    }
    rest = [show[name](amount) for name, amount in left.items() if amount > 0]
    lines = [f"spent       {', '.join(used)}{'; not used: ' + ', '.join(rest) if rest else ''}"]
    if job.outlook:
        more = job.outlook[len(job.outlook) // 2]
        price = f", {money(more.money, more.currency)}" if more.money and (verbose or "money" in left) else ""
        now_s = total(job.tasks, "best_s") if len({task.dialect for task in job.tasks}) == 1 else None
        now = f" instead of {milliseconds(now_s)} ms" if now_s else ""
        now += " (untuned where not reached)" if now and any(task.unreached for task in job.tasks) else ""
        lines.append(
            f"more        {more.trials} further trials (about {duration(more.seconds)}{price}) would probably give "
            f"{milliseconds(more.low_s)} to {milliseconds(more.high_s)} ms{now}"
        )
    return lines


def _usage(report: "TuneReport", request: "Request", output: Path | None, server: str, *, build: bool) -> list[str]:
    path = str(output or file_name(report.network.name, request))
    at = ["--server", shlex.quote(server)] if server else []
    words = " ".join([shlex.quote(request.model), *asked(request), "-o", shlex.quote(path), *at])
    there = f"  # on {request.on}" if request.on else ""
    return [
        *([f"to use it   tunery compile {words}"] if build else []),
        f"{'' if build else 'to use it':<11} import tunery{there}",
        f"            network = tunery.load_compiled({json.dumps(path, ensure_ascii=False)})",
        f"            outputs = {call(report.network)}",
    ]


def asked(request: "Request") -> list[str]:
    """Return what a command must be told beside the model to find what this request has measured."""
    said = [f"--shape {shlex.quote(text)}" for text in shape_texts(request)]
    said += [f"--target {shlex.quote(request.target)}"] if request.target != "native" else []
    said += [f"--on {shlex.quote(request.on)}"] if request.on else []
    said += [f"--threads {request.threads}"] if request.threads else []
    said += ["--trust"] if request.trust else []
    said += [f"--store {shlex.quote(request.store)}"] if request.store else []
    return said + ([f"--dialect {shlex.quote(request.dialect)}"] if request.dialect != DEFAULT_DIALECT else [])


def call(network: Network) -> str:
    names = [f"x{i}" for i in range(len(network.inputs))] if len(network.inputs) != 1 else ["x"]
    shapes = [f"{spec.dtype}{shape_text(spec.shape)}" for spec in network.inputs]
    shown = ", ".join(shapes[:_SHOWN_INPUTS]) + (", ..." if len(shapes) > _SHOWN_INPUTS else "")
    return f"network({', '.join(names)})  # NumPy arrays: {shown}"


def tasks_table(tasks: Sequence[TaskState]) -> "Table":
    """Return a table of the tasks by their share of the network's time, and their sum over the network's call sites.
    What was not reached, and what has nothing to tune, is one row each. What was not reached has no tuned latency, so
    the sum leaves it out, too."""
    table = new_table(
        "task", "id", "kind", "#calls", "#untuned ms", "#tuned ms", "#speed-up", "#share", "#measured", "outcomes"
    )
    table.columns[0].overflow = "ellipsis"
    fixed = [task for task in tasks if not task.tunable and not task.problem]
    missed = [task for task in tasks if task.unreached]
    reached = reached_of(tasks)
    whole_s = total(reached, "best_s")
    for task in sorted((t for t in tasks if t not in fixed + missed), key=_time_of, reverse=True):
        _add_tasks(table, [task], task.name, task.kind, _notes(task), whole_s)
    for group, note in ((missed, "not reached"), (fixed, "nothing to tune")):
        if group:
            name, kind = (group[0].name, group[0].kind) if len(group) == 1 else (f"{len(group)} tasks", "")
            _add_tasks(table, group, name, kind, note, whole_s)
    table.add_section()
    if reached:
        _add_tasks(table, reached, "sum of tasks reached" if missed else "sum of tasks", "", "", whole_s, summed=True)
    return table


def _time_of(task: TaskState) -> float:
    return task.weight * (task.best_s or 0.0)


def _add_tasks(  # noqa: PLR0917 - a row's cells
    table: "Table",
    tasks: Sequence[TaskState],
    name: str,
    kind: str,
    notes: str,
    whole_s: float | None,
    *,
    summed: bool = False,
) -> None:
    [alone] = tasks if len(tasks) == 1 and not summed else [None]
    all_s = None if any(task.unreached for task in tasks) else total(tasks, "best_s")
    before, after = (alone.baseline_s, all_s and alone.best_s) if alone else (total(tasks, "baseline_s"), all_s)
    table.add_row(
        name, short(alone.task_key) if alone else "", kind, str(sum(task.weight for task in tasks)),
        milliseconds(before), milliseconds(after), ratio(before, after),
        f"{all_s / whole_s:.0%}" if all_s is not None and whole_s else "-",
        str(sum(task.measured for task in tasks)), notes,
    )  # fmt: skip


def _notes(task: TaskState) -> str:
    unusual = {name: count for name, count in task.outcomes.items() if name not in _USUAL and count}
    counted = [f"{count} {PLAINLY.get(name, name)}" for name, count in sorted(unusual.items())]
    said = [*counted, *([ENDED_EARLY] if task.preempted else []), *([task.problem] if task.problem else [])]
    return ", ".join(said)


# -- pieces -----------------------------------------------------------------------------------------------------------
