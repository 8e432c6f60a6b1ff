"""A file of records from elsewhere: read line by line, in bounds, and checked before the store takes anything in."""

import hashlib
import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from tunery._errors import StoreError, TargetError, misfit
from tunery.domain import Record, Task, TensorSpec
from tunery.domain.closed_target import closed
from tunery.store.database.codec import decode

_KEY = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,127}")  # it may become a file's name
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LONGEST_NAME, _LONGEST_TEXT = 512, 1 << 16
_DEEPEST = 64
_MOST_ARGUMENTS, _MOST_DIMENSIONS, _MOST_THREADS, _MOST_SAMPLES = 4096, 32, 1 << 16, 1 << 20
_LARGEST_EXTENT, _LARGEST_WEIGHT, _LARGEST_NUMBER = 1 << 40, 1 << 40, 1 << 63
_MOST_FLOP, _MOST_SECONDS = 1e24, 1e9
_MOST_DEVICES = 1000
_LATEST = float(1 << 33)  # the year 2242


def check_plain(data: Any) -> None:
    """Check that a line's numbers fit 64 bits and that its nesting is no deeper than the store can walk."""
    level = [data]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
                raise ValueError(f"a number of {value.bit_length()} bits; 64 are the most")
        if not inner:
            return
        level = inner
    raise ValueError(f"lists and objects within one another more than {_DEEPEST} times")


def check_task(task: Task, networks: Mapping[str, str]) -> None:
    work, target = task.workload, task.target
    _check("workload.key", work.key, _is_key)
    _check("workload.name", work.name, _is_name)
    _check("workload.kind", work.kind, _is_name)
    _check("workload.arguments", len(work.arguments), lambda count: 1 <= count <= _MOST_ARGUMENTS)
    for spec in work.arguments:
        _check_spec(spec)
    _check("workload.outputs", work.outputs, lambda count: 0 <= count <= len(work.arguments))
    _check("workload.flop", work.flop, lambda flop: 0 <= flop <= _MOST_FLOP)
    _check("target.dialect", target.dialect, _is_key)
    _check("target.threads", target.threads, lambda threads: 1 <= threads <= _MOST_THREADS)
    _check("target.config", dict(target.config), _is_closed)
    _check("weight", task.weight, lambda weight: 1 <= weight <= _LARGEST_WEIGHT)
    for digest, name in networks.items():
        _check("the digest of a network", digest, _is_key)
        _check("the name of a network", name, _is_name)


def check_record(record: Record, created_at: float) -> None:
    """A sample or an error that is no number measured nothing and says nothing; it is kept as it is."""
    candidate, measurement, provenance = record.candidate, record.measurement, record.provenance
    _check("created_at", created_at, lambda moment: 0 <= moment <= _LATEST)
    _check("candidate.key", candidate.key, _is_key)
    _check("candidate.task_key", candidate.task_key, _is_key)
    for name in ("dialect", "compiler", "device", "settings"):
        _check(f"provenance.{name}", getattr(provenance, name), _is_name)
    _check("job_id", record.job_id, lambda job: not job or _is_key(job))
    _check("the number of samples", len(measurement.samples_s), lambda count: count <= _MOST_SAMPLES)
    for sample in measurement.samples_s:
        _check("a sample", sample, lambda seconds: math.isnan(seconds) or 0 <= seconds <= _MOST_SECONDS)
    _check("build_s", measurement.build_s, lambda seconds: 0 <= seconds <= _MOST_SECONDS)
    _check("measure_s", measurement.measure_s, lambda seconds: 0 <= seconds <= _MOST_SECONDS)
    _check("detail", measurement.detail, lambda text: len(text) <= _LONGEST_TEXT)
    _check("context", dict(measurement.context), lambda context: len(repr(context)) <= 16 * _LONGEST_TEXT)
    if measurement.verification is not None:
        _check("verification.inputs", measurement.verification.inputs, lambda count: 0 <= count <= _LARGEST_EXTENT)
        _check("verification.method", measurement.verification.method, lambda text: len(text) <= _LONGEST_NAME)
        _check("verification.detail", measurement.verification.detail, lambda text: len(text) <= _LONGEST_TEXT)


def check_devices(devices: Mapping[str, Mapping[str, Any]]) -> None:
    _check("the number of devices", len(devices), lambda count: count <= _MOST_DEVICES)
    for fingerprint, facts in devices.items():
        _check("the fingerprint of a device", fingerprint, _is_key)
        for name in ("kind", "name"):
            _check(f"the {name} of a device", facts.get(name), lambda text: isinstance(text, str) and _is_name(text))
        _check("a device", dict(facts), lambda facts: len(repr(facts)) <= _LONGEST_TEXT)
        _check("the cores of a device", facts.get("cores"), lambda cores: type(cores) is int and cores >= 0)


def fit_name(text: str) -> str:
    """Return a network's name as an import takes it: earlier versions stored names that none does."""
    return "".join(char if char.isprintable() else "?" for char in text)[:_LONGEST_NAME] or "?"


def _is_closed(config: Mapping[str, object]) -> bool:
    try:
        closed(config)
    except TargetError:
        return False
    return True


def _check_spec(spec: TensorSpec) -> None:
    _check("the name of an argument", spec.name, _is_name)
    _check("a dtype", spec.dtype, lambda dtype: _DTYPE.fullmatch(dtype) is not None)
    _check("the rank of an argument", len(spec.shape), lambda rank: rank <= _MOST_DIMENSIONS)
    for extent in spec.shape:
        _check("an extent", extent, lambda extent: 0 <= extent <= _LARGEST_EXTENT)


def _check(what: str, value: Any, fits: Callable[[Any], bool]) -> None:
    if not fits(value):
        shown = repr(value)
        raise ValueError(f"{what} is {shown if len(shown) <= 60 else shown[:57] + '...'}, which is out of its range")


def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and text.isprintable()


FORMAT = "tunery-records"
VERSION = 1
LONGEST_LINE = 4 << 20  # a line of ours has some kB; one of lists alone takes 30 times its size to parse
_MOST_DIGITS = 40
_PART = 500  # lines that are taken in at once
_AT_ONCE, _AT_ONCE_CHARACTERS = 64, 1 << 20  # bodies that are checked by one call


class Checks(Protocol):
    """What is asked of a dialect about each workload and each candidate of a file; "" where nothing speaks against it.
    The store knows no compiler: without these checks a program could be stored under another's key."""

    def workload(self, task: Task) -> str: ...

    def bodies(self, dialect: str, bodies: Sequence[str]) -> Sequence[str]: ...


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
    """What a first reading of a file found. `wanted` are the keys of tasks that have a record to be taken in. `marks`
    are digests of all up to some lines, by their numbers."""

    digest: str = ""
    marks: dict[int, str] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)


def survey(path: Path, checks: Checks) -> Survey:
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
        if task.key not in self._dialects:
            self._dialects[task.key] = task.target.dialect
            if reason := self._checks.workload(task):
                self._refused[task.key] = reason

    def measure(self, number: int, record: Record) -> None:
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
