"""Comparisons of whole networks as tables for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunery._report import as_text, milliseconds, new_table

if TYPE_CHECKING:
    from tunery.jobs._request import BenchReport


def bench_text(report: "BenchReport", width: int | None = None) -> str:
    """Return the table of a whole-network comparison, led by ONNX Runtime."""
    from tunery.jobs._request import CONTESTANTS

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
    verdict = f": {_verdict(rival.median, ours)} than ONNX Runtime" if rival else ""
    return "\n".join(
        [
            f"{report.network}, whole network, {threads}{verdict}",
            as_text(table, width),
            f"largest deviation from ONNX Runtime's outputs: {report.max_abs_error:.3g}",
            *(f"{CONTESTANTS[name]} took no part: {reason}" for name, reason in report.absent.items()),
            *_sum_of_tasks(report),
        ]
    )


def _sum_of_tasks(report: "BenchReport") -> list[str]:
    """Say how the network's time compares with its tasks', and where a difference arises."""
    if report.tasks_s is None:
        return []
    whole = report.latency_s["tunery"].median
    line = f"sum of tasks {milliseconds(report.tasks_s)} ms, {_more(whole, report.tasks_s)} in the network"
    if report.kernels_s is not None:
        line += (
            f": its kernels {milliseconds(report.kernels_s)} ms ({_more(report.kernels_s, report.tasks_s)}), dispatch, "
            f"allocation and copies {milliseconds(max(whole - report.kernels_s, 0.0))} ms"
        )
    return [line]


def _more(value: float, base: float) -> str:
    return f"{value / base - 1:+.0%}" if base > 0 else "-"


def _verdict(rival_s: float, ours_s: float) -> str:
    if not (ours_s > 0 and rival_s > 0):
        return "-"
    return f"{rival_s / ours_s:.2f}x faster" if rival_s >= ours_s else f"{ours_s / rival_s:.2f}x slower"


def suite_text(results: Mapping[str, Any]) -> str:
    """Return the table of a suite: each network, won or lost, and the operators that decide it."""
    from tunery.jobs._request import CONTESTANTS

    runs = results["runs"].values()
    others = [name for name in CONTESTANTS if name not in ("onnxruntime", "tunery")
              and any(name in (*run.get("latency_s", ()), *run.get("absent", ())) for run in runs)]  # fmt: skip
    table = new_table("network", "#threads", "#ONNX Runtime ms", *(f"#{CONTESTANTS[name]} ms" for name in others),
                      "#tunery ms", "#faster", "#over tasks", "decided by")  # fmt: skip
    for run in sorted(results["runs"].values(), key=lambda run: (run["threads"], run["network"])):
        if "error" in run:
            table.add_row(run["network"], str(run["threads"]), *["-"] * (len(others) + 4), run["error"])
            continue
        ours, theirs = run["latency_s"]["tunery"], run["latency_s"]["onnxruntime"]
        deciding = [f"{d['kind']} {d['share']:.0%} at {d['of_peak']:.0%} of peak" for d in run["deciding"]]
        table.add_row(
            run["network"], str(run["threads"]), _with_spread(theirs),
            *(milliseconds(run["latency_s"].get(name, {}).get("median")) for name in others), _with_spread(ours),
            f"{run['times_faster']:.2f}{'' if run['times_faster'] >= 1 else ' lost'}",
            _more(ours["median"], run["tasks_s"]) if run["tasks_s"] else "-", ", ".join(deciding),
        )  # fmt: skip
    lines = [as_text(table)]
    for threads, summary in results["summary"].items():
        lines.append(
            f"{'all runs' if threads == 'all' else f'{threads} threads'}: {summary['geometric_mean']:.2f}x faster than "
            f"ONNX Runtime (geometric mean), {summary['won']} won, {summary['lost']} lost, least {summary['least']:.2f}"
        )
        lines += [
            f"    {one['geometric_mean']:.2f}x faster than {CONTESTANTS[name]} in {one['runs']} runs, "
            f"{one['won']} won, least {one['least']:.2f}"
            for name, one in summary.get("others", {}).items()
        ]
    for goal, met in results["summary"].get("all", {}).get("goals", {}).items():
        lines.append(f"{'met   ' if met else 'MISSED'}  {goal}")
    peaks = [f"{flops / 1e9:.0f} GFLOP/s on {threads}" for threads, flops in results["peak_flops"].items()]
    lines.append(f"peak: a large matrix product in ONNX Runtime, {', '.join(peaks)} threads")
    return "\n".join(lines)


def _with_spread(spread: Mapping[str, float]) -> str:
    return f"{milliseconds(spread['median'])} ({milliseconds(spread['p10'])} to {milliseconds(spread['p90'])})"
