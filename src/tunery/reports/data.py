"""Results as plain data, as the documented JSON has them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunery.domain import TaskState

if TYPE_CHECKING:
    from tunery.delivery.query import Answer
    from tunery.domain import JobStatus, Network
    from tunery.domain.request import BenchReport, CompileReport, TuneReport
    from tunery.tuning.collect import CollectReport

_INSIDE = frozenset({"task_key", "workload_key", "best_candidate", "untried"})
"""Of a job's task, what is not documented JSON, or has another name there."""


_PLAIN = frozenset({str, int, bool, type(None)})  # most values: pages of jobs have ten thousands


def plain(value: object) -> Any:
    """Return `value` as JSON data: dataclasses as objects, and None for numbers that JSON does not know."""
    if type(value) in _PLAIN or isinstance(value, float):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, Enum | Path):
        return plain(value.value) if isinstance(value, Enum) else str(value)
    return [plain(entry) for entry in value] if isinstance(value, Iterable) and not isinstance(value, str) else value


def tune_data(report: "TuneReport") -> dict[str, Any]:
    """Return the documented JSON object of `tune`."""
    job = report.job
    network = {"name": report.network.name, "before_s": plain(report.before_s), "after_s": plain(report.after_s)}
    return {
        "job": job.job_id,
        "status": job.state.value,
        "tasks": [task_data(task) for task in job.tasks],
        "network": network,
        **{name: plain(getattr(job, name)) for name in ("message", "spend", "remaining", "outlook")},
        **{name: plain(getattr(report, name)) for name in ("resumed", "store", "slots", "calibrated_at", "elsewhere")},
    }


def tune_report(status: "JobStatus", began: Mapping[str, Any], place: str, *, resumed: bool = False) -> "TuneReport":
    """Return the report of a job that has tuned, of its status and what was known at its beginning.

    Of several dialects the sums are those of the one whose network is the fastest.
    """
    from pydantic import TypeAdapter

    from tunery.domain import Network
    from tunery.domain.request import TuneReport

    each = [(total(tasks, "baseline_s"), total(tasks, "best_s")) for tasks in by_dialect(status.tasks).values()]
    known = [(before, after) for before, after in each if before is not None and after is not None]
    before_s, after_s = min(known, key=lambda sums: sums[1], default=(None, None))
    return TuneReport(
        job=status,
        network=TypeAdapter(Network).validate_python(began["network"]),
        tasks=(),
        before_s=before_s,
        after_s=after_s,
        resumed=resumed,
        store=place,
        **{name: began[name] for name in ("slots", "calibrated_at", "elsewhere", "threads")},
    )


def task_data(task: TaskState) -> dict[str, Any]:
    """Return one task of a job as the JSON of `tune` and `jobs show` has it."""
    data = plain(task) | {"task": task.task_key, "workload": task.workload_key, "unreached": task.unreached}
    return {name: value for name, value in data.items() if name not in _INSIDE}


def compile_data(report: "CompileReport") -> dict[str, Any]:
    """Return the documented JSON object of `compile`."""
    coverage = {task: {"rung": rung, "candidate": key} for task, (rung, key) in report.coverage.items()}
    headline = report.verdict.headline if report.verdict else None
    data = plain(report) | {"coverage": coverage, "headline": headline}
    return {name: value for name, value in data.items() if name not in {"tasks", "left_out"}}


def compile_report(data: Mapping[str, Any]) -> "tuple[CompileReport, Network]":
    """Return the report and the network of a job that has compiled, from its answer."""
    from pydantic import TypeAdapter

    from tunery.domain import Network
    from tunery.domain.request import CompileReport

    coverage = {task: (one["rung"], one["candidate"]) for task, one in data["coverage"].items()}
    known = {field.name for field in fields(CompileReport)}
    kept = {name: value for name, value in data.items() if name in known}
    report = TypeAdapter(CompileReport).validate_python({**kept, "coverage": coverage})
    return report, TypeAdapter(Network).validate_python(data["described"])


