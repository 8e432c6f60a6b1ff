"""Schedules without tuning: for each task that no record answers, the candidate the cost model thinks fastest.

What a compatible device has measured comes before predictions, once it is verified here.

Nothing is timed, so nothing here waits for a quiet device: all cores propose, build and verify at once. Nothing
unverified is delivered either: each pick runs on three inputs beside the task's reference, which the dialect makes
quick to run. With `few_shot` the best few picks of a task are raced on the device and recorded; tasks whose predictions
are heavy and uncertain come first, in case the time ends. Of tasks with large weights they are timed once more, with
weights from memory.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tunery._errors import DialectError, EngineError, TuneryError, UsageError
from tunery.accounting.prices import load_prices
from tunery.delivery.ladder import KnownTask, choices, choose, offered, offers_for
from tunery.domain import (
    Artifact,
    Candidate,
    Choice,
    Measurement,
    Origin,
    Outcome,
    Rung,
    Target,
    Task,
)
from tunery.domain.request import FillPolicy
from tunery.engines import Role
from tunery.measuring.inputs import size_bytes
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Runtime
from tunery.runtime.services import CheckedBody, Pick, Prediction
from tunery.store import Offer
from tunery.tuning.account import Account
from tunery.tuning.calls import (
    Builds,
    BuiltCandidate,
    Context,
    Entrant,
    build_all,
    build_reference,
    race_in_turn,
    stage,
    together,
)
from tunery.tuning.learning import InitialModel, Learning, start_for
from tunery.tuning.search.finals import record_finals, time_in_turns
from tunery.tuning.work import Work

PREDICT_DEADLINE_S, CHECK_DEADLINE_S, PICK_DEADLINE_S = 60.0, 30.0, 60.0
_BUILDS = Builds(chunk=1, tries=2)
_KEEP = 3  # picks that are tried until one is right
# Candidates to look at, by the task's share of the network's arithmetic: each costs 15 to 25 ms of a core. Where
# measurements follow, each of which costs more than ten looks, there are more.
_EFFORTS = ((0.08, 32), (0.02, 16), (0.002, 8), (0.0, 4))
_FEW_SHOT_EFFORT = 2
_LEAST_EFFORT = 0.6
"""Of the time that all predictions would take: with less, the network alone is verified, not each of its kernels."""
LATE = "the budget of time ended before its kernel was chosen"
_HEAVY_BYTES, _LARGE_BYTES = 1 << 20, 32 << 20
_MOST_CHECKED_BYTES = 1 << 30
"""Of a task that has one candidate alone: what it is checked on is several times as large."""
_FAR, _ROUNDS = 2.5, 40  # times the fastest with its weights in the cache; rounds of finals


async def get_ready(work: Work, target: Target, compiler: str) -> InitialModel | None:
    """Return the cost model to predict with, and have all builders read it, while tasks are still being extracted."""
    runtime = work.runtime
    device = await runtime.device()
    start = await asyncio.to_thread(start_for, work.request.dialect, target, compiler, device)
    if start is not None:
        model = _model_blob(runtime, start.model)

        async def read(worker: str) -> None:
            with suppress(EngineError):  # it will be read again
                async with runtime.stage(work.job_id, "build", Role.BUILDER, worker=worker):
                    await runtime.call(worker, "read", model, deadline_s=PREDICT_DEADLINE_S)

        await asyncio.gather(*(read(worker) for worker in runtime.workers(Role.BUILDER)))
    return start


async def fill(
    work: Work, tasks: Sequence[Task], policy: FillPolicy | None, ready: Awaitable[InitialModel | None] | None = None
) -> tuple[KnownTask, ...]:
    """Return the ladder's answer for each of the model's tasks; with a `policy`, what no record answers is
    predicted."""
    whole = tuple(await asyncio.gather(*(_verified(work, each) for each in await choices(work, tasks))))
    known = tuple(
        each for each in whole
        if each.task.tunable or size_bytes(each.task.workload.arguments) <= _MOST_CHECKED_BYTES
    )  # fmt: skip
    if policy is None or not any(task.open for task in known):
        return whole
    filled = {each.task.key: each for each in await _filled(work, policy, known, ready)}
    why = "its arguments are too large for it to be checked on several inputs"
    return tuple(filled.get(each.task.key) or replace(each, refused=why if each.open else "") for each in whole)


async def _verified(work: Work, each: KnownTask) -> KnownTask:
    """Return a task with a record that is verified as today, at its first use again: what has passed is stored so, what
    has not is never the best again."""
    task, seen = each.task, set[str]()
    while (record := each.outdated) is not None:
        checked: CheckedBody | str = f"its record cannot be verified again for host {work.runtime.measure_host}"
        if not work.runtime.builds_for_another_kind and record.candidate.key not in seen:
            checked = await _check(work, task, record.candidate)
        if isinstance(checked, str):
            return KnownTask(task, Choice(task.key, Rung.DEFAULT), each.skipped, refused=checked)
        seen.add(record.candidate.key)
        verdict = checked.verdict
        found = replace(record.measurement, verification=verdict)
        if not verdict.deliverable:
            found = Measurement(Outcome.WRONG_RESULT, mode=found.mode, detail=verdict.detail, verification=verdict)
        await work.store.add_records(task, [replace(record, measurement=found, job_id=work.job_id)])
        if verdict.deliverable:
            return replace(each, outdated=None, part=checked.part)
        [each] = await choices(work, [task])
    return each


async def _filled(
    work: Work, policy: FillPolicy, known: tuple[KnownTask, ...], ready: Awaitable[InitialModel | None] | None
) -> tuple[KnownTask, ...]:
    if policy.until <= time.monotonic():
        return tuple(replace(each, refused=LATE, late=True) if each.open else each for each in known)
    target, compiler, start = work.model_read.target, work.model_read.compiler, None
    why = f"there is no cost model for {target}; train one with `tunery costmodel collect` and `tunery costmodel train`"
    provenance = await work.provenance()
    offers = await offers_for(work, provenance, known)
    if policy.few_shot:
        device = await introduce(work.runtime, work.store)
        start = start_for(work.request.dialect, target, compiler, device)
    elif work.runtime.builds_for_another_kind:
        # What ships was measured on other processors, and nothing of it can be checked here.
        why = f"nothing is predicted for host {work.runtime.measure_host}; tune it, or measure some (--few-shot)"
    else:
        start = await (ready or get_ready(work, target, compiler))
    if start is None and policy.few_shot and not all(offers.get(each.task.key) for each in known if each.open):
        raise UsageError(why)
    prices = load_prices(work.request.prices)
    account = work.account or Account(work.store, work.job_id, work.runtime, prices, work.runtime.power)
    learning = Learning(work.runtime, work.job_id, start.model if start else None)
    context = Context(work.job_id, work.runtime, work.store, provenance, work.request.seed, account, learning)
    if policy.few_shot:
        return await _few_shot(context, known, policy, offers)
    if not work.runtime.builds_for_another_kind:
        known = tuple(await asyncio.gather(*(_accept(context, each, offers.get(each.task.key, ())) for each in known)))
    if start is None:
        return tuple(replace(task, refused=why) if task.open else task for task in known)
    return await _pick_all(context, known, policy)


async def _accept(context: Context, each: KnownTask, offers: Sequence[Offer]) -> KnownTask:
    """Return a task with the first offer of a compatible device that computes here what the reference computes."""
    for number, offer in enumerate(offers):
        checked = await _check(context, each.task, offer.record.candidate)
        if not isinstance(checked, str) and checked.verdict.deliverable:
            return replace(offered(each, offers[number:]), part=checked.part)
    return each


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


def looks(task: Task, whole: float, policy: FillPolicy) -> int:
    if not task.tunable:
        return 1
    count = max(wanted(task.weight * task.workload.flop / whole), policy.few_shot)
    return _FEW_SHOT_EFFORT * count if policy.few_shot else count


def _whole(known: Sequence[KnownTask]) -> float:
    return sum(each.task.weight * each.task.workload.flop for each in known) or 1.0


async def _pick_all(context: Context, known: Sequence[KnownTask], policy: FillPolicy) -> tuple[KnownTask, ...]:
    """Choose for each open task what is right and thought fastest; each learns from those that were done before it. If
    the time does not suffice, less is looked at, and what is left then is `late`."""
    transfer_states: list[str] = []
    began, done = 0.0, 0
    model, whole = _model_blob(context.runtime, context.learning.model or ""), _whole(known)
    left = sum(each.open for each in known)
    limited = not math.isinf(policy.until)

    def effort(now: float) -> float:
        """Return what part of the work for those that are left fits, by the time that the others took."""
        return min(1.0, (policy.until - now) * done / max(left * (now - began), 1e-9)) if limited and done else 1.0

    async def pick(each: KnownTask) -> KnownTask:
        nonlocal left, began, done
        if not each.open:
            return each
        task, count = each.task, looks(each.task, whole, policy)
        try:
            async with stage(context, task, "build", Role.BUILDER, count, delivered=True) as grant:
                now = time.monotonic()
                began, until_s = began or now, policy.until - now
                if until_s <= 0:
                    return replace(each, refused=LATE, late=True)
                quick = effort(now) < _LEAST_EFFORT
                count = 1 if quick else max(1, int(count * effort(now)))
                async with asyncio.timeout(until_s if limited else None):
                    found: Pick = await context.runtime.call(
                        grant.worker, "pick", task, count, _KEEP, model, context.seed, list(transfer_states),
                        not quick, deadline_s=PICK_DEADLINE_S,
                    )  # fmt: skip
            done, left = done + 1, left - 1
        except TimeoutError:
            return replace(each, refused=LATE, late=True)
        except (EngineError, DialectError):  # a hang or a crash: which candidate's it was is found out one by one
            return await _verify(context, *await _predict(context, each, count, policy))
        if found.transfer_state:
            transfer_states.append(found.transfer_state)
        if found.candidate is None:
            return replace(each, refused=found.refused)
        return _predicted(each, found.candidate, found.part)

    # What takes longest to check comes first, so that the end finds no builder idle beside one at work: of large
    # arguments filling and comparing them takes most time, of others the order stays.
    # Where they may not all be done, what the network computes most of comes first.
    needed = {each.task.key: size_bytes(each.task.workload.arguments) for each in known}
    largest = sorted(known, key=lambda each: -max(needed[each.task.key], _LARGE_BYTES))
    order = sorted(known, key=lambda each: -each.task.weight * each.task.workload.flop) if limited else largest
    picked = {each.task.key: each for each in await together([pick(each) for each in order])}
    return tuple(picked[each.task.key] for each in known)


def _predicted(each: KnownTask, candidate: Candidate, part: Artifact | None) -> KnownTask:
    return replace(each, choice=Choice(each.task.key, Rung.ZERO_SHOT, candidate), refused="", part=part)


def _model_blob(runtime: Runtime, model: str) -> str:
    return runtime.blobs.put(model.encode(), temporary=True)


async def _predict(context: Context, each: KnownTask, count: int, policy: FillPolicy) -> tuple[KnownTask, Prediction]:
    if context.learning.model is None:
        return each, Prediction((), ())
    try:
        async with stage(context, each.task, "propose", Role.PROPOSER, count) as grant:
            prediction: Prediction = await context.runtime.call(
                grant.worker, "predict", each.task, count, max(_KEEP, policy.few_shot), context.learning.model,
                context.seed, deadline_s=PREDICT_DEADLINE_S,
            )  # fmt: skip
    except (EngineError, DialectError) as error:
        return replace(each, refused=f"no prediction: {error}"), Prediction((), ())
    why = "" if prediction.candidates else "its design space gave no candidate"
    return replace(each, refused=why), prediction


async def _verify(context: Context, each: KnownTask, prediction: Prediction) -> KnownTask:
    if not prediction.candidates:
        return each
    *best, last = prediction.candidates  # the last may be of another kind, should the others fail
    for candidate in (*best[: _KEEP - 1], last):
        checked = await _check(context, each.task, candidate)
        if isinstance(checked, str):
            each = replace(each, refused=checked)
            continue
        if checked.verdict.deliverable:
            return _predicted(each, candidate, checked.part)
        each = replace(each, refused=checked.verdict.detail)
    return each


async def _check(work: Context | Work, task: Task, candidate: Candidate) -> CheckedBody | str:
    runtime = work.runtime
    try:
        async with runtime.stage(work.job_id, "build", Role.BUILDER, task.workload.kind, delivered=True) as grant:
            checked: CheckedBody = await runtime.call(
                grant.worker, "check", task, candidate, deadline_s=CHECK_DEADLINE_S
            )
    except TuneryError as error:
        return str(error)
    return checked


async def _few_shot(
    context: Context, known: Sequence[KnownTask], policy: FillPolicy, offers: Mapping[str, Sequence[Offer]]
) -> tuple[KnownTask, ...]:
    """Predict the open tasks, race and record what compatible devices offer and the best predictions, and choose again.
    A task of which nothing was measured, as the time was over or nothing ran, gets a prediction that is right."""
    whole = _whole(known)
    looked = await asyncio.gather(
        *(_predict(context, each, looks(each.task, whole, policy), policy) for each in known if each.open)
    )
    first = []
    for each, prediction in looked:
        candidates = [*(offer.record.candidate for offer in offers.get(each.task.key, ())), *prediction.candidates]
        distinct = {candidate.key: candidate for candidate in candidates}
        first.append((each, replace(prediction, candidates=tuple(distinct.values()))))
    raced = {each.task.key: (each, prediction) for each, prediction in await _measure(context, first, policy)}
    tasks = [each.task for each in known]

    async def settle(each: KnownTask) -> KnownTask:
        before, prediction = raced.get(each.task.key, (each, Prediction((), ())))
        each = replace(each, measured=before.measured, refused=before.refused if each.open else "")
        return await _verify(context, each, prediction) if each.open else each

    host = context.runtime.measured_on
    again = await context.store.read(lambda store: choose(store, tasks, context.provenance, host))
    return tuple(await asyncio.gather(*map(settle, again)))


async def _measure(
    context: Context, looked: Sequence[tuple[KnownTask, Prediction]], policy: FillPolicy
) -> list[tuple[KnownTask, Prediction]]:
    end = time.monotonic() + policy.seconds
    turns = asyncio.Semaphore(len(context.runtime.workers(Role.BUILDER)) + 1)  # one is measured while others build

    async def race(each: KnownTask, prediction: Prediction) -> tuple[KnownTask, Prediction]:
        async with turns:
            if not prediction.candidates or time.monotonic() > end:
                return each, prediction
            try:
                count = await _race_all(context, each.task, prediction.candidates[: policy.few_shot])
            except TuneryError as error:
                return replace(each, refused=str(error)), prediction
            return replace(each, measured=count), prediction

    in_order = sorted(looked, key=lambda pair: -urgency(pair[0].task, pair[1]))
    return await asyncio.gather(*(race(*pair) for pair in in_order))


async def _race_all(context: Context, task: Task, candidates: Sequence[Candidate]) -> int:
    record = partial(context.keep, task)
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
        context.runtime.holds.release(artifact.blob)
    return len(found)


def heavy(task: Task) -> bool:
    """A race leaves a task's weights in a core's own cache; where they come from memory in the network, other
    candidates may be the fastest."""
    return max((4 * spec.size for spec in task.workload.input_specs[1:]), default=0) >= _HEAVY_BYTES


async def _far_ahead(context: Context, task: Task, best_s: float) -> bool:
    """Return whether the compiler's default cannot win: it takes no part in these finals, which outrank its race."""
    known = await context.store.read(lambda store: store.best(task.key, context.provenance, origin=Origin.BASELINE))
    default_s = known[0].measurement.latency_s if known else None
    return default_s is None or default_s > _FAR * best_s


async def _hold_finals(context: Context, task: Task, entrants: Sequence[Entrant], reference: Artifact) -> None:
    async with stage(context, task, "finals", Role.MEASURER, len(entrants)) as grant:
        results = await time_in_turns(context, task, grant.worker, entrants, reference, None, _ROUNDS)
    await record_finals(context, task, entrants, results, grant)
