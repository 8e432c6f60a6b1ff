"""Zygotes that are started before there is an engine: they import for seconds what the caller does not need."""

import atexit
import os

from tunery.domain import Environment
from tunery.engines.local._nursery import Nursery

_waiting: dict[str, Nursery] = {}


def start(environment: Environment) -> None:
    """Start the zygote that the next engine of this process will fork its workers in this environment from.

    The calling thread must live as long as the engine. What is not taken over ends with the process.
    """
    if environment.key in _waiting:
        return
    if not _waiting:
        atexit.register(end)
    _waiting[environment.key] = Nursery(environment, os.fdopen(os.memfd_create("tunery-zygote"), "w+b"))


def take(environment: Environment) -> Nursery | None:
    """Return the zygote that was started for an environment and hand it over; None if there is none that lives."""
    nursery = _waiting.pop(environment.key, None)
    if nursery is None or nursery.alive:
        return nursery
    nursery.close()
    return None


def end() -> None:
    """End those that no engine has taken over."""
    while _waiting:
        nursery = _waiting.popitem()[1]
        nursery.kill()
        nursery.close()
