"""One task's search at work: does what the search's state decides. Jobs with the same task share it."""

import asyncio
import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tunery._errors import DialectError, EngineError, WorkError
from tunery.dialects import Observation, Space, get_dialect
from tunery.domain import (
    Artifact,
    Candidate,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Provenance,
    Record,
    Task,
    TaskState,
    digest,
)
from tunery.engines import Role
from tunery.measuring.selection import RACE_DRIFT
from tunery.runtime.dispatch import WithdrawnError
from tunery.runtime.foreign_load import marked
from tunery.runtime.runtime import Runtime
from tunery.store import Store
from tunery.tuning.account import PricedCharge
from tunery.tuning.allocation.allocator import Cost
from tunery.tuning.calls import Context, build_all, stage
from tunery.tuning.learning import InitialModel, Learning
from tunery.tuning.search import finals
from tunery.tuning.search.finals import BuiltBaselines
from tunery.tuning.search.proposer import ProposalFilter, TaskProposer
from tunery.tuning.search.races import Races
from tunery.tuning.search.state import NOTHING_RIGHT, SearchState, is_trial, tried


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task's records under a job's conditions, oldest first, and the best verified one."""

    records: Sequence[Record]
    best: Record | None


async def stored_tasks(context: Context, tasks: Sequence[Task]) -> list[StoredTask]:
    here = context.provenance

    def read(store: Store) -> list[StoredTask]:
        return [StoredTask(store.records(t.key, provenance=here), _best(store, t.key, here)) for t in tasks]

    return await context.store.read(read)


async def stored_records(context: Context, task: Task) -> list[Record]:
    return await context.store.read(lambda store: store.records(task.key, provenance=context.provenance))


async def stored_best(context: Context, task: Task) -> Record | None:
    return await context.store.read(lambda store: _best(store, task.key, context.provenance))


async def measured_elsewhere(context: Context, task: Task, keys: Collection[str]) -> dict[str, Observation]:
    here = context.provenance

    def read(store: Store) -> list[Record]:
        if store.measured_keys(task.key, here).isdisjoint(keys):
            return []
        return store.records(task.key, provenance=here)

    return {
        r.candidate.key: Observation(r.candidate, r.measurement.outcome, r.measurement.latency_s)
        for r in (await context.store.read(read) if keys else ())
        if r.candidate.key in keys
        and r.measurement.mode is not Mode.FINAL
        and r.measurement.outcome is not Outcome.FILTERED
    }


def _best(store: Store, task_key: str, provenance: Provenance) -> Record | None:
    return next(iter(store.best(task_key, provenance)), None)


HINTS = 12
_OFFERS = 3  # of each compatible device and version of the compiler
_DEADLINE_S = 60.0
_LOST = 2  # workers that may be lost to such candidates


async def hinted(context: Context, task: Task) -> list[Candidate]:
    """Return the candidates that others call fast, under the keys of the programs that they are: first those that were
    the best on a compatible device, or by another version of the compiler, then those of imported records."""
    device = await context.runtime.device()

    def ask(store: Store) -> list[str]:
        known = store.devices.of_type(device.fingerprint, device.as_facts())
        offers = store.offers([task.key], context.provenance, known, _OFFERS)[task.key]
        bodies = [offer.record.candidate.body for offer in offers]
        return list(dict.fromkeys([*bodies, *store.hints(task.key, context.provenance, HINTS)]))[:HINTS]

    bodies = await context.store.read(ask)
    if not bodies:
        return []
    found: dict[str, Candidate] = {}
    lost = 0
    async with stage(context, task, "build", Role.BUILDER, 0) as grant:
        for body in bodies:
            try:
                candidate: Candidate = await context.runtime.call(
                    grant.worker, "identify", task, body, deadline_s=_DEADLINE_S
                )
            except DialectError:
                continue
            except EngineError:
                lost += 1
                if lost == _LOST:
                    break
                continue
            found.setdefault(candidate.key, candidate)
    await context.charge(task.key, "build", "", grant, 0)
    return list(found.values())


_LOOK_AGAIN_S = 0.25  # until others may have measured what they have claimed
_NAIVE_FLOPS, _FIRST_RUNS = 1e9, 3  # of the compiler's default, a second; runs that time it for the first time


class TaskSearch:
    """Proposes, builds, measures and records the candidates of one task. Whichever job asks for a step pays for it
    (`payer`); what it finds is everybody's. What is known, and what follows from it, is in `state`."""

    def __init__(self, state: SearchState, proposer: str, learning: Learning, proposal_filter: ProposalFilter) -> None:
        self.task, self.state = state.task, state
        self.jobs: dict[str, Context] = {}
        self._proposer = TaskProposer(self.task, proposer, learning)
        self._learning, self._filter = learning, proposal_filter
        self._space = Space.of(get_dialect(self.task.target.dialect))
        self._features: dict[str, bytes] = {}
        self._baselines = BuiltBaselines(self.task)
        self._at_hand: dict[str, Artifact] = {}
        self._paid: dict[str, Cost] = {}
        self._lost: dict[str, Measurement] = {}
        self._races = Races(self.task, state, self.record, self.keep)
        self._one_at_a_time = asyncio.Lock()

    def join(self, context: Context, weight: int, stored: StoredTask) -> None:
        """Let a job take part; its weight counts beside the others', and what it tried in an earlier run is counted."""
        ended = tried(stored.records, context.job_id)
        self.jobs[context.job_id] = context
        self.state.join(context.job_id, weight, ended)
        context.trials += sum(outcome is not Outcome.FILTERED for outcome in ended.values())
        if not self.state.restored:
            self._restore(context, stored)

    def leave(self, context: Context) -> bool:
        del self.jobs[context.job_id]
        self.state.leave(context.job_id)
        return not self.jobs

    def _restore(self, context: Context, stored: StoredTask) -> None:
        held_s = sum(
            record.measurement.build_s + record.measurement.measure_s * context.runtime.threads
            for record in stored.records
            if record.measurement.mode is not Mode.FINAL
            and record.measurement.outcome is not Outcome.FILTERED
            and is_trial(record.candidate)
        )
        finalists = [candidate.key for candidate in finals.select(stored.records)]
        cost = Cost(held_s, context.account.power.joules(held_s))
        self.state.restore(context.job_id, stored.records, finalists, stored.best, cost)

    def discard_artifacts(self, runtime: Runtime) -> None:
        for artifact in (*self._at_hand.values(), *self._baselines.take()):
            runtime.holds.release(artifact.blob)
        self._at_hand.clear()

    # -- the compiler's default -----------------------------------------------------------------------------------

    async def measure_baseline(self, payer: Context) -> None:
        async with self._one_at_a_time:
            if self.state.baseline_s is None:
                await self._measure_baseline(payer)
        self._cost_since(payer)  # paid once, and no part of what a trial takes

    async def _measure_baseline(self, payer: Context) -> None:
        baselines = await self._baselines.get(payer)
        own, reference = baselines.baseline, baselines.reference[1]
        # One that was tried and has no latency is faulty, and would be so again.
        if self.state.baseline_s is None and own[0].key not in self.state.known:
            if not await self._claimed(payer, (own[0],)):
                self.state.baseline_s = await self._latency_elsewhere_s(payer, own[0])
                return
            async with stage(payer, self.task, "measure", Role.MEASURER) as grant:
                measurement = await self._races.race(payer, grant.worker, own, reference)
                if measurement.outcome is Outcome.CRASHED:  # perhaps the measurer was killed from outside
                    measurement = await self._races.race(payer, grant.worker, own, reference)
                measurement = marked(measurement, payer.runtime.foreign)
                outcome = measurement.outcome.value
                cost = payer.bill(self.task.key, "baseline", outcome, grant.split(), device=True)
                await self.record(payer, own[0], measurement, [cost])
            self.state.baseline_s = measurement.latency_s
            if measurement.reference_failed:
                self.leave_out(WorkError(measurement.detail))

    async def _reference(self, payer: Context) -> Artifact | None:
        try:
            return (await self._baselines.get(payer)).reference[1]
        except WorkError as error:
            self.leave_out(error)
            return None

    def leave_out(self, error: Exception) -> None:
        self.state.give_up(f"left out: {error}")

    # -- search ---------------------------------------------------------------------------------------------------

    async def batch(self, payer: Context, size: int) -> int:
        candidates: Sequence[Candidate] = ()
        mine: Sequence[Candidate] = ()
        known = self.state.known
        try:
            candidates = await self._propose(payer, size)
            mine = await self._claimed(payer, candidates)
            built = await build_all(
                payer, self.task, mine, partial(self.record, payer),
                lambda built: payer.account.defer(built.candidate, built.build.core_s),
            )  # fmt: skip
            if built and (reference := await self._reference(payer)):
                kept = await self._races.run(payer, built, reference)
                self._at_hand.update((one.candidate.key, one.artifact) for one in kept)
            self._filter.learn([told for c in mine if (told := known.get(c.key))])
            lost = [self._lost[c.key] for c in mine if c.key in self._lost]
            if len(lost) == len(mine) > (0 if payer.lost else 1):  # one that fails alone is no news
                payer.lose(lost)
        finally:
            payer.account.settle_deferred(mine)  # built, and cut short before they were raced
            self.state.end_batch([candidate.key for candidate in candidates], self._cost_since(payer))
            if left := [c.key for c in mine if c.key not in known]:
                claim = (self.task.key, payer.provenance, left, payer.job_id)
                await payer.store.write(lambda store: store.claims.give_up(*claim))
        return len(candidates)

    async def _claimed(self, payer: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates that are this process's to measure; what others have measured is served. Where others
        are at work on all of them, wait until they are done, or gone, or the job is cut off."""
        left = {one.key: one for one in candidates}
        while left:
            granted = await payer.store.write(partial(_take_claims, self.task.key, payer, tuple(left)))
            served = await measured_elsewhere(payer, self.task, left.keys() - granted)
            self.state.serve(told for told in served.values() if told.candidate.origin is not Origin.BASELINE)
            left = {key: one for key, one in left.items() if key not in served}
            if granted:
                return [one for one in candidates if one.key in granted]
            if left and payer.cut_off():
                break
            if left:
                await asyncio.sleep(_LOOK_AGAIN_S)
        return ()

    async def _latency_elsewhere_s(self, payer: Context, baseline: Candidate) -> float | None:
        told = (await measured_elsewhere(payer, self.task, {baseline.key})).get(baseline.key)
        if told is None:
            raise WithdrawnError("another process is measuring the compiler's default")
        return told.latency_s

    def _cost_since(self, payer: Context) -> Cost:
        job_id, now = payer.job_id, payer.account.of_task(self.task.key)
        before, self._paid[job_id] = self._paid.get(job_id, Cost(0.0)), now
        return Cost(now.held_core_s - before.held_core_s, now.joules - before.joules)

    async def _propose(self, payer: Context, size: int) -> Sequence[Candidate]:
        if self.state.hints is None:
            self.state.hints = ()  # another batch of the task goes on meanwhile
            self.state.hints = await hinted(payer, self.task)
        candidates: Sequence[Candidate] | None = self.state.take_hints(size) or None
        while candidates is None:
            candidates = await self._ask_proposer(payer, size)
        return candidates

    async def _ask_proposer(self, payer: Context, size: int) -> Sequence[Candidate] | None:
        """Return what is to be built of a proposal; None where the proposer failed and is to be asked again."""
        try:
            proposal = await self._proposer.propose(payer, self.state, self._filter.ask(size))
        except (EngineError, DialectError) as error:
            return None if self.state.proposer_failed(str(error)) else ()
        # A proposer that was started anew does not know what is still on its way.
        keys = {candidate.key for candidate in proposal.candidates} - self.state.taken()
        served = await measured_elsewhere(payer, self.task, keys)
        selected = self._filter.select(proposal, self.state.taken(), served, size)
        if left_out := selected.records(payer):
            await payer.store.add_records(self.task, left_out)
        self._features.update((c.key, row) for c, row in zip(selected.build, selected.features, strict=True))
        self.state.serve(selected.served)
        dropped = [candidate.key for candidate in selected.dropped]
        return self.state.propose(selected.build, dropped, selected.fresh, empty=not proposal.candidates)

    # -- finals ---------------------------------------------------------------------------------------------------

    def finals_cost_s(self) -> float:
        """Return the predicted seconds of the finals; 0 where there is no finalist, or nothing new since the last."""
        state = self.state
        if not state.finals_due or not state.known.any_ended:
            return 0.0
        # Their intervals decide, which are as wide again; but no store is asked here.
        likely = state.known.near_best(2 * RACE_DRIFT)[: finals.FINALISTS]
        missing = sum(key not in self._at_hand for key in likely) + 2 * self._baselines.missing
        inputs_mb = 4e-6 * sum(spec.size for spec in self.task.workload.input_specs)  # nearly all of 32 bits
        untimed_s = 0.0 if state.baseline_s else self.task.workload.flop / _NAIVE_FLOPS
        cost_s = finals.predicted_s(
            state.baseline_s or untimed_s, state.known.best_s(), len(likely), missing * state.mean_build_s(), inputs_mb
        )
        return cost_s + _FIRST_RUNS * untimed_s

    async def finals(self, payer: Context) -> None:
        async with self._one_at_a_time:
            if self.state.finals_due:
                await self._hold_finals(payer)
        self._cost_since(payer)  # as of the baseline

    async def _hold_finals(self, payer: Context) -> None:
        self.state.begin_finals()
        challengers = finals.select(await stored_records(payer, self.task))
        keys = tuple(candidate.key for candidate in challengers)
        if not self.state.finals_decide(keys):
            return
        if self._baselines.missing or self.state.baseline_s is None:
            await self._measure_baseline(payer)
        baselines = await self._baselines.get(payer)
        baseline_s, results = await finals.hold(
            payer, self.task, baselines, challengers, self.state.baseline_s, self._at_hand
        )
        self.state.end_finals(keys, results, baseline_s, await stored_best(payer, self.task))

    # -- records --------------------------------------------------------------------------------------------------

    async def record(
        self, payer: Context, candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]
    ) -> None:
        """Store a measurement with what it has cost, and only then use it."""
        if (score := self._filter.score_of(candidate.key)) is not None:
            measurement = replace(measurement, context={**measurement.context, "score": score})
        helped = await self.keep(payer, candidate, measurement, bills)
        told = self.state.known.get(candidate.key)
        if candidate.origin is not Origin.BASELINE and told is not None:
            self._filter.measured(candidate.key, helped=helped)
            self._learning.add(self.task.key, told, self._features.pop(candidate.key, b""))

    async def keep(
        self, payer: Context, candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]
    ) -> bool:
        """Store a measurement and its cost in one commit, let it take the place of an earlier one, and return whether
        nothing was as fast before. What timing a candidate again alone gave is no trial."""
        await payer.keep(self.task, candidate, measurement, bills)
        self._lost.pop(candidate.key, None)
        if measurement.outcome not in {Outcome.OK, Outcome.ABANDONED}:
            self._lost[candidate.key] = measurement
        open_to = [job_id for job_id, job in self.jobs.items() if job.takes_part]
        counted, helped = self.state.measure(payer.job_id, candidate, measurement, open_to)
        for job_id in counted:
            self.jobs[job_id].trials += 1
        return helped

    def report(self, job_id: str) -> TaskState:
        state, workload, outcomes = self.state, self.task.workload, self.state.outcomes(job_id)
        best_key = state.best.candidate.key if state.best else None
        audit = self._filter.audit(best_key)
        best, default = state.known.get(best_key or ""), state.known.default
        number = self._space.count(self.task) if self.task.tunable else None
        host = state.best.host if state.best else ""
        return TaskState(
            task_key=self.task.key,
            workload_key=workload.key,
            name=workload.name,
            kind=workload.kind,
            weight=state.weight_of(job_id),
            tunable=self.task.tunable,
            baseline_s=state.baseline_s,
            best_s=state.proven_s or state.best_s,
            best_candidate=best_key,
            untried=not state.known.any_ran and not state.progress.exhausted,
            measured=sum(outcomes[o] for o in (Outcome.OK, Outcome.ABANDONED, Outcome.WRONG_RESULT)),
            outcomes={outcome.value: count for outcome, count in outcomes.items()},
            problem=state.problem or (NOTHING_RIGHT if state.nothing_right else ""),
            dropped=audit.dropped,
            audited=audit.audited,
            false_drops=audit.winners,
            timings=state.timings.total(),
            contaminated=state.timings[True],
            degree=self._races.degree,
            dialect=self.task.target.dialect,
            parameters=self._space.parameters(self.task, best.candidate) if best else {},
            default=self._space.parameters(self.task, default.candidate) if default else {},
            all_tried=number if number is not None and len(state.known) >= number else None,
            best_host=host if host != self.jobs[job_id].runtime.measured_on else "",
        )


def _take_claims(task_key: str, payer: Context, keys: Collection[str], store: Store) -> set[str]:
    return store.claims.take(task_key, payer.provenance, keys, payer.job_id)


_CLOSE_DEADLINE_S = 60.0


class SearchRegistry:
    """The searches that are open, each for as long as a job has part in it; its first job's cost model serves it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[tuple[str, Provenance], tuple[TaskSearch, str]] = {}
        self._learnings: dict[str, Learning] = {}
        self._proposers = itertools.cycle(runtime.workers(Role.PROPOSER))

    def learning(self, target_key: str, start: InitialModel | None) -> Learning:
        name = f"{target_key} {digest(start.model)}" if start else target_key
        if name not in self._learnings:
            model, tau = (start.model, start.tau) if start else (None, None)
            self._learnings[name] = Learning(self._runtime, name, model, tau)
        return self._learnings[name]

    async def join(self, context: Context, tasks: Sequence[Task]) -> list[TaskSearch]:
        stored = await stored_tasks(context, tasks)
        return [self._join(context, task, known) for task, known in zip(tasks, stored, strict=True)]

    def _join(self, context: Context, task: Task, stored: StoredTask) -> TaskSearch:
        key = (task.key, context.provenance)
        if key not in self._open:
            proposer = next(self._proposers)
            learning = context.learning
            proposal_filter = ProposalFilter(task, context.trimming, context.seed, learning.prior_tau, learning.failing)
            self._open[key] = TaskSearch(SearchState(task), proposer, learning, proposal_filter), proposer
        search = self._open[key][0]
        search.join(context, task.weight, stored)
        return search

    def leave(self, context: Context) -> None:
        for key, (search, proposer) in list(self._open.items()):
            if context.job_id in search.jobs and search.leave(context):
                del self._open[key]
                search.discard_artifacts(self._runtime)
                with suppress(EngineError):
                    future = self._runtime.engine.call(proposer, "close", search.task.key, deadline_s=_CLOSE_DEADLINE_S)
                    future.add_done_callback(lambda done: done.cancelled() or done.exception())
