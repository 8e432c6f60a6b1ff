"""The workers of one runtime: how each is started, on which host it is, which are idle, and what they use."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunery._sandbox import lacking
from tunery.devices import device_class
from tunery.devices.cpu.facts import granted_bytes
from tunery.dialects import get_dialect
from tunery.domain import HERE, HostFacts
from tunery.engines import Engine, Role, WorkerSpec
from tunery.runtime import preparer_environment, worker_bytes, worker_environment
from tunery.runtime.spec import RuntimeSpec

MEASURER = "tunery.runtime.services:MeasurerHost"
_SERVICES = "tunery.runtime.services"
_PAIR_BYTES = 2 << 30  # memory that one builder and one proposer are given
_MOST_IMPORTS = 4
_GROWING = frozenset({Role.PREPARER, Role.IMPORTER})
_NICE = 5  # of whatever does not measure: should it share a core with a measurement, it gets a quarter of it


@dataclass
class _Pool:
    """The workers of one role; `spec` is how a further one is started, `wanted` how many stages want or hold one."""

    workers: list[str]
    idle: list[str] = field(default_factory=list)
    spec: WorkerSpec | None = None
    wanted: int = 0


class WorkerPools:
    """What an engine runs for one `spec`; narrow roles have `builders` workers each. The measurers are on the host
    `measure_host` of `facts` and open its device; each has one of the `slots`, the first of `all_slots` to begin with.
    `Role.BUILDER` has workers on further hosts too; all others are on this machine."""

    def __init__(
        self, engine: Engine, spec: RuntimeSpec, threads: int, cores: tuple[int, ...], facts: HostFacts | None = None
    ) -> None:
        self._engine, self._spec, self._cores = engine, spec, cores
        self.measure_host = spec.on or HERE
        self.all_slots = device_class(spec.device).slots(cores, threads)
        self.slots = self.all_slots[:1]
        self._measurer_bytes = worker_bytes(Role.MEASURER, None if facts is None else facts.memory_bytes)
        self.environment = worker_environment(spec.dialect)
        self.measuring_environment = worker_environment(spec.dialect, measuring=True) if spec.on else self.environment
        strangers = [host for host in engine.hosts if not (host == self.measure_host or engine.trusts(host))]
        users = get_dialect(spec.dialect).runs_users_code  # such code is confined by itself
        self._confined = bool(engine.grows or strangers) and not users and not lacking()
        self._slot: dict[str, tuple[int, ...]] = {}
        self._elsewhere: dict[str, str] = {}  # worker to host
        self.by_role: dict[str, _Pool] = {}

    def start(self, granted: int) -> None:
        narrow, dialect = _most(granted, granted_bytes()), {"dialect": self._spec.dialect}
        self.by_role = {
            Role.PREPARER: self._pool(
                Role.PREPARER, 1, "tunery.runtime.services.importer:Preparer", {}, environment=preparer_environment()
            ),
            Role.IMPORTER: self._pool(Role.IMPORTER, 1, f"{_SERVICES}:Importer", dialect),
            Role.PROPOSER: self._pool(Role.PROPOSER, narrow, f"{_SERVICES}:ProposerHost", dialect, nice=_NICE),
            Role.BUILDER: self._pool(
                Role.BUILDER, narrow, f"{_SERVICES}:Builder", {**dialect, "device": self._spec.device}, nice=_NICE
            ),
            Role.MEASURER: _Pool([]),
            Role.TRAINER: self._pool(Role.TRAINER, 1, f"{_SERVICES}:Trainer", {}, nice=_NICE),
        }
        for slot in self.slots:
            self._start_measurer(slot)

    def _pool(self, role: Role, count: int, service: str, settings: Mapping[str, Any], **more: Any) -> _Pool:
        more = {"environment": self.environment, "memory_bytes": worker_bytes(role), **more}
        spec = WorkerSpec(role, service, settings, **more)
        workers = [self._engine.start(spec) for _ in range(count)]
        return _Pool(workers, list(workers), spec)

    def start_builders(self, host: str, facts: HostFacts) -> list[str]:
        """Start builders on a further host, as many as it has room for, and return their ids. They give way to all else
        that runs there, so to proposals where that is this machine as well."""
        pool = self.by_role[Role.BUILDER]
        assert pool.spec is not None
        spec = replace(
            pool.spec, host=host, nice=2 * _NICE, memory_bytes=worker_bytes(Role.BUILDER, facts.memory_bytes)
        )
        workers = [self._engine.start(spec) for _ in range(_most(facts.granted, facts.memory_bytes))]
        self._elsewhere |= dict.fromkeys(workers, host)
        pool.workers += workers
        pool.idle += workers
        return workers

    def start_target_worker(self) -> str:
        spec = self.by_role[Role.IMPORTER].spec
        assert spec is not None
        return self._engine.start(replace(spec, host=self.measure_host))

    def measurer_spec(self, slot: tuple[int, ...], service: str = MEASURER, **settings: object) -> WorkerSpec:
        """Return how a measurer of a slot is started; `settings` are further ones of its service."""
        about = {"dialect": self._spec.dialect, "device": self._spec.device, "cores": self._cores, "slot": slot,
                 "shares": not self._confined}  # fmt: skip
        return WorkerSpec(
            Role.MEASURER,
            service,
            {**about, **settings},
            cores=slot,
            threads=len(slot),
            memory_bytes=self._measurer_bytes,
            environment=self.measuring_environment,
            host=self.measure_host,
            confined=self._confined,
        )

    def use_slots(self, degree: int) -> None:
        for slot in self.all_slots[len(self.slots) : degree]:
            self._start_measurer(slot)
            self.slots.append(slot)

    def _start_measurer(self, slot: tuple[int, ...]) -> None:
        worker = self._engine.start(self.measurer_spec(slot, full_length=self._spec.full_length))
        self._slot[worker] = slot
        if self.measure_host != HERE:
            self._elsewhere[worker] = self.measure_host
        pool = self.by_role[Role.MEASURER]
        pool.workers.append(worker)
        pool.idle.append(worker)

    def grow(self, role: Role) -> bool:
        pool = self.by_role[role]
        if role not in _GROWING or pool.spec is None or len(pool.workers) >= min(pool.wanted, _MOST_IMPORTS):
            return False
        worker = self._engine.start(pool.spec)
        pool.workers.append(worker)
        pool.idle.append(worker)
        return True

    def want(self, role: Role, more: int) -> None:
        self.by_role[role].wanted += more

    @property
    def roles(self) -> dict[Role, str]:
        return {role: self.measure_host if role is Role.MEASURER else HERE for role in map(Role, self.by_role)}

    def of(self, role: Role, host: str = HERE) -> list[str]:
        return [worker for worker in self.by_role[role].workers if self.host(worker) == host]

    def on(self, role: Role, hosts: Iterable[str]) -> list[str]:
        hosts = set(hosts)
        return [worker for worker in self.by_role[role].workers if self.host(worker) in hosts]

    def everyone(self) -> Iterator[str]:
        return (worker for pool in self.by_role.values() for worker in pool.workers)

    def host(self, worker: str) -> str:
        return self._elsewhere.get(worker, HERE)

    def slot(self, worker: str) -> tuple[int, ...] | None:
        return self._slot.get(worker)

    def idle(self, role: Role, host: str) -> str:
        """Return an idle worker. Of measurers the first, so that one that is alone is always on the same cores; of
        importers the one that worked last, which still knows what it has lowered."""
        idle = [worker for worker in self.by_role[role].idle if self.host(worker) == host]
        if role in _GROWING:
            return idle[-1]
        return min(idle, key=list(self._slot).index) if role is Role.MEASURER else idle[0]

    def take(self, role: Role, worker: str) -> None:
        if worker in self.by_role[role].idle:
            self.by_role[role].idle.remove(worker)

    def give_back(self, role: Role, worker: str) -> None:
        self.by_role[role].idle.append(worker)


def _most(cores: int, memory_bytes: int) -> int:
    return max(1, min(cores, 8, memory_bytes // _PAIR_BYTES))


@dataclass(slots=True)
class _Open:
    """A stage that has not ended, with what was read when it began or was last split."""

    job_id: str
    worker: str
    cores: int
    since_s: float
    cpu_s: float | None
    elsewhere_s: float = 0.0


class StageUsage:
    """Meters stages of `workers` between `begin` and `end`; `now` is the clock of their wall seconds. Where
    `Engine.cpu_s` is not known a stage counts as if it used all of its cores all of the time, and nothing is known of
    what workers use outside of stages."""

    def __init__(self, engine: Engine, now: Callable[[], float], workers: Callable[[], Iterable[str]]) -> None:
        self._engine, self._now, self._workers = engine, now, workers
        self._open: dict[str, _Open] = {}
        self._claimed_core_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, stage_id: str, job_id: str, worker: str, cores: int) -> None:
        self._open[stage_id] = _Open(job_id, worker, cores, self._now(), self._engine.cpu_s(worker))

    def split(self, stage_id: str) -> tuple[float, float]:
        stage = self._open[stage_id]
        now_s, cpu_s = self._now(), self._engine.cpu_s(stage.worker)
        wall_s, core_s = now_s - stage.since_s, self._core_s(stage, now_s, cpu_s)
        stage.since_s, stage.cpu_s, stage.elsewhere_s = now_s, cpu_s, 0.0
        return wall_s, core_s

    def add(self, stage_id: str, core_s: float) -> None:
        self._open[stage_id].elsewhere_s += core_s

    def end(self, stage_id: str) -> tuple[float, float]:
        """Return the same as `split`, and meter the stage no longer."""
        used = self.split(stage_id)
        del self._open[stage_id]
        return used

    def in_use(self, job_id: str | None = None) -> float:
        """Return the core-seconds, since their begin or last split, of open stages: of one job or of all."""
        now_s = self._now()
        stages = [stage for stage in self._open.values() if job_id in (None, stage.job_id)]
        return sum(self._core_s(stage, now_s, self._engine.cpu_s(stage.worker)) for stage in stages)

    def claim(self, core_s: float) -> None:
        self._claimed_core_s += core_s

    def unclaimed(self) -> float:
        """Return the core-seconds that nobody pays for yet: starts of workers, and work that was cut short. Open stages
        are left out. 0 where the host tells no CPU seconds."""
        used_s = [self._engine.own_cpu_s()]
        for worker in self._workers():
            if (cpu_s := self._engine.cpu_s(worker)) is None:
                return 0.0
            used_s.append(cpu_s)
        return max(sum(used_s) - self._claimed_core_s - self.in_use(), 0.0)

    def _core_s(self, stage: _Open, now_s: float, cpu_s: float | None) -> float:
        if cpu_s is None or stage.cpu_s is None:
            return stage.cores * (now_s - stage.since_s) + stage.elsewhere_s
        return max(cpu_s - stage.cpu_s, 0.0) + stage.elsewhere_s
