"""The last word on a task: its best candidates verified fully and timed, interleaved, beside the baseline."""

import asyncio
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace

from tunery._errors import EngineError, WorkError
from tunery.domain import Artifact, Candidate, Measurement, Mode, Origin, Record, Task
from tunery.engines import Role
from tunery.measuring.selection import finalists
from tunery.runtime import failure
from tunery.runtime.foreign_load import marked
from tunery.runtime.runtime import Reservation
from tunery.tuning.calls import Context, Entrant, TaskBaselines, baseline_candidates, build_one, stage


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
        reference, baseline = await baseline_candidates(payer, self._task)
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


FINALS_DEADLINE_S = 60.0
FINALISTS = 12
ROUNDS = 100


def select(records: Iterable[Record]) -> list[Candidate]:
    modes = {Mode.RACE, Mode.SHARED}
    raced = [r for r in records if r.measurement.mode in modes and r.candidate.origin is not Origin.BASELINE]
    return finalists(raced, FINALISTS)


def predicted_s(
    baseline_s: float | None,
    best_s: float | None,
    count: int = FINALISTS,
    builds_s: float = 0.0,
    inputs_mb: float = 0.0,
) -> float:
    """Each finalist is loaded, verified on `inputs_mb` megabytes of inputs and settled; three quarters of the turns are
    left out, of those behind. MobileNetV2's 32 tasks took 9 s in all on an idle machine, ResNet-18's 18, whose weights
    are large, 25 to 40 s."""
    turns = min(count, FINALISTS / 4) * ROUNDS
    entrants = (0.025 + 0.02 * inputs_mb) * (count + 1)
    return 0.2 + entrants + builds_s + 6 * (baseline_s or 0.05) + turns * (best_s or 0.0)


async def hold(  # noqa: PLR0917 - what one round needs
    context: Context,
    task: Task,
    baselines: TaskBaselines,
    challengers: Sequence[Candidate],
    baseline_s: float | None,
    at_hand: MutableMapping[str, Artifact],
) -> tuple[float | None, list[Measurement]]:
    """Time `challengers` beside the baseline, record all; return its latency now, and all results. Those that are not
    `at_hand` (by key) are built first, and are so afterwards."""
    # A baseline without a latency is faulty: it would cost the others their common round.
    entrants = [baselines.baseline] if baseline_s else []
    for candidate in challengers:
        if candidate.key != baselines.baseline[0].key:
            artifact = at_hand.get(candidate.key) or await build_one(context, task, candidate)
            if not isinstance(artifact, Measurement):
                at_hand[candidate.key] = artifact
                entrants.append((candidate, artifact))
    reference = baselines.reference[1]
    async with stage(context, task, "finals", Role.MEASURER, len(entrants)) as grant:
        results = await time_in_turns(context, task, grant.worker, entrants, reference, baseline_s)
    await record_finals(context, task, entrants, results, grant)
    return (results[0].latency_s or baseline_s if baseline_s else None), results


async def record_finals(
    context: Context, task: Task, entrants: Sequence[Entrant], results: Sequence[Measurement], grant: Reservation
) -> None:
    records = [context.record(candidate, result) for (candidate, _), result in zip(entrants, results, strict=True)]
    cost = context.bill(task.key, "finals", "", grant, len(entrants), device=True)
    await context.account.record(task, records, [cost])


async def time_in_turns(  # noqa: PLR0917 - what one call needs
    context: Context,
    task: Task,
    worker: str,
    entrants: Sequence[Entrant],
    reference: Artifact,
    baseline_s: float | None,
    rounds: int = ROUNDS,
) -> list[Measurement]:
    """Verify the entrants and time them in turns, with weights from memory. One that takes the worker down costs itself
    alone."""

    async def timed(some: Sequence[Entrant]) -> list[Measurement]:
        results: list[Measurement] = await context.runtime.call(
            worker, "finals", task, [a for _, a in some], [c for c, _ in some], reference, rounds,
            deadline_s=FINALS_DEADLINE_S + 60 * (baseline_s or 1.0),
        )  # fmt: skip
        return results

    try:
        results = await timed(entrants)
    except EngineError:
        results = []
        for entrant in entrants:
            try:
                results += await timed([entrant])
            except EngineError as error:
                results.append(replace(failure(error), mode=Mode.FINAL))
    return [marked(result, context.runtime.foreign) for result in results]
