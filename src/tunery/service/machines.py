"""The machines that a manager's jobs run on, as they are now."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tunery.domain import HERE, DeviceDescription, HostFacts
from tunery.engines.remote.registry import AddedHost
from tunery.runtime.dispatch import Dispatch, core_of
from tunery.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Machine:
    """A host: its `state` is `up`, `away`, or `unused` where no job has needed it yet. Of its `granted` cores `busy`
    are held by stages now; `load` is the number of processes that wanted a core in the last minute, `others` the number
    of cores that others than our workers use now; each is None where the host does not tell. `queue` counts the stages
    that wait for their turn, by kind; they wait at the first host; `device_queue` those that wait for a device of the
    host, by its kind. `trouble` is why it is away, what it lacks, or that it is slow. `core_s` is what jobs have used
    of it so far, None where nobody has asked."""

    name: str
    state: str
    node: str
    system: str
    granted: int
    busy: int
    memory_bytes: int
    free_bytes: int | None
    load: float | None
    others: float | None
    builds: bool
    queue: Mapping[str, int]
    device_queue: Mapping[str, int]
    trouble: str
    devices: tuple[str, ...]
    core_s: float | None = None


def machines(
    ours: HostFacts, added: Sequence[AddedHost], dispatch: Dispatch, runtimes: Collection[Runtime]
) -> list[Machine]:
    """Return how this machine stands (`ours` is what it says of itself), then the added hosts, then others that jobs
    run on, such as nodes of Ray."""
    free = dispatch.scheduler.snapshot().free
    queue = Counter(stage_id.rpartition("-")[0] for stage_id in dispatch.waiting)
    resources = dispatch.queues()
    here = Machine(
        HERE, "up", ours.node, _system(ours), dispatch.granted,
        dispatch.granted - free.get(core_of(HERE), dispatch.granted), ours.memory_bytes,
        psutil.virtual_memory().available, psutil.getloadavg()[0], _others(HERE, runtimes), True, dict(queue),
        _device_queue(HERE, resources),
        "", _fingerprints(ours.devices),
    )  # fmt: skip
    names = dict.fromkeys([host.name for host in added])
    names.update(dict.fromkeys(name for runtime in runtimes for name in runtime.engine.hosts if name != HERE))
    return [here, *(_added(name, runtimes, free, resources) for name in names)]


def _added(name: str, runtimes: Collection[Runtime], free: Mapping[str, int], resources: Mapping[str, int]) -> Machine:
    engines = [runtime.engine for runtime in runtimes if name in runtime.engine.hosts]
    facts = next((found for engine in engines if (found := engine.facts(name)) is not None), None)
    builds = any(name in runtime.builds.hosts.up for runtime in runtimes)
    trouble = next((text for engine in engines if (text := engine.trouble(name))), "")
    trouble = trouble or next((text for runtime in runtimes if (text := runtime.builds.paces.remark(name))), "")
    if facts is None:
        return Machine(
            name, "away" if engines else "unused", "", "", 0, 0, 0, None, None, None, False, {}, {}, trouble, ()
        )
    left = free.get(core_of(name), facts.granted)
    return Machine(
        name, "up", facts.node, _system(facts), facts.granted, max(facts.granted - left, 0) if builds else 0,
        facts.memory_bytes, None, None, _others(name, runtimes), builds, {}, _device_queue(name, resources), trouble,
        _fingerprints(facts.devices),
    )  # fmt: skip


def _others(host: str, runtimes: Collection[Runtime]) -> float | None:
    seen = (runtime.taken(host) for runtime in runtimes if host in runtime.engine.hosts)
    return next((round(cores, 1) for cores in seen if cores is not None), None)


def _device_queue(host: str, resources: Mapping[str, int]) -> dict[str, int]:
    start = f"{host}/device:"
    return {name.removeprefix(start): count for name, count in resources.items() if name.startswith(start)}


def _system(facts: HostFacts) -> str:
    return f"{facts.system} {facts.machine}, Python {facts.python}, tunery {facts.version}"


def _fingerprints(devices: Sequence[DeviceDescription]) -> tuple[str, ...]:
    return tuple(device.fingerprint for device in devices)
