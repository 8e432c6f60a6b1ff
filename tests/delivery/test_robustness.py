"""Compiled networks in programs that thread, fork, unload and idle as they like; each case is a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import pytest
from model_in_parts import in_parts

from tunery.dialects import NetworkCompiler, get_dialect
from tunery.models import prepare

FILES = ["onnxruntime", pytest.param("metaschedule", marks=pytest.mark.tvm)]


@pytest.fixture(scope="module", name="file", params=FILES)
def _file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for two threads."""
    place = tmp_path_factory.mktemp("file")
    dialect, path = NetworkCompiler.of(get_dialect(request.param)), place / f"{request.param}.tunery"
    NetworkCompiler.of(dialect).compile(
        prepare("zoo:mlp-mnist", {}, place), dialect.resolve_target("native", 2), {}, path
    )
    return path


LOADED = """
import gc, os, sys, threading, time
import numpy as np
import tunery
path, count = sys.argv[1], int(sys.argv[2])
def opened(threads=None):
    network = tunery.load_compiled(path, threads)
    inputs = [np.linspace(-1, 1, spec.size).reshape(spec.shape).astype(spec.dtype) for spec in network.inputs]
    return network, inputs, [one.copy() for one in network(*inputs)]
def right(network, inputs, expected):
    return all(np.array_equal(a, b) for a, b in zip(network(*inputs), expected, strict=True))
def tasks():
    return len(os.listdir("/proc/self/task"))
"""
TOGETHER = """
several = [opened(threads) for threads in (1, 2, 3)]
wrong = []
def work(number):
    for at in range(count):
        if not right(*several[(at + number) % 3]):
            wrong.append(number)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong
"""
SHORT = """
one = opened()
def work():
    right(*one) or wrong.append(1)
wrong = []
def some(number):
    for _ in range(number):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
some(5)
before = tasks()
some(count)
assert not wrong and tasks() <= before + len(os.sched_getaffinity(0)) ** 2, (before, tasks())
"""
UNLOADED = """
def mapped():
    return sum(path in line or "network.so" in line for line in open("/proc/self/maps"))
def private():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
kept = opened()[2]
for _ in range(10):
    assert right(*opened())
gc.collect()
threads, grown = tasks(), []
while not grown or (grown[-1] >= 12_000 and len(grown) < 4):  # an allocator's caches grow once, a leak each time
    before = private()
    outputs = []
    for _ in range(count):
        one = opened()
        assert right(*one)
        outputs = one[0](*one[1])
    del one
    gc.collect()
    assert all(np.array_equal(a, b) for a, b in zip(outputs, kept, strict=True)), "outputs die with their network"
    del outputs
    gc.collect()
    grown.append(private() - before)
assert not mapped(), mapped()
assert tasks() <= threads + len(os.sched_getaffinity(0)), "threads are left behind"
assert grown[-1] < 12_000, grown  # kB; the weights alone are 2,000 in each network
"""
IDLE = """
one = opened()
assert right(*one)
thread = threading.Thread(target=lambda: right(*one))
thread.start()
thread.join()
while True:  # until it is idle: the timeout of the test is the limit
    before = time.process_time()
    time.sleep(0.3)
    if time.process_time() - before < 0.05:
        break
began = time.process_time()
for _ in range(10):
    assert right(*one)
    time.sleep(0.1)
assert time.process_time() - began < 0.5, "threads wait busily between calls"
"""
FAILING = """
one = opened()
caught = []
def work():
    try:
        one[0](np.zeros(3))
    except tunery.UsageError as error:
        caught.append(str(error))
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert len(caught) == 1 and "\\n" not in caught[0]
import signal
def handle(*_):
    caught.append(right(*other))
    try:
        assert right(*one)
    except tunery.WorkError:  # it was at work, in this thread
        pass
    signal.setitimer(signal.ITIMER_REAL, 0.002)
other = opened()
signal.signal(signal.SIGALRM, handle)
handle()
while caught.count(True) < 20:
    assert right(*one)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert all(caught) and right(*one)
"""
FORKED = """
one = opened()
thread = threading.Thread(target=lambda: right(*one))
thread.start()
thread.join()
child = os.fork()
if not child:
    fine = right(*one)
    del one
    other = opened()
    os._exit(0 if fine and right(*other) else 1)
assert os.waitpid(child, 0)[1] == 0
assert right(*one)
"""
AT_WORK = """
one, done = opened(), []
def work():
    while not done:
        right(*one) or os._exit(2)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
for _ in range(count):
    child = os.fork()
    if not child:
        os._exit(0 if right(*one) else 1)
    assert os.waitpid(child, 0)[1] == 0
done.append(1)
[thread.join() for thread in threads]
assert right(*one)
"""
WITHIN = """
several, found = [], []  # called by what another library does before a fork, behind ours
os.register_at_fork(before=lambda: found.append([right(*one) for one in several]))
several.append(opened())
child = os.fork()
if not child:
    os._exit(0 if right(*several[0]) else 1)
assert os.waitpid(child, 0)[1] == 0
assert found == [[True]] and right(*several[0])
"""
ALONE = """
several = [opened(1) for _ in range(2)]
before = tasks()
def work():
    assert all(right(*one) for one in several)
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
while tasks() > before:  # a thread that ended may still be there for a moment; the timeout of the test is the limit
    time.sleep(0.01)
wide = opened(2)
assert right(*wide) and right(*several[0])
"""
CASES = {
    "together": (TOGETHER, 100), "short": (SHORT, 100), "unloaded": (UNLOADED, 30), "idle": (IDLE, 1),
    "failing": (FAILING, 1), "forked": (FORKED, 1), "at work": (AT_WORK, 10), "alone": (ALONE, 1),
    "within": (WITHIN, 1),
}  # fmt: skip


