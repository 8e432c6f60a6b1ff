"""Records to JSON lines and back: plain data that any program can read, and no way to run code."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tunery._errors import NothingFoundError, StoreError
from tunery._outputs import RECORDS, whole_file
from tunery.domain import Task
from tunery.domain.device import fingerprint_of
from tunery.store._devices import insert_elsewhere, known_facts
from tunery.store._import_file import (
    FORMAT,
    VERSION,
    Checks,
    Described,
    Head,
    Survey,
    entries,
    fit_name,
    survey,
)
from tunery.store._networks import holders, insert_holders
from tunery.store.database import schema
from tunery.store.database.codec import encode
from tunery.store.database.connection import Database
from tunery.store.records.records import insert_tasks, task_query
from tunery.store.records.rows import record_row, stored_task, to_record

_records = schema.records


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """How many records an import brought, how many of the file's were known already, and how many were refused.
    `reasons` counts the refused ones by why."""

    added: int
    known: int
    refused: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


class Interchange(Database):
    """The store's way out and in. The first line names format and version, and the facts of the records' devices by
    their fingerprints; then, in any order that puts a task before its records, one JSON object a line: `{"task": …,
    "networks": {digest: name}}` or `{"record": …, "created_at": seconds}`."""

    def export_records(
        self, path: str | Path, *, account: str | None = None, network: str = "", force: bool = False
    ) -> int:
        """Write all tasks that have records, and the records; return the number of records. With `account` only what
        its jobs have measured, and no networks but its own; with `network` (a name, or a digest) only its tasks."""
        inputs = [self.path] if self.path else []
        with whole_file(Path(path), RECORDS, inputs=inputs, force=force) as file:
            text = io.TextIOWrapper(file, encoding="ascii")
            count = self.read(
                lambda connection: _export(connection, text, account, network), repeat=False
            )  # half the file is written
            text.detach()
            return count

    def import_records(self, path: str | Path, checks: Checks) -> ImportSummary:
        """Take in a file that `export_records` wrote, as hints (`hints`): it answers no query, and no search takes its
        measurements for its own. A task or a candidate that does not pass `checks` is left out, with its records. All
        of it is checked before anything is taken in; that is done some records at a time, so that other writers need
        not wait for the whole. Where it is interrupted, the same call goes on."""
        surveyed = survey(Path(path), checks)  # before the store is locked: a compiler takes its time
        reasons = Counter(surveyed.lines.values())
        summary = ImportSummary(0, 0, reasons.total(), dict(reasons.most_common()))
        for part in _parts(Path(path), surveyed):
            added = self.write(partial(_insert_part, part=part))
            known = summary.known + len(part.records) - added
            summary = replace(summary, added=summary.added + added, known=known)
        return summary


def _export(connection: Connection, file: TextIO, account: str | None, network: str) -> int:
    held = holders(connection)
    if account is not None:
        held = _held_by(connection, account, held)
    chosen = _chosen(connection, held, account, network)
    named = set(connection.execute(sa.select(_records.c.device).where(chosen).distinct()).scalars())
    _write_line(file, {"format": FORMAT, "version": VERSION, "devices": known_facts(connection, named)})
    tasks = task_query().where(schema.tasks.c.key.in_(sa.select(_records.c.task_key).where(chosen)))
    for row in connection.execute(tasks).mappings():
        task = stored_task(row)
        networks = {digest: fit_name(name) for digest, name in held.get(task.workload.key, {}).items()}
        _write_line(file, {"task": encode(task), "networks": encode(networks)})
    query = sa.select(_records.c.body, _records.c.document, _records.c.created_at).where(chosen).order_by(_records.c.id)
    count = 0
    rows = connection.execution_options(yield_per=500).execute(query).mappings()
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of the last one is the answer
        record = encode(to_record(row))
        del record["host"]  # nobody else's business
        _write_line(file, {"record": record, "created_at": row["created_at"]})
    return count


def _held_by(connection: Connection, account: str, held: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return what an account's own networks hold, under its names: those of others are nobody else's business."""
    requests = connection.execute(sa.select(schema.jobs.c.request).filter_by(account=account)).scalars().all()
    names = {request.get("network"): request.get("name", "") for request in requests}
    several = {
        request.get("name") for request in requests if request.get("more_shapes")
    }  # a digest for each binding of shapes
    return {
        key: {digest: names.get(digest, name) for digest, name in of.items() if digest in names or name in several}
        for key, of in held.items()
    }


