"""Comparisons of whole networks as tables for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunery.reports.format import as_text, milliseconds, new_table

if TYPE_CHECKING:
    from tunery.domain.request import BenchReport

_SHOWN_INPUTS = 3


def bench_text(report: "BenchReport", width: int | None = None, *, headline: bool = True) -> str:
    """Return the table of a whole-network comparison, led by ONNX Runtime; its `headline` may have been told."""
    from tunery.domain.request import CONTESTANTS

    table = new_table("", "#median ms", "#p10 to p90 ms", "#samples", "tunery is")
    order = ["onnxruntime", "tunery", *sorted(set(report.latency_s) - {"onnxruntime", "tunery"})]
    ours, verdict = report.latency_s["tunery"].median, report.verdict
    speed = verdict.delivered or verdict.native if verdict else None
    names = dict(CONTESTANTS)
    if verdict and verdict.onnxruntime_share == 1.0:
        kernels = speed is not None or bool(verdict.not_judged)  # not the file, which would be ONNX Runtime twice
        names["tunery"] = "tunery's kernels" if kernels else "the file, by ONNX Runtime"
        ours = ours if kernels else 0.0  # what others take beside ONNX Runtime is no figure of tunery's
    for name in order:
        if (latency := report.latency_s.get(name)) is None:
            continue
        spread = f"{milliseconds(latency.p10)} to {milliseconds(latency.p90)}"
        ratio = latency.median / ours if ours else 0.0
        times = "" if name == "tunery" or not ratio else _times(ratio)
        table.add_row(names.get(name, name), milliseconds(latency.median), spread, str(latency.samples), times)
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    return "\n".join(
        [
            f"{report.network}, whole network, {threads}",
            *([report.verdict.headline] if report.verdict and headline else []),
            *batch_lines(report.batch_of_one),
            as_text(table, width),
            f"largest deviation from ONNX Runtime's outputs: {report.max_abs_error:.3g}",
            *(f"{CONTESTANTS[name]} took no part: {reason}" for name, reason in report.absent.items()),
            *_sum_of_tasks(report),
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


def _sum_of_tasks(report: "BenchReport") -> list[str]:
    if report.tasks_s is None:
        return []
    inside = sum(task.latency_s is None for task in report.tasks)
    how = f" ({inside} of {len(report.tasks)} were timed inside the network)" if inside else ""
    alone = f"timed one by one, its operators add up to {milliseconds(report.tasks_s)} ms{how}"
    if report.kernels_s is None:
        return [alone]
    whole_s = report.latency_s["tunery"].median
    kernels, moves = milliseconds(report.kernels_s), milliseconds(report.layouts_s)
    between = milliseconds(max(whole_s - report.kernels_s, 0.0))
    kernels = f"{kernels} ms in its kernels, of which {moves} ms only move data, and {between} ms between them"
    return [f"one call takes {milliseconds(whole_s)} ms: {kernels}", alone]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower"
