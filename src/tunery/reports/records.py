"""Records of single tasks as plain data."""

from typing import TYPE_CHECKING, Any

from tunery.domain import Record, Task
from tunery.reports.data import plain

if TYPE_CHECKING:
    from tunery.store import Store


def best_records(store: "Store", key: str) -> list[dict[str, Any]]:
    """Return the best record under each of the conditions that a task was measured under.

    `key` is that of tasks or workloads, or its start.
    """
    found = []
    for task in store.tasks_like(key):
        conditions = dict.fromkeys(record.provenance for record in store.records(task.key))
        found += [_data(task, best) for one in conditions for best in store.best(task.key, one)]
    return found


def _data(task: Task, record: Record) -> dict[str, Any]:
    return {
        "name": task.workload.name,
        "task": task.key,
        "target": str(task.target),
        "candidate": record.candidate.key,
        "latency_s": plain(record.measurement.latency_s),
        "provenance": plain(record.provenance),
        "verification": plain(record.measurement.verification),
        "job": record.job_id,
    }
