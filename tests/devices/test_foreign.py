"""What others take, and how long we wait for it."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.devices.cpu import placement
from tunery.devices.cpu.foreign import Foreign, taken_cores
from tunery.devices.cpu.load import LoadWatch, Mark


def mark(wall_s: float, busy_s: float, tree_s: float, steal_s: float = 0.0) -> Mark:
    return Mark(wall_s, cores_busy_s=busy_s, cores_steal_s=steal_s, tree_cpu_s=tree_s, full=True)


def test_what_is_neither_ours_nor_idle_is_taken() -> None:
    assert taken_cores(mark(0, 10, 4), mark(2, 13, 6)) == pytest.approx(0.5)
    assert taken_cores(mark(0, 10, 4), mark(2, 13, 7.1)) == 0.0
    assert taken_cores(mark(0, 10, 4), mark(2, 12, 6, steal_s=1.0)) == pytest.approx(0.5)
    assert taken_cores(Mark(0.0, full=True), Mark(1.0, full=True)) == 0.0


def test_a_real_hog_is_seen_and_our_own_work_is_not() -> None:
    watch = LoadWatch(sorted(os.sched_getaffinity(0)), root_pid=os.getpid())
    # A child of init is not of our tree: the shell in between ends at once.
    command = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    try:
        before = watch.mark(full=True)
        time.sleep(1.0)
        assert taken_cores(before, watch.mark(full=True)) > 0.3
    finally:
        os.kill(pid, 9)


def test_measuring_waits_no_longer_than_the_patience_and_goes_on_marked() -> None:
    foreign = Foreign(2, patience_s=3.0)
    foreign.look(0.0, 0.0)
    assert foreign.share == foreign.share.__class__(cores=2, waiting=False, disturbed=False)
    for at_s in (1.0, 2.0):
        foreign.look(at_s, 1.0)
        assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (1, True, True)
    foreign.look(3.0, 1.0)
    assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (1, False, True)
    foreign.look(4.0, 0.3)  # not yet quiet
    assert foreign.share.disturbed
    foreign.look(5.0, 0.1)
    assert (foreign.share.cores, foreign.share.waiting, foreign.share.disturbed) == (2, False, False)
    foreign.look(5.5, 0.3)
    assert not foreign.share.disturbed
    foreign.look(6.0, 1.0)
    assert not foreign.share.waiting, "half a quiet second gives a twentieth of patience"
    foreign.look(106.0, 0.0)
    foreign.look(107.0, 1.0)
    assert foreign.share.waiting


def test_who_is_in_a_hurry_waits_less() -> None:
    foreign = Foreign(2, patience_s=30.0)
    foreign.hurry(1.5)
    for at_s, waiting in ((0.0, True), (1.0, True), (2.0, False)):
        foreign.look(at_s, 1.0)
        assert foreign.share.waiting == waiting
    foreign.hurry(10.0)
    foreign.look(3.0, 1.0)
    assert not foreign.share.waiting, "more time brings no patience back"
    foreign.look(103.0, 0.0)
    foreign.look(104.0, 1.0)
    assert foreign.share.waiting


def test_the_first_disturbed_look_covers_the_time_since_the_one_before() -> None:
    foreign = Foreign(2)
    for at_s, taken in ((1.0, 0.0), (2.0, 0.0), (3.0, 1.5), (4.0, 0.0)):
        foreign.look(at_s, taken)
    assert foreign.dirty_since(0.0) == 2.0
    assert foreign.dirty_since(2.5) == 2.5
    assert foreign.dirty_since(3.0) is None


@given(looks=st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 4.0)), max_size=60))
def test_the_wait_is_bounded_and_a_core_is_always_left(looks: list[tuple[float, float]]) -> None:
    foreign, at_s, waited_s = Foreign(2, patience_s=10.0), 0.0, 0.0
    for step_s, taken in looks:
        waiting = foreign.share.waiting
        at_s += step_s
        foreign.look(at_s, taken)
        waited_s += step_s if waiting and foreign.share.waiting else 0.0
        assert 1 <= foreign.share.cores <= 2
    assert waited_s <= 10.0 + 0.1 * at_s + 1e-9


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.5, 2), (0.3, 1), (16.0, 4)])
def test_a_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(placement, "usable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(placement, "quota_cores", lambda: quota)
    assert placement.granted_cores() == cores


def test_a_memory_limit_cuts_what_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "limit_bytes", lambda: None)
    total = placement.granted_bytes()
    for limit, granted in ((1 << 20, 1 << 20), (total * 2, total)):
        monkeypatch.setattr(placement, "limit_bytes", lambda limit=limit: limit)
        assert placement.granted_bytes() == granted
