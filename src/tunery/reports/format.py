"""Numbers, times and tables as text."""

import io
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tunery.domain.request import Request


TEXT_WIDTH = 200
"""What a table may take at most where no terminal says how wide it is; it takes no more than its columns need."""


_SHOWN_KEY = 6

SUFFIX = ".tunery"
"""Of a compiled network's file."""


ENDED_EARLY = "others gain more"
"""Said of a task whose search the allocation has ended for now."""


def energy(joules: float, *, modelled: bool = False) -> str:
    text = f"{joules:.3g} J" if joules < 1e3 else f"{joules / 1e3:.3g} kJ" if joules < 1e6 else f"{joules / 1e6:.3g} MJ"
    return text + (" (modelled)" if modelled else "")


def money(amount: float, currency: str) -> str:
    """Return an amount with at least two significant digits: `$0.0052`, `2.50 CHF`."""
    decimals = 2 if amount >= 1 or amount <= 0 else min(1 - math.floor(math.log10(amount)), 9)
    symbol = {"USD": "$", "EUR": "€", "GBP": "£"}.get(currency)
    return f"{symbol}{amount:.{decimals}f}" if symbol else f"{amount:.{decimals}f} {currency}"


def new_table(*headings: str) -> "Table":
    """Return an empty table; a heading that starts with # is of a column of numbers. Numbers and keys are never
    broken."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        number = heading.startswith("#")
        table.add_column(heading.removeprefix("#"), justify="right" if number else "left",
                         no_wrap=number or heading == "key", overflow="fold")  # fmt: skip
    return table


def as_text(renderable: "RenderableType", width: int | None = None) -> str:
    """Return what rich would print, without colours and trailing spaces; without a width it takes what it needs."""
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=width or TEXT_WIDTH, color_system=None, markup=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").split("\n"))


def short(key: str) -> str:
    """Return as much of a task's or a workload's key as tables show, and as `tunery query` takes."""
    return key[:_SHOWN_KEY]


def milliseconds(seconds: float | None) -> str:
    """Return a latency for a table, in milliseconds with three significant digits; `-` where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    amount = seconds * 1e3
    decimals = 2 - math.floor(math.log10(amount)) if amount > 0 else 0
    return f"{amount:.{min(max(decimals, 0), 6)}f}"


def ratio(before: float | None, after: float | None) -> str:
    """Return how many times faster `after` is; `-` where one is missing."""
    return f"{before / after:.2f}x" if before and after else "-"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}min {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}min"


def printable(text: str, *, lines: bool = True) -> str:
    """Return text that a terminal shows and does not obey: what is not printable (`str.isprintable`) is escaped. Names
    come from models and stores of strangers. Without `lines`, line breaks are escaped as well."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text
    )


def shape_texts(request: "Request") -> list[str]:
    found = []
    for name in request.shapes:
        values = ["x".join(map(str, one.shapes[name])) for one in request.each_shape]
        found.append(f"{name}={','.join(values if len(set(values)) > 1 else values[:1])}")
    return found


def file_name(name: str, request: "Request | None" = None) -> str:
    asked = [text.rpartition("=")[2].replace(",", "_") for text in shape_texts(request)] if request else []
    asked += [request.target] if request and request.target != "native" else []
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in "-".join([name, *asked]))
    return (safe or "network") + SUFFIX
