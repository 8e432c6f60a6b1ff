"""What the store holds of a task: records of this and other jobs, and candidates that others call fast."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tunery._errors import DialectError, EngineError
from tunery.dialects import Observation
from tunery.domain import Candidate, Mode, Outcome, Provenance, Record, Task
from tunery.engines import Role
from tunery.store import Store
from tunery.tuning.calls import Context, stage


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
