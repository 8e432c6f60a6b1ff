"""What machine time and energy cost, by a price sheet."""

import datetime
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tunery._errors import BudgetError
from tunery._locks import read_small
from tunery._settings import settings
from tunery.domain import CURRENCIES, LEAST, Budget

_NUMBERS = ("machine_hour", "kwh")
_TEXTS = ("machine", "currency", "source")
_MOST_BYTES, _LONGEST_TEXT = 1 << 16, 1000
_MOST_PRICE, _MOST_CORES = 1e6, 1 << 16


@dataclass(frozen=True, slots=True)
class Prices:
    """A price sheet: an hour of `machine`, which has `cores`, costs `machine_hour`, a kilowatt-hour on top `kwh`."""

    machine: str
    currency: str
    machine_hour: float
    cores: int
    kwh: float
    source: str
    date: str

    def of_machine(self, core_s: float) -> float:
        """Return the price of holding cores for so many core-seconds; a machine of n cores is n of them a second."""
        return core_s / self.cores * self.machine_hour / 3600

    def of_energy(self, joules: float | None) -> float:
        return (joules or 0.0) / 3.6e6 * self.kwh

    def check(self, budget: Budget) -> None:
        if budget.money is None:
            return
        if budget.currency != self.currency:
            raise BudgetError(
                f"budget {str(budget)!r} is in {budget.currency}, the prices of {self.machine} are in {self.currency}; "
                f"write for example 2{self.currency}, or name another sheet with --prices"
            )
        if not self.machine_hour + self.kwh:
            raise BudgetError(
                f"budget {str(budget)!r} limits nothing: on the sheet of {self.machine} all is free; "
                "write for example 10min, or name another sheet with --prices"
            )
        least = self.of_machine(LEAST["seconds"]) + self.of_energy(LEAST["joules"])
        if budget.money < least:
            raise BudgetError(
                f"budget {str(budget)!r} is less than a job needs on {self.machine} before its first measurement "
                f"({least:.2g} {self.currency}); write for example 2{self.currency}"
            )


def load_prices(path: str = "") -> Prices:
    """Read a price sheet: `path`, or else the file that TUNERY_PRICES names, or else the one that ships with tunery."""
    name = path or settings().prices
    shipped = resources.files("tunery.accounting").joinpath("prices.toml")
    try:
        text = read_small(Path(name), _MOST_BYTES).decode() if name else shipped.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BudgetError(f"price sheet {name!r} cannot be read ({reason}); name another with --prices") from error
    try:
        return _parsed(tomllib.loads(text))
    except (ValueError, OverflowError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        reason = "a number has thousands of digits" if "int_max_str_digits" in str(error) else error
        raise BudgetError(f"price sheet {name!r} cannot be right: {reason}; docs/spend.md shows a whole one") from error


def _parsed(data: dict[str, Any]) -> Prices:
    known = {*_NUMBERS, *_TEXTS, "cores", "date"}
    if odd := sorted(known ^ data.keys()):
        raise ValueError(f"{odd[0]!r} is {'missing' if odd[0] in known else 'no entry of a price sheet'}")
    for name in _NUMBERS:
        if not _is_number(data[name]) or not 0 <= data[name] <= _MOST_PRICE:
            raise ValueError(f"{name} = {_shown(data[name])} is not a price from 0 to {_MOST_PRICE:,.0f}")
    for name in _TEXTS:
        if not isinstance(data[name], str) or len(data[name]) > _LONGEST_TEXT:
            raise ValueError(f"{name} = {_shown(data[name])} is no text of at most {_LONGEST_TEXT} characters")
    if data["currency"] not in CURRENCIES:
        raise ValueError(f"unknown currency {_shown(data['currency'])}, known are {', '.join(sorted(CURRENCIES))}")
    if not isinstance(data["cores"], int) or isinstance(data["cores"], bool) or not 1 <= data["cores"] <= _MOST_CORES:
        raise ValueError(f"cores = {_shown(data['cores'])} is no number of cores from 1 to {_MOST_CORES:,}")
    if not isinstance(data["date"], datetime.date):
        raise ValueError(f"date = {_shown(data['date'])} is no date such as 2025-06-30")  # noqa: TRY004 - one kind of error
    return Prices(
        machine=data["machine"],
        currency=data["currency"],
        machine_hour=float(data["machine_hour"]),
        cores=data["cores"],
        kwh=float(data["kwh"]),
        source=data["source"],
        date=data["date"].isoformat(),
    )


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
