"""One live line: what it says, and how often it is printed where there is no terminal."""

import io

import pytest

from tunery.cli import _live
from tunery.jobs import Progress


def progress(phase: str = "search", **more: object) -> Progress:
    values: dict[str, object] = {
        "job_id": "j", "phase": phase, "elapsed_s": 61.0, "remaining_s": 30.4, "trials": 12, "trials_planned": 64,
        "best_s": 0.002, "baseline_s": 0.01,
    }  # fmt: skip
    return Progress(**(values | more))  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_phase_trials_best_and_time_to_finish() -> None:
    assert _live.line(progress()) == (
        "search | 12/64 trials | best so far 2.00 ms (5.00x the untuned speed) | 1min 01s gone | about 30s left"
    )
    bare = progress(trials=0, trials_planned=None, best_s=None, baseline_s=None, remaining_s=None)
    assert _live.line(bare) == "search | 1min 01s gone"


def test_without_a_terminal_a_line_at_each_phase_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(_live.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with _live.LiveLine(stream) as live:
        live.show(progress("importing"))
        live.show(progress("search"))
        live.show(progress("search", trials=13))
        now[0] += _live.PLAIN_EVERY_S
        live.show(progress("search", trials=14))
    lines = stream.getvalue().splitlines()
    assert [(line.split()[0], "14/64" in line) for line in lines] == [
        ("importing", False), ("search", False), ("search", True),
    ]  # fmt: skip


def test_verbose_prints_every_progress() -> None:
    stream = io.StringIO()
    with _live.LiveLine(stream, verbose=True) as live:
        for trials in range(5):
            live.show(progress(trials=trials))
    assert len(stream.getvalue().splitlines()) == 5


def test_on_a_terminal_one_line_is_redrawn_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with _live.LiveLine(stream) as live:
        live.show(progress(trials=1))
        live.show(progress(trials=63))
        live.close()
    text = stream.getvalue()
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_a_job_outlives_whoever_watched_it() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with _live.LiveLine(Gone()) as live:
        live.show(progress())
