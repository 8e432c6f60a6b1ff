"""Plots as inline SVG: they need no library, no script and no network, and take their colours from `STYLE`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from tunery.reports.format import duration, milliseconds
from tunery.reports.job import Point, Stretch

Curve = Sequence[tuple[float, float]]
STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
"""The rules of plots and tables; whatever holds them has the class `tunery`, and its text colour is theirs."""
KINDS = {
    "import": "import", "propose": "propose", "build": "build", "measure": "measure", "baseline": "measure",
    "finals": "finals", "train": "learn", "learn": "learn",
}  # fmt: skip
"""Which of the colours of `STYLE` a kind of stage has; any other has that of `check`."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 250, 52, 12, 14, 34
_TICKS, _STEEP = 5, 6.0
_LANE, _LANE_LEFT, _GANTT_WIDTH = 24, 104, 760
_NAME = 17


def curve_plot(points: Sequence[Point], *, spent: bool, rival_s: float | None = None) -> str:
    """Return the plot of a network's best latency over time, or over what was `spent`; `rival_s` is a line across.

    Latencies have a logarithmic axis where they span more than a factor of six. Nothing where there are no points.
    """
    if not points:
        return ""
    curve = [(point.paid_s if spent else point.at_s, point.latency_s) for point in points]
    what = "worker time of building and measuring" if spent else "time"
    described = (
        f"Best latency of the network over {what}: {milliseconds(curve[0][1])} ms at first, "
        f"{milliseconds(curve[-1][1])} ms after {duration(curve[-1][0])}"
    )
    return _step_plot(curve, what, described, rival_s)


def _step_plot(curve: Curve, what: str, described: str, rival_s: float | None) -> str:
    values = [y for _, y in curve] + ([rival_s] if rival_s else [])
    low, high = min(values), max(values)
    steep = low > 0 and high / low > _STEEP
    ticks = _log_ticks(low, high) if steep else _linear_ticks(0.0, high)
    bottom, top = min(ticks[0], low), max(ticks[-1], high)
    end = max(curve[-1][0], 1e-9)

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / end

    def down(y: float) -> float:
        share = math.log(y / bottom) / math.log(top / bottom) if steep else (y - bottom) / ((top - bottom) or 1.0)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [_grid(down(tick), milliseconds(tick)) for tick in ticks if bottom <= tick <= top]
    for tick in _linear_ticks(0.0, end):
        if tick <= end:
            anchor = "start" if tick == 0 else "middle" if across(tick) < _WIDTH - 40 else "end"
            parts.append(_text(across(tick), _HEIGHT - 18, duration(tick) if tick else "0", "tick", anchor))
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 3, what, "tick", "end"))
    parts.append(_text(0, _HEIGHT - 3, "ms", "tick"))
    if rival_s:
        y = down(rival_s)
        parts.append(f'<line class="rival" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_WIDTH - _RIGHT, y - 5, f"ONNX Runtime {milliseconds(rival_s)} ms", "rival-name", "end"))
    path = f"M{across(curve[0][0]):.1f} {down(curve[0][1]):.1f}"
    path += "".join(f"H{across(x):.1f}V{down(y):.1f}" for x, y in curve[1:])
    parts.append(f'<path class="curve" d="{path}"/>')
    return _svg(_WIDTH, _HEIGHT, described, parts)


def gantt_plot(stages: Sequence[Stretch]) -> str:
    """Return the plot of when each resource was held and by which kind of stage; nothing where there are none."""
    if not stages:
        return ""
    lanes = sorted({stage.lane for stage in stages}, key=_lane_order)
    end = max(stage.end_s for stage in stages) or 1e-9
    height = len(lanes) * _LANE + 30
    scale = (_GANTT_WIDTH - _LANE_LEFT - _RIGHT) / end
    parts: list[str] = []
    for tick in (tick for tick in _linear_ticks(0.0, end) if tick <= end):
        x = _LANE_LEFT + tick * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 26}"/>')
        parts.append(_text(x, height - 10, duration(tick) if tick else "0", "tick", "middle"))
    for row, lane in enumerate(lanes):
        name = lane if len(lane) <= _NAME else f"…{lane[1 - _NAME :]}"
        parts.append(_text(0, row * _LANE + 15, name, ""))
    for stage in stages:
        x, y = _LANE_LEFT + stage.start_s * scale, lanes.index(stage.lane) * _LANE + 3
        wide = max((stage.end_s - stage.start_s) * scale, 0.7)
        tip = f"{stage.kind} on {stage.lane}, {duration(stage.end_s - stage.start_s)} from {duration(stage.start_s)} on"
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_LANE - 8}" rx="1.5" '
            f'fill="var(--{colour_of(stage.kind)})"><title>{escape(tip)}</title></rect>'
        )
    described = f"Which of {len(lanes)} resources was busy with what, over {duration(end)}"
    return _svg(_GANTT_WIDTH, height, described, parts)


def legend(kinds: Iterable[str]) -> str:
    """Return what the colours of stages mean, for these kinds."""
    by_colour: Mapping[str, list[str]] = {}
    for kind in sorted(set(kinds)):
        by_colour = {**by_colour, colour_of(kind): [*by_colour.get(colour_of(kind), []), kind]}
    keys = (f'<span class="key" style="background:var(--{colour})"></span>{escape(", ".join(names))}'
            for colour, names in by_colour.items())  # fmt: skip
    return f'<p class="muted">{"".join(keys)}</p>'


def colour_of(kind: str) -> str:
    """Return the name of the colour that a kind of stage has.

    >>> colour_of("build"), colour_of("compare")
    ('build', 'check')
    """
    return KINDS.get(kind.partition(" ")[0], "check")


def _lane_order(lane: str) -> tuple[bool, str]:
    """Measuring first: all else waits for it."""
    return "measurer" not in lane, lane


def _svg(width: int, height: int, described: str, parts: Iterable[str]) -> str:
    said = escape(described, quote=True)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{escape(text)}</text>'


def _grid(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 6, y + 4, label, "tick", "end")


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to the first that is not below `high`.

    >>> _linear_ticks(0.0, 9.0)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * _TICKS >= span * (1 - 1e-9))
    return [low + i * step for i in range(math.ceil((high - low) / step - 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return ones, twos and fives of each power of ten around a range, or ones alone where these are many.

    >>> [f"{tick:g}" for tick in _log_ticks(0.013, 0.9)]
    ['0.01', '0.02', '0.05', '0.1', '0.2', '0.5', '1']
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    many = len(powers) > 4
    ticks = [factor * 10.0**power for power in powers for factor in ((1,) if many else (1, 2, 5))]
    first = max((tick for tick in ticks if tick <= low), default=ticks[0])
    last = min((tick for tick in ticks if tick >= high), default=ticks[-1])
    return [tick for tick in ticks if first <= tick <= last]
