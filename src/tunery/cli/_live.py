"""One live line on stderr while a job runs: a status on a terminal, elsewhere a plain line now and then."""

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from tunery._report import duration, milliseconds, ratio

if TYPE_CHECKING:
    from rich.live import Live

    from tunery.jobs._request import Progress

PLAIN_EVERY_S = 10.0
# The screen is drawn on the cores that also measure: twice a second is seen as live and costs next to nothing.
_DRAWN_PER_S = 2


class LiveLine:
    """Shows the latest progress; with `verbose` every one of them stays on the screen."""

    def __init__(self, stream: TextIO | None = None, *, verbose: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._verbose = verbose
        self._live: Live | None = None
        self._printed_at = -PLAIN_EVERY_S
        self._phase = ""

    def __enter__(self) -> Self:
        if self._stream.isatty() and not self._verbose:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, highlight=False)
            self._live = Live(console=console, refresh_per_second=_DRAWN_PER_S, transient=True, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back; closing twice is fine."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, progress: "Progress") -> None:
        """Take in the latest progress."""
        self.say(line(progress), phase=progress.phase)

    def say(self, text: str, *, phase: str = "") -> None:
        """Show a line; without a terminal only at a new phase or some time after the last."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))
            return
        now = time.monotonic()
        if self._verbose or phase != self._phase or now - self._printed_at >= PLAIN_EVERY_S:
            self._phase, self._printed_at = phase, now
            with suppress(OSError):  # a job outlives whoever watched it
                print(text, file=self._stream, flush=True)


def line(progress: "Progress") -> str:
    """Return a progress as one line: phase, trials, best so far against untuned, time to finish."""
    parts = [f"{progress.phase}{' ' + progress.current if progress.current else ''}"]
    if progress.trials or progress.trials_planned:
        planned = f"/{progress.trials_planned}" if progress.trials_planned else ""
        parts.append(f"{progress.trials}{planned} trials")
    if progress.best_s is not None:
        gain = f" ({ratio(progress.baseline_s, progress.best_s)} the untuned speed)" if progress.baseline_s else ""
        parts.append(f"best so far {milliseconds(progress.best_s)} ms{gain}")
    parts.append(f"{duration(progress.elapsed_s)} gone")
    if progress.remaining_s is not None:
        parts.append(f"about {duration(max(progress.remaining_s, 0.0))} left")
    return " | ".join(parts)
