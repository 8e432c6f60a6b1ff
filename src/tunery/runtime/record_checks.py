"""Records from elsewhere are checked by their dialects before the store takes them in."""

from collections.abc import Sequence
from pathlib import Path

from tunery._errors import EngineError, UsageError
from tunery.dialects import check_dialect
from tunery.domain import Task
from tunery.engines import Engine, Role, WorkerSpec
from tunery.runtime import worker_bytes, worker_environment
from tunery.runtime.opening import workplace
from tunery.store import ImportSummary, Store, open_store

_DEADLINE_S = 120.0  # the first call imports the compiler
_MEMORY_BYTES = 4 << 30


def import_records(store: str, path: Path) -> ImportSummary:
    with open_store(store) as opened:
        return import_into(opened, path)


def import_into(store: Store, path: Path) -> ImportSummary:
    with workplace() as (engine, _):
        return store.import_records(path, RecordChecks(engine))


class RecordChecks:
    """The checks of `Store.import_records`, made by worker processes: one for each dialect that a file names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._workers: dict[str, str] = {}

    def workload(self, task: Task) -> str:
        dialect = task.target.dialect
        try:
            check_dialect(dialect)
        except UsageError as error:
            return f"of a dialect that is not installed here: {error}"
        name = f"workload {task.workload.key} of {dialect}"
        try:
            worker = self._worker(dialect)
            reason: str = self._engine.call(worker, "workload", task.workload, deadline_s=_DEADLINE_S).result()
        except EngineError as error:
            return f"of a task that cannot be checked: {error}"
        return f"of {name}: {reason}" if reason else ""

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        try:
            reasons: list[str] = self._engine.call(
                self._worker(dialect), "bodies", list(bodies), deadline_s=_DEADLINE_S
            ).result()
        except EngineError as error:
            if len(bodies) == 1:
                return [f"of a candidate that cannot be checked: {error}"]
            return [reason for body in bodies for reason in self.bodies(dialect, [body])]
        return [reason and f"of a candidate of {dialect}: {reason}" for reason in reasons]

    def _worker(self, dialect: str) -> str:
        if dialect not in self._workers:
            spec = WorkerSpec(
                Role.IMPORTER, "tunery.runtime.services:Checker", {"dialect": dialect},
                memory_bytes=min(_MEMORY_BYTES, worker_bytes(Role.IMPORTER)),
                environment=worker_environment(dialect),
            )  # fmt: skip
            self._workers[dialect] = self._engine.start(spec)
        return self._workers[dialect]
