"""Calibrating a device: what measuring several candidates at once does to their timings."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

from tunery._errors import EngineError, UsageError, WorkError
from tunery.domain import Artifact, Calibration, Candidate, Measurement, Outcome, SharingPoint, Target, Task
from tunery.domain.request import Request
from tunery.engines import Engine, Role, WorkerSpec
from tunery.measuring.calibration import agreement, chosen_degree, degrees_to_try, point
from tunery.runtime import failure
from tunery.runtime.foreign_load import VARIABLE, ForeignWatch
from tunery.runtime.importing import IMPORT_DEADLINE_S
from tunery.runtime.runtime import Runtime
from tunery.runtime.services import Specimen
from tunery.store import AsyncStore

RACE_DEADLINE_S = 120.0

Entrant = tuple[Candidate, Artifact]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over candidates gave: a measurement for each, in their order, and the wall seconds of it all."""

    measurements: tuple[Measurement, ...]
    wall_s: float


class SlotWorkers:
    """One measurer per slot, as `specs` say; whoever uses them holds the device."""

    def __init__(self, engine: Engine, specs: Sequence[WorkerSpec]) -> None:
        self.engine, self.slots = engine, tuple(spec.cores for spec in specs)
        self.workers = [engine.start(spec) for spec in specs]

    def race(
        self,
        task: Task,
        entrants: Sequence[Entrant],
        reference: Artifact,
        *,
        degree: int = 1,
        deviation: float = 0.0,
        against_best: bool = False,
        method: str = "race",
    ) -> Pass:
        """Measure each entrant once, `degree` of them at a time; with `against_best` losers are abandoned. All slots
        are kept busy while there is work, so that each measurement has its neighbours."""
        best_s: float | None = None
        found: dict[int, Measurement] = {}
        waiting = deque(range(len(entrants)))
        running: dict[Future[Any], tuple[int, str]] = {}
        idle = list(self.workers[:degree])
        start = perf_counter()
        while waiting or running:
            while waiting and idle:
                index, worker = waiting.popleft(), idle.pop(0)
                candidate, artifact = entrants[index]
                incumbent_s = best_s if against_best else None
                call = self.engine.call(
                    worker, method, task, artifact, candidate, incumbent_s, reference, degree, deviation,
                    deadline_s=RACE_DEADLINE_S,
                )  # fmt: skip
                running[call] = index, worker
            for call in wait(running, return_when=FIRST_COMPLETED).done:
                index, worker = running.pop(call)
                idle.append(worker)
                found[index] = measurement = _result(call.result)
                if measurement.outcome is Outcome.OK and measurement.latency_s:
                    best_s = min(best_s or measurement.latency_s, measurement.latency_s)
        return Pass(tuple(found[i] for i in range(len(entrants))), perf_counter() - start)

    def call(self, worker: int, method: str, *args: object, deadline_s: float = RACE_DEADLINE_S) -> Any:
        return self.engine.call(self.workers[worker], method, *args, deadline_s=deadline_s).result()


def _result(answer: Callable[[], Measurement]) -> Measurement:
    try:
        return answer()
    except EngineError as error:
        return failure(error)


CANDIDATES = 24
_PREPARE_DEADLINE_S = 600.0
_LEAST = 4
_TRIES = 3
_ROUNDS = 3  # alone and beside others in turns: strangers on the physical cores come and go


async def calibrate_target(
    runtime: Runtime, store: AsyncStore, request: Request, job_id: str, say: Callable[[str], None]
) -> Calibration:
    async with runtime.stage(job_id, "import", Role.IMPORTER) as grant:
        target, _ = await runtime.call(
            grant.worker, "target", request.target, runtime.threads, deadline_s=IMPORT_DEADLINE_S, tries=3
        )
    return await calibrate(runtime, store, target, request.dialect, job_id, say)


