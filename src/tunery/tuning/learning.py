"""The cost model that all jobs of one runtime and target share, kept warm off the critical path."""

import json
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from tunery._errors import EngineError
from tunery.costmodels import device_columns, fits, for_device
from tunery.costmodels.registry import starting
from tunery.devices import traits_of
from tunery.dialects import Observation, Space, get_dialect
from tunery.domain import DeviceDescription, Outcome, Target
from tunery.engines import Role
from tunery.runtime.runtime import Reservation, Runtime
from tunery.runtime.services import LabelledRow
from tunery.tuning.allocation.failing import FailureModel

_AT, _GROWTH = 48, 1.25
_DEADLINE_S = 120.0
_FAILED = frozenset({Outcome.BUILD_FAILED, Outcome.RUN_FAILED, Outcome.TIMEOUT})


@dataclass(frozen=True, slots=True)
class InitialModel:
    """A cost model to start from, and Kendall's tau that it has shown on tasks it had not seen (None: not known)."""

    model: str
    tau: float | None


def start_for(dialect: str, target: Target, compiler: str, device: DeviceDescription) -> InitialModel | None:
    columns = device_columns(traits_of(device.as_facts()))
    bits = float(columns[0])
    made_by = get_dialect(dialect)
    layout = made_by.layout() if isinstance(made_by, Space) else None
    found = starting(
        dialect, made_by.family(target.config), compiler=compiler, vector_bits=bits, layout=str(layout or "")
    )  # fmt: skip
    if found is None:
        return None
    card, text = found
    return InitialModel(for_device(text, columns), card.tau if fits(json.loads(text), bits) else card.base_tau)


class Learning:
    """Pools what jobs have measured, and trains on top of `base` each time the rows have grown by a quarter."""

    def __init__(self, runtime: Runtime, name: str, base: str | None, prior_tau: float | None = None) -> None:
        self.model, self.version, self.prior_tau = base, 0, prior_tau
        self.rows: list[LabelledRow] = []
        self._runtime, self._name, self._base = runtime, name, base
        self._busy = False
        self._learned = 0
        self._sent: tuple[str, int, int] | None = None  # the trainer, its generation, the rows it has

    @cached_property
    def failing(self) -> FailureModel:
        return FailureModel(self._runtime.row_layout)

    @property
    def warm_start(self) -> bool:
        return self._base is not None

    def add(self, task_key: str, told: Observation, row: bytes) -> None:
        if row:
            good = told.outcome in {Outcome.OK, Outcome.ABANDONED} and told.latency_s
            latency_s = told.latency_s if good and told.latency_s else math.inf
            if told.outcome is not Outcome.CRASHED:  # the worker may have been killed from outside
                self.failing.learn(f"{task_key} {told.candidate.key}", row, failed=told.outcome in _FAILED)
            self.rows.append(LabelledRow(task_key, told.candidate.key, row, latency_s))

    def due(self) -> bool:
        return not self._busy and len(self.rows) >= max(_AT, self._learned * _GROWTH)

    async def learn(self, job_id: str, charge: Callable[[str, str, str, Reservation, int], Awaitable[None]]) -> None:
        """Train in the name of a job, which pays; a model that could not be trained is tried again when more is new."""
        self._busy = True
        rows, self._learned = list(self.rows), len(self.rows)
        grant: Reservation | None = None
        try:
            with suppress(EngineError):
                async with self._runtime.stage(job_id, "learn", Role.TRAINER, size=len(rows)) as grant:
                    model = await self._train(grant.worker, rows)
                if model:
                    self.model, self.version = model, self.version + 1
        finally:
            self._busy = False
            if grant is not None:  # also for what failed, or was cut short
                await charge("", "learn", "", grant, 1)

    async def _train(self, worker: str, rows: list[LabelledRow]) -> str | None:
        # The trainer keeps what it was sent, for as long as its process lives.
        here = (worker, self._runtime.engine.generation(worker))
        known = self._sent[2] if self._sent and self._sent[:2] == here else 0
        self._sent = None
        model: str | None = await self._runtime.call(
            worker, "learn", self._name, self._runtime.row_layout, rows[known:], self._base, deadline_s=_DEADLINE_S
        )
        self._sent = (worker, self._runtime.engine.generation(worker), len(rows))
        return model
