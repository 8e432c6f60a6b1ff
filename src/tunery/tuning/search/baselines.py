"""What the candidates of one task are compared with, built once for all that need it."""

import asyncio
from dataclasses import replace

from tunery._errors import WorkError
from tunery.domain import Artifact, Measurement, Origin, Task
from tunery.tuning.calls import TaskBaselines, build_one, yardstick_candidates
from tunery.tuning.context import Context


class BuiltBaselines:
    """The unscheduled program and the compiler's default of one task; whoever asks first pays for their builds."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._built: TaskBaselines | None = None
        self._building = asyncio.Lock()  # batches of one task may ask at once

    @property
    def missing(self) -> bool:
        return self._built is None

    async def get(self, payer: Context) -> TaskBaselines:
        """Return them, built."""
        async with self._building:
            if self._built is None:
                self._built = await self._build(payer)
        return self._built

    def take(self) -> list[Artifact]:
        if self._built is None:
            return []
        (_, reference), (_, baseline) = self._built.reference, self._built.baseline
        self._built = None
        return [reference] if baseline is reference else [reference, baseline]

    async def _build(self, payer: Context) -> TaskBaselines:
        name = self._task.workload.name
        reference, baseline = await yardstick_candidates(payer, self._task)
        built = await build_one(payer, self._task, reference)
        if isinstance(built, Measurement):
            raise WorkError(f"the unscheduled program of task {name} does not build: {built.detail}")
        own = built if baseline.key == reference.key else await build_one(payer, self._task, baseline)
        if isinstance(own, Measurement):
            baseline = replace(reference, origin=Origin.BASELINE)
            own = await build_one(payer, self._task, baseline)
        if isinstance(own, Measurement):
            raise WorkError(f"no program to compare with of task {name} builds: {own.detail}")
        return TaskBaselines((reference, built), (baseline, own))
