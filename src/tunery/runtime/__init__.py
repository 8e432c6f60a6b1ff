"""Workers on hosts: pools of them, the services they run, and the scheduler that says when each stage may run."""

from tunery.dialects import get_dialect
from tunery.domain import Environment

_SERVICES = ("tunery.runtime.services", "pydantic.dataclasses")  # the second is what decoding a call needs


def preparer_environment() -> Environment:
    """Return in which kind of process a model is prepared: without any dialect's modules."""
    return Environment().preloading(*_SERVICES)


def worker_environment(dialect: str) -> Environment:
    """Return in which kind of process a dialect's workers live: as the dialect says, with our services preloaded.

    Raises:
        UsageError: no installed dialect has that name.
    """
    return get_dialect(dialect).environment().preloading(*_SERVICES)
