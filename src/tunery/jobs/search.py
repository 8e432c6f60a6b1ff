"""One task's search: its candidates' way from proposal to stored record. Jobs with the same task share it."""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tunery._errors import DialectError, EngineError, WorkError
from tunery.budgets import Cost, Standing
from tunery.dialects import Told
from tunery.domain import Artifact, Candidate, Measurement, Mode, Origin, Outcome, Record, Task, TaskState
from tunery.engines import Role
from tunery.jobs import finals
from tunery.jobs.calls import Yardsticks, build_one, call_build, discard, race, stage, yardstick_candidates
from tunery.jobs.charging import Charged, charge, charge_by_outcome
from tunery.jobs.context import Context, working_for
from tunery.jobs.foreign import lenient, marked
from tunery.jobs.learning import Learning
from tunery.jobs.services import FeatureRow, Proposal
from tunery.jobs.sifting import Sifter

PROPOSE_DEADLINE_S = 180.0
_CHUNK = 4  # candidates a builder takes at once: small enough that the pool ends together
_PROPOSER_TRIES = 3
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted


@dataclass(frozen=True, slots=True)
class _Built:
    candidate: Candidate
    artifact: Artifact
    wall_s: float
    core_s: float = 0.0


class TaskSearch:
    """Proposes, builds, measures and records the candidates of one task, for all jobs that have joined.

    Whichever job asks for a step pays for it (`working_for`); what it finds is everybody's.
    """

    def __init__(self, task: Task, proposer: str, learning: Learning, sifter: Sifter) -> None:
        self.task = task
        self.standing = Standing(task.key, 0, task.workload.flop)
        self.baseline_s: float | None = None
        self.outcomes: Counter[str] = Counter()
        self.final: Record | None = None
        self.jobs: dict[str, tuple[Context, int]] = {}
        self._proposer, self._learning, self._sifter = proposer, learning, sifter
        self._opened: tuple[int, int] | None = None  # the worker's generation, the model's version
        self._failures = 0
        self._stale = 0
        self._proposed: set[str] = set()
        self._history: dict[str, Told] = {}
        self._untold: list[Told] = []
        self._features: dict[str, bytes] = {}
        self._yardsticks: Yardsticks | None = None
        self._finals_stale = True
        self._paid: dict[str, Cost] = {}
        self._news = 0
        self._restored = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def context(self) -> Context:
        """The job in whose name the present step is done."""
        return working_for.get()

    def join(self, context: Context, weight: int) -> None:
        """Let a job take part; its weight counts beside the others', and what it tried in an earlier run is counted."""
        self.jobs[context.job_id] = (context, weight)
        self.standing.weight += weight
        records = context.store.records(self.task.key, provenance=context.provenance)
        for record in records:
            trial = record.candidate.origin is not Origin.BASELINE and record.measurement.mode is not Mode.FINAL
            if trial and record.job_id == context.job_id:
                self.outcomes[record.measurement.outcome.value] += 1
                context.trials += record.measurement.outcome is not Outcome.FILTERED
        if not self._restored:
            self._restored = True
            self._restore(context, records)

    def leave(self, context: Context) -> bool:
        """Let a job go; the search is left to the others. Return whether it was the last."""
        _, weight = self.jobs.pop(context.job_id)
        self.standing.weight -= weight
        return not self.jobs

    def _restore(self, context: Context, records: Sequence[Record]) -> None:
        """Take in what the store knows of this task under the same conditions."""
        held: dict[str, Record] = {}
        held_s = 0.0
        for record in records:
            measurement, candidate = record.measurement, record.candidate
            if candidate.origin is Origin.BASELINE:
                self.baseline_s = measurement.latency_s or self.baseline_s
            if measurement.mode is Mode.FINAL:
                held[candidate.key] = record
                continue
            if measurement.outcome is Outcome.FILTERED and record.job_id != context.job_id:
                continue  # another job's model dropped it: this one's may think otherwise
            self._history[candidate.key] = Told(candidate, measurement.outcome, measurement.latency_s)
            held_s += measurement.build_s + measurement.measure_s * context.runtime.threads
        best = self._fastest_s()
        if self._history and best is not None:
            self.standing.ended(best, len(self._history), Cost(held_s, context.account.power.joules(held_s)))
        chosen = context.store.best(self.task.key, context.provenance)
        self.final = chosen[0] if chosen else None
        self._finals_stale = self.final is None or any(c.key not in held for c in finals.select(context, self.task))

    def _valid(self) -> list[Told]:
        return [t for t in self._history.values() if t.outcome in (Outcome.OK, Outcome.ABANDONED) and t.latency_s]

    def _fastest_s(self) -> float | None:
        return min((t.latency_s for t in self._valid() if t.latency_s), default=None)

    @property
    def best_s(self) -> float | None:
        """The best latency known: of the finals where they were held, else of the races."""
        raced = [t.latency_s for t in self._history.values() if t.outcome is Outcome.OK and t.latency_s]
        if self.final is not None and not self._finals_stale:
            return self.final.measurement.latency_s
        return min((*raced, *([self.baseline_s] if self.baseline_s else [])), default=None)

    @property
    def proven_s(self) -> float | None:
        """The latency of what would be delivered: of the best verified record, or of the compiler's default."""
        if self.final is not None and self.final.measurement.mode is Mode.FINAL:
            return self.final.measurement.latency_s
        return None if self.task.tunable else self.baseline_s

    # -- yardsticks -----------------------------------------------------------------------------------------------

    async def measure_baseline(self) -> None:
        """Build the reference and measure what the compiler does untuned, once per task and store."""
        async with self._one_at_a_time:
            await self._measure_baseline()

    async def _measure_baseline(self) -> None:
        yardsticks = await self._built_yardsticks()
        # One that was tried and has no latency is faulty, and would be so again.
        if self.baseline_s is None and yardsticks.baseline[0].key not in self._history:
            async with stage(self.context, self.task, "measure", Role.MEASURER) as grant:
                measurement = await self._race(grant.worker, yardsticks, yardsticks.baseline, None)
                if measurement.outcome is Outcome.CRASHED:  # perhaps the measurer was killed from outside
                    measurement = await self._race(grant.worker, yardsticks, yardsticks.baseline, None)
                measurement = marked(measurement, self.context.runtime.foreign)
                self._record(yardsticks.baseline[0], measurement)
            charge(self.context, self.task.key, "baseline", measurement.outcome.value, grant, 1, device=True)
            self.baseline_s = measurement.latency_s

    async def _built_yardsticks(self) -> Yardsticks:
        if self._yardsticks is None:
            reference, baseline = await yardstick_candidates(self.context, self.task)
            built = await build_one(self.context, self.task, reference)
            if isinstance(built, Measurement):
                name = self.task.workload.name
                raise WorkError(f"the unscheduled program of task {name} does not build: {built.detail}")
            own = built if baseline.key == reference.key else await build_one(self.context, self.task, baseline)
            if isinstance(own, Measurement):
                baseline, own = replace(reference, origin=Origin.BASELINE), built
            self._yardsticks = Yardsticks((reference, built), (baseline, own))
        return self._yardsticks

    async def _race(
        self, worker: str, yardsticks: Yardsticks, entrant: tuple[Candidate, Artifact], incumbent_s: float | None
    ) -> Measurement:
        return await race(
            self.context, self.task, worker, entrant, yardsticks.reference[1],
            incumbent_s=incumbent_s, baseline_s=self.baseline_s,
        )  # fmt: skip

    # -- search ---------------------------------------------------------------------------------------------------

    async def batch(self, size: int) -> int:
        """Propose, build and measure up to `size` candidates; return how many were tried."""
        candidates: list[Candidate] = []
        try:
            candidates = await self._propose(size)
            built = await self._build(candidates)
            if built:
                await self._measure(built)
            self._sifter.learn([told for c in candidates if (told := self._history.get(c.key))])
        finally:
            # Those that were cut short with their job may come again for another one.
            self._proposed.difference_update(c.key for c in candidates if c.key not in self._history)
            tried = sum(candidate.key in self._history for candidate in candidates)
            self.standing.ended(self._fastest_s(), tried, self._cost_since())
        return len(candidates)

    def _cost_since(self) -> Cost:
        """Return what the job has paid for the task since the last time."""
        job_id, now = self.context.job_id, self.context.account.of_task(self.task.key)
        before, self._paid[job_id] = self._paid.get(job_id, Cost(0.0)), now
        return Cost(now.held_core_s - before.held_core_s, now.joules - before.joules)

    async def _propose(self, size: int) -> list[Candidate]:
        context, asked = self.context, self._sifter.ask(size)
        while True:
            try:
                async with stage(context, self.task, "propose", Role.PROPOSER, asked, self._proposer) as grant:
                    await self._open_if_needed()
                    told, self._untold = self._untold, []
                    proposal: Proposal = await context.runtime.call(
                        self._proposer, "propose", self.task.key, asked, told, deadline_s=PROPOSE_DEADLINE_S
                    )
                charge(context, self.task.key, "propose", "", grant, len(proposal.candidates))
                self._failures = 0
                break
            except (EngineError, DialectError) as error:
                self._opened = None
                self._failures += 1
                if self._failures >= _PROPOSER_TRIES:
                    self.standing.exhausted = True
                    self.outcomes[f"gave up: {error}"[:120]] += 1
                    return []
        # A proposer that was started anew does not know what is still on its way.
        sifted = self._sifter.sift(context, proposal, self._history.keys() | self._proposed, size)
        self._features.update((c.key, row) for c, row in zip(sifted.build, sifted.features, strict=True))
        self._proposed.update(c.key for c in (*sifted.build, *sifted.dropped))
        self.outcomes[Outcome.FILTERED.value] += len(sifted.dropped)
        for known in sifted.served:
            self._history[known.candidate.key] = known
            self._untold.append(known)
        self._stale = 0 if sifted.fresh else self._stale + 1
        if not proposal.candidates or self._stale >= _STALE_TRIES:
            self.standing.exhausted = True
        return list(sifted.build)

    async def _open_if_needed(self) -> None:
        context = self.context
        generation = context.runtime.engine.generation(self._proposer)
        if self._opened is None or self._opened[0] != generation:
            # What was filtered has no row worth a replay, nor anything to teach a model.
            history = [told for told in self._history.values() if told.outcome is not Outcome.FILTERED]
            self._untold = [told for told in self._history.values() if told.outcome is Outcome.FILTERED]
            # Rows are asked for the best and an even share of the rest: replaying all would take minutes.
            history.sort(key=lambda t: t.latency_s or math.inf)
            rows: Sequence[bytes] = await context.runtime.call(
                self._proposer, "open", self.task, history, self._learning.model, context.seed,
                deadline_s=PROPOSE_DEADLINE_S,
            )  # fmt: skip
            for told, row in zip(history, rows, strict=True):
                self._learned(told, row)
            self._opened = (context.runtime.engine.generation(self._proposer), self._learning.version)
        elif self._opened[1] != self._learning.version and self._learning.model:
            await context.runtime.call(self._proposer, "learn", self._learning.model, deadline_s=PROPOSE_DEADLINE_S)
            self._opened = (generation, self._learning.version)

    async def _build(self, candidates: Sequence[Candidate]) -> list[_Built]:
        chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
        built: list[_Built] = []

        async def one(chunk: Sequence[Candidate]) -> None:
            mine: list[_Built] = []
            failed: list[Charged] = []
            async with stage(self.context, self.task, "build", Role.BUILDER, len(chunk)) as grant:
                for candidate in chunk:
                    started = asyncio.get_running_loop().time()
                    result = await call_build(self.context, self.task, grant.worker, candidate)
                    seconds = asyncio.get_running_loop().time() - started
                    if isinstance(result, Measurement):
                        self._record(candidate, replace(result, build_s=seconds))
                        failed.append(Charged(result.outcome, seconds))
                    else:
                        mine.append(_Built(candidate, result, seconds))
            rate = grant.core_s / max(sum([one.wall_s for one in mine] + [one.wall_s for one in failed]), 1e-9)
            built.extend(replace(one, core_s=one.wall_s * rate) for one in mine)
            lost = [replace(one, core_s=one.wall_s * rate) for one in failed]
            charge_by_outcome(self.context, self.task.key, "build", lost)

        await asyncio.gather(*(one(chunk) for chunk in chunks))
        return built

    async def _measure(self, built: Sequence[_Built]) -> None:
        """Race candidates; those that others disturbed are raced once more when the machine is ours again."""
        left, again = list(built), set[str]()
        while left:
            raced = await self._race_some(left, again)
            disturbed = [one for one, began, ended in raced if self._disturbed(began, ended, one.candidate.key, again)]
            again.update(one.candidate.key for one in disturbed)
            left = left[len(raced) :] + disturbed
        for one in built:
            if self._history[one.candidate.key].outcome is not Outcome.OK:
                discard(one.artifact)

    async def _race_some(self, built: Sequence[_Built], again: Collection[str]) -> list[tuple[_Built, float, float]]:
        """Race candidates until others take the machine; return those raced, each with its begin and end."""
        yardsticks = await self._built_yardsticks()
        builds: list[Charged] = []
        races: list[Charged] = []
        raced: list[tuple[_Built, float, float]] = []
        loop, foreign = asyncio.get_running_loop(), self.context.runtime.foreign
        async with stage(self.context, self.task, "measure", Role.MEASURER, len(built)) as grant:
            for one in built:
                if raced and foreign and foreign.share.waiting:
                    break
                started = loop.time()
                entrant, incumbent_s = (one.candidate, one.artifact), self._fastest_s()
                measurement = await self._race(grant.worker, yardsticks, entrant, lenient(incumbent_s, foreign))
                measurement = marked(measurement, foreign)
                self._record(one.candidate, replace(measurement, build_s=one.wall_s))
                raced.append((one, started, loop.time()))
                latency_s = measurement.latency_s if measurement.outcome is Outcome.OK else None
                helped = latency_s is not None and latency_s < (incumbent_s or math.inf)
                self._sifter.measured(one.candidate.key, helped=helped)
                races.append(Charged(measurement.outcome, loop.time() - started, helped=helped))
                if one.candidate.key not in again:
                    builds.append(Charged(measurement.outcome, one.wall_s, one.core_s, helped))
        charge_by_outcome(self.context, self.task.key, "build", builds)
        charge_by_outcome(self.context, self.task.key, "measure", races, grant, device=True)
        return raced

    def _disturbed(self, began_s: float, ended_s: float, key: str, again: Collection[str]) -> bool:
        """Say whether a race is to be repeated: others were at work meanwhile, and there is patience to wait."""
        foreign = self.context.runtime.foreign
        if foreign is None or key in again or self._history[key].outcome not in (Outcome.OK, Outcome.ABANDONED):
            return False
        return foreign.disturbed(began_s, ended_s) and (foreign.share.waiting or not foreign.share.disturbed)

    # -- finals ---------------------------------------------------------------------------------------------------

    def finals_cost_s(self) -> float:
        """Return the predicted seconds of the finals."""
        return finals.predicted_s(self.baseline_s) if self._finals_stale else 0.0

    async def finals(self) -> None:
        """Hold the finals, unless nothing was measured since the last."""
        async with self._one_at_a_time:
            if self._finals_stale:
                await self._hold_finals()

    async def _hold_finals(self) -> None:
        context, news = self.context, self._news
        challengers = finals.select(context, self.task)
        if not challengers:
            return  # nothing ran right: the compiler's default stays
        if self._yardsticks is None:
            await self._measure_baseline()
        yardsticks = await self._built_yardsticks()
        self.baseline_s = await finals.hold(context, self.task, yardsticks, challengers, self.baseline_s)
        best = context.store.best(self.task.key, context.provenance)
        self.final = best[0] if best else None
        self._finals_stale = self._news != news  # another job's batch may have ended meanwhile

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _record(self, candidate: Candidate, measurement: Measurement) -> None:
        """Store a measurement; only then is it used."""
        context = self.context
        context.store.add_record(self.task, Record(candidate, measurement, context.provenance, context.job_id))
        told = Told(candidate, measurement.outcome, measurement.latency_s)
        before = self._history.get(candidate.key)
        self._history[candidate.key] = told
        if candidate.origin is Origin.BASELINE:
            return
        if before is not None:  # raced again after a disturbance: it counts once, and its last race counts
            self.outcomes[before.outcome.value] -= 1
            context.trials -= 1
            self._untold = [one for one in self._untold if one.candidate.key != candidate.key]
        self._untold.append(told)
        self._finals_stale = True
        self._news += 1
        self.outcomes[measurement.outcome.value] += 1
        for sharer, _ in self.jobs.values():
            sharer.trials += 1
        self._learned(told, self._features.pop(candidate.key, b""))

    def _learned(self, told: Told, row: bytes) -> None:
        if row:
            good = told.outcome in (Outcome.OK, Outcome.ABANDONED) and told.latency_s
            latency_s = told.latency_s if good and told.latency_s else math.inf
            self._learning.rows.append(FeatureRow(self.task.key, told.candidate.key, row, latency_s))

    def state(self, weight: int) -> TaskState:
        """Return the task's standing for the report of a job in which it has this weight."""
        workload = self.task.workload
        return TaskState(
            task_key=self.task.key,
            workload_key=workload.key,
            name=workload.name,
            kind=workload.kind,
            weight=weight,
            tunable=self.task.tunable,
            baseline_s=self.baseline_s,
            best_s=self.best_s,
            best_candidate=self.final.candidate.key if self.final else None,
            measured=sum(self.outcomes[o] for o in (Outcome.OK, Outcome.ABANDONED, Outcome.WRONG_RESULT)),
            outcomes={outcome: count for outcome, count in self.outcomes.items() if count},
            audited=self._sifter.audit.audited,
            false_drops=self._sifter.audit.winners,
        )
