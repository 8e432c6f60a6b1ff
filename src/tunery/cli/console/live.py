"""One live line on stderr while a job runs: a status on a terminal, else plain lines; and what Ctrl-C does then."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from tunery.cli.console.failure import INTERRUPTED, UserStopError
from tunery.reports.format import duration, milliseconds, printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from tunery.domain.request import Progress

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PLAIN_EVERY_S = 10.0
# The screen is drawn on the cores that also measure: twice a second is seen as live and costs next to nothing.
_DRAWN_PER_S = 2
_TICK_S = 1.0
_OVER_S = 1.0  # a budget is kept about so well
_BAR = 8
_PHASES = {
    "importing": "reading the model",
    "baseline": "timing the untuned kernels",
    "search": "searching",
    "finals": "timing the best again",
}


class LiveLine:
    """Shows the latest progress, and how long it has been so; with `verbose` every one of them stays on the screen.

    What this process does counts from when it `began`, up to its budget of time `budget_s`: on one clock, whatever its
    phases say of themselves. Of a job elsewhere (None) the progress tells.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        verbose: bool = False,
        began: float | None = None,
        budget_s: float | None = None,
    ) -> None:
        self._stream = stream or sys.stderr
        self._began, self._budget_s = began, budget_s
        self._verbose = verbose
        self._live: Live | None = None
        self._printed_at = -PLAIN_EVERY_S
        self._phase = ""
        self._latest: Progress | str = ""
        self._since = time.monotonic()
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty() and not self._verbose:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, highlight=False)
            self._live = Live(
                console=console, refresh_per_second=_DRAWN_PER_S, transient=True, redirect_stdout=False,
                get_renderable=self._drawn,
            )  # fmt: skip
            self._live.start()
        else:
            self._ticker = threading.Thread(target=self._tick_on, name="live-line", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._ticker is not None:
            self._ticker.join()

    def close(self) -> None:
        """Give the terminal back; closing twice is fine."""
        self._closed.set()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, progress: "Progress") -> None:
        """Take in the latest progress."""
        self._take_in(progress, f"{progress.phase} {bool(progress.lost)} {bool(progress.waited)}")

    def say(self, text: str, *, phase: str = "") -> None:
        """Show a line; without a terminal only at a new phase or some time after the last."""
        self._take_in(text, phase)

    def tick(self) -> None:
        """Say without a terminal how it stands, where nothing was said for long; a thread does this on its own."""
        if self._latest and time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._print()

    def _take_in(self, latest: "Progress | str", phase: str) -> None:
        now = time.monotonic()
        self._latest, self._since = latest, now
        if self._live is not None:
            return  # it draws itself
        if self._verbose or phase != self._phase or now - self._printed_at >= PLAIN_EVERY_S:
            self._phase = phase
            self._print()

    def _tick_on(self) -> None:
        while not self._closed.wait(_TICK_S):
            self.tick()

    def _print(self) -> None:
        self._printed_at = time.monotonic()
        with suppress(OSError, ValueError):  # a job outlives whoever watched it
            self._stream.write(f"{printable(self._text(), lines=False)}\n")
            self._stream.flush()

    def _drawn(self) -> "Text":
        from rich.text import Text

        return Text(printable(self._text(), lines=False), no_wrap=True, overflow="ellipsis")

    def _text(self) -> str:
        latest, age_s = self._latest, max(time.monotonic() - self._since, 0.0)
        if isinstance(latest, str):
            return f"{latest} | {duration(age_s)} so far" if latest and age_s >= 1 else latest
        left_s = None if latest.remaining_s is None else latest.remaining_s - age_s
        elapsed_s = latest.elapsed_s + age_s if self._began is None else time.monotonic() - self._began
        if self._budget_s is not None:
            until_end_s = self._budget_s - latest.earlier_s - elapsed_s
            left_s = until_end_s if left_s is None else min(left_s, until_end_s)
        bar = _bar(latest.earlier_s + elapsed_s, self._budget_s)
        return bar + line(replace(latest, elapsed_s=elapsed_s, remaining_s=left_s))


def _bar(gone_s: float, budget_s: float | None) -> str:
    """Return how much of a budget of time is gone.

    >>> _bar(15.0, 60.0)
    '[##------] '
    """
    if not budget_s:
        return ""
    done = min(int(_BAR * gone_s / budget_s), _BAR)
    return f"[{'#' * done}{'-' * (_BAR - done)}] "


def line(progress: "Progress") -> str:
    """Return a progress as one line: phase, trials, the sum of the tasks as in the last table, time to finish."""
    parts = [f"{_PHASES.get(progress.phase, progress.phase)}{' ' + progress.current if progress.current else ''}"]
    if progress.trials or progress.trials_planned:
        planned = f"/{progress.trials_planned}" if progress.trials_planned else ""
        parts.append(f"{progress.trials}{planned} trials")
    if progress.best_s is not None:
        untuned = f" (untuned {milliseconds(progress.baseline_s)})" if progress.baseline_s else ""
        how = "" if progress.phase == "finals" else ", by short timings,"
        parts.append(f"sum of tasks{how} {milliseconds(progress.best_s)} ms{untuned}")
    if progress.lost:
        parts.append(progress.lost)
    if progress.waited:
        parts.append(progress.waited)
    earlier = f" (and {duration(progress.earlier_s)} in earlier runs)" if progress.earlier_s >= 1 else ""
    parts.append(f"{duration(progress.elapsed_s)} gone{earlier}")
    if progress.remaining_s is not None and progress.remaining_s > 0:
        last = f", the last {duration(progress.reserve_s)} to compile and compare" if progress.reserve_s >= 1 else ""
        parts.append(f"about {duration(progress.remaining_s)} left{last}")
    elif progress.remaining_s is not None and progress.remaining_s <= -_OVER_S:
        parts.append(f"over by {duration(-progress.remaining_s)}")
    return " | ".join(parts)


class Interrupt:
    """While it is entered, SIGINT and SIGTERM set `event`; a second one ends the process.

    Before `begun` there is nothing to save yet, so the first ends the work by `cancel`, which says whether there was
    any, or else raises KeyboardInterrupt: raised inside a task of an event loop it would end that task alone, and might
    leave a lock held. The command then ends with the signal's exit code, and with `message` if there is one. `restore`
    gives the terminal back before the process ends.
    """

    def __init__(
        self, restore: Callable[[], None], cancel: Callable[[], bool] = lambda: False, message: str = ""
    ) -> None:
        self.event = threading.Event()
        self.begun = False
        self.exit_code: int | None = None
        self._restore, self._cancel, self._message = restore, cancel, message
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
        if isinstance(error, KeyboardInterrupt):
            raise UserStopError(self._message, self.exit_code or INTERRUPTED) from None

    def _handle(self, number: int, _: FrameType | None) -> None:
        first, self.exit_code = self.exit_code is None, 128 + number
        if first and not self.begun:
            if self._cancel():
                return
            raise KeyboardInterrupt
        self._restore()
        if first:
            self.event.set()
            _tell("stopping; what was measured is kept (once more to stop at once)")
            return
        _tell("stopped at once; the same command goes on where it was")
        # No clean-up: workers end with this process, and whatever was measured is already durable.
        os._exit(self.exit_code)


def _tell(text: str) -> None:
    os.write(sys.stderr.fileno(), f"{text}\n".encode())  # print is not safe in a signal handler
