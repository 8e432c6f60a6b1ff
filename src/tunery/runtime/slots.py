"""Measuring on several slots of one device at once."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tunery._errors import EngineError
from tunery.domain import Artifact, Candidate, Measurement, Outcome, Task
from tunery.engines import Engine, WorkerSpec
from tunery.runtime import failure

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
        """Measure each entrant once, `degree` of them at a time; with `against_best` losers are abandoned.

        All slots are kept busy while there is work, so that each measurement has its neighbours.
        """
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
