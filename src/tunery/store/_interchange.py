"""Records to JSON lines and back: plain data that any program can read, and no way to run code."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from tunery._errors import StoreError, misfit
from tunery.domain import Record, Task
from tunery.store import _schema
from tunery.store._codec import decode, encode
from tunery.store._database import Database
from tunery.store._networks import holders, insert_holders
from tunery.store._records import insert_tasks, task_query
from tunery.store._rows import record_row, stored_task, to_record

FORMAT = "tunery-records"
VERSION = 1
_records = _schema.records


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """How many records an import brought, and how many of the file's were known already."""

    added: int
    known: int


class Interchange(Database):
    """The store's way out and in.

    The first line names format and version; then, in any order that puts a task before its records, one JSON object a
    line: `{"task": …, "networks": {digest: name}}` or `{"record": …, "created_at": seconds}`. Files of earlier versions
    name no networks.
    """

    def export_records(self, path: str | Path) -> int:
        """Write all tasks that have records, and the records, to a file; return the number of records.

        The file appears whole or not at all.

        Raises:
            StoreError: it cannot be written.
        """
        with _whole_file(Path(path)) as file:
            return self.read(lambda connection: _export(connection, file), repeat=False)  # half the file is written

    def import_records(self, path: str | Path) -> ImportSummary:
        """Take in a file that `export_records` wrote; records that are here already are not doubled.

        Raises:
            StoreError: the file cannot be read or a line of it is wrong; nothing at all was taken in then.
        """
        return self.write(lambda connection: _import(connection, Path(path)))


@dataclass(frozen=True, slots=True)
class _Described:
    """A task, and the names of the networks that hold its workload, by their digests."""

    task: Task
    networks: dict[str, str]


def _export(connection: Connection, file: TextIO) -> int:
    _write_line(file, {"format": FORMAT, "version": VERSION})
    _export_tasks(connection, file)
    query = sa.select(_records.c.body, _records.c.document, _records.c.created_at).order_by(_records.c.id)
    count = 0
    rows = connection.execution_options(yield_per=500).execute(query).mappings()
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of the last one is the answer
        _write_line(file, {"record": encode(to_record(row)), "created_at": row["created_at"]})
    return count


def _export_tasks(connection: Connection, file: TextIO) -> None:
    held = holders(connection)
    query = task_query().where(_schema.tasks.c.key.in_(sa.select(_records.c.task_key)))
    for row in connection.execute(query).mappings():
        task = stored_task(row)
        _write_line(file, {"task": encode(task), "networks": encode(held.get(task.workload.key, {}))})


def _write_line(file: TextIO, data: dict[str, Any]) -> None:
    file.write(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")


@contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        raise StoreError(f"{path} is not a file; name another one")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("w", encoding="ascii") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}); name another file") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            number = 0
            for number, line in enumerate(file, 1):
                yield number, line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StoreError(f"{path} cannot be read ({reason}); name a file that `tunery records export` wrote") from error
    if number == 0:
        raise StoreError(f"{path} is empty; name a file that `tunery records export` wrote")


def _parse(line: str, number: int) -> _Described | tuple[Record, float] | None:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - the file's mistake
    if number == 1:
        if data.get("format") != FORMAT:
            raise ValueError(f"no {FORMAT} file")
        if data.get("version") != VERSION:
            raise ValueError(f"version {data.get('version')} is unknown, this tunery reads {VERSION}")
        return None
    if "task" in data:
        return _Described(decode(Task, data["task"]), decode(dict[str, str], data.get("networks", {})))
    return decode(Record, data["record"]), float(data["created_at"])


def _import(connection: Connection, path: Path) -> ImportSummary:
    added = known = 0
    tasks: set[str] = set()
    held: dict[str, dict[str, str]] = {}
    for number, line in _lines(path):
        try:
            entry = _parse(line, number)
            if isinstance(entry, _Described):
                tasks.add(entry.task.key)
                insert_tasks(connection, [entry.task])
                held.setdefault(entry.task.workload.key, {}).update(entry.networks)
            elif entry is not None:
                new = _insert(connection, *entry, tasks)
                added, known = added + new, known + (not new)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(
                f"{path} line {number}: {_reason(error)}; nothing was imported, export the file again"
            ) from error
    insert_holders(connection, held)
    return ImportSummary(added, known)


def _insert(connection: Connection, record: Record, created_at: float, tasks: set[str]) -> bool:
    if record.candidate.task_key not in tasks:
        raise ValueError(f"a record of task {record.candidate.task_key}, which no line above describes")
    # What another machine calls verified was not verified here: it is known, and proposed to the finals, not delivered.
    row = record_row(record, created_at) | {"deliverable": False}
    if connection.execute(sa.select(_records.c.id).where(_records.c.digest == row["digest"])).first():
        return False
    connection.execute(sa.insert(_records), row)
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "no JSON (was the file cut off?)"
    if isinstance(error, ValidationError):
        return misfit(error.errors())
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)
