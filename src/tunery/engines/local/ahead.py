"""Zygotes that are started before there is an engine: they import for seconds what the caller does not need.

Here is nothing but the standard library, so a program may do this first of all.
"""

import atexit
import tempfile

from tunery.engines.local._nursery import Nursery

_waiting: dict[str | None, Nursery] = {}


def start(preload: str | None) -> None:
    """Start the zygote that the next engine of this process with the same `preload` will fork its workers from.

    The calling thread must live as long as the engine. What is not taken over ends with the process.
    """
    if preload in _waiting:
        return
    if not _waiting:
        atexit.register(_end)
    _waiting[preload] = Nursery(preload, tempfile.TemporaryFile())  # noqa: SIM115 - it closes it


def take(preload: str | None) -> Nursery | None:
    """Return the zygote that was started for `preload` and hand it over; None if there is none that lives."""
    nursery = _waiting.pop(preload, None)
    if nursery is None or nursery.alive:
        return nursery
    nursery.close()
    return None


def _end() -> None:
    while _waiting:
        nursery = _waiting.popitem()[1]
        nursery.kill()
        nursery.close()
