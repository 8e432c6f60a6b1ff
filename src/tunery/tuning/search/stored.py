"""What the store holds of a task: earlier records of this job, and what other jobs and processes have measured."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tunery.dialects import Observation
from tunery.domain import Mode, Outcome, Provenance, Record, Task
from tunery.store import Store
from tunery.tuning.context import Context
from tunery.tuning.search.events import Best


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task's records under a job's conditions, oldest first, and the best verified one."""

    records: Sequence[Record]
    best: Best | None


async def stored_tasks(context: Context, tasks: Sequence[Task]) -> list[StoredTask]:
    """Return what is stored of each task."""
    here = context.provenance

    def read(store: Store) -> list[StoredTask]:
        return [StoredTask(store.records(t.key, provenance=here), _best(store, t.key, here)) for t in tasks]

    return await context.store.read(read)


async def stored_records(context: Context, task: Task) -> list[Record]:
    """Return a task's records under a job's conditions, oldest first."""
    return await context.store.read(lambda store: store.records(task.key, provenance=context.provenance))


async def stored_best(context: Context, task: Task) -> Best | None:
    return await context.store.read(lambda store: _best(store, task.key, context.provenance))


async def measured_elsewhere(context: Context, task: Task, keys: Collection[str]) -> dict[str, Observation]:
    """Return by key what was measured meanwhile, by others, of the candidates with these keys."""
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


def _best(store: Store, task_key: str, provenance: Provenance) -> Best | None:
    found = store.best(task_key, provenance)
    if not found:
        return None
    measured = found[0].measurement
    return Best(found[0].candidate.key, measured.latency_s, measured.mode is Mode.FINAL, found[0].host)
