"""The suite of networks as a table for people."""

from collections.abc import Mapping
from typing import Any

from tunery.domain.request import CONTESTANTS
from tunery.reports.format import as_text, milliseconds, new_table, short

_GAP = 0.10
_NAMES = {**CONTESTANTS, "stock": "stock MetaSchedule"}


def suite_text(results: Mapping[str, Any]) -> str:
    """Return the table of a suite: each network, won or lost, and the operators that decide it; who took no part."""
    runs = results["runs"]
    others = [name for name in _NAMES if name not in ("onnxruntime", "tunery")
              and any(name in run.get("latency_s", ()) for run in runs.values())]  # fmt: skip
    table = new_table("network", "#threads", "#ONNX Runtime ms", *(f"#{_NAMES[name]} ms" for name in others),
                      "#tunery ms", "#faster", "#over tasks", "decided by")  # fmt: skip
    for run in sorted(runs.values(), key=lambda run: (run["threads"], run["network"])):
        if "latency_s" not in run:
            why = run.get("error", "tuned, not timed yet")
            table.add_row(run["network"], str(run["threads"]), *["-"] * (len(others) + 4), why)
            continue
        latency_s = run["latency_s"]
        table.add_row(
            run["network"], str(run["threads"]),
            *(_with_spread(latency_s.get(name)) for name in ("onnxruntime", *others, "tunery")),
            f"{run['times_faster']:.2f}{_standing(run)}",
            _more(latency_s["tunery"]["median"], run["tasks_s"]) if run["tasks_s"] else "-", _decided_by(run),
        )  # fmt: skip
    peaks = [f"{flops / 1e9:.0f} GFLOP/s on {threads}" for threads, flops in results["peak_flops"].items() if flops]
    return "\n".join(
        [
            as_text(table),
            *_absences(runs),
            *_gaps(runs),
            *(line for of, summary in results["summary"].items() for line in _summary(of, summary)),
            *_goals(runs, results["summary"]),
            *_failures(runs),
            *([f"peak: multiply-adds in registers, {', '.join(peaks)} threads"] if peaks else ()),
        ]
    )


def _standing(run: Mapping[str, Any]) -> str:
    from studies.suite import even

    if even(run):
        return " even"
    return "" if run["times_faster"] >= 1 else " lost"


def _speed(one: Mapping[str, Any]) -> str:
    """Return which share of the peak an operator reaches, and what it reads and writes in a second, where known."""
    known = [f"{one['of_peak']:.0%} of peak"] if one["of_peak"] is not None else []
    known += [f"{one['bytes_per_s'] / 1e9:.0f} GB/s"] if "bytes_per_s" in one else []  # not in files of earlier
    return f" at {' and '.join(known)}" if known else ""


def _decided_by(run: Mapping[str, Any]) -> str:
    """Name the operators that decide a network, by their kind and the start of the workload's key.

    Before them stands which share of the network's time is in its kernels at all.
    """
    deciding = [
        f"{one['kind']} {short(one['workload'])} {one['share']:.0%}{_speed(one)}"
        f"{'' if one['latency_s'] else ' inside the network'}"
        for one in run["deciding"]
    ]
    if run["unmeasured"]:
        deciding.append(f"{run['unmeasured']} of {run['tasks']} tasks were not timed alone")
    share = f"{run['kernels_s'] / run['latency_s']['tunery']['median']:.0%} in kernels: " if run["kernels_s"] else ""
    return share + ", ".join(deciding)


def _absences(runs: Mapping[str, Any]) -> list[str]:
    """Say which rivals took no part, where, and why."""
    timed = {key: run for key, run in runs.items() if "latency_s" in run}
    where: dict[tuple[str, str], list[str]] = {}
    for key, run in timed.items():
        for name, reason in run["absent"].items():
            where.setdefault((name, reason), []).append(key)
    return [
        f"{_NAMES[name]} took no part in {', '.join(keys) if len(keys) < len(timed) else 'any run'}: {reason}"
        for (name, reason), keys in where.items()
    ]


def _summary(of: str, summary: Mapping[str, Any]) -> list[str]:
    if summary["geometric_mean"] is None:
        return [f"{_which(of)}: nothing was timed"]
    return [
        f"{_which(of)}: {summary['geometric_mean']:.2f}x faster than ONNX Runtime (geometric mean), "
        f"{summary['won']} won, {summary['even']} even, {summary['lost']} lost, least {summary['least']:.2f}",
        *(
            f"    {one['geometric_mean']:.2f}x faster than {_NAMES[name]} in {one['runs']} runs, "
            f"{one['won']} won, least {one['least']:.2f}"
            for name, one in summary["others"].items()
        ),
    ]


def _goals(runs: Mapping[str, Any], summaries: Mapping[str, Any]) -> list[str]:
    """Return the goals on each number of threads and over all, met or missed, and the networks without a result."""
    goals = [
        f"{'?' if met is None else 'met' if met else 'MISSED':<6}  {_which(of)}: {goal}"
        for of, summary in summaries.items()
        for goal, met in summary["goals"].items()
    ]
    names = [f"{key} (failed)" if "error" in runs.get(key, {}) else key for key in summaries["all"]["missing"]]
    return [*goals, f"without a result: {', '.join(names)}"] if names else goals


def _which(of: str) -> str:
    return "all runs" if of == "all" else f"{of} thread{'s' if of != '1' else ''}"


def _gaps(runs: Mapping[str, Any]) -> list[str]:
    """Say of each network that takes much longer than its tasks, or whose kernels do, where the difference arises."""
    lines = []
    for key, run in runs.items():
        tasks_s, kernels_s = run.get("tasks_s"), run.get("kernels_s")
        whole_s = run["latency_s"]["tunery"]["median"] if "latency_s" in run else 0.0
        if not (tasks_s and kernels_s):
            continue
        both_s = run["alone_s"], run["inside_s"]
        if whole_s > (1 + _GAP) * tasks_s or both_s[1] > (1 + _GAP) * both_s[0]:
            lines.append(
                f"{key}: sum of tasks {milliseconds(tasks_s)} ms, {_more(whole_s, tasks_s)} in the network: "
                f"{_where(whole_s, tasks_s, kernels_s, both_s, run['layouts_s'])}"
            )
    return lines


def _failures(runs: Mapping[str, Any]) -> list[str]:
    """Name the networks that failed when they were timed again: the table shows what was timed before, no sum does."""
    return [
        f"{key} failed when it was timed again, its earlier result is shown and counts nowhere: {run['error']}"
        for key, run in runs.items()
        if "error" in run and "latency_s" in run
    ]


def _with_spread(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{milliseconds(spread['median'])} ({milliseconds(spread['p10'])} to {milliseconds(spread['p90'])})"


def _where(whole_s: float, tasks_s: float, kernels_s: float, both_s: tuple[float, float], layouts_s: float) -> str:
    (alone_s, inside_s), rest_s = both_s, max(whole_s - kernels_s, 0.0)
    apart = f"{milliseconds(inside_s)} of them {milliseconds(alone_s)} when timed alone" if alone_s else "none alone"
    return (
        f"its kernels {milliseconds(kernels_s)} ms ({_more(kernels_s, tasks_s)}; {apart}), of which layout transforms "
        f"{milliseconds(layouts_s)} ms; dispatch, allocation and copies {milliseconds(rest_s)} ms"
    )


def _more(value: float, base: float) -> str:
    return f"{value / base - 1:+.0%}" if base > 0 else "-"
