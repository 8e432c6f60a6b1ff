"""Comparisons of whole networks as tables for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunery.reports.format import as_text, milliseconds, new_table

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport, Latency

_STEADY = 1.1
_SHOWN_INPUTS = 3


def bench_text(report: "BenchReport", width: int | None = None) -> str:
    """Return the table of a whole-network comparison, led by ONNX Runtime."""
    from tunery.domain.request import CONTESTANTS

    table = new_table("", "#median ms", "#p10 to p90 ms", "#samples", "tunery is")
    order = ["onnxruntime", "tunery", *sorted(set(report.latency_s) - {"onnxruntime", "tunery"})]
    ours = report.latency_s["tunery"].median
    for name in order:
        if (latency := report.latency_s.get(name)) is None:
            continue
        spread = f"{milliseconds(latency.p10)} to {milliseconds(latency.p90)}"
        verdict = "" if name == "tunery" else _verdict(latency.median, ours)
        table.add_row(CONTESTANTS.get(name, name), milliseconds(latency.median), spread, str(latency.samples), verdict)
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    rival = report.latency_s.get("onnxruntime")
    verdict = f": {_against(rival, report.latency_s['tunery'])}" if rival else ""
    return "\n".join(
        [
            f"{report.network}, whole network, {threads}{verdict}",
            *batch_lines(report.batch_of_one),
            as_text(table, width),
            f"largest deviation from ONNX Runtime's outputs: {report.max_abs_error:.3g}",
            *(f"{CONTESTANTS[name]} took no part: {reason}" for name, reason in report.absent.items()),
            *_sum_of_tasks(report),
            *_elsewhere(report),
        ]
    )


def batch_lines(inputs: Sequence[str]) -> list[str]:
    """Say that a dynamic batch is 1, for the inputs that have one which nobody bound.

    >>> batch_lines(["x"])
    ["batch       1 was taken for the dynamic batch of 'x'; --shape gives another"]
    """
    if not inputs:
        return []
    names = ", ".join(repr(name) for name in inputs[:_SHOWN_INPUTS])
    more = f" and {len(inputs) - _SHOWN_INPUTS} more" if len(inputs) > _SHOWN_INPUTS else ""
    return [f"batch       1 was taken for the dynamic batch of {names}{more}; --shape gives another"]


def _against(rival: "Latency", ours: "Latency") -> str:
    verdict = f"{_verdict(rival.median, ours.median)} than ONNX Runtime"
    if not rival.covers(ours) and not ours.covers(rival):
        return verdict
    if max(rival.median, ours.median) <= _STEADY * min(rival.median, ours.median):
        return f"as fast as ONNX Runtime within the spread of the runs ({verdict.removesuffix(' than ONNX Runtime')})"
    return f"{verdict} by the medians of unsteady runs; compare again when the machine is quiet"


def _elsewhere(report: "BenchReport") -> list[str]:
    """Say how much of the kernels' time ONNX Runtime takes for the nodes that it runs."""
    there_s = report.elsewhere_s
    if not there_s or not report.kernels_s:
        return []
    return [f"of its kernels' time {there_s / report.kernels_s:.0%} is ONNX Runtime's ({milliseconds(there_s)} ms)"]


def _sum_of_tasks(report: "BenchReport") -> list[str]:
    """Say how the network's time compares with its tasks', and where a difference arises."""
    if report.tasks_s is None:
        return []
    spread = report.latency_s["tunery"]
    whole = spread.median
    inside = sum(task.latency_s is None for task in report.tasks)
    how = f" ({inside} of {len(report.tasks)} as timed inside the network)" if inside else ""
    if spread.p10 <= report.tasks_s <= spread.p90:
        return [f"sum of tasks {milliseconds(report.tasks_s)} ms{how}, within the spread of the network's runs"]
    line = f"sum of tasks {milliseconds(report.tasks_s)} ms{how}, {_more(whole, report.tasks_s)} in the network"
    if report.kernels_s is not None:
        line += f": {_where(whole, report.tasks_s, report.kernels_s, report.both_s, report.layouts_s)}"
    return [line]


def _where(whole_s: float, tasks_s: float, kernels_s: float, both_s: Sequence[float], layouts_s: float) -> str:
    (alone_s, inside_s), rest_s = both_s, max(whole_s - kernels_s, 0.0)
    apart = f"{milliseconds(inside_s)} of them {milliseconds(alone_s)} when timed alone" if alone_s else "none alone"
    return (
        f"its kernels {milliseconds(kernels_s)} ms ({_more(kernels_s, tasks_s)}; {apart}), of which layout transforms "
        f"{milliseconds(layouts_s)} ms; dispatch, allocation and copies {milliseconds(rest_s)} ms"
    )


def _more(value: float, base: float) -> str:
    return f"{value / base - 1:+.0%}" if base > 0 else "-"


def _verdict(rival_s: float, ours_s: float) -> str:
    if not (ours_s > 0 and rival_s > 0):
        return "-"
    return f"{rival_s / ours_s:.2f}x faster" if rival_s >= ours_s else f"{ours_s / rival_s:.2f}x slower"