def described(network: "Network") -> dict[str, Any]:
    """Return what may be told of a network elsewhere: nothing that only means something on this machine."""
    bare: dict[str, Any] = plain(replace(network, source="", path="", blob="", program="", beside={}, weights=""))
    return bare


def query_data(answer: "Answer") -> dict[str, Any]:
    """Return what the store knows of a network as plain data: the documented JSON of `query`, and more for people."""
    from tunery.delivery.query import skipped_lines

    tasks = {task.key: task for task in answer.tasks}
    rows = [
        {
            "name": tasks[choice.task_key].workload.name,
            "task": choice.task_key,
            "weight": tasks[choice.task_key].weight,
            "rung": choice.rung.value,
            "candidate": choice.candidate.key if choice.candidate else None,
            "latency_s": plain(choice.latency_s),
            "baseline_s": plain(choice.baseline_s),
            "source": choice.source,
        }
        for choice in answer.choices
    ]
    names = {key: task.workload.name for key, task in tasks.items()}
    return {
        "network": answer.network.name,
        "target": str(answer.target),
        "tasks": rows,
        "skipped": [{"task": key, "reason": str(why)} for key, why in answer.skipped],
        "refused": dict(answer.refused),
        "open": sorted(answer.open),
        **plain(answer.forecast),
        "nothing": answer.nothing,
        "not_used": skipped_lines(answer.skipped, names),
        "batch_of_one": list(answer.network.batch_of_one),
    }


def bench_report(data: Mapping[str, Any]) -> "BenchReport":
    """Return the report of a job that has compared, from its answer."""
    from pydantic import TypeAdapter

    from tunery.domain.request import BenchReport

    return TypeAdapter(BenchReport).validate_python({k: v for k, v in data.items() if k != "headline"})


def bench_data(report: "BenchReport") -> dict[str, Any]:
    """Return the documented JSON object of `bench`."""
    return {**plain(report), "headline": report.verdict.headline if report.verdict else None}


def collect_data(report: "CollectReport") -> dict[str, Any]:
    names = (
        "tasks", "candidates", "per_second", "import_s", "wall_s", "left", "stopped", "outcomes", "kinds", "failed",
    )  # fmt: skip
    return {name: plain(getattr(report, name)) for name in names}


def status_of(job: Mapping[str, Any]) -> "JobStatus":
    """Return a job as a service shows it."""
    from pydantic import TypeAdapter

    from tunery.domain import JobStatus

    names = {"task": "task_key", "workload": "workload_key", "candidate": "best_candidate"}
    known = {field.name for field in fields(TaskState)}
    tasks = [{k: v for key, v in one.items() if (k := names.get(key, key)) in known} for one in job["tasks"]]
    made = {name: datetime.fromisoformat(job[name]).timestamp() for name in ("created_at", "updated_at")}
    same = {name: job[name] for name in ("state", "request", "spend", "message", "problem", "remaining", "outlook")}
    return TypeAdapter(JobStatus).validate_python({"job_id": job["id"], **same, **made, "tasks": tasks})


def by_dialect(tasks: Sequence[TaskState]) -> dict[str, list[TaskState]]:
    """Return a job's tasks by their dialect, of which there is one at least."""
    found: dict[str, list[TaskState]] = {}
    for task in tasks:
        found.setdefault(task.dialect, []).append(task)
    return found or {"": []}


def total(tasks: Sequence[TaskState], what: str) -> float | None:
    values = [(task.weight, getattr(task, what)) for task in tasks]
    return sum(weight * value for weight, value in values) if all(v is not None for _, v in values) else None


def sums(tasks: Sequence[TaskState]) -> tuple[float | None, float | None]:
    reached = reached_of(tasks)
    return (total(reached, "baseline_s"), total(reached, "best_s")) if reached else (None, None)


def reached_of(tasks: Sequence[TaskState]) -> list[TaskState]:
    """Return the tasks that a job's sums are of: a task that was not reached has no tuned latency."""
    return [task for task in tasks if not task.unreached]
