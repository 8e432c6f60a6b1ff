"""Records of single tasks as plain data."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tunery._errors import UsageError
from tunery.domain import OperatorKeyError, OperatorPattern, Record, Task
from tunery.reports.data import plain

if TYPE_CHECKING:
    from tunery.store import KnownOperator, Store


def best_records(store: "Store", key: str, account: str | None = None) -> list[dict[str, Any]]:
    """Return the best record under each of the conditions that a task was measured under. `key` is that of tasks or
    workloads, or its start; with `account`, of those only that are of its jobs."""
    found = []
    for task in store.tasks_like(key, account):
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
        "host": record.host,
    }


def pattern_of(text: str) -> OperatorPattern:
    """Return which operators a text names: a whole operator key, parts of one, or its beginning."""
    try:
        return OperatorPattern.parse(text)
    except OperatorKeyError as error:
        raise UsageError(f"{text!r:.80} {error}; name an operator as conv2d:x=1x64x56x56,w=64x64x3x3") from None


def best_operators(
    store: "Store", pattern: OperatorPattern | None = None, workloads: Collection[str] | None = None
) -> list[dict[str, Any]]:
    names = device_names(store)
    found = store.operators(pattern=pattern, workloads=workloads, limit=None)
    return [operator_data(one, names) for one in found]


def device_names(store: "Store") -> dict[str, str]:
    return {device.fingerprint: str(device.facts.get("name", "")) for device in store.devices.find()}


def operator_data(one: "KnownOperator", names: Mapping[str, str]) -> dict[str, Any]:
    same = ("operator", "name", "kind", "target", "records", "last_at", "best", "best_s", "baseline_s")
    return {
        **{name: getattr(one, name) for name in same},
        **{name: getattr(one.provenance, name) for name in ("dialect", "compiler", "device")},
        "task": one.task_key,
        "workload": one.workload_key,
        "device_name": names.get(one.provenance.device, ""),
        "final": one.mode == "final",
    }
