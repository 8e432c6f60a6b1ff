"""The figure of the study against stock: latency over time, both sides."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from studies.stock import Row


def over_time(row: "Row") -> Callable[[Any], None]:
    """Return what draws the sums of tasks over wall and CPU time, and the networks that were timed."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, kind in zip(axes, ("wall_s", "cpu_s"), strict=True):
            for colour, label, side in (("C1", "stock", row.stock), ("C0", "ours", row.ours)):
                known = [point for point in side.curve if point.latency_s is not None]
                axis.step(
                    [getattr(point, kind) for point in known], [1e3 * (point.latency_s or 0.0) for point in known],
                    where="post", color=colour, linestyle=":", label=f"{label}, sum of tasks",
                )  # fmt: skip
            axis.plot(
                [getattr(one, kind) for one in row.checkpoints],
                [1e3 * row.latency_s[one.label].median for one in row.checkpoints],
                "o-", color="C0", label="ours, network",
            )  # fmt: skip
            axis.plot([getattr(row.stock, kind)], [1e3 * row.latency_s["stock"].median], "D", color="C1",
                      label="stock, network at its end")  # fmt: skip
            axis.axhline(1e3 * row.latency_s["stock"].median, color="C1", linewidth=0.7)
            axis.axhline(1e3 * row.latency_s["onnxruntime"].median, color="grey", linewidth=0.7, label="ONNX Runtime")
            axis.set(xlabel="wall time, s" if kind == "wall_s" else "CPU time, s", xscale="log", yscale="log")
        axes[0].set(ylabel="latency, ms", title=row.ours.network)
        axes[0].legend(fontsize="x-small")

    return draw