def _chosen(
    connection: Connection, held: Mapping[str, Mapping[str, str]], account: str | None, network: str
) -> sa.ColumnElement[bool]:
    """Return which records an account has measured, of which network: by its digest, or a name that a job gave it."""
    chosen: sa.ColumnElement[bool] = sa.true()
    if account is not None:
        chosen &= _records.c.job_id.in_(sa.select(schema.jobs.c.job_id).filter_by(account=account))
    if network:
        mine = {} if account is None else {"account": account}
        asked = sa.select(schema.jobs.c.request).filter_by(**mine)
        requests = connection.execute(asked).scalars()
        wanted = {
            network,
            *(request["network"] for request in requests if request.get("name") == network and request.get("network")),
        }
        keys = [key for key, of in held.items() if not wanted.isdisjoint({*of, *of.values()})]
        if not keys:
            raise NothingFoundError(f"the store has no network {network!r}; see `tunery jobs list`")
        chosen &= _records.c.task_key.in_(sa.select(schema.tasks.c.key).where(schema.tasks.c.workload_key.in_(keys)))
    return chosen


def _write_line(file: TextIO, data: dict[str, Any]) -> None:
    file.write(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")


@dataclass
class _Part:
    """Some lines of a file: what one transaction takes in, so that other writers wait for no more."""

    tasks: list[Task] = field(default_factory=list)
    networks: dict[str, dict[str, str]] = field(default_factory=dict)
    devices: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)


def _parts(path: Path, surveyed: Survey) -> Iterator[_Part]:
    part, state = _Part(), hashlib.sha256()
    seen: set[str] = set()
    devices: Mapping[str, Mapping[str, Any]] = {}
    for number, entry in entries(path, state):
        if isinstance(entry, Head):
            devices = {one: facts for one, facts in entry.devices.items() if fingerprint_of(facts) == one}
        elif isinstance(entry, Described):
            task = entry.task
            if task.key in surveyed.wanted and task.key not in seen:
                seen.add(task.key)  # what another store says of its operator is not believed
                part.tasks.append(replace(task, workload=replace(task.workload, operator=None)))
                part.networks.setdefault(task.workload.key, {}).update(entry.networks)
        elif number not in surveyed.lines and entry.record.candidate.task_key in seen:
            # What another machine calls verified was not verified here: it is a hint, and not delivered.
            row = record_row(replace(entry.record, host=""), entry.created_at)
            part.records.append(row | {"deliverable": False, "imported": True})
            if (device := row["device"]) in devices:
                part.devices[device] = devices[device]
        if number in surveyed.marks:
            _check_same(path, state.hexdigest(), surveyed.marks[number])
            yield part
            part = _Part()
    _check_same(path, state.hexdigest(), surveyed.digest)
    yield part


def _check_same(path: Path, digest: str, before: str) -> None:
    if digest != before:
        raise StoreError(f"{path} changed while it was read; give the same command again")


def _insert_part(connection: Connection, part: _Part) -> int:
    insert_tasks(connection, part.tasks, imported=True)
    insert_holders(connection, part.networks)
    insert_elsewhere(connection, part.devices)
    rows = {row["digest"]: row for row in part.records}
    known = sa.select(_records.c.digest).where(_records.c.digest.in_(rows))
    for digest in connection.execute(known).scalars().all():
        del rows[digest]
    if rows:
        connection.execute(sa.insert(_records), [*rows.values()])
    return len(rows)
