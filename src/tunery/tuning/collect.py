"""Collecting records to learn from: many tasks, few candidates of each, cheaply.

Some are random. Some are what the model in use thinks fastest, since a model that has never seen its own favourites
measured does not know which of them disappoint (Ross, Gordon and Bagnell 2011). Some are found as a search finds them.

Nothing here looks for the best: there are no baselines and no finals, a build that takes long is given up, and a task's
naive program runs three times in all, to check what may be recorded as right.
"""

import asyncio
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tunery._errors import EngineError, UsageError, WorkError
from tunery.costmodels import CostModel, FeatureRows, Layout, load_cost_model
from tunery.dialects import Observation
from tunery.domain import Artifact, Candidate, Measurement, Mode, Outcome, Provenance, Task
from tunery.domain.request import Progress, Request
from tunery.engines import Role
from tunery.measuring.settings import settings_for
from tunery.runtime.extraction import Extracted, extract_beside
from tunery.runtime.opening import introduce
from tunery.runtime.runtime import Reservation, Runtime
from tunery.runtime.services import Prediction, Proposal
from tunery.store import AsyncStore, Charge
from tunery.tuning.account import Account, PricedCharge
from tunery.tuning.calls import Builds, BuiltCandidate, Context, build_all, build_reference, race_in_turn, stage
from tunery.tuning.learning import Learning, start_for
from tunery.tuning.search.proposer import PROPOSE_DEADLINE_S

_LANES = 3  # tasks at once: while one is measured the others propose and build
_BATCH = 24
_BUILDS = Builds(deadline_s=4.0)
_SLOW_BUILD_S, _SLOW_SHARE = 0.6, 8
_MOST_FLOP = 4e9  # the naive program takes about a second for each 1e9
_REASONS = 3  # why networks could not be had: of a hundred misspelt names these are enough
# Most of a network's time is in these: they get more tasks than the others.
_TURNS = {"conv2d": 3, "matmul": 3, "depthwise": 2}


@dataclass
class CollectReport:
    """What one run of the collection did; `left` tasks still want candidates. `failed` says why models, by what they
    were called, and tasks, by name and the start of the key, could not be had."""

    tasks: int = 0
    candidates: int = 0
    left: int = 0
    import_s: float = 0.0
    wall_s: float = 0.0
    stopped: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.candidates / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CollectPlan:
    """What is collected. Workloads that occur in a network of `hold_out` are left out, and with `kinds` operators of
    other kinds."""

    models: Sequence[str]
    tasks: int
    per_task: int
    hold_out: Sequence[str] = ()
    kinds: Collection[str] = ()


