"""Worker pools under the scheduler: a driver asks for a stage and gets a worker when the scheduler says so."""

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunery._errors import CrashError, EngineError
from tunery.engines import Engine, Role, WorkerSpec
from tunery.jobs.dispatch import CORE, Dispatch, Pin, Span
from tunery.jobs.foreign import ForeignWatch
from tunery.measure.foreign import Share
from tunery.measure.placement import granted_bytes
from tunery.scheduler import CapacityChanged, Scheduler, StageRequest

DEVICE = "device:cpu"
BUILDER_BYTES, MEASURER_BYTES = 8 << 30, 16 << 30
"""Address space a worker may take above what it starts with: a candidate that eats memory fails, the machine lives."""
_PAIR_BYTES = 2 << 30  # memory that one builder and one proposer are given
_LOCK_POLL_S = 0.02


@dataclass
class Grant:
    """The right to use a worker for one stage, and what it has used when the stage is over."""

    worker: str
    core_s: float = 0.0
    wall_s: float = 0.0
    cores: int = 1


@dataclass
class Pool:
    """The workers of one role."""

    workers: list[str]
    idle: list[str] = field(default_factory=list)


class Runtime:
    """The engine and the pools of one dialect and thread count; any number of jobs may drive it from one event loop.

    Several runtimes share cores and device through one `dispatch`: stages of all of them are placed together. `label`
    tells their workers apart. A measurement takes as many cores as the target has threads, a build or a proposal one:
    on a target that uses all cores, measuring and building alternate by resources alone.
    """

    def __init__(
        self,
        engine: Engine,
        dialect: str,
        threads: int,
        scratch: Path,
        *,
        dispatch: Dispatch | None = None,
        label: str = "",
        foreign: ForeignWatch | None = None,
        full_length: bool = False,
    ) -> None:
        self.engine = engine
        self.scratch = scratch
        self.threads = threads
        self.dispatch = dispatch or Dispatch()
        self.cores = self.dispatch.cores
        self.measure_cores = self.cores[: max(1, threads)]
        self._label = label
        self._granted = max(self.dispatch.granted, len(self.measure_cores))
        self._pools = self._start_workers(dialect, threads, full_length)
        self.dispatch.add({self.resource(role): len(pool.workers) for role, pool in self._pools.items()})
        self.dispatch.add({DEVICE: 1})
        self.foreign = foreign
        self._watching: asyncio.Task[None] | None = None
        self._held: dict[str, tuple[str, str, float]] = {}  # stage to job, worker and its core-seconds before
        self._claimed_core_s = 0.0

    @property
    def scheduler(self) -> Scheduler:
        """The state machine, for its log and for tests."""
        return self.dispatch.scheduler

    def resource(self, role: str) -> str:
        """Return the scheduler's name for the workers of a role."""
        return f"{role}{self._label}"

    def _start_workers(self, dialect: str, threads: int, full_length: bool) -> dict[str, Pool]:
        def pool(role: Role, count: int, service: str, settings: Mapping[str, Any], **more: Any) -> Pool:
            spec = WorkerSpec(role, service, settings, **more)
            workers = [self.engine.start(spec) for _ in range(count)]
            return Pool(workers, list(workers))

        here = "tunery.jobs.services"
        narrow = max(1, min(self._granted, 8, granted_bytes() // _PAIR_BYTES))
        artifacts, references = self.scratch / "artifacts", self.scratch / "references"
        for directory in (artifacts, references):
            directory.mkdir(parents=True, exist_ok=True)
        return {
            Role.IMPORTER: pool(Role.IMPORTER, 1, f"{here}:Importer", {"dialect": dialect}),
            Role.PROPOSER: pool(Role.PROPOSER, narrow, f"{here}:ProposerHost", {"dialect": dialect}),
            Role.BUILDER: pool(
                Role.BUILDER,
                narrow,
                f"{here}:Builder",
                {"dialect": dialect, "directory": artifacts},
                memory_bytes=BUILDER_BYTES,
            ),
            Role.MEASURER: pool(
                Role.MEASURER,
                1,
                f"{here}:MeasurerHost",
                {
                    "dialect": dialect,
                    "cores": self.measure_cores,
                    "cache_dir": str(references),
                    "full_length": full_length,
                },
                cores=self.measure_cores,
                threads=threads,
                memory_bytes=MEASURER_BYTES,
            ),
            Role.TRAINER: pool(Role.TRAINER, 1, f"{here}:Trainer", {}),
        }

    def workers(self, role: Role) -> list[str]:
        """Return the ids of a role's workers."""
        return list(self._pools[role].workers)

    def submit(self, job_id: str) -> None:
        """Announce a job that has no owner."""
        self.dispatch.submit(job_id)

    def end(self, job_id: str) -> None:
        """Say that a job wants nothing more."""
        self.dispatch.end(job_id)

    @asynccontextmanager
    async def stage(  # noqa: PLR0917 - the fields of a stage request
        self,
        job_id: str,
        kind: str,
        role: Role,
        task_kind: str = "",
        size: int = 1,
        worker: str | None = None,
        value: float = 0.0,
    ) -> AsyncIterator[Grant]:
        """Wait for the scheduler's permission, then hold a worker of `role` (or that one) until the block ends.

        Raises:
            WorkError: the stage needs what this machine does not have.
        """
        self._watch_others()
        cores = len(self.measure_cores) if role is Role.MEASURER else 1
        needs = {CORE: cores, self.resource(role.value): 1} | ({DEVICE: 1} if role is Role.MEASURER else {})
        stage_id, lane = self.dispatch.stage_id(kind), worker and self._name(worker)
        await self.dispatch.permission(StageRequest(stage_id, job_id, kind, task_kind, needs, size, lane, None, value))
        lock = None
        if role is Role.MEASURER:
            try:
                lock = await self._exclusive()
            except BaseException:
                self.dispatch.finished(stage_id, ok=False)
                raise
        pool = self._pools[role]
        chosen = worker or pool.idle[0]
        with suppress(ValueError):
            pool.idle.remove(chosen)
        self._place(chosen, role)
        start, before = self.dispatch.now(), self.engine.cpu_s(chosen)
        grant, ok = Grant(chosen, cores=cores), False
        self._held[stage_id] = (job_id, chosen, before)
        try:
            yield grant
            ok = True
        finally:
            grant.wall_s, grant.core_s = self.dispatch.now() - start, max(self.engine.cpu_s(chosen) - before, 0.0)
            self.dispatch.pinned.pop(self._name(chosen), None)
            del self._held[stage_id]
            pool.idle.append(chosen)
            if lock is not None:
                os.close(lock)
            self.dispatch.ran(Span(job_id, kind, self._name(chosen), start, self.dispatch.now(), cores))
            self.dispatch.finished(stage_id, ok=ok)

    def in_use(self, job_id: str | None = None) -> float:
        """Return the core-seconds that stages have used which have not ended, of one job or of all."""
        held = [(worker, before) for job, worker, before in self._held.values() if job_id in (None, job)]
        return sum(max(self.engine.cpu_s(worker) - before, 0.0) for worker, before in held)

    def claim(self, core_s: float) -> None:
        """Say that so many core-seconds have found somebody who pays for them."""
        self._claimed_core_s += core_s

    def unclaimed_core_s(self) -> float:
        """Return the core-seconds of the engine that nobody pays for yet: workers' starts, and work that was cut short.

        Stages that have not ended are left out.
        """
        workers = [worker for pool in self._pools.values() for worker in pool.workers]
        used_s = self.engine.own_cpu_s() + sum(self.engine.cpu_s(worker) for worker in workers)
        return max(used_s - self._claimed_core_s - self.in_use(), 0.0)

    async def call(self, worker: str, method: str, *args: object, deadline_s: float, tries: int = 1) -> Any:
        """Call a worker's method and wait for the result; a call that is given up ends with its worker's process.

        `tries` is how often it is made in all where the process ends under it, which may be somebody else's doing.
        """
        while True:
            tries -= 1
            try:
                return await asyncio.wrap_future(self.engine.call(worker, method, *args, deadline_s=deadline_s))
            except asyncio.CancelledError:
                # It would run on beside whatever is measured next.
                with suppress(EngineError):  # closed already
                    self.engine.kill(worker)
                raise
            except CrashError:
                if tries <= 0:
                    raise

    async def _exclusive(self) -> int:
        """Wait until no other tunery on this machine measures, and return the lock's descriptor; closing it lets go.

        Builds and proposals of others go on meanwhile; the kernel lets go for a process that dies.
        """
        descriptor = os.open(self.scratch.parent / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(_LOCK_POLL_S)
                else:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise

    def _watch_others(self) -> None:
        """Keep an eye on the machine from now on; the event loop ends it with itself."""
        if self.foreign is not None and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self.foreign.run(self._share_changed))

    def _share_changed(self, share: Share) -> None:
        """Shrink or grow with what others leave us; a measurement that has waited long enough has room again."""
        builders, measurers = (len(self._pools[role].workers) for role in (Role.BUILDER, Role.MEASURER))
        cores = min(share.cores, self._granted) if share.disturbed else self._granted
        now_s = self.dispatch.now()
        self.dispatch.decide(
            CapacityChanged(now_s, self.resource(Role.MEASURER), 0 if share.waiting else measurers),
            CapacityChanged(now_s, self.resource(Role.BUILDER), min(cores, builders)),
            CapacityChanged(now_s, CORE, cores if share.waiting else max(cores, len(self.measure_cores))),
        )

    def _name(self, worker: str) -> str:
        return f"{worker}{self._label}"

    def _place(self, worker: str, role: Role) -> None:
        """Give a narrow stage a core of its own, apart from the measurer's where there is a choice."""
        pinned = self.dispatch.pinned
        if role is Role.MEASURER:
            pinned[self._name(worker)] = Pin(self.measure_cores, lambda _: None)
            for other, pin in list(pinned.items()):
                if other != self._name(worker) and set(pin.cores) & set(self.measure_cores):
                    self.dispatch.pin(other, pin.place, self.measure_cores)
            return
        self.dispatch.pin(self._name(worker), lambda cores: self.engine.place(worker, cores), self.measure_cores)


def make_scratch(root: Path) -> Path:
    """Return a new scratch directory under `root`, after removing those whose process is gone."""
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob("run-*"):
        pid = old.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=root))
