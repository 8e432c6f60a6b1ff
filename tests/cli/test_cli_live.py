"""One live line: what it says, and how often it is printed where there is no terminal."""

import io
import time

import pytest

from tunery.cli.console import live as live_module
from tunery.domain.request import Progress
from tunery.reports.format import duration


def progress(phase: str = "search", **more: object) -> Progress:
    values: dict[str, object] = {
        "job_id": "j", "phase": phase, "elapsed_s": 61.0, "remaining_s": 30.4, "trials": 12, "trials_planned": 64,
        "best_s": 0.002, "baseline_s": 0.01,
    }  # fmt: skip
    return Progress(**(values | more))  # type: ignore[arg-type]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_says_phase_trials_the_sum_of_tasks_and_time_to_finish() -> None:
    assert live_module.line(progress()) == (
        "searching | 12/64 trials | sum of tasks, by short timings, 2.00 ms (untuned 10.0) | 1min 01s gone | "
        "about 30s left"
    )
    early = progress("baseline", current="3 of 30", trials=0, trials_planned=None, best_s=None, baseline_s=None)
    assert live_module.line(early) == "timing the untuned kernels 3 of 30 | 1min 01s gone | about 30s left"
    bare = progress(trials=0, trials_planned=None, best_s=None, baseline_s=None, remaining_s=None)
    assert live_module.line(bare) == "searching | 1min 01s gone"
    for over_s, said in ((0.2, "gone"), (3.0, "gone | over by 3.0s")):
        assert live_module.line(progress(remaining_s=-over_s)).endswith(said)


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_names_in_the_line_cannot_move_the_cursor(stream: io.StringIO) -> None:
    with live_module.LiveLine(stream) as live:
        live.show(progress("baseline", current="conv\x1b]0;title\x07\rdone"))
    said = stream.getvalue()
    assert "conv\\x1b]0;title\\x07\\rdone" in said
    assert "\x07" not in said
    assert "\x1b]" not in said


def test_the_line_of_a_resumed_job_says_what_earlier_runs_have_used() -> None:
    resumed = Progress("", "search", 5.0, 10.0, 12, None, None, None, earlier_s=25.0)
    assert live_module.line(resumed) == "searching | 12 trials | 5.0s gone (and 25s in earlier runs) | about 10s left"


def test_without_a_terminal_a_line_at_each_phase_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(live_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with live_module.LiveLine(stream) as live:
        live.show(progress("importing"))
        live.show(progress("search"))
        live.show(progress("search", trials=13))
        now[0] += live_module.PLAIN_EVERY_S
        live.show(progress("search", trials=14))
    lines = stream.getvalue().splitlines()
    assert [(line.split()[0], "14/64" in line) for line in lines] == [
        ("reading", False), ("searching", False), ("searching", True),
    ]  # fmt: skip


@pytest.mark.parametrize("stands", [progress("compiling", current="tunery"), "compiling"])
def test_a_step_without_news_is_heard_of_all_the_same(monkeypatch: pytest.MonkeyPatch, stands: Progress | str) -> None:
    now = [100.0]
    monkeypatch.setattr(live_module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    live = live_module.LiveLine(stream)
    live.tick()
    live.say(stands, phase="x") if isinstance(stands, str) else live.show(stands)
    for _ in range(25):
        now[0] += 1.0
        live.tick()
    first, second, third = stream.getvalue().splitlines()
    assert first.startswith("compiling")
    for line, age_s in ((second, 10), (third, 20)):
        assert f"1min {1 + age_s}s gone" in line or f"{age_s}s so far" in line
        assert "left" not in line or f"about {duration(30.4 - age_s)} left" in line


def test_without_a_terminal_a_thread_keeps_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "PLAIN_EVERY_S", 0.0)
    monkeypatch.setattr(live_module, "_TICK_S", 0.001)
    stream = io.StringIO()
    with live_module.LiveLine(stream) as live:
        live.show(progress())
        while len(stream.getvalue().splitlines()) < 3:
            time.sleep(0.001)
    ended = stream.getvalue()
    time.sleep(0.01)
    assert stream.getvalue() == ended


def test_verbose_prints_every_progress() -> None:
    stream = io.StringIO()
    with live_module.LiveLine(stream, verbose=True) as live:
        for trials in range(5):
            live.show(progress(trials=trials))
    assert len(stream.getvalue().splitlines()) == 5


def test_on_a_terminal_one_line_is_redrawn_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with live_module.LiveLine(stream) as live:
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

    with live_module.LiveLine(Gone()) as live:
        live.show(progress())


def test_one_clock_counts_from_when_the_command_began_whatever_its_phases_say() -> None:
    stream = io.StringIO()
    with live_module.LiveLine(stream, verbose=True, began=time.monotonic() - 30.0, budget_s=60.0) as live:
        for phase, elapsed_s in (("importing", 31.0), ("baseline", 2.0), ("compiling the network", 90.0)):
            live.show(Progress("j", phase, elapsed_s, 50.0, 0, None, None, None))
    lines = stream.getvalue().splitlines()
    assert [line[:10] for line in lines] == ["[####----]"] * 3
    assert all("30s gone" in line and "about 30s left" in line for line in lines)
