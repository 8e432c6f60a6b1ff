"""What a job may use, and what it has used."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tunery._errors import BudgetError

_SECONDS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_JOULES = {"j": 1.0, "joule": 1.0, "kj": 1e3, "wh": 3.6e3, "kwh": 3.6e6}
_SYMBOLS = {"$": "USD", "€": "EUR", "£": "GBP"}
CURRENCIES = frozenset({*_SYMBOLS.values(), "CAD", "CHF", "CNY", "INR", "JPY"})
"""Currencies a budget or a price sheet may be in."""

LEAST = {"seconds": 2.0, "joules": 10.0}
"""What a job needs before its first measurement at the least: workers start, the model is read, a reference is built.
The smallest network of the zoo took 4.2 s and 15 J on two cores, of which half are left for faster machines. What that
costs at least is a matter of the price sheet."""

MOST = {"seconds": 1e9, "trials": 1e9, "money": 1e9, "joules": 1e15}
"""What limits may be at most: thirty years, or what no machine does in that time. More is a slip of the hand."""

_LONGEST_LATENCY_S = 1e6
_SHOWN = 60
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_AMOUNT = re.compile(rf"\s*(-?){_NUMBER}\s*([a-z]+|[^\w\s.,+-])\s*", re.IGNORECASE)
_PRICE = re.compile(rf"\s*(-?)\s*([^\w\s.,+-])\s*(-?){_NUMBER}\s*")
_EXAMPLE = "write for example 10min, 500trials, $2, 50kJ, or 10min,$2"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may use; None is no limit. `seconds` are of wall time, `trials` candidates measured or failed,
    `joules` of energy, `money` an amount of `currency` (an ISO code, "" where there is no `money`)."""

    seconds: float | None = None
    trials: int | None = None
    money: float | None = None
    currency: str = ""
    joules: float | None = None

    @classmethod
    def parse(cls, text: str | Iterable[str], least: Mapping[str, float] = LEAST) -> "Budget":
        """Read `10min`, `500trials`, `$2`, `50kJ`, or several of different kinds joined by commas or plus signs.
        Several texts count as one; `least` is what limits must be at least, by default what a job needs."""
        joined = text if isinstance(text, str) else ",".join(text)
        budget, whole = cls(), _cut(joined)
        for part in re.split(r"[,+]", joined):
            budget = budget._joined(_read(part, whole), whole)
        for kind, most in MOST.items():
            if (given := getattr(budget, kind)) is not None and given > most:
                raise BudgetError(f"budget {whole!r} limits nothing: {_KINDS[kind]} ends at {most:g}; {_EXAMPLE}")
        for kind, amount in least.items():
            if (given := getattr(budget, kind)) is not None and given < amount:
                need = f"{amount:g} {'s' if kind == 'seconds' else 'J'}"
                raise BudgetError(
                    f"budget {whole!r} is less than a job needs before its first measurement ({need}); {_EXAMPLE}"
                )
        return budget

    def _joined(self, other: "Budget", text: str) -> "Budget":
        changed = {name: getattr(other, name) for name in _KINDS if getattr(other, name) is not None}
        for name in changed:
            if getattr(self, name) is not None:
                raise BudgetError(f"budget {text!r} names two limits of one kind ({_KINDS[name]}); {_EXAMPLE}")
        return replace(self, currency=self.currency or other.currency, **changed)

    @property
    def unlimited(self) -> bool:
        return self == Budget()

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            minutes = self.seconds >= 60 and self.seconds % 6 == 0
            parts.append(_shown(self.seconds / 60 if minutes else self.seconds) + ("min" if minutes else "s"))
        if self.trials is not None:
            parts.append(f"{self.trials}trials")
        if self.money is not None:
            parts.append(_shown(self.money, 9) + self.currency)
        if self.joules is not None:
            parts.append(_shown(self.joules) + "J")
        return "+".join(parts) or "unlimited"