def ran(code: str, file: Path, count: int = 1, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, str(file), str(count)], env=os.environ | environment, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_a_network_serves_any_program(case: str, file: Path) -> None:
    code, count = CASES[case]
    ran(LOADED + code, file, count)


@pytest.mark.tvm
def test_a_network_of_which_onnx_runtime_runs_parts_is_called_at_once_and_idles(tmp_path: Path) -> None:
    dialect, path = get_dialect("metaschedule"), tmp_path / "parts.tunery"
    network = prepare(in_parts(tmp_path / "parts.onnx"), {}, tmp_path)
    NetworkCompiler.of(dialect).compile(network, dialect.resolve_target("native", 2), {}, path)
    ran(LOADED + TOGETHER + IDLE, path, 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "count"), [("together", 10_000), ("short", 1000), ("unloaded", 300), ("at work", 1000)]
)
def test_a_network_serves_any_program_for_long(case: str, count: int, file: Path) -> None:
    ran(LOADED + CASES[case][0], file, count)


LIBRARIES = [name for name in ("onnxruntime", "torch", "tunery") if find_spec(name)]


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations(LIBRARIES)), ids=" ".join)
def test_libraries_are_imported_in_any_order(order: tuple[str, ...], file: Path) -> None:
    code = "import " + ", ".join(order) + LOADED + "one = opened()\n"
    code += "if 'torch' in sys.modules: sys.modules['torch'].nn.Linear(4, 4)(sys.modules['torch'].zeros(2, 4))\n"
    ran(code + "assert right(*one)", file)


ELSEWHERE = """
one = opened(2)
thread = threading.Thread(target=lambda: found.append(right(*one)))
found = []
thread.start()
thread.join()
assert found == [True]
"""
THREADS = """
import os, sys
if sys.argv[2] == "0":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import tunery
network = tunery.load_compiled(sys.argv[1])
print(network.threads, tunery.load_compiled(sys.argv[1], 2).threads)
"""


@pytest.mark.jobs
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_threads_are_those_asked_for_then_the_environments_then_the_files(file: Path) -> None:
    assert ran(THREADS, file, OMP_NUM_THREADS="1").split() == ["1", "2"]
    assert ran(THREADS, file, OMP_NUM_THREADS="").split() == ["2", "2"]
    assert ran(THREADS, file, OMP_NUM_THREADS="many").split() == ["2", "2"]
    assert ran(THREADS, file, 0, OMP_NUM_THREADS="2").split()[0] == "1"
    ran(LOADED + ELSEWHERE, file, TVM_NUM_THREADS="many", TVM_THREAD_POOL_SPIN_COUNT="-1", OMP_NUM_THREADS="-1")
