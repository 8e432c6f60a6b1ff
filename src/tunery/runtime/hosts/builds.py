"""Where one runtime's builds are made: on this machine or on a further host, each where it would end first."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tunery._settings import settings
from tunery.domain import HERE
from tunery.engines import Engine, Role
from tunery.runtime.dispatch import Dispatch, core_of
from tunery.runtime.hosts.further import FurtherHosts
from tunery.runtime.hosts.workers import WorkerPools
from tunery.runtime.spec import RuntimeSpec
from tunery.scheduling.paces import HostLoad, Paces


class BuildHosts:
    """The hosts that build for one `spec`, how fast they do, and the stages that wait there: what any of them may build
    is moved from a host that is overdue."""

    def __init__(
        self, engine: Engine, spec: RuntimeSpec, dispatch: Dispatch, pools: WorkerPools, measure_host: str
    ) -> None:
        self._spec, self._dispatch, self._measure_host = spec, dispatch, measure_host
        self._measure_cores = len(pools.slots[0])
        self.paces = Paces()
        self._build_here = settings().build_here
        self._waiting: dict[str, str] = {}  # stage to host
        self._movable: dict[str, str] = {}  # of these those that any host may make
        self.hosts = FurtherHosts(
            engine, pools.of(Role.BUILDER)[0], pools.start_builders, self._resized,
            partial(dispatch.others_on, spec.label), named=dispatch.named_hosts,
        )  # fmt: skip

    def _resized(self, host: str, builders: int) -> None:
        """Have a further host take so many builds at a time; those that wait for one that has left go elsewhere."""
        cores = max(builders, self._measure_cores if host == self._measure_host else 0)
        left = self._dispatch.cores_left(self._spec.label, cores, host)
        self._dispatch.add({left.resource: left.capacity, self._spec.resource(Role.BUILDER, host): builders})
        if not builders:
            self._dispatch.reroute([stage_id for stage_id, at in self._waiting.items() if at == host])
        elif not self._build_here:
            self._dispatch.reroute([stage_id for stage_id, at in self._movable.items() if at == HERE])
        self.move(builders)

    def lost(self, host: str, why: str) -> None:
        self.paces.lost(host)
        self.hosts.leave(host, why)

    @contextmanager
    def waiting(self, stage_id: str, host: str, *, movable: bool) -> Iterator[None]:
        self._waiting[stage_id] = host
        if movable:
            self._movable[stage_id] = host
        try:
            yield
        finally:
            del self._waiting[stage_id]
            self._movable.pop(stage_id, None)

    def first_free(self, *, delivered: bool) -> str:
        """Return the host where a build would end first; what is `delivered` is built where we trust the builder."""
        loads = self._loads()
        able = {
            host: load for host, load in loads.items() if host == HERE or not delivered or self.hosts.delivers(host)
        }
        return self.paces.first_free(able) if able else HERE

    def move(self, most: int) -> None:
        for _ in range(most if self.hosts.up and self._movable else 0):
            full = self.paces.overdue(self._loads())
            stage_id = next((stage_id for stage_id, at in self._movable.items() if at == full), None)
            if stage_id is None:
                return
            del self._movable[stage_id]  # once, until it waits elsewhere
            self._dispatch.reroute([stage_id])

    def _loads(self) -> dict[str, HostLoad]:
        """What is asked of the hosts that build: on this one, proposals and the like take cores as well."""
        waiting, scheduler = self._dispatch.queues(), self._dispatch.scheduler
        loads = dict[str, HostLoad]()
        for host in (HERE, *self.hosts.up):
            if host != HERE or self._build_here:
                builder = self._spec.resource(Role.BUILDER, host)
                free = min(scheduler.free(core_of(host)), scheduler.free(builder))
                loads[host] = HostLoad(max(scheduler.capacity(builder), 1), free, waiting[core_of(host)])
        return loads