async def calibrate(  # noqa: PLR0917 - what is calibrated, and for whom
    runtime: Runtime,
    store: AsyncStore,
    target: Target,
    dialect: str,
    job_id: str,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Time the dialect's reference kernels alone and beside one another at every degree, and store the curve."""
    specimens = await _specimens(runtime, target, job_id)
    loop = asyncio.get_running_loop()

    def tell(text: str) -> None:  # from the thread that waits for the timings
        loop.call_soon_threadsafe(say, text)

    async with runtime.stage(job_id, "calibrate", Role.MEASURER):
        workers = SlotWorkers(runtime.engine, [runtime.pools.measurer_spec(slot) for slot in runtime.pools.all_slots])
        points: list[SharingPoint] = []
        taus: dict[str, float] = {}
        rates: dict[str, float] = {}
        overhead_s = 0.0
        for specimen in specimens:
            found = await asyncio.to_thread(_curve, workers, specimen, runtime.foreign, tell)
            points += found.points
            taus[specimen.kind], rates[specimen.kind] = found.isolated_tau, _amount(specimen) / found.fastest_s
            overhead_s = found.clock_overhead_s
    calibration = Calibration(
        device=(await runtime.device()).fingerprint,
        dialect=dialect,
        threads=runtime.threads,
        slots=len(runtime.pools.all_slots),
        points=tuple(points),
        isolated_tau=taus,
        degrees={kind: chosen_degree(points, kind, tau) for kind, tau in taus.items()},
        flop_per_s=rates.get("compute", 0.0),
        bytes_per_s=rates.get("memory", 0.0),
        clock_overhead_s=overhead_s,
        made_at=time.time(),
    )
    await store.write(lambda opened: opened.save_calibration(calibration))
    return calibration


async def _specimens(runtime: Runtime, target: Target, job_id: str) -> Sequence[Specimen]:
    async with runtime.stage(job_id, "import", Role.IMPORTER) as grant:
        try:
            found: list[Specimen] = await runtime.call(
                grant.worker, "specimens", target, CANDIDATES, deadline_s=_PREPARE_DEADLINE_S, tries=2
            )
        except EngineError as error:
            raise WorkError(f"the reference kernels cannot be built: {error}") from error
    if not found:
        raise UsageError(f"{target.dialect} has no reference kernels to calibrate with; use another --dialect")
    return found


@dataclass(frozen=True, slots=True)
class _Curve:
    points: tuple[SharingPoint, ...]
    isolated_tau: float
    fastest_s: float
    clock_overhead_s: float


def _curve(
    workers: SlotWorkers, specimen: Specimen, foreign: ForeignWatch | None, say: Callable[[str], None]
) -> _Curve:
    """Time one kind of kernels alone, and at every degree in turns, so that a drift of the machine hits both."""
    kind, task, entrants, reference = specimen.kind, specimen.task, list(specimen.entrants), specimen.reference

    def timed(what: str, times: int = 1, degree: int = 1) -> Pass:
        say(f"{kind}-bound kernels{what}")
        return _undisturbed(lambda: workers.race(task, entrants * times, reference, degree=degree), foreign, say)

    for degree in range(1, len(workers.slots) + 1):  # every worker has the reference's outputs, and warm clocks
        workers.race(task, entrants[:degree], reference, degree=degree)
    alone, shared = [timed(" alone")], {degree: list[Pass]() for degree in degrees_to_try(len(workers.slots))}
    for _ in range(_ROUNDS):
        for degree, passes in shared.items():
            passes.append(timed(f", {degree} at once", 2, degree))
        alone.append(timed(" alone again"))
    each = [_latencies(specimen, done.measurements) for done in alone]
    usual = _medians(each)
    if len(usual) < _LEAST:
        failed = next((m.detail for m in alone[0].measurements if m.outcome is not Outcome.OK), "")
        raise WorkError(f"too few {kind}-bound reference kernels run to calibrate with ({failed})")
    points = tuple(_middle(specimen, degree, passes, alone) for degree, passes in shared.items())
    overhead_s = max(float(m.context.get("clock_overhead_s", 0.0)) for done in alone for m in done.measurements)
    tau = median(agreement(one, two) for one, two in pairwise(each))
    return _Curve(points, tau, min(usual.values()), overhead_s)


def _middle(specimen: Specimen, degree: int, shared: Sequence[Pass], alone: Sequence[Pass]) -> SharingPoint:
    found = []
    for done, (before, after) in zip(shared, pairwise(alone), strict=True):
        usual = _medians([_latencies(specimen, one.measurements) for one in (before, after)])
        gain = (before.wall_s + after.wall_s) / done.wall_s
        found.append(point(specimen.kind, degree, _latencies(specimen, done.measurements), usual, gain))
    return SharingPoint(
        specimen.kind, degree, median(one.deviation for one in found), median(one.tau for one in found),
        median(one.gain for one in found),
    )  # fmt: skip


def _medians(passes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = set.intersection(*(set(one) for one in passes))
    return {key: median(one[key] for one in passes) for key in keys}


def _undisturbed(run: Callable[[], Pass], foreign: ForeignWatch | None, say: Callable[[str], None]) -> Pass:
    """Do a pass, again where others were at work meanwhile: what they did would be taken for what sharing does."""
    for _ in range(_TRIES):
        if foreign is not None:
            foreign.look()
        began_s = time.monotonic()
        done = run()
        if foreign is None or not foreign.disturbed(began_s, time.monotonic()):
            return done
        say("others were at work: once more")
    raise WorkError(
        "others use this machine's cores, so nothing was calibrated; do it again when it is quiet, or with "
        f"{VARIABLE}=off all the same"
    )


def _latencies(specimen: Specimen, measurements: Sequence[Measurement]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for i, measurement in enumerate(measurements):
        if measurement.outcome is Outcome.OK and measurement.latency_s:
            key = specimen.entrants[i % len(specimen.entrants)][0].key
            found.setdefault(key, []).append(measurement.latency_s)
    return {key: median(taken) for key, taken in found.items()}


def _amount(specimen: Specimen) -> float:
    workload = specimen.task.workload
    return workload.flop if specimen.kind == "compute" else 4.0 * sum(spec.size for spec in workload.arguments)
