"""One task's search: its candidates' way from proposal to stored record. Jobs with the same task share it."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tunery._errors import DialectError, EngineError, WorkError
from tunery.dialects import Observation
from tunery.domain import Artifact, Candidate, Measurement, Mode, Origin, Outcome, Record, Task, TaskState
from tunery.engines import Role
from tunery.measuring.selection import RACE_DRIFT
from tunery.runtime.foreign_load import marked
from tunery.runtime.pools import Reservation, Runtime
from tunery.runtime.services import Proposal
from tunery.tuning.allocation.allocator import Cost, TaskProgress
from tunery.tuning.calls import TaskBaselines, build_one, call_build, stage, yardstick_candidates
from tunery.tuning.charging import Charged, charge, charge_by_outcome
from tunery.tuning.context import Context
from tunery.tuning.learning import Learning
from tunery.tuning.search import finals
from tunery.tuning.search.hints import hinted
from tunery.tuning.search.known import KnownCandidates, tried
from tunery.tuning.search.proposal_filter import ProposalFilter
from tunery.tuning.search.races import BuiltCandidate, Races, together

PROPOSE_DEADLINE_S = 180.0
_CHUNK = 4  # candidates a builder takes at once: small enough that the pool ends together
_PROPOSER_TRIES = 3
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted
_NAIVE_FLOPS, _FIRST_RUNS = 1e9, 3  # of the compiler's default, a second; runs that time it for the first time
_REFUSED = 0.2  # what one counts for of which all that was new is not worth a build


class TaskSearch:
    """Proposes, builds, measures and records the candidates of one task, for all jobs that have joined.

    Whichever job asks for a step pays for it (`payer`); what it finds is everybody's.
    """

    def __init__(self, task: Task, proposer: str, learning: Learning, sifter: ProposalFilter) -> None:
        self.task = task
        self.standing = TaskProgress(task.key, 0, task.workload.flop)
        self.baseline_s: float | None = None
        self.final: Record | None = None
        self.jobs: dict[str, tuple[Context, int]] = {}
        self._tried: dict[str, dict[str, Outcome]] = {}  # by job and candidate
        self._proposer, self._learning, self._sifter = proposer, learning, sifter
        self._opened: tuple[int, int] | None = None  # the worker's generation, the model's version
        self._failures = 0
        self._generic_only_reason: str | None = None  # a search of more has crashed
        self.problem = ""
        self._stale = 0.0
        self._proposed: set[str] = set()
        self._hints: list[Candidate] | None = None
        self._known = KnownCandidates()
        self._features: dict[str, bytes] = {}
        self._yardsticks: TaskBaselines | None = None
        self._finals_stale = True
        self._raced_then_s: float | None = None  # the best by races when the last finals were held
        self._held: set[str] = set()
        self._at_hand: dict[str, Artifact] = {}
        self._builds, self._build_s = 0, 0.0
        self._paid: dict[str, Cost] = {}
        self._news = 0
        self._restored = False
        self._races = Races(task, self)
        self._timings: Counter[bool] = Counter()  # by whether others disturbed them
        self._one_at_a_time, self._building_yardsticks = asyncio.Lock(), asyncio.Lock()

    def join(self, context: Context, weight: int) -> None:
        """Let a job take part; its weight counts beside the others', and what it tried in an earlier run is counted."""
        records = context.store.records(
            self.task.key, provenance=context.provenance
        )  # a store that fails: nobody joined
        self.jobs[context.job_id] = (context, weight)
        self.standing.weight += weight
        self._tried[context.job_id] = ended = tried(records, context.job_id)
        context.trials += sum(outcome is not Outcome.FILTERED for outcome in ended.values())
        if not self._restored:
            self._restored = True
            self._restore(context, records)

    def leave(self, context: Context) -> bool:
        """Let a job go; the search is left to the others. Return whether it was the last."""
        _, weight = self.jobs.pop(context.job_id)
        del self._tried[context.job_id]
        self.standing.weight -= weight
        return not self.jobs

    def _restore(self, context: Context, records: Sequence[Record]) -> None:
        """Take in what the store knows of this task under the same conditions."""
        held_s, trials = 0.0, set[str]()
        for record in records:
            measurement, candidate = record.measurement, record.candidate
            if record.job_id == context.job_id:
                self._count(measurement)
            if candidate.origin is Origin.BASELINE:
                self.baseline_s = measurement.latency_s or self.baseline_s
            if measurement.mode is Mode.FINAL:
                if record.job_id:  # those of a delivery were not held beside the baseline
                    self._held.add(candidate.key)
                self._raced_then_s = self._raced_s()  # oldest first: what comes later was raced since
                continue
            if measurement.outcome is Outcome.FILTERED and record.job_id != context.job_id:
                continue  # another job's model dropped it: this one's may think otherwise
            self._known.remember(Observation(candidate, measurement.outcome, measurement.latency_s))
            self._note_build(measurement)
            if candidate.origin is not Origin.BASELINE and measurement.outcome is not Outcome.FILTERED:
                trials.add(candidate.key)
                held_s += measurement.build_s + measurement.measure_s * context.runtime.threads
        best = self.fastest_s()
        if trials and best is not None:
            self.standing.ended(best, len(trials), Cost(held_s, context.account.power.joules(held_s)))
        chosen = context.store.best(self.task.key, context.provenance)
        self.final = chosen[0] if chosen else None
        self._finals_stale = not self._decided(finals.select(context, self.task))

    def fastest_s(self) -> float | None:
        """Return the latency to beat."""
        return self._known.fastest_s()

    @property
    def best_s(self) -> float | None:
        """The best latency known. Once finals were held it is what others would give: races may all be as lucky as
        those of that time."""
        raced_s = self._raced_s()
        held_s = self.final.measurement.latency_s if self.final is not None else None
        if held_s is None or raced_s is None or self._raced_then_s is None or not self._finals_stale:
            return held_s or raced_s
        return held_s * min(raced_s / self._raced_then_s, 1.0)

    def _raced_s(self) -> float | None:
        return min((s for s in (self._known.best_s(), self.baseline_s) if s), default=None)

    @property
    def untried(self) -> bool:
        """Whether it can be tuned, and no candidate of it was measured yet."""
        return self.task.tunable and not self.standing.exhausted and not self._raced_any

    @property
    def proven_s(self) -> float | None:
        """The latency of what would be delivered: of the best verified record, or of the compiler's default.

        Where all candidates were given up against the default there are no finals to be held.
        """
        if self.final is not None and self.final.measurement.mode is Mode.FINAL:
            return self.final.measurement.latency_s
        stays = not self.task.tunable or self.standing.exhausted or self._raced_any
        return self.baseline_s if stays and not self._known.any_ended else None

    @property
    def _raced_any(self) -> bool:
        return any(batch for batch in self.standing.trials)

    # -- yardsticks -----------------------------------------------------------------------------------------------

    async def measure_baseline(self, payer: Context) -> None:
        """Build the reference and measure what the compiler does untuned, once per task and store."""
        async with self._one_at_a_time:
            if self.baseline_s is None:
                await self._measure_baseline(payer)
        self._cost_since(payer)  # paid once, and no part of what a trial takes

    async def _measure_baseline(self, payer: Context) -> None:
        yardsticks = await self._built_yardsticks(payer)
        # One that was tried and has no latency is faulty, and would be so again.
        if self.baseline_s is None and yardsticks.baseline[0].key not in self._known:
            own, reference = yardsticks.baseline, yardsticks.reference[1]
            async with stage(payer, self.task, "measure", Role.MEASURER) as grant:
                measurement = await self._races.race(payer, grant.worker, own, reference)
                if measurement.outcome is Outcome.CRASHED:  # perhaps the measurer was killed from outside
                    measurement = await self._races.race(payer, grant.worker, own, reference)
                measurement = marked(measurement, payer.runtime.foreign)
                self.record(payer, yardsticks.baseline[0], measurement)
            charge(payer, self.task.key, "baseline", measurement.outcome.value, grant, 1, device=True)
            self.baseline_s = measurement.latency_s

    async def _built_yardsticks(self, payer: Context) -> TaskBaselines:
        async with self._building_yardsticks:  # batches of one task may ask at once
            if self._yardsticks is None:
                self._yardsticks = await self._build_yardsticks(payer)
        return self._yardsticks

    async def _build_yardsticks(self, payer: Context) -> TaskBaselines:
        reference, baseline = await yardstick_candidates(payer, self.task)
        built = await build_one(payer, self.task, reference)
        if isinstance(built, Measurement):
            name = self.task.workload.name
            raise WorkError(f"the unscheduled program of task {name} does not build: {built.detail}")
        own = built if baseline.key == reference.key else await build_one(payer, self.task, baseline)
        if isinstance(own, Measurement):
            baseline = replace(reference, origin=Origin.BASELINE)
            own = await build_one(payer, self.task, baseline)
        if isinstance(own, Measurement):
            raise WorkError(f"no program to compare with of task {self.task.workload.name} builds: {own.detail}")
        return TaskBaselines((reference, built), (baseline, own))

    def discard_artifacts(self, runtime: Runtime) -> None:
        """Remove all that was built for this search; nobody searches the task any more."""
        built = list(self._at_hand.values())
        if self._yardsticks is not None:
            (_, reference), (_, baseline) = self._yardsticks.reference, self._yardsticks.baseline
            built += [reference] if baseline is reference else [reference, baseline]
        for artifact in built:
            runtime.discard(artifact)
        self._at_hand.clear()
        self._yardsticks = None

    async def _reference(self, payer: Context) -> Artifact | None:
        """Return the built reference; None leaves the task out, for it built when the baseline was measured."""
        try:
            return (await self._built_yardsticks(payer)).reference[1]
        except WorkError as error:
            self.standing.exhausted = True
            self.problem = f"left out: {error}"[:200]
            return None

    # -- search ---------------------------------------------------------------------------------------------------

    async def batch(self, payer: Context, size: int) -> int:
        """Propose, build and measure up to `size` candidates; return how many were tried."""
        candidates: list[Candidate] = []
        try:
            candidates = await self._propose(payer, size)
            built = await self._build(payer, candidates)
            if built and (reference := await self._reference(payer)):
                kept = await self._races.run(payer, built, reference)
                self._at_hand.update((one.candidate.key, one.artifact) for one in kept)
            self._sifter.learn([told for c in candidates if (told := self._known.get(c.key))])
        finally:
            payer.account.take_back(candidates)  # built, and cut short before they were raced
            # Those that were cut short with their job may come again for another one.
            self._proposed.difference_update(c.key for c in candidates if c.key not in self._known)
            count = sum(candidate.key in self._known for candidate in candidates)
            self.standing.ended(self.fastest_s(), count, self._cost_since(payer))
        return len(candidates)

    def _cost_since(self, payer: Context) -> Cost:
        """Return what the job has paid for the task since the last time."""
        job_id, now = payer.job_id, payer.account.of_task(self.task.key)
        before, self._paid[job_id] = self._paid.get(job_id, Cost(0.0)), now
        return Cost(now.held_core_s - before.held_core_s, now.joules - before.joules)

    async def _propose(self, payer: Context, size: int) -> list[Candidate]:
        asked = self._sifter.ask(size)
        if hints := await self._next_hints(payer, size):
            return hints
        while True:
            try:
                async with stage(payer, self.task, "propose", Role.PROPOSER, asked, self._proposer) as grant:
                    await self._open_if_needed(payer)
                    told = self._known.unheard()
                    proposal: Proposal = await payer.runtime.call(
                        self._proposer, "propose", self.task.key, asked, told, deadline_s=PROPOSE_DEADLINE_S
                    )
                charge(payer, self.task.key, "propose", "", grant, len(proposal.candidates))
                self._failures = 0
                break
            except (EngineError, DialectError) as error:
                self._opened = None
                self._failures += 1
                if self._failures >= _PROPOSER_TRIES:
                    self.standing.exhausted = True
                    self.problem = f"gave up: {error}"[:200]
                    return []
                if self._failures == _PROPOSER_TRIES - 1:
                    self._generic_only_reason = f"its search failed twice: {error}"[:200]
        # A proposer that was started anew does not know what is still on its way.
        sifted = self._sifter.sift(payer, proposal, self._known.keys() | self._proposed, size)
        self._features.update((c.key, row) for c, row in zip(sifted.build, sifted.features, strict=True))
        self._proposed.update(c.key for c in (*sifted.build, *sifted.dropped))
        for ended in self._tried.values():
            ended.update((candidate.key, Outcome.FILTERED) for candidate in sifted.dropped)
        for known in sifted.served:
            self._known.served(known)
            self._finals_stale = True
            self._news += 1
        self._stale = 0 if sifted.fresh else self._stale + (_REFUSED if sifted.dropped else 1)
        if not proposal.candidates or self._stale >= _STALE_TRIES:
            self.standing.exhausted = True
        return list(sifted.build)

    async def _next_hints(self, payer: Context, size: int) -> list[Candidate]:
        """Return up to `size` candidates that imported records call fast, and that nobody has tried here."""
        if self._hints is None:
            self._hints = []  # another batch of the task goes on meanwhile
            self._hints = await hinted(payer, self.task)
        fresh = [one for one in self._hints if one.key not in self._known and one.key not in self._proposed]
        self._hints = fresh[size:]
        self._proposed.update(one.key for one in fresh[:size])
        return fresh[:size]

    async def _open_if_needed(self, payer: Context) -> None:
        generation = payer.runtime.engine.generation(self._proposer)
        if self._opened is None or self._opened[0] != generation:
            history = self._known.opening()
            rows: Sequence[bytes] = await payer.runtime.call(
                self._proposer, "open", self.task, history, self._learning.model, payer.seed,
                self._learning.warm_start, self._generic_only_reason, deadline_s=PROPOSE_DEADLINE_S,
            )  # fmt: skip
            for told, row in zip(history, rows, strict=True):
                self._learning.add(self.task.key, told, row)
            self._opened = (payer.runtime.engine.generation(self._proposer), self._learning.version)
        elif self._opened[1] != self._learning.version and self._learning.model:
            await payer.runtime.call(self._proposer, "learn", self._learning.model, deadline_s=PROPOSE_DEADLINE_S)
            self._opened = (generation, self._learning.version)

    async def _build(self, payer: Context, candidates: Sequence[Candidate]) -> list[BuiltCandidate]:
        chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
        built: list[BuiltCandidate] = []

        async def one(chunk: Sequence[Candidate]) -> None:
            mine: list[BuiltCandidate] = []
            failed: list[Charged] = []
            grant: Reservation | None = None
            try:
                async with stage(payer, self.task, "build", Role.BUILDER, len(chunk)) as grant:
                    for candidate in chunk:
                        started = asyncio.get_running_loop().time()
                        result = await call_build(payer, self.task, grant.worker, candidate)
                        seconds = asyncio.get_running_loop().time() - started
                        if isinstance(result, Measurement):
                            self.record(payer, candidate, replace(result, build_s=seconds))
                            failed.append(Charged(result.outcome, seconds))
                        else:
                            mine.append(BuiltCandidate(candidate, result, seconds))
            finally:  # what has failed is a trial, also if a stop cuts the rest short
                used_s = grant.core_s if grant else 0.0
                rate = used_s / max(sum([one.wall_s for one in mine] + [one.wall_s for one in failed]), 1e-9)
                for one in mine:
                    built.append(replace(one, core_s=one.wall_s * rate))
                    payer.account.defer(one.candidate, one.wall_s * rate)
                lost = [replace(one, core_s=one.wall_s * rate) for one in failed]
                charge_by_outcome(payer, self.task.key, "build", lost)

        await together([one(chunk) for chunk in chunks])
        return built

    # -- finals ---------------------------------------------------------------------------------------------------

    def finals_cost_s(self) -> float:
        """Return the predicted seconds of the finals; 0 where there is no finalist, or nothing new since the last."""
        if not self._finals_stale or not self._known.any_ended:
            return 0.0
        # Their intervals decide, which are as wide again; but no store is asked here.
        likely = self._known.near_best(2 * RACE_DRIFT)[: finals.FINALISTS]
        missing = sum(key not in self._at_hand for key in likely) + 2 * (self._yardsticks is None)
        builds_s = missing * self._build_s / max(self._builds, 1)
        inputs_mb = 4e-6 * sum(spec.size for spec in self.task.workload.input_specs)  # nearly all of 32 bits
        untimed_s = 0.0 if self.baseline_s else self.task.workload.flop / _NAIVE_FLOPS
        baseline_s = self.baseline_s or untimed_s
        cost_s = finals.predicted_s(baseline_s, self._known.best_s(), len(likely), builds_s, inputs_mb)
        return cost_s + _FIRST_RUNS * untimed_s

    async def finals(self, payer: Context) -> None:
        """Hold the finals, unless nothing was measured since the last."""
        async with self._one_at_a_time:
            if self._finals_stale:
                await self._hold_finals(payer)
        self._cost_since(payer)  # as of the baseline

    async def _hold_finals(self, payer: Context) -> None:
        news, raced_s = self._news, self._known.best_s()
        challengers = finals.select(payer, self.task)
        if not challengers:
            return  # nothing ran right: the compiler's default stays
        if self._decided(challengers):
            self._finals_stale = self._news != news
            return
        if self._yardsticks is None or self.baseline_s is None:
            await self._measure_baseline(payer)
        yardsticks = await self._built_yardsticks(payer)
        self.baseline_s, held = await finals.hold(
            payer, self.task, yardsticks, challengers, self.baseline_s, self._at_hand
        )
        for measurement in held:
            self._count(measurement)
        self._held.update(candidate.key for candidate in challengers)
        best = payer.store.best(self.task.key, payer.provenance)
        self.final = best[0] if best else None
        self._raced_then_s = min((s for s in (raced_s, self.baseline_s) if s), default=None)
        self._finals_stale = self._news != news  # another job's batch may have ended meanwhile

    def _decided(self, challengers: Sequence[Candidate]) -> bool:
        """Whether all of them have been in finals already."""
        return self.final is not None and all(one.key in self._held for one in challengers)

    # -- pieces ---------------------------------------------------------------------------------------------------

    def record(self, payer: Context, candidate: Candidate, measurement: Measurement) -> bool:
        """Store a measurement, only then use it, and say whether it is the best so far."""
        best_s = self.fastest_s() or math.inf
        told = self._keep(payer, candidate, measurement)
        helped = told.outcome is Outcome.OK and told.latency_s is not None and told.latency_s < best_s
        if candidate.origin is not Origin.BASELINE:
            self._sifter.measured(candidate.key, helped=helped)
            self._learning.add(self.task.key, told, self._features.pop(candidate.key, b""))
        return helped

    def correct(self, payer: Context, candidate: Candidate, measurement: Measurement) -> None:
        """Store what timing a candidate again alone gave, and believe it from now on; it is no trial."""
        self._keep(payer, candidate, measurement)

    def _keep(self, payer: Context, candidate: Candidate, measurement: Measurement) -> Observation:
        """Store a measurement, and let it take the place of an earlier one."""
        trial = candidate.origin is not Origin.BASELINE
        payer.store.add_record(self.task, Record(candidate, measurement, payer.provenance, payer.job_id))
        told = Observation(candidate, measurement.outcome, measurement.latency_s)
        self._count(measurement)
        self._note_build(measurement)
        self._finals_stale |= trial
        self._news += trial
        fresh = self._known.keep(told, tell=trial)
        if trial:
            self._count_trial(payer, told, fresh=fresh)
        return told

    def _count_trial(self, payer: Context, told: Observation, *, fresh: bool) -> None:
        """Count a candidate once for each job, as it ended last; another job's only where the limit of trials allows.

        What is beyond that a job is merely served: it learns from it and may deliver it.
        """
        key = told.candidate.key
        for job_id, (job, _) in self.jobs.items():
            ended = self._tried[job_id]
            if ended.get(key, Outcome.FILTERED) is not Outcome.FILTERED:
                ended[key] = told.outcome
            elif fresh and (job is payer or job.takes_part):
                ended[key] = told.outcome
                job.trials += 1

    def _note_build(self, measurement: Measurement) -> None:
        self._builds += measurement.build_s > 0
        self._build_s += measurement.build_s

    def _count(self, measurement: Measurement) -> None:
        if measurement.samples_s:
            self._timings[bool(measurement.context.get("contaminated"))] += 1

    def state(self, job_id: str) -> TaskState:
        """Return the task's standing for the report of a job that takes part."""
        workload, outcomes = self.task.workload, Counter(self._tried[job_id].values())
        audit = self._sifter.audit(self.final.candidate.key if self.final else None)
        return TaskState(
            task_key=self.task.key,
            workload_key=workload.key,
            name=workload.name,
            kind=workload.kind,
            weight=self.jobs[job_id][1],
            tunable=self.task.tunable,
            baseline_s=self.baseline_s,
            best_s=self.proven_s or self.best_s,
            best_candidate=self.final.candidate.key if self.final else None,
            untried=not self._known.any_ran and not self.standing.exhausted,
            measured=sum(outcomes[o] for o in (Outcome.OK, Outcome.ABANDONED, Outcome.WRONG_RESULT)),
            outcomes={outcome.value: count for outcome, count in outcomes.items()},
            problem=self.problem,
            dropped=audit.dropped,
            audited=audit.audited,
            false_drops=audit.winners,
            timings=self._timings.total(),
            contaminated=self._timings[True],
            degree=self._races.degree,
        )
