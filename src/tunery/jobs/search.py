"""One task's part of a job: its candidates' way from proposal to stored record."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunery._errors import CrashError, DeadlineError, DialectError, EngineError, RemoteError, WorkError
from tunery.budgets import Standing
from tunery.dialects import Told
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
)
from tunery.engines import Role
from tunery.jobs.runtime import Grant, Runtime
from tunery.jobs.services import FeatureRow, Proposal
from tunery.measure import finalists
from tunery.store import Charge, Store

BUILD_DEADLINE_S = 60.0
PROPOSE_DEADLINE_S = 180.0
RACE_DEADLINE_S, FIRST_RACE_DEADLINE_S = 10.0, 300.0  # naive loops take seconds, and the first race has no yardstick
FINALS_DEADLINE_S = 60.0
_CHUNK = 4  # candidates a builder takes at once: small enough that the pool ends together
_FINALISTS = 4
_FINAL_ROUNDS = 15
_HISTORY_ROWS = 48  # old records whose features are worth replaying on resume
_PROPOSER_TRIES = 3
_STALE_TRIES = 3  # proposals in a row without a new candidate after which a task is exhausted


@dataclass
class Context:
    """What all tasks of a job share."""

    job_id: str
    runtime: Runtime
    store: Store
    provenance: Provenance
    seed: int
    rows: list[FeatureRow] = field(default_factory=list)
    cost_model: str | None = None
    model_version: int = 0
    trials: int = 0
    trials_in_flight: int = 0


@dataclass(frozen=True, slots=True)
class _Built:
    candidate: Candidate
    artifact: Artifact
    wall_s: float
    core_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Charged:
    outcome: Outcome
    wall_s: float
    core_s: float = 0.0


class TaskSearch:
    """Proposes, builds, measures and records the candidates of one task."""

    def __init__(self, context: Context, task: Task, proposer: str) -> None:
        self.context, self.task = context, task
        self.standing = Standing(task.key, task.weight, task.workload.flop)
        self.baseline_s: float | None = None
        self.outcomes: Counter[str] = Counter()
        self.final: Record | None = None
        self._proposer = proposer
        self._opened: tuple[int, int] | None = None  # the worker's generation, the model's version
        self._failures = 0
        self._stale = 0
        self._proposed: set[str] = set()
        self._history: dict[str, Told] = {}
        self._untold: list[Told] = []
        self._features: dict[str, bytes] = {}
        self._reference: tuple[Candidate, Artifact] | None = None
        self._baseline: tuple[Candidate, Artifact] | None = None
        self._finals_stale = True

    def restore(self) -> None:
        """Take in what the store knows of this task under the same conditions."""
        context = self.context
        finals: dict[str, Record] = {}
        for record in context.store.records(self.task.key, provenance=context.provenance):
            measurement, candidate = record.measurement, record.candidate
            if candidate.origin is Origin.BASELINE:
                self.baseline_s = measurement.latency_s or self.baseline_s
            if measurement.mode is Mode.FINAL:
                finals[candidate.key] = record
                continue
            self._history[candidate.key] = Told(candidate, measurement.outcome, measurement.latency_s)
            if record.job_id == context.job_id and candidate.origin is not Origin.BASELINE:
                self.outcomes[measurement.outcome.value] += 1
                context.trials += 1
        best = self._fastest_s()
        if self._history and best is not None:
            self.standing.best_s.append(best)
            self.standing.batch_s.append(1.0)
        chosen = context.store.best(self.task.key, context.provenance)
        self.final = chosen[0] if chosen else None
        self._finals_stale = self.final is None or any(key not in finals for key in self._finalist_keys())

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

    # -- yardsticks -----------------------------------------------------------------------------------------------

    async def measure_baseline(self) -> None:
        """Build the reference and measure what the compiler does untuned, once per task and store."""
        (reference, baseline), grant = await self._with_builder("yardsticks", self.task)
        self._charge("build", "", grant, 0)
        built = await self._build_one(reference)
        if isinstance(built, Measurement):
            raise WorkError(f"the unscheduled program of task {self.task.workload.name} does not build: {built.detail}")
        self._reference = (reference, built)
        if baseline.key == reference.key:
            self._baseline = (baseline, built)
        else:
            own = await self._build_one(baseline)
            if isinstance(own, Measurement):
                baseline, own = replace(reference, origin=Origin.BASELINE), built
            self._baseline = (baseline, own)
        # One that was tried and has no latency is faulty, and would be so again.
        if self.baseline_s is None and baseline.key not in self._history:
            async with self._stage("measure", Role.MEASURER) as grant:
                measurement = await self._race(grant.worker, self._baseline[1], baseline, None)
                if measurement.outcome is Outcome.CRASHED:  # perhaps the measurer was killed from outside
                    measurement = await self._race(grant.worker, self._baseline[1], baseline, None)
                self._record(baseline, measurement)
            self._charge("measure", measurement.outcome.value, grant, 1, device=True)
            self.baseline_s = measurement.latency_s

    # -- search ---------------------------------------------------------------------------------------------------

    async def batch(self, size: int) -> int:
        """Propose, build and measure up to `size` candidates; return how many were tried."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        tried = 0
        try:
            candidates = await self._propose(size)
            built = await self._build(candidates)
            tried = len(candidates)
            if built:
                await self._measure(built)
        finally:
            self.standing.best_s.append(self._fastest_s())
            self.standing.batch_s.append(max(loop.time() - start, 1e-3))
        return tried

    async def _propose(self, size: int) -> list[Candidate]:
        context = self.context
        while True:
            try:
                async with self._stage("propose", Role.PROPOSER, size, self._proposer) as grant:
                    await self._open_if_needed()
                    told, self._untold = self._untold, []
                    proposal: Proposal = await context.runtime.call(
                        self._proposer, "propose", self.task.key, size, told, deadline_s=PROPOSE_DEADLINE_S
                    )
                self._charge("propose", "", grant, len(proposal.candidates))
                self._failures = 0
                break
            except (EngineError, DialectError) as error:
                self._opened = None
                self._failures += 1
                if self._failures >= _PROPOSER_TRIES:
                    self.standing.exhausted = True
                    self.outcomes[f"gave up: {error}"[:120]] += 1
                    return []
        fresh = []
        for candidate, features in zip(proposal.candidates, proposal.features, strict=True):
            # A proposer that was started anew does not know what is still on its way.
            if candidate.key not in self._history and candidate.key not in self._proposed:
                self._features[candidate.key] = features
                self._proposed.add(candidate.key)
                fresh.append(candidate)
        self._stale = 0 if fresh else self._stale + 1
        if not proposal.candidates or self._stale >= _STALE_TRIES:
            self.standing.exhausted = True
        return fresh

    async def _open_if_needed(self) -> None:
        context = self.context
        generation = context.runtime.engine.generation(self._proposer)
        if self._opened is None or self._opened[0] != generation:
            history = list(self._history.values())
            self._untold = []
            # Rows are asked for the best and an even share of the rest: replaying all would take minutes.
            history.sort(key=lambda t: t.latency_s or math.inf)
            rows: Sequence[bytes] = await context.runtime.call(
                self._proposer, "open", self.task, history, context.cost_model, context.seed,
                deadline_s=PROPOSE_DEADLINE_S,
            )  # fmt: skip
            for told, row in zip(history, rows, strict=True):
                self._learned(told, row)
            self._opened = (context.runtime.engine.generation(self._proposer), context.model_version)
        elif self._opened[1] != context.model_version and context.cost_model:
            await context.runtime.call(self._proposer, "learn", context.cost_model, deadline_s=PROPOSE_DEADLINE_S)
            self._opened = (generation, context.model_version)

    async def _build(self, candidates: Sequence[Candidate]) -> list[_Built]:
        chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
        built: list[_Built] = []

        async def one(chunk: Sequence[Candidate]) -> None:
            mine: list[_Built] = []
            failed: list[_Charged] = []
            async with self._stage("build", Role.BUILDER, len(chunk)) as grant:
                for candidate in chunk:
                    started = asyncio.get_running_loop().time()
                    result = await self._call_build(grant.worker, candidate)
                    seconds = asyncio.get_running_loop().time() - started
                    if isinstance(result, Measurement):
                        self._record(candidate, replace(result, build_s=seconds))
                        failed.append(_Charged(result.outcome, seconds))
                    else:
                        mine.append(_Built(candidate, result, seconds))
            rate = grant.core_s / max(grant.wall_s, 1e-9)
            built.extend(replace(one, core_s=one.wall_s * rate) for one in mine)
            self._charge_by_outcome("build", failed, rate)

        await asyncio.gather(*(one(chunk) for chunk in chunks))
        return built

    async def _measure(self, built: Sequence[_Built]) -> None:
        builds: list[_Charged] = []
        races: list[_Charged] = []
        loop = asyncio.get_running_loop()
        async with self._stage("measure", Role.MEASURER, len(built)) as grant:
            for one in built:
                started = loop.time()
                measurement = await self._race(grant.worker, one.artifact, one.candidate, self._fastest_s())
                self._record(one.candidate, replace(measurement, build_s=one.wall_s))
                builds.append(_Charged(measurement.outcome, one.wall_s, one.core_s))
                races.append(_Charged(measurement.outcome, loop.time() - started))
                if measurement.outcome is not Outcome.OK:
                    _discard(one.artifact)
        self._charge_by_outcome("build", builds)
        self._charge_by_outcome("measure", races, grant.core_s / max(grant.wall_s, 1e-9), device=True)

    # -- finals ---------------------------------------------------------------------------------------------------

    def _finalist_keys(self) -> list[str]:
        return [candidate.key for candidate in self._finalists()]

    def _finalists(self) -> list[Candidate]:
        context = self.context
        records = context.store.records(self.task.key, provenance=context.provenance, modes=[Mode.RACE])
        raced = [r for r in records if r.candidate.origin is not Origin.BASELINE]
        return finalists(raced, _FINALISTS)

    def finals_cost_s(self) -> float:
        """Return the predicted seconds of the finals."""
        return 0.5 + 6 * (self.baseline_s or 0.05) if self._finals_stale else 0.0

    async def finals(self) -> None:
        """Verify the best candidates fully and time them, interleaved and alone, beside the baseline."""
        if not self._finals_stale:
            return
        context = self.context
        challengers = self._finalists()
        if not challengers:
            return  # nothing ran right: the compiler's default stays
        if self._reference is None or self._baseline is None:
            await self.measure_baseline()
        assert self._reference is not None
        assert self._baseline is not None
        # A baseline without a latency is faulty: it would cost the others their common round.
        entrants = [self._baseline] if self.baseline_s else []
        for candidate in challengers:
            if candidate.key != self._baseline[0].key:
                artifact = await self._build_one(candidate)
                if not isinstance(artifact, Measurement):
                    entrants.append((candidate, artifact))
        async with self._stage("finals", Role.MEASURER, len(entrants)) as grant:
            try:
                results = await self._finals_call(grant.worker, entrants)
            except EngineError:
                # One of them took the worker down: alone, each pays for itself.
                results = [await self._final_alone(grant.worker, entrant) for entrant in entrants]
        for (candidate, _), measurement in zip(entrants, results, strict=True):
            record = Record(candidate, measurement, context.provenance, context.job_id)
            context.store.add_record(self.task, record)
        self._charge("finals", "", grant, len(entrants), device=True)
        best = context.store.best(self.task.key, context.provenance)
        self.final = best[0] if best else None
        self._finals_stale = False
        if self.baseline_s:
            self.baseline_s = results[0].latency_s or self.baseline_s

    async def _finals_call(self, worker: str, entrants: Sequence[tuple[Candidate, Artifact]]) -> list[Measurement]:
        assert self._reference is not None
        results: list[Measurement] = await self.context.runtime.call(
            worker, "finals", self.task, [a for _, a in entrants], [c for c, _ in entrants], self._reference[1],
            _FINAL_ROUNDS, deadline_s=FINALS_DEADLINE_S + 60 * (self.baseline_s or 1.0),
        )  # fmt: skip
        return results

    async def _final_alone(self, worker: str, entrant: tuple[Candidate, Artifact]) -> Measurement:
        try:
            return (await self._finals_call(worker, [entrant]))[0]
        except EngineError as error:
            return replace(_failure(error), mode=Mode.FINAL)

    # -- pieces ---------------------------------------------------------------------------------------------------

    async def _race(
        self, worker: str, artifact: Artifact, candidate: Candidate, incumbent_s: float | None
    ) -> Measurement:
        assert self._reference is not None
        # The reference is run first where its outputs are not cached: naive loops, up to seconds.
        deadline_s = RACE_DEADLINE_S + 20 * self.baseline_s if self.baseline_s else FIRST_RACE_DEADLINE_S
        try:
            measurement: Measurement = await self.context.runtime.call(
                worker, "race", self.task, artifact, candidate, incumbent_s, self._reference[1], deadline_s=deadline_s
            )
        except EngineError as error:
            return _failure(error)
        return measurement

    async def _with_builder(self, method: str, *args: object) -> tuple[tuple[Candidate, Candidate], Grant]:
        async with self._stage("build", Role.BUILDER) as grant:
            result = await self.context.runtime.call(grant.worker, method, *args, deadline_s=BUILD_DEADLINE_S, tries=2)
        return result, grant

    async def _build_one(self, candidate: Candidate) -> Artifact | Measurement:
        async with self._stage("build", Role.BUILDER) as grant:
            result = await self._call_build(grant.worker, candidate, tries=2)
        self._charge("build", "", grant, 1)
        return result

    async def _call_build(self, worker: str, candidate: Candidate, tries: int = 1) -> Artifact | Measurement:
        try:
            artifact: Artifact = await self.context.runtime.call(
                worker, "build", self.task, candidate, deadline_s=BUILD_DEADLINE_S, tries=tries
            )
        except DialectError as error:
            return Measurement(Outcome.BUILD_FAILED, detail=str(error))
        except RemoteError as error:
            return Measurement(Outcome.BUILD_FAILED, detail=f"{error.kind}: {error}")
        except EngineError as error:
            return _failure(error)
        return artifact

    def _stage(
        self, kind: str, role: Role, size: int = 1, worker: str | None = None
    ) -> contextlib.AbstractAsyncContextManager[Grant]:
        return self.context.runtime.stage(self.context.job_id, kind, role, self.task.workload.kind, size, worker)

    def _record(self, candidate: Candidate, measurement: Measurement) -> None:
        """Store a measurement; only then is it used."""
        context = self.context
        context.store.add_record(self.task, Record(candidate, measurement, context.provenance, context.job_id))
        told = Told(candidate, measurement.outcome, measurement.latency_s)
        self._history[candidate.key] = told
        if candidate.origin is Origin.BASELINE:
            return
        self._untold.append(told)
        self._finals_stale = True
        self.outcomes[measurement.outcome.value] += 1
        context.trials += 1
        self._learned(told, self._features.pop(candidate.key, b""))

    def _learned(self, told: Told, row: bytes) -> None:
        if row:
            good = told.outcome in (Outcome.OK, Outcome.ABANDONED) and told.latency_s
            latency_s = told.latency_s if good and told.latency_s else math.inf
            self.context.rows.append(FeatureRow(self.task.key, told.candidate.key, row, latency_s))

    def _charge(self, stage: str, outcome: str, grant: Grant, count: int, *, device: bool = False) -> None:
        context = self.context
        device_s = grant.wall_s if device else 0.0
        context.store.charge(
            context.job_id, self.task.key, stage, outcome, grant.wall_s, grant.core_s, device_s, count=max(count, 1)
        )

    def _charge_by_outcome(
        self, stage: str, spent: Sequence[_Charged], rate: float | None = None, *, device: bool = False
    ) -> None:
        """Charge candidates' shares of a stage by their outcome; `rate` turns wall seconds into core-seconds."""
        by_outcome: dict[Outcome, list[_Charged]] = {}
        for one in spent:
            by_outcome.setdefault(one.outcome, []).append(one)
        charges = []
        for outcome, ones in by_outcome.items():
            wall_s = sum(one.wall_s for one in ones)
            core_s = wall_s * rate if rate is not None else sum(one.core_s for one in ones)
            device_s = wall_s if device else 0.0
            charges.append(
                Charge(
                    self.context.job_id, self.task.key, stage, outcome.value, wall_s, core_s, device_s, count=len(ones)
                )
            )
        self.context.store.charge_all(charges)

    def state(self) -> TaskState:
        """Return the task's standing for a report."""
        workload = self.task.workload
        return TaskState(
            task_key=self.task.key,
            workload_key=workload.key,
            name=workload.name,
            kind=workload.kind,
            weight=self.task.weight,
            tunable=self.task.tunable,
            baseline_s=self.baseline_s,
            best_s=self.best_s,
            best_candidate=self.final.candidate.key if self.final else None,
            measured=sum(self.outcomes[o] for o in (Outcome.OK, Outcome.ABANDONED, Outcome.WRONG_RESULT)),
            outcomes=dict(self.outcomes),
        )


def _failure(error: EngineError) -> Measurement:
    """Return the outcome of a candidate whose worker did not answer."""
    if isinstance(error, DeadlineError):
        return Measurement(Outcome.TIMEOUT, detail=str(error))
    if isinstance(error, CrashError):
        return Measurement(Outcome.CRASHED, detail=str(error))
    return Measurement(Outcome.RUN_FAILED, detail=str(error))


def _discard(artifact: Artifact) -> None:
    for path in (Path(artifact.path), Path(artifact.path).with_suffix(".json")):
        path.unlink(missing_ok=True)
