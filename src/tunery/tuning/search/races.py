"""One task's built candidates on the device: raced on as many slots at once as the task bears, and watched."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from tunery.domain import Artifact, Calibration, Candidate, Measurement, Mode, Outcome, Task
from tunery.engines import Role
from tunery.measuring.calibration import starting_degree
from tunery.measuring.degree import Degree
from tunery.runtime.foreign_load import marked, relaxed_incumbent_s
from tunery.runtime.runtime import Reservation
from tunery.tuning.account import PricedCharge
from tunery.tuning.calls import BuiltCandidate, Context, Entrant, race, stage, together
from tunery.tuning.search.state import SearchState

Timed = tuple[Entrant, Measurement]

_TIMED = 3
_PERHAPS_SHARING = frozenset({Outcome.TIMEOUT, Outcome.CRASHED, Outcome.RUN_FAILED})


class MeasurementConcurrency:
    """One task's degree on a device with `slots` slots, and which of its measurements are repeated alone."""

    def __init__(self, task: Task, slots: int, calibration: Calibration | None, seed: int) -> None:
        self._degree = Degree(slots, min(starting_degree(task, calibration), slots))
        self._random = random.Random(f"{seed} {task.key}")  # noqa: S311 - a sample, no secret

    @property
    def degree(self) -> int:
        return self._degree.degree

    @property
    def deviation(self) -> float:
        return self._degree.deviation

    def audits(self, timed: Sequence[Timed]) -> list[Timed]:
        """Repeat some that failed, and a random share of the others. Only those with a few samples tell a deviation;
        what was abandoned after one run has told enough."""
        count = self._degree.audits(len(timed))
        failed = [one for one in timed if one[1].outcome in _PERHAPS_SHARING][:count]
        whole = [one for one in timed if one[1].mode is Mode.SHARED and len(one[1].samples_s) >= _TIMED]
        return failed + self._random.sample(whole, min(count, len(whole)))

    def observe(self, pairs: Sequence[tuple[Measurement, Measurement]]) -> int:
        both = [(shared.latency_s, alone.latency_s) for shared, alone in pairs if shared.latency_s]
        deviations = [shared_s / alone_s - 1 for shared_s, alone_s in both if shared_s and alone_s]
        failures = sum(not shared.latency_s and alone.outcome is Outcome.OK for shared, alone in pairs)
        return self._degree.observe(deviations, failures)


AUDIT = "audit"
"""The stage to which what is timed again is charged, and the mark in its record's context: it is no trial."""


@dataclass(frozen=True, slots=True)
class _Raced:
    built: BuiltCandidate
    measurement: Measurement
    began_s: float
    ended_s: float


