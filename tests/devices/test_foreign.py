"""What others take of the machine, and what is granted to us."""

import os
import subprocess
import sys
import time

import pytest

from tunery.devices.cpu import facts
from tunery.devices.cpu.load import CpuForeignLoad, Mark, taken_cores


def mark(wall_s: float, busy_s: float, tree_s: float, steal_s: float = 0.0) -> Mark:
    return Mark(wall_s, cores_busy_s=busy_s, cores_steal_s=steal_s, tree_cpu_s=tree_s, full=True)


def test_what_is_neither_ours_nor_idle_is_taken() -> None:
    assert taken_cores(mark(0, 10, 4), mark(2, 13, 6)) == pytest.approx(0.5)
    assert taken_cores(mark(0, 10, 4), mark(2, 13, 7.1)) == 0.0
    assert taken_cores(mark(0, 10, 4), mark(2, 12, 6, steal_s=1.0)) == pytest.approx(0.5)
    assert taken_cores(Mark(0.0, full=True), Mark(1.0, full=True)) == 0.0


def test_a_real_hog_is_seen_and_our_own_work_is_not() -> None:
    load = CpuForeignLoad(sorted(os.sched_getaffinity(0)))
    # A child of init is not of our tree: the shell in between ends at once.
    command = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    pid = int(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
    try:
        assert load.taken() == 0.0
        time.sleep(1.0)
        assert load.taken() > 0.3
    finally:
        os.kill(pid, 9)


def test_a_memory_limit_cuts_what_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "limit_bytes", lambda: None)
    total = facts.granted_bytes()
    for limit, granted in ((1 << 20, 1 << 20), (total * 2, total)):
        monkeypatch.setattr(facts, "limit_bytes", lambda limit=limit: limit)
        assert facts.granted_bytes() == granted
