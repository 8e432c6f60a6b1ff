import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tunery.devices.cpu.load import LoadWatch, Mark, judge

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stat(core0: str, core1: str, machine: str) -> str:
    return f"cpu  {machine}\ncpu0 {core0}\ncpu1 {core1}\nintr 1 2 3\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A made-up /proc: process 10 is ours, 11 its child, 12 somebody else's."""
    (tmp_path / "self" / "task" / "10").mkdir(parents=True)
    (tmp_path / "self" / "task" / "10" / "schedstat").write_text("5 1000000000 3\n")
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\nfull total=0\n")
    (tmp_path / "stat").write_text(stat("10 0 10 100 5 0 0 7 0 0", "50 0 0 0 0 0 0 0 0 0", "60 0 10 100 5 0 0 7 0 0"))
    for pid, parent, ticks in ((10, 1, 100), (11, 10, 50), (12, 1, 900)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a name) S {parent} {'0 ' * 9} {ticks} 0 0 0 20 0 1 0\n")
    return tmp_path


def test_a_full_mark_reads_the_watched_cores_the_machine_and_our_tree(proc: Path) -> None:
    mark = LoadWatch((0,), root_pid=10, proc=proc).mark(full=True)
    assert mark.waited_s == 1.0
    assert mark.cores_busy_s == pytest.approx(20 * TICK_S)
    assert mark.cores_steal_s == pytest.approx(7 * TICK_S)
    assert mark.machine_busy_s == pytest.approx(70 * TICK_S)
    assert mark.pressure_s == 2.0
    assert mark.tree_cpu_s == pytest.approx(150 * TICK_S)


def test_missing_files_leave_figures_out_and_contaminate_nothing(tmp_path: Path) -> None:
    watch = LoadWatch((0,), proc=tmp_path / "nothing")
    load = watch.since(watch.mark(full=True))
    assert (load.waited, load.foreign, load.steal, load.machine_foreign, load.pressure) == (None,) * 5
    assert set(load.contaminated) <= {"switched"}, "that this process was switched out is known without files"


def test_a_thread_that_has_just_ended_does_not_hide_what_the_others_waited(proc: Path) -> None:
    for name in ("9", "8", "11"):  # whatever the order of a directory is
        (proc / "self" / "task" / name).mkdir()
    assert LoadWatch((0,), root_pid=10, proc=proc).mark().waited_s == 1.0


BEFORE = Mark(0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, full=True)
CLEAN = Mark(1.0, 0.9, 3, 0.001, 0.95, 0.0, 1.5, 0.1, 1.4, full=True)


def test_our_own_use_and_our_builders_are_not_foreign() -> None:
    load = judge(BEFORE, CLEAN)
    assert load.foreign == pytest.approx(0.05)
    assert load.machine_foreign == pytest.approx(0.1)
    assert load.contaminated == ()


@pytest.mark.parametrize(
    ("change", "flag"),
    [({"waited_s": 0.1}, "waited"), ({"cores_busy_s": 1.3}, "foreign"), ({"cores_steal_s": 0.2}, "steal")],
)
def test_each_limit_contaminates_by_itself(change: dict[str, float], flag: str) -> None:
    assert judge(BEFORE, replace(CLEAN, **change)).contaminated == (flag,)


def test_ticks_say_nothing_about_a_short_sample() -> None:
    after = replace(CLEAN, wall_s=0.01, own_cpu_s=0.01, waited_s=0.0, cores_busy_s=0.02, cores_steal_s=0.01)
    assert judge(BEFORE, after).contaminated == ()


def test_switches_count_only_where_waiting_is_not_known() -> None:
    before, after = Mark(0.0, switches=0), Mark(0.01, switches=9)
    assert judge(before, after).contaminated == ("switched",)
    assert judge(before, Mark(0.01, switches=1)).contaminated == ()
    known = judge(replace(before, waited_s=0.0), replace(after, waited_s=0.0))
    assert known.contaminated == ()


def test_the_real_machine_can_be_watched() -> None:
    watch = LoadWatch(tuple(os.sched_getaffinity(0)))
    mark = watch.mark(full=True)
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass
    load = watch.since(mark)
    assert load.wall_s >= 0.01
    assert load.switches >= 0
