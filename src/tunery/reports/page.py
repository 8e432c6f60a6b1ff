"""A job as a page of its own: one file, no script, nothing fetched, light and dark, readable on a phone."""

import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from tunery.reports.format import duration, energy, milliseconds, money, ratio, short
from tunery.reports.job import JobView, Operator
from tunery.reports.svg import STYLE, curve_plot, gantt_plot, legend

MADE_BY = "made by tunery report"
_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{made_by}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<title>{title}</title><style>{style}</style></head><body><main class="tunery">{body}</main></body></html>\n'
)
_PAGE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_USUAL = ("ok", "abandoned", "filtered")


def job_page(view: JobView) -> str:
    title = f"{view.network} · job {view.job}"
    return _HEAD.format(made_by=MADE_BY, title=escape(title), style=f"{STYLE}\n{_PAGE}", body=job_body(view))


def job_body(view: JobView) -> str:
    """Return what a page says of a job: facts, curves, operators and stages; it needs `STYLE` and class `tunery`."""
    curves = [curve_plot(view.curve, spent=spent, rival_s=view.onnxruntime_s) for spent in (False, True)]
    parts = [f"<h1>{escape(view.network or view.model)}</h1>", _about(view), facts(view)]
    if view.curve:
        parts.append(
            f'<h2>Best latency</h2><div class="plots">{"".join(f"<div>{plot}</div>" for plot in curves)}</div>'
        )
    if view.operators:
        parts.append(f"<h2>Operators</h2>{operators_table(view.operators)}")
    if view.stages:
        parts.append(f'<h2>Who worked when</h2><div class="wide">{gantt_plot(view.stages)}</div>')
        parts.append(legend(stage.kind for stage in view.stages))
    if view.answer:
        rows = "".join(
            f"<tr><th>{escape(str(k))}</th><td>{escape(_short(v))}</td></tr>" for k, v in view.answer.items()
        )
        parts.append(f'<h2>Answer</h2><div class="table"><table>{rows}</table></div>')
    return "".join(parts)


def notebook(view: JobView) -> str:
    gain = f"{escape(view.network)}: {_ms(view.before_s)} untuned, {_ms(view.after_s)} tuned ({view.state})"
    plot = f'<div style="max-width:34rem">{curve_plot(view.curve, spent=False, rival_s=view.onnxruntime_s)}</div>'
    table = operators_table(view.operators) if view.operators else ""
    return f'<div class="tunery"><style>{STYLE}</style><p>{gain}</p>{plot}{table}</div>'


def facts(view: JobView) -> str:
    """Return the few numbers that matter most."""
    spend = view.spend
    shown = [("tuned", _ms(view.after_s)), ("untuned", _ms(view.before_s)),
             ("speed-up", ratio(view.before_s, view.after_s))] if view.after_s else []  # fmt: skip
    if view.whole_s and view.onnxruntime_s:
        shown += [("whole network", _ms(view.whole_s)), ("ONNX Runtime", _ms(view.onnxruntime_s)),
                  ("against it", ratio(view.onnxruntime_s, view.whole_s))]  # fmt: skip
    shown += [("spent", duration(spend.wall_s))] if spend.wall_s else []
    shown += [("trials", str(spend.trials))] if spend.trials else []
    shown += [("core time", duration(spend.core_s))] if spend.core_s else []
    shown += [("energy", energy(spend.joules, modelled=spend.modelled))] if spend.joules is not None else []
    shown += [("money", money(spend.money, spend.currency))] if spend.money is not None else []
    boxes = (f'<div><span class="muted">{escape(name)}</span><b>{escape(text)}</b></div>' for name, text in shown)
    return f'<div class="facts">{"".join(boxes)}</div>'


def operators_table(operators: Sequence[Operator]) -> str:
    theirs = any(row.onnxruntime_s is not None for row in operators)
    heads = ["operator", "#share", "", "#before ms", "#after ms", "#speed-up",
             *(["#ONNX Runtime ms"] if theirs else []), "kind", "#calls", "#measured", "outcomes", "note"]  # fmt: skip
    rows = [_operator(row, theirs=theirs) for row in operators]
    return table(heads, rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; a heading that starts with # is of a column of numbers, and cells are HTML."""
    numbers = [head.startswith("#") for head in heads]

    def cell(tag: str, text: str, *, number: bool) -> str:
        return f'<{tag} class="n">{text}</{tag}>' if number else f"<{tag}>{text}</{tag}>"

    top = "".join(cell("th", escape(head.removeprefix("#")), number=n) for head, n in zip(heads, numbers, strict=True))
    body = "".join(
        f"<tr>{''.join(cell('td', text, number=n) for text, n in zip(row, numbers, strict=True))}</tr>" for row in rows
    )
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _operator(row: Operator, *, theirs: bool) -> list[str]:
    share = row.share or 0.0
    name = f'{escape(row.name)} <span class="muted">{escape(short(row.task))}</span>'
    bar = f'<span class="bar" style="width:{5 * share:.2f}em"></span>'
    return [
        name, f"{share:.1%}" if row.share is not None else "-", bar,
        milliseconds(row.before_s), milliseconds(row.after_s), ratio(row.before_s, row.after_s),
        *([milliseconds(row.onnxruntime_s)] if theirs else []), escape(row.kind), str(row.calls), str(row.measured),
        escape(_outcomes(row.outcomes)),
        escape(row.note),
    ]  # fmt: skip


def _outcomes(outcomes: Mapping[str, int]) -> str:
    """Return the counts by outcome, the usual ones first.

    >>> _outcomes({"crashed": 1, "ok": 3, "timeout": 0})
    '3 ok, 1 crashed'
    """
    order = sorted(outcomes, key=lambda name: (_USUAL.index(name) if name in _USUAL else len(_USUAL), name))
    return ", ".join(f"{outcomes[name]} {name}" for name in order if outcomes[name])


def _about(view: JobView) -> str:
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.created_at))
    said = f"job {view.job}: {view.kind}, {view.state}, begun {day}, target {view.target}"
    more = "".join(f"<p>{escape(text)}</p>" for text in (view.headline, view.message) if text)
    return f'<p class="muted">{escape(said)}</p>{more}'


def _ms(seconds: float | None) -> str:
    return f"{milliseconds(seconds)} ms"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 2000 else f"{text[:2000]}…"