class Races:
    """Races one task's candidates against the best of `state`. `record` stores a result; `correct` stores what timing a
    candidate again alone gave, which is believed from then on."""

    def __init__(
        self,
        task: Task,
        state: SearchState,
        record: Callable[..., Awaitable[object]],
        correct: Callable[..., Awaitable[object]],
    ) -> None:
        self._task, self._state, self._record, self._correct = task, state, record, correct
        self._beside: MeasurementConcurrency | None = None

    def _sharing(self, payer: Context) -> MeasurementConcurrency:
        """Return how this task's candidates share the device; the seed is that of the first job that asks."""
        if self._beside is None:
            runtime = payer.runtime
            self._beside = MeasurementConcurrency(self._task, len(runtime.pools.slots), runtime.calibration, payer.seed)
        return self._beside

    @property
    def degree(self) -> int:
        return self._beside.degree if self._beside else 1

    async def race(  # noqa: PLR0917 - what one race needs
        self,
        payer: Context,
        worker: str,
        entrant: Entrant,
        reference: Artifact,
        incumbent_s: float | None = None,
        degree: int = 1,
    ) -> Measurement:
        return await race(
            payer, self._task, worker, entrant, reference,
            incumbent_s=incumbent_s, baseline_s=self._state.baseline_s or self._state.fastest_s(), degree=degree,
            deviation=self._sharing(payer).deviation if degree > 1 else 0.0,
        )  # fmt: skip

    async def run(self, payer: Context, built: Sequence[BuiltCandidate], reference: Artifact) -> list[BuiltCandidate]:
        """Race what was built on as many slots at once as the task bears, repeat a share of that alone, and return what
        ended ok. Those that others disturbed are raced once more when the machine is ours again, and so are those that
        were given up beside others at a degree that proves too high."""
        left, again, last = deque(built), set[str](), dict[str, Outcome]()
        while left:
            degree = self._sharing(payer).degree
            raced: list[_Raced] = []
            slots = min(degree, len(left))
            await together([self._race_some(payer, left, raced, again, reference, degree, slots) for _ in range(slots)])
            disturbed = [one for one in raced if _disturbed(payer, one, again)]
            again.update(one.built.candidate.key for one in disturbed)
            left.extend(one.built for one in disturbed)
            last.update((one.built.candidate.key, one.measurement.outcome) for one in raced)
            whole = [one for one in raced if one not in disturbed]
            last.update(await self._audit(payer, whole, reference))
            if self._sharing(payer).degree < degree:
                doubtful = [one.built for one in whole if last[one.built.candidate.key] is Outcome.ABANDONED]
                left.extend(built for built in doubtful if built.candidate.key not in again)
                again.update(built.candidate.key for built in doubtful)
        for one in built:
            if last[one.candidate.key] is not Outcome.OK:
                payer.runtime.holds.release(one.artifact.blob)
        return [one for one in built if last[one.candidate.key] is Outcome.OK]

    async def _race_some(  # noqa: PLR0917 - one slot's part of `run`
        self,
        payer: Context,
        left: deque[BuiltCandidate],
        raced: list[_Raced],
        again: Collection[str],
        reference: Artifact,
        degree: int,
        slots: int,
    ) -> None:
        loop, foreign = asyncio.get_running_loop(), payer.runtime.foreign
        size, begun = -(-len(left) // slots), False
        async with stage(payer, self._task, "measure", Role.MEASURER, size, degree=degree) as grant:
            while left and not (begun and foreign and foreign.share.waiting):
                one, started, begun = left.popleft(), loop.time(), True
                entrant, incumbent_s = (
                    (one.candidate, one.artifact),
                    relaxed_incumbent_s(self._state.fastest_s(), foreign),
                )
                measurement = await self.race(payer, grant.worker, entrant, reference, incumbent_s, degree)
                measurement = replace(marked(measurement, foreign), build_s=one.build.wall_s)
                if one.candidate.key in again:
                    await self._keep_again(payer, one.candidate, measurement, grant)
                else:
                    bills = self._bills(payer, one, measurement, grant.split())
                    await self._record(payer, one.candidate, measurement, bills)
                raced.append(_Raced(one, measurement, started, loop.time()))

    def _bills(
        self, payer: Context, one: BuiltCandidate, measurement: Measurement, race: Reservation
    ) -> list[PricedCharge]:
        outcome, key = measurement.outcome, self._task.key
        helped = self._state.helps(outcome, measurement.latency_s)
        payer.account.settle_deferred([one.candidate])
        return [
            payer.bill(key, "measure", outcome.value, race, device=True, helped=helped),
            payer.bill(key, "build", outcome.value, one.build, helped=helped),
        ]

    async def _keep_again(
        self, payer: Context, candidate: Candidate, measurement: Measurement, grant: Reservation
    ) -> Measurement:
        measurement = replace(measurement, context={**measurement.context, AUDIT: True})
        cost = payer.bill(self._task.key, AUDIT, "", grant.split(), device=True)
        await self._correct(payer, candidate, measurement, [cost])
        return measurement

    async def _audit(self, payer: Context, raced: Sequence[_Raced], reference: Artifact) -> dict[str, Outcome]:
        """Race some candidates again, alone: what that shows decides how the next batch is measured."""
        entrants = [((one.built.candidate, one.built.artifact), one.measurement) for one in raced]
        chosen = self._sharing(payer).audits(entrants)
        if not chosen:
            self._sharing(payer).observe([])
            return {}
        pairs, last = [], {}
        async with stage(payer, self._task, "measure", Role.MEASURER, len(chosen)) as grant:
            for entrant, shared in chosen:
                alone = marked(await self.race(payer, grant.worker, entrant, reference), payer.runtime.foreign)
                alone = await self._keep_again(payer, entrant[0], alone, grant)
                last[entrant[0].key] = alone.outcome
                if not alone.context.get("contaminated"):
                    pairs.append((shared, alone))
        self._sharing(payer).observe(pairs)
        return last


def _disturbed(payer: Context, raced: _Raced, again: Collection[str]) -> bool:
    """Say whether a race is to be repeated: others were at work meanwhile, and there is patience to wait."""
    foreign = payer.runtime.foreign
    timed = raced.measurement.outcome in {Outcome.OK, Outcome.ABANDONED}
    if foreign is None or raced.built.candidate.key in again or not timed:
        return False
    return foreign.disturbed(raced.began_s, raced.ended_s) and (foreign.share.waiting or not foreign.share.disturbed)
