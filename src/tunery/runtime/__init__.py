"""Workers on hosts: pools of them, the services they run, and the scheduler that says when each stage may run."""

from tunery.dialects import get_dialect
from tunery.domain import Environment


def worker_environment(dialect: str) -> Environment:
    """Return in which kind of process a dialect's workers live: as the dialect says, with our services preloaded.

    Raises:
        UsageError: no installed dialect has that name.
    """
    return get_dialect(dialect).environment().preloading("tunery.runtime.services")
