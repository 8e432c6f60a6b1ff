"""Ctrl-C: the first stops cleanly, the second at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While it is entered, SIGINT and SIGTERM set `event`; a second one ends the process.

    Before `begun` there is nothing to save yet, so the first ends the work by `cancel`, which says whether there was
    any, or else raises KeyboardInterrupt: raised inside a task of an event loop it would end that task alone, and might
    leave a lock held. `restore` gives the terminal back before the process ends.
    """

    def __init__(self, restore: Callable[[], None], cancel: Callable[[], bool] = lambda: False) -> None:
        self.event = threading.Event()
        self.begun = False
        self.exit_code: int | None = None
        self._restore, self._cancel = restore, cancel
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        first, self.exit_code = self.exit_code is None, 128 + number
        if first and not self.begun:
            if self._cancel():
                return
            raise KeyboardInterrupt
        self._restore()
        if first:
            self.event.set()
            _write("stopping; what was measured is kept (once more to stop at once)")
            return
        _write("stopped at once; the same command goes on where it was")
        # No clean-up: workers end with this process, and whatever was measured is already durable.
        os._exit(self.exit_code)


def _write(text: str) -> None:
    os.write(sys.stderr.fileno(), f"{text}\n".encode())  # print is not safe in a signal handler
