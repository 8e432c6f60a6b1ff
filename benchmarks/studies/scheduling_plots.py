"""The scheduling study's figures."""

from collections.abc import Callable, Sequence
from typing import Any

from studies.scheduling_runs import Run

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_HATCHES = {"measure": "", "finals": "xx", "build": "//", "propose": "..", "learn": "oo"}


def gantt_plot(runs: Sequence[Run]) -> Callable[[Any], None]:
    """Return what draws a Gantt chart for each strategy's first run: a line per worker, a colour per job."""

    def draw(figure: Any) -> None:
        first = {run.strategy: run for run in reversed(runs)}
        figure.set_size_inches(11, 2.2 * len(first))
        axes = figure.subplots(len(first), 1, sharex=True, squeeze=False)[:, 0]
        jobs = sorted({span.job_id for run in first.values() for span in run.spans})
        for axis, (strategy, run) in zip(axes, sorted(first.items()), strict=True):
            workers = sorted({span.worker for span in run.spans})
            for span in run.spans:
                axis.barh(
                    workers.index(span.worker), span.end_s - span.start_s, left=span.start_s, height=0.8,
                    color=_COLOURS[jobs.index(span.job_id) % len(_COLOURS)], hatch=_HATCHES.get(span.kind, ""),
                    edgecolor="white", linewidth=0.2,
                )  # fmt: skip
            axis.set_yticks(range(len(workers)), [name.partition("@")[0] for name in workers], fontsize=7)
            axis.axvline(run.makespan_s, color="black", linewidth=0.8)
            axis.set_title(f"{strategy}: {run.makespan_s:.1f} s", fontsize=9, loc="left")
        axes[-1].set_xlabel("seconds")
        labels = [_patch(_COLOURS[i % len(_COLOURS)], name) for i, name in enumerate(jobs)]
        figure.legend(handles=labels, fontsize=8, loc="outside upper right", ncols=len(labels))

    return draw


def _patch(colour: str, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label)


def busy_plot(rows: Sequence[dict[str, Any]]) -> Callable[[Any], None]:
    """Return what draws busy and idle time of each resource, for each number of jobs and strategy."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        labels = [f"{row['jobs']} x {row['strategy']}" for row in rows]
        for axis, resource in zip(axes, ("core", "device"), strict=True):
            idle = [row[f"idle_{resource}"] * row["makespan_s"] for row in rows]
            busy = [row["makespan_s"] - each for row, each in zip(rows, idle, strict=True)]
            axis.barh(labels, busy, color="tab:blue", label="busy")
            axis.barh(labels, idle, left=busy, color="lightgrey", label="idle")
            if resource == "core":
                axis.invert_yaxis()
            axis.set_title(resource, loc="left")
            axis.set_xlabel("seconds")
        axes[0].legend(fontsize=8)

    return draw
