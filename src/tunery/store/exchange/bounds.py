"""What the fields of an imported file may be: what a store cannot keep, sort or export again is refused."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tunery._errors import TargetError
from tunery.domain import Record, Task, TensorSpec
from tunery.domain.closed_target import closed

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
    """Check a task's fields, and the digests and names of the networks that hold it."""
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
    """Check a record's fields, and when it was made.

    A sample or an error that is no number measured nothing and says nothing; it is kept as it is.
    """
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
    """Check the facts of devices."""
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
