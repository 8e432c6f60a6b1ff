"""Schedules without tuning: for each task that no record answers, the candidate the cost model thinks fastest.

Nothing is timed, so nothing here waits for a quiet device: all cores propose, build and verify at once. Nothing
unverified is delivered either: each pick runs on three inputs beside the task's reference, which the dialect makes
quick to run. With `few_shot` the best few picks of a task are raced on the device and recorded; tasks whose predictions
are heavy and uncertain come first, in case the time ends. Of tasks with large weights they are timed once more, with
weights from memory.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from tunery._errors import DialectError, EngineError, TuneryError, UsageError
from tunery.accounting.prices import load_prices
from tunery.delivery.ladder import KnownTask, choose
from tunery.domain import (
    Artifact,
    Candidate,
    Choice,
    Measurement,
    Origin,
    Outcome,
    Provenance,
    Record,
    Rung,
    Target,
    Task,
)
from tunery.domain.request import FillPolicy, Request
from tunery.engines import Role
from tunery.runtime.opening import introduce
from tunery.runtime.pools import Runtime
from tunery.runtime.services import Checked, Pick, Prediction
from tunery.store import AsyncStore
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.calls import Entrant, stage
from tunery.tuning.charging import bill
from tunery.tuning.context import Context
from tunery.tuning.learning import InitialModel, Learning, start_for
from tunery.tuning.pipeline import Builds, BuiltCandidate, build_all, build_reference, race_in_turn, together
from tunery.tuning.search.finals import time_in_turns

PREDICT_DEADLINE_S, CHECK_DEADLINE_S, PICK_DEADLINE_S = 60.0, 30.0, 60.0
_BUILDS = Builds(chunk=1, tries=2)
_KEEP = 3  # picks that are tried until one is right
# Candidates to look at, by the task's share of the network's arithmetic: each costs 15 to 25 ms of a core. Where
# measurements follow, each of which costs more than ten looks, there are more.
_EFFORTS = ((0.08, 32), (0.02, 16), (0.002, 8), (0.0, 4))
_FEW_SHOT_EFFORT = 2
_HEAVY_BYTES = 1 << 20
_FAR, _ROUNDS = 2.5, 40  # times the fastest with its weights in the cache; rounds of finals


@dataclass
class Filled:
    """What came of it: by task key choices and what was compiled of them, and the reasons where there was none."""

    choices: dict[str, Choice] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Artifact] = field(default_factory=dict)
    measured: int = 0

    def choose(self, task: Task, candidate: Candidate, part: Artifact | None) -> None:
        """Note a prediction that proved right, and what was compiled of it."""
        self.choices[task.key] = Choice(task.key, Rung.ZERO_SHOT, candidate)
        if part is not None:
            self.parts[task.key] = part


async def get_ready(
    runtime: Runtime, request: Request, target: Target, compiler: str, job_id: str
) -> InitialModel | None:
    """Return the cost model to predict with, and have all builders read it, while tasks are still being extracted."""
    device = await runtime.device()
    start = await asyncio.to_thread(start_for, request.dialect, target.config, compiler, device)
    if start is not None:
        model = _model_blob(runtime, start.model)

        async def one(worker: str) -> None:
            with suppress(EngineError):  # it will be read again
                async with runtime.stage(job_id, "build", Role.BUILDER, worker=worker):
                    await runtime.call(worker, "read", model, deadline_s=PREDICT_DEADLINE_S)

        await asyncio.gather(*(one(worker) for worker in runtime.workers(Role.BUILDER)))
    return start


async def fill(  # noqa: PLR0917 - what a delivery needs, passed on
    runtime: Runtime,
    store: AsyncStore,
    request: Request,
    tasks: Sequence[Task],
    provenance: Provenance,
    guess: FillPolicy,
    job_id: str,
    ready: Awaitable[InitialModel | None] | None = None,
    account: Account | None = None,
) -> KnownTask:
    """Return the ladder's choices for `tasks`, with predicted ones where it has none, or nothing but the default.

    `ready` is `get_ready`'s result, if it was begun before; `account` pays for what is measured: of a job that is
    stored, where `guess` asks for that.

    Raises:
        UsageError: measurements are asked for, a task has no record, and there is no cost model for the target.
    """
    known = await store.read(lambda opened: choose(opened, tasks, provenance))
    open_ = [task for task in tasks if task.key in known.open]
    if not open_:
        return known
    target = tasks[0].target
    if guess.few_shot:
        start = start_for(request.dialect, target.config, provenance.compiler, await introduce(runtime, store))
    else:
        start = await (ready or get_ready(runtime, request, target, provenance.compiler, job_id))
    why = f"there is no cost model for {target}; train one with `tunery costmodel collect` and `tunery costmodel train`"
    if runtime.builds_for_another_kind and not guess.few_shot:
        # What ships was measured on other processors, and nothing of it can be checked here.
        start, why = (
            None,
            f"nothing is predicted for host {runtime.measure_host}; tune it, or measure some (--few-shot)",
        )
    if start is None:
        if guess.few_shot:
            raise UsageError(why)
        return replace(known, refused={task.key: why for task in open_})
    account = account or Account(store, job_id, runtime, load_prices(request.prices), runtime.power)
    context = Context(job_id, runtime, store, provenance, request.seed, account, Learning(runtime, job_id, start.model))
    filled = Filled()
    whole = sum(task.weight * task.workload.flop for task in tasks) or 1.0

    counts = {task.key: looks(task, whole, guess) for task in open_}
    if guess.few_shot:
        done = await asyncio.gather(*(_predict(context, task, counts[task.key], guess, filled) for task in open_))
        predicted = [(task, prediction) for task, prediction in zip(open_, done, strict=True) if prediction]
        await _measure(context, predicted, guess, filled)
        known = await store.read(lambda opened: choose(opened, tasks, provenance))
        left = (pair for pair in predicted if pair[0].key in known.open)
        await asyncio.gather(*(_verify(context, *pair, filled) for pair in left))
    else:
        await _pick_all(context, [(task, counts[task.key]) for task in open_], guess, filled)
    choices = tuple(filled.choices.get(choice.task_key, choice) for choice in known.choices)
    refused = {key: why for key, why in filled.refused.items() if key in known.open - filled.choices.keys()}
    return replace(known, choices=choices, refused=refused, measured=filled.measured, parts=filled.parts)


def wanted(share: float) -> int:
    """Return how many candidates of a task are worth a look, by its share of the network's arithmetic.

    >>> [wanted(0.5), wanted(0.001)]
    [32, 4]
    """
    return next(count for least, count in _EFFORTS if share >= least)


def urgency(task: Task, prediction: Prediction) -> float:
    """Return how much a measurement of this task may win: its arithmetic, by how unsure the model is of its best."""
    doubt = 0.05 + (prediction.uncertainty[0] if prediction.uncertainty else 0.0)
    return task.weight * max(task.workload.flop, 1.0) * doubt


def looks(task: Task, whole: float, guess: FillPolicy) -> int:
    """Return how many candidates of a task to look at, in a network of `whole` arithmetic."""
    if not task.tunable:
        return 1
    count = max(wanted(task.weight * task.workload.flop / whole), guess.few_shot)
    return _FEW_SHOT_EFFORT * count if guess.few_shot else count


async def _pick_all(context: Context, tasks: Sequence[tuple[Task, int]], guess: FillPolicy, filled: Filled) -> None:
    """Choose for each task what is right and thought fastest; each learns from those that were done before it."""
    transfer_states: list[str] = []
    model = _model_blob(context.runtime, context.learning.model or "")

    async def one(task: Task, count: int) -> None:
        try:
            async with stage(context, task, "build", Role.BUILDER, count) as grant:
                pick: Pick = await context.runtime.call(
                    grant.worker, "pick", task, count, _KEEP, model, context.seed, list(transfer_states),
                    deadline_s=PICK_DEADLINE_S,
                )  # fmt: skip
        except (EngineError, DialectError):  # a hang or a crash: which candidate's it was is found out one by one
            prediction = await _predict(context, task, count, guess, filled)
            if prediction:
                await _verify(context, task, prediction, filled)
            return
        if pick.transfer_state:
            transfer_states.append(pick.transfer_state)
        if pick.candidate:
            filled.choose(task, pick.candidate, pick.part)
        else:
            filled.refused[task.key] = pick.refused

    await asyncio.gather(*(one(*each) for each in tasks))


def _model_blob(runtime: Runtime, model: str) -> str:
    return runtime.blobs.put(model.encode(), temporary=True)


async def _predict(context: Context, task: Task, count: int, guess: FillPolicy, filled: Filled) -> Prediction | None:
    try:
        async with stage(context, task, "propose", Role.PROPOSER, count) as grant:
            prediction: Prediction = await context.runtime.call(
                grant.worker, "predict", task, count, max(_KEEP, guess.few_shot), context.learning.model, context.seed,
                deadline_s=PREDICT_DEADLINE_S,
            )  # fmt: skip
    except (EngineError, DialectError) as error:
        filled.refused[task.key] = f"no prediction: {error}"
        return None
    if not prediction.candidates:
        filled.refused[task.key] = "its design space gave no candidate"
        return None
    return prediction


async def _verify(context: Context, task: Task, prediction: Prediction, filled: Filled) -> None:
    """Choose the best pick that computes what the reference computes."""
    *best, last = prediction.candidates  # the last may be of another kind, should the others fail
    for candidate in (*best[: _KEEP - 1], last):
        try:
            async with stage(context, task, "build", Role.BUILDER) as grant:
                checked: Checked = await context.runtime.call(
                    grant.worker, "check", task, candidate, deadline_s=CHECK_DEADLINE_S
                )
        except TuneryError as error:  # it does not build, hangs or crashes: the next one may not
            filled.refused[task.key] = str(error)
            continue
        if checked.verdict.deliverable:
            filled.choose(task, candidate, checked.part)
            filled.refused.pop(task.key, None)
            return
        filled.refused[task.key] = checked.verdict.detail


async def _measure(
    context: Context, predicted: Sequence[tuple[Task, Prediction]], guess: FillPolicy, filled: Filled
) -> None:
    """Race the best picks of each task, the most urgent tasks first, and record them."""
    end = time.monotonic() + guess.seconds
    turns = asyncio.Semaphore(len(context.runtime.workers(Role.BUILDER)) + 1)  # one is measured while others build

    async def one(task: Task, prediction: Prediction) -> None:
        async with turns:
            if time.monotonic() > end:
                return
            try:
                count = await _race_all(context, task, prediction.candidates[: guess.few_shot])
                filled.measured += count  # not in one step: the sum would be read before the others' races
            except TuneryError as error:
                filled.refused[task.key] = str(error)

    await asyncio.gather(*(one(*pair) for pair in sorted(predicted, key=lambda pair: -urgency(*pair))))


async def _race_all(context: Context, task: Task, candidates: Sequence[Candidate]) -> int:
    """Race candidates and record them all; return how many were raced."""
    record = partial(_record, context, task)
    reference: Artifact
    built: list[BuiltCandidate]
    reference, built = await together(
        [build_reference(context, task), build_all(context, task, candidates, record, how=_BUILDS)]
    )
    order = {candidate.key: number for number, candidate in enumerate(candidates)}  # likeliest first
    built.sort(key=lambda one: order[one.candidate.key])
    found = await race_in_turn(context, task, built, reference, record) if built else []
    best_s = min((m.latency_s for m in found if m.outcome is Outcome.OK and m.latency_s), default=None)
    if best_s:
        near = [
            (one.candidate, one.artifact)
            for one, m in zip(built, found, strict=True)
            if m.outcome in {Outcome.OK, Outcome.ABANDONED} and m.latency_s and m.latency_s < _FAR * best_s
        ]
        if len(near) > 1 and heavy(task) and await _far_ahead(context, task, best_s):
            await _hold_finals(context, task, near, reference)
    for artifact in (reference, *(one.artifact for one in built)):
        context.runtime.discard(artifact)
    return len(found)


async def _record(
    context: Context, task: Task, candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]
) -> None:
    record = Record(candidate, measurement, context.provenance, context.job_id)
    await context.account.record(task, [record], bills)


def heavy(task: Task) -> bool:
    """Return whether a task's weights do not stay in a core's own cache until the network's next run.

    A race leaves them there; in the network they come from memory, and other candidates may be the fastest.
    """
    return max((4 * spec.size for spec in task.workload.input_specs[1:]), default=0) >= _HEAVY_BYTES


async def _far_ahead(context: Context, task: Task, best_s: float) -> bool:
    """Return whether the compiler's default cannot win: it takes no part in these finals, which outrank its race."""
    known = await context.store.read(lambda store: store.best(task.key, context.provenance, origin=Origin.BASELINE))
    default_s = known[0].measurement.latency_s if known else None
    return default_s is None or default_s > _FAR * best_s


async def _hold_finals(context: Context, task: Task, entrants: Sequence[Entrant], reference: Artifact) -> None:
    """Time those that may win once more, in turns, with weights from memory."""
    async with stage(context, task, "finals", Role.MEASURER, len(entrants)) as grant:
        results = await time_in_turns(context, task, grant.worker, entrants, reference, None, _ROUNDS)
    records = [
        Record(candidate, measurement, context.provenance, context.job_id)
        for (candidate, _), measurement in zip(entrants, results, strict=True)
    ]
    cost = bill(context, task.key, "finals", "", grant, len(entrants), device=True)
    await context.account.record(task, records, [cost])
