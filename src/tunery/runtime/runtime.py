"""Worker pools under the scheduler: a driver asks for a stage and gets a worker when the scheduler says so."""

import asyncio
import math
import os
import platform
import shutil
import signal
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tunery._errors import BlobError, CrashError, EngineError, FullHostError, LostWorkerError, WorkError
from tunery._locks import DeviceLock, hold_directory, is_held, own_directory
from tunery._outputs import is_running
from tunery.accounting.power import Power
from tunery.blobs import Blobs
from tunery.costmodels.columns import TASK_COLUMNS, Layout
from tunery.dialects import CrossCompiler, Space, get_dialect
from tunery.domain import HERE, Calibration, DeviceDescription
from tunery.engines import Engine, Role
from tunery.runtime.dispatch import Dispatch, Pin, RerouteError, Span, core_of
from tunery.runtime.foreign_load import DeviceWaits, ForeignWatch, Share
from tunery.runtime.hosts.builds import BuildHosts
from tunery.runtime.hosts.further import HostDevice
from tunery.runtime.hosts.workers import StageUsage, WorkerPools
from tunery.runtime.spec import RuntimeSpec
from tunery.scheduling import CapacityChanged, StageRequest

DEVICE = f"{HERE}/device:cpu"
_DESCRIBE_DEADLINE_S, _TRIES = 120.0, 3
_LATEST, _TELLS_S = 32, 0.25
"""How many stages tell how slow the machine is, and how long they worked at least: others wait for a worker's start."""


@dataclass
class Reservation:
    """The right to use a worker and a `share` of the device for one stage, and what it has used when that is over. What
    was `split` off before is no part of that. `host` is named as it was added, this machine by its node. `used` returns
    the wall and core-seconds since it was last called."""

    worker: str
    core_s: float = 0.0
    wall_s: float = 0.0
    cores: int = 1
    share: float = 0.0
    host: str = field(default_factory=platform.node)
    used: Callable[[], tuple[float, float]] = field(default=lambda: (0.0, 0.0), repr=False)

    def split(self) -> "Reservation":
        """Return what a stage that goes on has used since its begin, or the last split: whoever splits it off pays."""
        wall_s, core_s = self.used()
        return Reservation(self.worker, core_s, wall_s, self.cores, self.share, self.host)


class BlobHolds:
    """Which of an engine's temporary blobs somebody still needs, and how many do: the last one's release is theirs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._holders = Counter[str]()

    def add(self, blob: str) -> bool:
        """Hold a blob; return whether it is there."""
        self._holders[blob] += 1
        return self._blobs.has(blob)

    def release(self, blob: str) -> None:
        self._holders[blob] -= 1
        if self._holders[blob] <= 0:
            del self._holders[blob]
            self._blobs.release(blob)

    def take(self, blob: str, path: Path) -> None:
        """Bring a held blob's bytes to the new file `path`, and release it; it is moved if nobody else holds it."""
        if self._holders[blob] > 1:
            shutil.copyfile(self._blobs.get(blob), path)
            self.release(blob)
        else:
            self._blobs.take(blob, path)
            del self._holders[blob]