async def collect(  # noqa: PLR0917 - what a job has
    runtime: Runtime,
    store: AsyncStore,
    request: Request,
    account: Account,
    job_id: str,
    plan: CollectPlan,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> CollectReport:
    """Measure candidates of many tasks within the request's budget, in the name of a job. What the store holds already
    is counted and not measured again. A budget of time begins when the networks were read."""
    began, stop = time.monotonic(), stop or threading.Event()

    def read(one: Extracted) -> None:
        on_progress(Progress("", "importing", time.monotonic() - began, None, 0, None, None, None, one.model))

    async def pay(grant: Reservation) -> None:
        spent = Charge(job_id, "", "import", "", grant.wall_s, grant.core_s, 0.0, host=grant.host)
        await account.post([PricedCharge(spent, grant.wall_s * grant.cores)])

    models = list(dict.fromkeys([*plan.hold_out, *plan.models]))
    extraction = await extract_beside(runtime, store, request, job_id, models, pay, read, stop)
    failed = {one.model: one.failure for one in extraction.models if one.failure}
    for model in [*plan.hold_out, *(plan.models if len(plan.models) == 1 else ())]:  # any other is one network of many
        if model in failed:
            raise UsageError(f"{model}: {failed[model]}")
    chosen = _chosen(extraction.models, plan.hold_out, plan.kinds, plan.tasks)
    if not chosen and not stop.is_set():
        raise UsageError(_nothing(failed))
    device = await introduce(runtime, store)
    settings = settings_for(request.trimming)
    provenance = Provenance(request.dialect, extraction.compiler, device.fingerprint, settings.key)
    context = Context(job_id, runtime, store, provenance, request.seed, account, Learning(runtime, job_id, None))
    start = None
    if chosen and request.pretrained:
        start = start_for(request.dialect, chosen[0].target, extraction.compiler, device)
    text = start.model if start else None
    collector = Collector(context, chosen, plan.per_task, request, text, on_progress, stop)
    collector.report.failed |= failed
    collector.report.import_s = extraction.wall_s
    return await collector.run()


def _nothing(failed: Mapping[str, str]) -> str:
    if not failed:
        return "none of these networks has a tunable task that is not held out; name others"
    reasons = [f"{model}: {why}" for model, why in failed.items()]
    more = [f"and {len(reasons) - _REASONS} more"] if len(reasons) > _REASONS else []
    return f"there is nothing to collect from: {'; '.join([*reasons[:_REASONS], *more])}"


def _chosen(models: Sequence[Extracted], hold_out: Sequence[str], wanted: Collection[str], count: int) -> list[Task]:
    bare = {_at_any_batch(model) for model in hold_out}
    held = {task.workload.key for one in models if one.model in hold_out for task in one.tasks}
    kinds = {task.workload.kind for one in models for task in one.tasks if task.tunable}
    if kinds and (unknown := sorted({*wanted} - kinds)):
        raise UsageError(f"no tunable operator is a {unknown[0]!r}; these networks have {', '.join(sorted(kinds))}")
    return spread(
        {
            one.model: [
                task
                for task in one.tasks
                if task.workload.key not in held and (not wanted or task.workload.kind in wanted)
            ]
            for one in models
            if _at_any_batch(one.model) not in bare
        },
        count,
    )


def _at_any_batch(model: str) -> str:
    return model.partition("@")[0] if model.startswith("zoo:") else model


def _untold(told: Observation) -> Observation:
    return Observation(told.candidate, Outcome.FILTERED, None)


def spread(by_network: Mapping[str, Sequence[Task]], count: int) -> list[Task]:
    """Return up to `count` tunable tasks: kinds take turns, and within a kind networks do, small and large alike. The
    order matters: if the budget ends the collection, every kind has had its share."""
    seen: set[str] = set()
    kinds: dict[str, list[deque[Task]]] = defaultdict(list)
    for _, tasks in sorted(by_network.items()):
        mine: dict[str, list[Task]] = defaultdict(list)
        for task in tasks:
            if task.tunable and task.key not in seen and task.workload.flop <= _MOST_FLOP:
                seen.add(task.key)
                mine[task.workload.kind].append(Task(task.workload, task.target, 1, task.tunable))
        for kind, ones in mine.items():
            ones.sort(key=lambda task: (task.workload.flop, task.key))
            kinds[kind].append(deque(_ends_first(ones)))
    turns = [kind for kind in sorted(kinds) for _ in range(_TURNS.get(kind, 1))]
    chosen: list[Task] = []
    while len(chosen) < count and any(kinds.values()):
        for kind in turns:
            if kinds[kind] and len(chosen) < count:
                queue = kinds[kind].pop(0)
                chosen.append(queue.popleft())
                if queue:
                    kinds[kind].append(queue)
    return chosen


def _ends_first(ones: Sequence[Task]) -> list[Task]:
    """Return sorted tasks so that any first part of them has small, large and middling ones."""
    step, order, rest = max(len(ones) // 2, 1), [], list(range(len(ones)))
    while rest:
        picked = rest[step // 2 :: step] or rest
        order += picked
        rest = [i for i in rest if i not in set(picked)]
        step = max(step // 2, 1)
    return [ones[i] for i in order]


def affordable(
    candidates: Sequence[Candidate], rows: Sequence[bytes], layout: Layout | None, model: CostModel | None
) -> list[Candidate]:
    """Leave out most candidates whose build the model expects to take long: one in eight of a batch stays."""
    if model is None or layout is None or not candidates:
        return list(candidates)
    slow = model.build_cost(FeatureRows.read(rows, layout)) > np.log(_SLOW_BUILD_S)
    room = max(1, len(candidates) // _SLOW_SHARE)
    kept = []
    for candidate, is_slow in zip(candidates, slow, strict=True):
        room -= bool(is_slow)
        if not is_slow or room >= 0:
            kept.append(candidate)
    return kept


class Collector:
    """Takes tasks one after another, a few at once, and fills each up to its number of candidates."""

    def __init__(  # noqa: PLR0917 - its collaborators, each used throughout
        self,
        context: Context,
        tasks: Sequence[Task],
        per_task: int,
        request: Request,
        cost_model: str | None,
        notify: Callable[[Progress], None],
        stop: threading.Event,
    ) -> None:
        self.report = CollectReport()
        self._context, self._queue, self._per_task = context, deque(tasks), per_task
        self._notify, self._stop = notify, stop
        self._budget = request.budget
        self._text = cost_model
        # A model that a dialect has of its own kind (the fake one) cannot be asked here.
        self._model = load_cost_model(cost_model) if cost_model else None
        self._in_flight = 0
        self._planned = len(tasks) * per_task
        self._began = 0.0

    async def run(self) -> CollectReport:
        self._began = time.monotonic()
        self._progress(f"{len(self._queue)} tasks, after {self.report.import_s:.0f} s of reading the networks")
        proposers = self._context.runtime.workers(Role.PROPOSER)
        lanes = [asyncio.create_task(self._lane(proposers[i % len(proposers)])) for i in range(_LANES)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        self.report.left = len(self._queue)
        self.report.wall_s = time.monotonic() - self._began
        self.report.stopped = self._stop.is_set()
        return self.report

    async def _lane(self, proposer: str) -> None:
        while self._queue and not self._over():
            task = self._queue.popleft()
            try:
                await self._fill(task, proposer)
            except (WorkError, EngineError) as error:
                # Two networks may give two workloads one name.
                self.report.failed[f"{task.workload.name} {task.key[:8]}"] = str(error)[:160]

    async def _fill(self, task: Task, proposer: str) -> None:
        """Collect what a task still wants: a third is what the model foresees, the rest half random, half searched."""
        here = self._context.provenance
        records = await self._context.store.read(
            lambda store: store.records(task.key, provenance=here, modes=[Mode.RACE])
        )
        told = {
            r.candidate.key: Observation(r.candidate, r.measurement.outcome, r.measurement.latency_s) for r in records
        }
        wanted = self._per_task - len(told)
        self._planned -= min(len(told), self._per_task)
        if wanted <= 0:
            return
        reference = await build_reference(self._context, task, PROPOSE_DEADLINE_S)
        self.report.tasks += 1
        favourites = wanted // 3 if self._model else 0
        if favourites and not self._over():
            wanted -= await self._foresee_and_measure(task, proposer, reference, told, favourites)
        at_random = (wanted + 1) // 2
        for searched, quota in ((False, at_random), (True, wanted - at_random)):
            if quota > 0 and not self._over():
                await self._propose_and_measure(task, proposer, reference, told, quota, searched=searched)
        self._context.runtime.holds.release(reference.blob)
        with suppress(EngineError):  # a worker that is gone has forgotten it anyway
            await self._context.runtime.call(proposer, "close", task.key, deadline_s=PROPOSE_DEADLINE_S)

    async def _foresee_and_measure(
        self, task: Task, proposer: str, reference: Artifact, told: dict[str, Observation], quota: int
    ) -> int:
        context, seed = self._context, self._context.seed + len(told)  # a resumed task looks elsewhere
        looks = min(quota, self._trials_left())
        self._in_flight += looks
        try:
            async with stage(context, task, "propose", Role.PROPOSER, looks, proposer) as grant:
                prediction: Prediction = await context.runtime.call(
                    grant.worker, "predict", task, looks, looks, self._text, seed, deadline_s=PROPOSE_DEADLINE_S
                )
            fresh = [candidate for candidate in prediction.candidates if candidate.key not in told]
            for start in range(0, len(fresh), _BATCH):
                if not self._over_time():
                    built = await self._build(task, fresh[start : start + _BATCH])
                    told |= {one.candidate.key: one for one in await self._measure(task, reference, built, told)}
                    self._progress(f"{task.workload.kind}, {len(self._queue)} tasks to come")
        finally:
            self._in_flight -= looks
        return len(fresh)

    async def _propose_and_measure(
        self,
        task: Task,
        proposer: str,
        reference: Artifact,
        told: dict[str, Observation],
        quota: int,
        *,
        searched: bool,
    ) -> None:
        context, opened = self._context, False
        news: list[Observation] = []
        while quota > 0 and not self._over():
            size = min(_BATCH, quota, self._trials_left())
            self._in_flight += size
            try:
                async with stage(context, task, "propose", Role.PROPOSER, size, proposer) as grant:
                    if not opened:
                        # One that hears no latency cannot learn where to look: it draws at random.
                        history = [one if searched else _untold(one) for one in told.values()]
                        text = self._text if searched else None
                        await self._call(grant.worker, "open", task, history, text, context.seed + len(history))
                        opened = True
                    proposal: Proposal = await self._call(grant.worker, "propose", task.key, size, news)
                if not proposal.candidates:
                    return
                candidates, rows = proposal.worth_building
                quota -= max(len(candidates), 1)
                fresh = affordable(candidates, rows, self._context.runtime.row_layout, self._model)
                news = await self._measure(task, reference, await self._build(task, fresh), told)
                told |= {one.candidate.key: one for one in news}
                news = news if searched else [_untold(one) for one in news]
            finally:
                self._in_flight -= size
            self._progress(f"{task.workload.kind}, {len(self._queue)} tasks to come")

    async def _call(self, worker: str, method: str, *args: object) -> Proposal:
        result: Proposal = await self._context.runtime.call(worker, method, *args, deadline_s=PROPOSE_DEADLINE_S)
        return result

    async def _build(self, task: Task, candidates: Sequence[Candidate]) -> list[BuiltCandidate]:
        return await build_all(self._context, task, candidates, partial(self._record, task), how=_BUILDS)

    async def _measure(
        self, task: Task, reference: Artifact, built: Sequence[BuiltCandidate], told: Mapping[str, Observation]
    ) -> list[Observation]:
        if not built:
            return []
        fastest_s = min((t.latency_s for t in told.values() if t.outcome is Outcome.OK and t.latency_s), default=None)
        found = await race_in_turn(self._context, task, built, reference, partial(self._record, task), best_s=fastest_s)
        for one in built:
            self._context.runtime.holds.release(one.artifact.blob)
        return [Observation(one.candidate, m.outcome, m.latency_s) for one, m in zip(built, found, strict=True)]

    async def _record(
        self, task: Task, candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]
    ) -> None:
        await self._context.keep(task, candidate, measurement, bills)
        self._context.trials += 1
        self.report.candidates += 1
        self.report.outcomes[measurement.outcome.value] += 1
        self.report.kinds[task.workload.kind] += 1

    def _trials_left(self) -> int:
        trials = self._budget.trials
        return sys.maxsize if trials is None else max(trials - self._context.trials - self._in_flight, 0)

    def _over(self) -> bool:
        return self._trials_left() <= 0 or self._over_time()

    def _over_time(self) -> bool:
        left_s = self._seconds_left()
        return self._stop.is_set() or (left_s is not None and left_s <= 0.0)

    def _seconds_left(self) -> float | None:
        seconds = self._budget.seconds
        return None if seconds is None else seconds - (time.monotonic() - self._began)

    def _progress(self, current: str) -> None:
        elapsed, done = time.monotonic() - self._began, self.report.candidates
        ahead = [self._seconds_left(), (self._planned - done) * elapsed / done if done else None]
        remaining = min((seconds for seconds in ahead if seconds is not None), default=None)
        self._notify(
            Progress(self._context.job_id, "collecting", elapsed, remaining, done, self._planned, None, None, current)
        )
