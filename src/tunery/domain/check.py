"""One look at whether something is as it should be."""

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What one look found; `advice` is empty where there is nothing to do."""

    name: str
    state: CheckState
    found: str
    advice: str = ""
