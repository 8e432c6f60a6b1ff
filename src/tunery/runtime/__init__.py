"""Workers on hosts: pools of them, the services they run, and the scheduler that says when each stage may run."""

from tunery._environments import check_environment
from tunery._errors import CrashError, DeadlineError, EngineError, UsageError
from tunery._processor import granted_cores
from tunery.devices.cpu.facts import granted_bytes
from tunery.dialects import get_dialect
from tunery.domain import Environment, Measurement, Outcome
from tunery.engines import Role

_SERVICES = ("tunery.runtime.services", "pydantic.dataclasses")  # the second is what decoding a call needs
_LEAST = 512 << 20
_PARTS = {
    Role.PREPARER: (2, 12 << 30),
    Role.IMPORTER: (2, 12 << 30),
    Role.MEASURER: (2, 16 << 30),
    Role.TRAINER: (2, 8 << 30),
    Role.PROPOSER: (4, 8 << 30),
    Role.BUILDER: (4, 8 << 30),
}
"""By role: which part of all memory one worker may take, and how much at most."""


def preparer_environment() -> Environment:
    """Return in which kind of process a model is prepared: without any dialect's modules."""
    return Environment().preloading(*_SERVICES)


def worker_environment(dialect: str, *, measuring: bool = False) -> Environment:
    """Return in which kind of process a dialect's workers live: as the dialect says, with our services preloaded.
    `measuring` is for those that only run kernels, on a host that need not have the compiler."""
    found = get_dialect(dialect)
    check_environment(dialect, found.requirements)
    environment = found.environment()
    return (environment.measuring() if measuring else environment).preloading(*_SERVICES)


def worker_bytes(role: Role, granted: int | None = None) -> int:
    """Return the address space that a worker of `role` may take above what it starts with. One worker that takes all it
    may leaves the rest of the machine alive; several at once may together exceed the memory, and then the kernel ends
    them first (`engines.local`). `granted` is this process's memory in bytes."""
    part, most = _PARTS[role]
    return max(_LEAST, min(most, (granted_bytes() if granted is None else granted) // part))


def thread_count(threads: int, granted: int | None = None) -> int:
    """Return the kernels' thread count; 0 means all usable cores, of this machine or `granted` of another."""
    usable = granted_cores() if granted is None else granted
    if not 0 <= threads <= usable:
        raise UsageError(f"{threads} threads on {usable} usable cores; use at most {usable}")
    return threads or usable


def failure(error: EngineError) -> Measurement:
    """Return the outcome of a candidate whose worker did not answer."""
    if isinstance(error, DeadlineError):
        return Measurement(Outcome.TIMEOUT, detail=str(error))
    if isinstance(error, CrashError):
        return Measurement(Outcome.CRASHED, detail=str(error))
    return Measurement(Outcome.RUN_FAILED, detail=str(error))
