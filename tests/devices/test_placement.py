import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tunery.devices.cpu.facts import inspect_placement, memory_facts, pin, slots, usable_cores

_SCRIPT = """
import json, os, threading
from tunery.devices.cpu.facts import inspect_placement, pin, usable_cores
allowed = usable_cores()
pin(allowed[-1:])
before = inspect_placement(allowed[-1:])
# what a compiler's runtime does: a thread of its own sets another mask
started, done = threading.Event(), threading.Event()
def work():
    os.sched_setaffinity(0, set(allowed) | {allowed[0]})
    started.set()
    done.wait()
thread = threading.Thread(target=work)
thread.start()
started.wait()
lost = inspect_placement(allowed[-1:])
pin(allowed[-1:])
again = inspect_placement(allowed[-1:])
done.set()
print(json.dumps([before.held, before.cores, lost.held, lost.threads, again.held]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves nowhere to stray to")
def test_a_thread_that_leaves_our_cores_is_seen_from_inside() -> None:
    output = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True).stdout
    before, cores, lost, threads, again = json.loads(output)
    assert (before, lost, again) == (True, False, True)
    # numpy may have brought threads of its own
    assert threads >= 2
    assert cores == [max(os.sched_getaffinity(0))]


def test_pinning_to_nothing_or_to_foreign_cores_means_all_usable_ones() -> None:
    assert pin(()) == usable_cores()
    assert pin((10_000,)) == usable_cores()
    assert inspect_placement(usable_cores()).held


def test_slots_are_disjoint_and_wide_enough() -> None:
    assert slots((0, 1, 2, 3, 4), 2) == [(0, 1), (2, 3)]
    assert slots((0, 1), 1) == [(0,), (1,)]
    assert slots((0, 1), 4) == []


def test_the_cores_memory_nodes_and_huge_pages_are_noted_where_the_machine_says(tmp_path: Path) -> None:
    assert memory_facts((0, 1), tmp_path, tmp_path / "none") == {}
    for core, node in ((0, 0), (1, 1), (2, 1)):
        (tmp_path / f"cpu{core}" / f"node{node}").mkdir(parents=True)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    assert memory_facts((0, 1), tmp_path, tmp_path / "enabled") == {"numa_nodes": [0, 1], "huge_pages": "madvise"}
    assert memory_facts((1, 2), tmp_path, tmp_path / "none") == {"numa_nodes": [1]}