class Runtime:
    """The engine and the pools of one dialect and thread count; any number of jobs may drive it from one event loop.
    Several runtimes share cores and device through one `dispatch`: stages of all of them are placed together, and the
    label of the `spec` tells their workers apart. A measurement takes as many cores as the target has threads, a build
    or a proposal one: on a target that uses all cores, measuring and building alternate by resources alone. The
    measurers open the device of the spec and describe it; what they say is kept here. Where `share` is told so, there
    is one for each of several `slots`, and measurements that say so share the device. `cores` are those that it may
    use, `granted` is how many of them at a time: a container may allow fewer. All of that is about the engine's first
    host, `HERE` to the scheduler; on each further one there are builders."""

    def __init__(
        self,
        engine: Engine,
        spec: RuntimeSpec,
        scratch: Path,
        *,
        dispatch: Dispatch | None = None,
        foreign: ForeignWatch | None = None,
    ) -> None:
        self.engine = engine
        self.blobs = engine.blobs
        self.spec = spec
        self.dispatch = dispatch or Dispatch()
        on = spec.on
        facts = engine.facts(on) if on else None
        self.host_facts = facts
        self.threads = spec.kernel_threads(None if facts is None else facts.granted)
        self.measured_on = on or platform.node()
        self.cores = self.dispatch.cores if facts is None else facts.cores
        self.measure_host = on or HERE
        self.device_share = f"{self.measure_host}/device:{spec.device}"
        self.calibration: Calibration | None = None
        self.pools = WorkerPools(engine, spec, self.threads, self.cores, facts)
        self.measure_cores = self.pools.slots[0]
        self._turn = HostDevice(engine, on, self.dispatch.now) if on else DeviceLock(scratch.parent / "measuring.lock")
        self.device_waits = DeviceWaits()
        self.granted = max(self.dispatch.granted, 0 if on else len(self.measure_cores))
        self.pools.start(self.granted)
        self._described = self._ask_device()
        other = facts is not None and facts.machine != platform.machine()
        self.builds_for_another_kind = other and isinstance(get_dialect(spec.dialect), CrossCompiler)
        self.target_worker = self.pools.start_target_worker() if on and not self.builds_for_another_kind else None
        self.dispatch.add(
            {self.spec.resource(role, host): len(self.pools.of(role, host)) for role, host in self.pools.roles.items()}
        )
        self.dispatch.add({self.device_share: len(self.cores)})
        if facts is not None:
            self.dispatch.add({core_of(on): max(facts.granted, len(self.measure_cores))})
        self.builds = BuildHosts(engine, spec, self.dispatch, self.pools, self.measure_host)
        self.runs_users_code = get_dialect(spec.dialect).runs_users_code
        self._worked_for: dict[str, str] = {}  # measurer, or builder, which runs defaults, to its last job
        self._requests: dict[str, StageRequest] = {}  # of the workers that are held
        self.foreign = foreign
        self.power = Power()  # it counts from here on, so that the import is measured
        self._watching: asyncio.Task[None] | None = None
        self.usage = StageUsage(engine, self.dispatch.now, self.pools.everyone)
        self.holds = BlobHolds(engine.blobs)
        self._latest = deque[tuple[float, float]](maxlen=_LATEST)

    @cached_property
    def row_layout(self) -> Layout | None:
        dialect = get_dialect(self.spec.dialect)
        layout = dialect.layout() if isinstance(dialect, Space) else None
        return layout and layout.with_columns(TASK_COLUMNS)

    async def device(self) -> DeviceDescription:
        """Return the device that is measured on, as the measurer describes it; it is asked once."""
        try:
            for _ in range(_TRIES - 1):
                with suppress(CrashError):  # it may have been killed from outside
                    return await self._answer()
                self._described = self._ask_device()
            return await self._answer()
        except EngineError as error:
            raise WorkError(f"the measurer does not start: {error}") from error

    async def _answer(self) -> DeviceDescription:
        # Several jobs may wait for the one answer: none that is cancelled may take it from the others.
        return await asyncio.shield(asyncio.wrap_future(self._described))

    def _ask_device(self) -> Future[DeviceDescription]:
        return self.engine.call(
            self.pools.on(Role.MEASURER, [self.measure_host])[0], "describe", deadline_s=_DESCRIBE_DEADLINE_S
        )

    def share(self, calibration: Calibration | None) -> None:
        """Start a measurer for each further slot that a calibration of the device allows to be used at once."""
        if calibration is None or self.calibration is not None:
            return
        self.calibration = calibration
        self.pools.use_slots(max([1, *calibration.degrees.values()]))
        self.dispatch.add({self.spec.resource(Role.MEASURER, self.measure_host): len(self.pools.slots)})

    def workers(self, role: Role) -> list[str]:
        return self.pools.on(role, (HERE, self.measure_host, *self.builds.hosts.up))

    @asynccontextmanager
    async def stage(  # noqa: PLR0917 - the fields of a stage request
        self,
        job_id: str,
        kind: str,
        role: Role,
        task_kind: str = "",
        size: int = 1,
        worker: str | None = None,
        degree: int = 1,
        *,
        delivered: bool = False,
    ) -> AsyncIterator[Reservation]:
        """Wait for the scheduler's permission, then hold a worker of `role` (or that one) until the block ends. A
        measurement claims its share of the device: all of it, or with a `degree` so much that as many fit beside one
        another. A build that is `delivered`, or run where it is made, is made on a trusted host that can."""
        self._watch_others()
        cores = len(self.measure_cores) if role is Role.MEASURER else 1
        stage_id, lane = self.dispatch.stage_id(kind), worker and self._name(worker)
        request = StageRequest(stage_id, job_id, kind, task_kind, {}, size, lane, delivered)
        with ExitStack() as wanted:
            host, request = await self._admit(request, role, cores, wanted, worker, degree)
            ok = False
            try:
                async with AsyncExitStack() as turn:
                    if role is Role.MEASURER:
                        with self.device_waits.waiting():
                            await turn.enter_async_context(self._turn.held())
                    with self._working(request, role, worker or self.pools.idle(role, host), cores) as grant:
                        began = self.dispatch.now()  # what the stage has cost is charged in parts, by whom it was for
                        yield grant
                        took_s = self.dispatch.now() - began
                ok = True
                if role is Role.BUILDER and worker is None and size:
                    self.builds.paces.built(host, task_kind, took_s / size)
            finally:
                self.dispatch.finished(stage_id, ok=ok)
                self.builds.move(1)

    async def _admit(  # noqa: PLR0917 - what a stage needs
        self,
        request: StageRequest,
        role: Role,
        cores: int,
        wanted: ExitStack,
        worker: str | None,
        degree: int,
    ) -> tuple[str, StageRequest]:
        """Wait for permission on a host, and on another one where that leaves; return the host and all that is held."""
        while True:
            host = self._host_for(role, worker, delivered=request.delivered)
            if role is Role.BUILDER and host != HERE and host not in self.builds.hosts.up:
                raise LostWorkerError(f"{worker} is on host {host}, which has left")
            needs = {core_of(host): cores, self.spec.resource(role.value, host): 1}
            if role is Role.MEASURER:
                needs[self.device_share] = -(-len(self.cores) // degree)
            asked = replace(request, needs=needs)
            wanted.enter_context(self._wanting(role))
            movable = role is Role.BUILDER and worker is None and not request.delivered
            try:
                with self.builds.waiting(request.stage_id, host, movable=movable):
                    await self.dispatch.permission(asked)
            except RerouteError:
                wanted.close()
            else:
                return host, asked

    @contextmanager
    def _wanting(self, role: Role) -> Iterator[None]:
        """Count who wants a worker; importing starts another where all are taken: no job waits for another's import."""
        self.pools.want(role, 1)
        try:
            if self.pools.grow(role):
                self.dispatch.add({self.spec.resource(role.value): len(self.pools.of(role))})
            yield
        finally:
            self.pools.want(role, -1)

    @contextmanager
    def _working(self, request: StageRequest, role: Role, worker: str, cores: int) -> Iterator[Reservation]:
        name = self._name(worker)
        self.pools.take(role, worker)
        if role in {Role.MEASURER, Role.BUILDER} and self.runs_users_code:
            if self._worked_for.get(worker, request.job_id) != request.job_id:
                self.engine.kill(worker)  # with what another job's kernels have left in its process
            self._worked_for[worker] = request.job_id
        start = self.dispatch.now()
        self.usage.begin(request.stage_id, request.job_id, worker, cores)
        share = request.needs.get(self.device_share, 0) / len(self.cores)
        at, used = self.pools.host(worker), partial(self.usage.split, request.stage_id)
        grant = Reservation(worker, cores=cores, share=share, host=platform.node() if at == HERE else at, used=used)
        self._requests[worker] = request
        try:
            self._place(worker)
            with self.dispatch.machine.held(request.job_id, cores):
                yield grant
        finally:
            grant.wall_s, grant.core_s = self.usage.end(request.stage_id)
            if cores == 1 and grant.core_s > _TELLS_S:
                self._latest.append((grant.wall_s, grant.core_s))
            self.dispatch.pinned.pop(name, None)
            self._requests.pop(worker, None)
            self.pools.give_back(role, worker)
            self.dispatch.ran(Span(request.job_id, request.kind, name, start, self.dispatch.now(), cores))

    @property
    def slowness(self) -> float:
        """How long the latest stages of one core have lasted, for each second that they had it: 1 on a quiet
        machine."""
        if not self._latest:
            return 1.0
        wall_s, core_s = map(sum, zip(*self._latest, strict=True))
        return max(1.0, wall_s / core_s)

    def taken(self, host: str = HERE) -> float | None:
        if host != HERE:
            return self.builds.hosts.taken(host)
        return None if self.foreign is None else self.foreign.foreign.taken

    async def make(self, worker: str, method: str, *args: object, deadline_s: float, tries: int = 1) -> Any:
        made = await self.call(worker, method, *args, deadline_s=deadline_s, tries=tries)
        if not self.holds.add(made.blob):  # somebody else's of the same content was released in this moment
            self.holds.release(made.blob)
            made = await self.call(worker, method, *args, deadline_s=deadline_s, tries=tries)
            self.holds.add(made.blob)
        return made

    async def call(
        self, worker: str, method: str, *args: object, deadline_s: float, tries: int = 1, losses: int = 0
    ) -> Any:
        """Call a worker's method and wait for the result; a call that is given up ends with its worker's process.
        `tries` is how often it is made in all where the process ends under it, which may be somebody else's doing: what
        measures nothing and is killed is made twice. A call that ran out of memory is not made again. A build whose
        host is lost is made on another one, a measurement when its host is back: `losses` is how often that was so."""
        again = tries == 1 and self.pools.slot(worker) is None
        full_since_s = math.inf
        while True:
            tries -= 1
            try:
                return await asyncio.wrap_future(self.engine.call(worker, method, *args, deadline_s=deadline_s))
            except asyncio.CancelledError:
                # It would run on beside whatever is measured next.
                with suppress(EngineError):  # closed already
                    self.engine.kill(worker)
                raise
            except (LostWorkerError, BlobError) as error:
                host = self.pools.host(worker)
                if host == HERE:
                    raise
                if self.pools.slot(worker) is None:
                    self.builds.lost(host, str(error))
                    return await self._call_elsewhere(worker, method, *args, deadline_s=deadline_s)
                if isinstance(error, FullHostError) and isinstance(self._turn, HostDevice):
                    full_since_s = min(full_since_s, self.dispatch.now())
                    await self._turn.room(error, full_since_s)
                    tries += 1
                    continue
                if isinstance(error, BlobError) or losses == _TRIES:
                    raise
                async with self._turn.held():  # that of before has gone with the connection
                    return await self.call(worker, method, *args, deadline_s=deadline_s, tries=tries, losses=losses + 1)
            except CrashError as error:
                if error.out_of_memory or (tries <= 0 and (not again or error.exitcode != -signal.SIGKILL)):
                    raise
                again = False

    async def _call_elsewhere(self, worker: str, method: str, *args: object, deadline_s: float) -> Any:
        """Make a build's call on a host that is there, for the stage that holds the worker, which was lost."""
        request = self._requests[worker]
        asked = (request.job_id, request.kind, Role.BUILDER, request.task_kind)
        async with self.stage(*asked, delivered=request.delivered) as grant:
            result = await self.call(grant.worker, method, *args, deadline_s=deadline_s, tries=2)
        self.usage.add(request.stage_id, grant.core_s)
        return result

    def _watch_others(self) -> None:
        """Keep an eye on the machine, and on further hosts, from now on; the event loop ends it with itself."""
        self.builds.hosts.follow()
        if self.foreign is not None and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self.foreign.run(self._share_changed))

    def _share_changed(self, share: Share) -> None:
        """Shrink or grow with what others leave us; a measurement that has waited long enough has room again."""
        builders, measurers = (len(self.pools.of(role)) for role in (Role.BUILDER, Role.MEASURER))
        cores = min(share.cores, self.granted) if share.disturbed else self.granted
        now_s = self.dispatch.now()
        self.dispatch.decide(
            CapacityChanged(now_s, self.spec.resource(Role.MEASURER), 0 if share.waiting else measurers),
            CapacityChanged(now_s, self.spec.resource(Role.BUILDER), min(cores, builders)),
            self.dispatch.cores_left(self.spec.label, cores if share.waiting else max(cores, len(self.measure_cores))),
        )

    def _name(self, worker: str) -> str:
        return f"{worker}{self.spec.label}"

    def _place(self, worker: str) -> None:
        if self.pools.host(worker) != HERE:
            return  # its host has cores of its own
        pinned = self.dispatch.pinned
        if mine := self.pools.slot(worker):
            pinned[self._name(worker)] = Pin(mine, lambda _: None)
            for other, pin in list(pinned.items()):
                if other != self._name(worker) and set(pin.cores) & set(mine):
                    self.dispatch.pin(other, pin.place, self._measuring_cores())
            return
        self.dispatch.pin(self._name(worker), partial(self.engine.place, worker), self._measuring_cores())

    def _measuring_cores(self) -> tuple[int, ...]:
        return tuple(core for slot in self.pools.slots for core in slot)

    def _host_for(self, role: Role, worker: str | None, *, delivered: bool) -> str:
        """Return where a stage runs: on its worker's host, else a build where it would end first."""
        if role is Role.MEASURER:
            return self.measure_host
        if worker is not None:
            return self.pools.host(worker)
        if role is not Role.BUILDER or not self.builds.hosts.up:
            return HERE
        return self.builds.first_free(delivered=delivered)


def make_scratch(root: Path) -> tuple[Path, int]:
    """Return a new scratch directory under `root` and the descriptor that holds it; remove those nobody holds."""
    own_directory(root)
    for old in root.glob("run-*"):
        pid = old.name.split("-")[1]
        # Another container's processes are not to be seen here, and may share the directory.
        if pid.isdigit() and not is_running(int(pid)) and not is_held(old):
            shutil.rmtree(old, ignore_errors=True)
    while True:
        made = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=root))
        held = hold_directory(made)
        if made.exists():  # else another container has just removed it
            return made, held
        os.close(held)