_KINDS = {"seconds": "time", "trials": "trials", "money": "money", "joules": "energy"}


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _shown(amount: float, decimals: int = 6) -> str:
    return f"{amount:.{decimals}f}".rstrip("0").rstrip(".")


def _read(part: str, text: str) -> Budget:
    price, amount = _PRICE.fullmatch(part), _AMOUNT.fullmatch(part)
    if price:
        sign, symbol, inner, number = price.groups()
        if symbol not in _SYMBOLS:
            raise BudgetError(f"budget {text!r} is in the unknown currency {symbol!r}; {_EXAMPLE}")
        return _money(_positive(sign or inner, number, text), _SYMBOLS[symbol])
    if not amount:
        raise BudgetError(f"budget {text!r} is not a number with a unit; {_EXAMPLE}")
    number, unit = _positive(amount[1], amount[2], text), amount[3].lower()
    singular = unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit
    if singular == "trial":
        if number != int(number):
            raise BudgetError(f"budget {text!r} needs a whole number of trials, for example 500trials")
        return Budget(trials=int(number))
    if singular in _SECONDS:
        return Budget(seconds=_finite(number * _SECONDS[singular], text))
    if singular in _JOULES:
        return Budget(joules=_finite(number * _JOULES[singular], text))
    currency = _SYMBOLS.get(unit, unit.upper())
    if currency in CURRENCIES:
        return _money(number, currency)
    raise BudgetError(f"budget {text!r} has the unknown unit or currency {_cut(amount[3])!r}; {_EXAMPLE}")


def _money(amount: float, currency: str) -> Budget:
    return Budget(money=amount, currency=currency)


def _positive(sign: str, number: str, text: str) -> float:
    amount = float(number)
    if sign or amount <= 0 or amount == math.inf:
        raise BudgetError(f"budget {text!r} is zero, negative or endless; {_EXAMPLE}")
    return amount


def _finite(amount: float, text: str) -> float:
    if amount == math.inf:
        raise BudgetError(f"budget {text!r} is endless; {_EXAMPLE}")
    return amount


def parse_latency(text: str) -> float:
    """Read a latency such as `12ms`, `800us` or `0.1s`, in seconds."""
    units = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
    match = re.fullmatch(rf"\s*{_NUMBER}\s*([a-zµ]+)\s*", text, re.IGNORECASE)
    if not match or match[2].lower() not in units:
        raise BudgetError(
            f"latency {_cut(text)!r} is not a positive number with a unit; write for example 12ms or 800us"
        )
    latency_s = float(match[1]) * units[match[2].lower()]
    if not 0 < latency_s <= _LONGEST_LATENCY_S:
        raise BudgetError(f"latency {_cut(text)!r} is zero or endless; write for example 12ms or 800us")
    return latency_s


@dataclass(frozen=True, slots=True)
class Spend:
    """What a job has used so far. `stage_s` maps a stage (`build`, ...) to busy worker seconds. `joules` and `money`
    (of `currency`) are None where nothing of the kind was recorded; `modelled` says that at least a part of the joules
    was not measured but estimated. The money pays for `cores` (0 where unknown) of the machine for `machine_s`, which
    is less than `wall_s` where others paid a part."""

    wall_s: float = 0.0
    core_s: float = 0.0
    device_s: float = 0.0
    trials: int = 0
    stage_s: Mapping[str, float] = field(default_factory=dict)
    joules: float | None = None
    modelled: bool = False
    money: float | None = None
    currency: str = ""
    cores: int = 0
    machine_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prospect:
    """What spending more would probably buy: the network's latency (a sum over tasks) after `trials` more. They would
    take about `seconds`, `joules` and `money`. The latency is below `low_s` and above `high_s` in one case of ten each,
    and below `median_s` in every second."""

    trials: int
    seconds: float
    joules: float | None
    money: float
    currency: str
    low_s: float
    median_s: float
    high_s: float
