"""One user's request and its life."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tunery._errors import BudgetError

_UNITS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may use: wall seconds, trials (candidates measured or failed), or both; None is no limit."""

    seconds: float | None = None
    trials: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `10min`, `90s`, `1.5h`, `500trials`, or two of different kinds joined by a comma or a plus.

        Raises:
            BudgetError: no number, no unit, an unknown unit, zero, or the same kind given twice.
        """
        seconds: float | None = None
        trials: int | None = None
        for part in re.split(r"[,+]", text):
            match = _AMOUNT.fullmatch(part)
            if not match:
                raise BudgetError(f"budget {text!r} is not a number with a unit; write 10min, 500trials or 1h")
            number, unit = float(match[1]), match[2].lower()
            singular = unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit
            if number <= 0 or number == math.inf:
                raise BudgetError(f"budget {text!r} is zero or endless; write for example 10min or 500trials")
            if singular == "trial":
                if trials is not None or number != int(number):
                    raise BudgetError(f"budget {text!r} needs one whole number of trials, for example 500trials")
                trials = int(number)
            elif singular in _UNITS:
                if seconds is not None:
                    raise BudgetError(f"budget {text!r} names two times; write one, for example 10min")
                seconds = number * _UNITS[singular]
            else:
                raise BudgetError(f"budget {text!r} has the unknown unit {match[2]!r}; use s, min, h or trials")
        return cls(seconds, trials)

    def __str__(self) -> str:
        parts = []
        if self.seconds is not None:
            amount, unit = (self.seconds / 60, "min") if self.seconds >= 60 else (self.seconds, "s")
            parts.append(f"{amount:.6f}".rstrip("0").rstrip(".") + unit)
        if self.trials is not None:
            parts.append(f"{self.trials}trials")
        return "+".join(parts) or "unlimited"


@dataclass(frozen=True, slots=True)
class Spend:
    """What a job has used so far. `stage_s` maps a stage (`build`, ...) to busy worker seconds."""

    wall_s: float = 0.0
    core_s: float = 0.0
    device_s: float = 0.0
    trials: int = 0
    stage_s: Mapping[str, float] = field(default_factory=dict)


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task's standing inside a job; latencies are None until measured."""

    task_key: str
    workload_key: str
    name: str
    kind: str
    weight: int
    tunable: bool
    baseline_s: float | None = None
    best_s: float | None = None
    best_candidate: str | None = None
    measured: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as shown to its user. `request` is the plain data it was submitted with; resuming needs nothing else."""

    job_id: str
    state: JobState
    request: Mapping[str, str | int | float | bool | None]
    spend: Spend = field(default_factory=Spend)
    tasks: tuple[TaskState, ...] = ()
    message: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
