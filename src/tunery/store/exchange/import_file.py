"""A file of records from elsewhere: read line by line, in bounds, and checked before the store takes anything in."""

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from tunery._errors import StoreError, misfit
from tunery.domain import Record, Task
from tunery.store.database.codec import decode
from tunery.store.exchange.bounds import check_devices, check_plain, check_record, check_task, fit_name

FORMAT = "tunery-records"
VERSION = 1
LONGEST_LINE = 4 << 20  # a line of ours has some kB; one of lists alone takes 30 times its size to parse
_MOST_DIGITS = 40
_PART = 500  # lines that are taken in at once
_AT_ONCE, _AT_ONCE_CHARACTERS = 64, 1 << 20  # bodies that are checked by one call


class Checks(Protocol):
    """What is asked of a dialect about each workload and each candidate of a file; "" where nothing speaks against it.

    The store knows no compiler: without these checks a program could be stored under another's key.
    """

    def workload(self, task: Task) -> str:
        """Return why a task's workload must not be taken in."""
        ...

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]:
        """Return for each candidate's body why it must not be taken in."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a file: the facts of the devices that its records name, as far as they were known."""

    devices: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Described:
    """A task, and the names of the networks that hold its workload, by their digests."""

    task: Task
    networks: dict[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """A record, and when it was made, in seconds since 1970."""

    record: Record
    created_at: float


@dataclass
class Survey:
    """What a first reading of a file found: its digest, and why lines (by number) are refused.

    `wanted` are the keys of tasks that have a record to be taken in; what has none is left out. `marks` are digests of
    all up to some lines, by their numbers.
    """

    digest: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)


def survey(path: Path, checks: Checks) -> Survey:
    """Read a file once and check all of it."""
    surveyor, state = _Surveyor(path, checks), hashlib.sha256()
    for number, entry in entries(path, state):
        if isinstance(entry, Described):
            surveyor.describe(entry.task)
        elif isinstance(entry, Measured):
            surveyor.measure(number, entry.record)
        if number % _PART == 0:
            surveyor.found.marks[number] = state.hexdigest()
    surveyor.ask()
    surveyor.found.digest = state.hexdigest()
    return surveyor.found


class _Surveyor:
    """Asks the checks about tasks one by one, and about candidates many at a time."""

    def __init__(self, path: Path, checks: Checks) -> None:
        self.found = Survey()
        self._path, self._checks = path, checks
        self._dialects: dict[str, str] = {}  # by task
        self._refused: dict[str, str] = {}  # by task
        self._waiting: dict[str, list[tuple[int, Record]]] = {}  # by dialect
        self._characters = 0

    def describe(self, task: Task) -> None:
        """Check a task; what another line said of it counts."""
        if task.key not in self._dialects:
            self._dialects[task.key] = task.target.dialect
            if reason := self._checks.workload(task):
                self._refused[task.key] = reason

    def measure(self, number: int, record: Record) -> None:
        """Refuse a record for its task, or have its candidate checked."""
        key, claimed = record.candidate.task_key, record.provenance.dialect
        if key not in self._dialects:
            raise _wrong(self._path, number, ValueError(f"a record of task {key}, which no line above describes"))
        dialect = self._dialects[key]
        if key in self._refused:
            self.found.lines[number] = self._refused[key]
        elif claimed != dialect:
            self.found.lines[number] = f"that call themselves of {claimed} and are of {dialect}"
        else:
            self._waiting.setdefault(dialect, []).append((number, record))
            self._characters += len(record.candidate.body)
            if len(self._waiting[dialect]) >= _AT_ONCE or self._characters > _AT_ONCE_CHARACTERS:
                self.ask()

    def ask(self) -> None:
        for dialect, waiting in self._waiting.items():
            reasons = self._checks.bodies(dialect, [record.candidate.body for _, record in waiting])
            for (number, record), reason in zip(waiting, reasons, strict=True):
                if reason:
                    self.found.lines[number] = reason
                else:
                    self.found.wanted.add(record.candidate.task_key)
        self._waiting, self._characters = {}, 0


def entries(path: Path, state: Any) -> Iterator[tuple[int, Head | Described | Measured]]:
    """Yield a file's head, tasks and records with their lines' numbers; `state` (of hashlib) takes in what is read."""
    number = 0
    for number, line in _lines(path, state):
        try:
            entry = _parse(line, number)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise _wrong(path, number, error) from error
        yield number, entry
    if number == 0:
        raise StoreError(f"{path} is empty; name a file that `tunery records export` wrote")


def _lines(path: Path, state: Any) -> Iterator[tuple[int, str]]:
    wanted = "name a file that `tunery records export` wrote"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{path} is no plain file, and it is read twice; {wanted}")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise StoreError(f"{path} line {number} is longer than {LONGEST_LINE >> 20} MiB; {wanted}")
                state.update(line)
                yield number, line.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StoreError(f"{path} cannot be read ({reason}); {wanted}") from error


def _parse(line: str, number: int) -> Head | Described | Measured:
    data = json.loads(line, parse_int=_whole)
    if not isinstance(data, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - the file's mistake
    if number == 1:
        if data.get("format") != FORMAT:
            raise ValueError(f"no {FORMAT} file")
        version = data.get("version")
        if type(version) is not int or version != VERSION:
            raise ValueError(f"version {version!r:.20} is unknown, this tunery reads {VERSION}")
    check_plain(data)
    if number == 1:
        head = Head(decode(dict[str, dict[str, Any]], data.get("devices", {})))
        check_devices(head.devices)
        return head
    if "task" in data:
        networks = decode(dict[str, str], data.get("networks", {}))
        described = Described(decode(Task, data["task"]), {one: fit_name(name) for one, name in networks.items()})
        check_task(described.task, described.networks)
        return described
    measured = Measured(decode(Record, data["record"]), float(data["created_at"]))
    check_record(measured.record, measured.created_at)
    return measured


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; {_MOST_DIGITS} are the most")
    return int(digits)


def _wrong(path: Path, number: int, error: Exception) -> StoreError:
    return StoreError(f"{path} line {number}: {_reason(error)}; nothing was imported, export the file again")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "no JSON (was the file cut off?)"
    if isinstance(error, ValidationError):
        return misfit(error.errors())
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error)
