"""Finds calls of a store on the event loop: each stops all coroutines until the disk or the server has answered."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

import tunery
import tunery.store

_OURS = str(Path(tunery.__file__).parent)
_BELOW = (str(Path(tunery.store.__file__).parent), str(Path(sa.__file__).parent), "contextlib.py")


@contextmanager
def calls_on_the_loop() -> Iterator[list[str]]:
    """Collect, as `file:line`, where the package begins a transaction in a thread whose event loop runs."""
    found: list[str] = []

    def begun(_: sa.Connection) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _BELOW):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(_OURS):  # tests may look into a store as they like
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    sa.event.listen(sa.Engine, "begin", begun)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "begin", begun)
