import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from fake_tools import inputs_of, kernel_of, outputs_of, right, tasks_of

from tunery._errors import DialectError
from tunery.testing.fake_dialect import FAULTS, WRONG, FakeDialect


def program(options: str, call: str, directory: Path) -> list[str]:
    """A process of its own for candidate 0 of task 0; `call` acts on `kernel()`, which builds and loads it."""
    script = f"""
        from pathlib import Path
        import resource, threading
        from tunery.devices import open_device
        from tunery.testing.dialect_contract import DialectContract
        from tunery.testing.fake_dialect import FakeDialect, fake_network
        dialect, directory = FakeDialect(), Path({str(directory)!r})
        task = dialect.extract(fake_network("fake:test?tasks=1&{options}"), dialect.resolve_target("native", 1))[0]
        candidate = dialect.candidate(task, 0)
        def kernel():
            loaded = dialect.load(task, dialect.build(task, candidate, directory), open_device("cpu"))
            loaded.bind(DialectContract.inputs(task, 0))
            return loaded
        {call}
        print("survived", flush=True)
    """
    return [sys.executable, "-c", textwrap.dedent(script)]


def ended(options: str, call: str, directory: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(program(options, call, directory), timeout=60, capture_output=True, check=False)


def wait_for(path: Path) -> bool:
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return path.exists()


def test_shares_and_indices_choose_who_is_faulty() -> None:
    dialect = FakeDialect()
    tasks = {task.workload.name: task for task in tasks_of("tasks=2&hang=0.25&fail=0.25&one_off=3,17&fault_tasks=1")}
    faults = {
        name: [dialect.fault(task, dialect.candidate(task, index)) for index in range(2048)]
        for name, task in tasks.items()
    }
    assert set(faults["matmul_0"]) == {None}
    faulty = faults["gather_1"]
    assert [index for index, fault in enumerate(faulty) if fault == "one_off"] == [3, 17]
    assert faulty.count("hang") == pytest.approx(512, abs=80)
    assert faulty.count("fail") == pytest.approx(512, abs=80)
    best = dialect.best(tasks["gather_1"])
    assert best is not None
    assert dialect.fault(tasks["gather_1"], best) is None


@pytest.mark.parametrize("fault", sorted(WRONG))
@pytest.mark.parametrize("op", ["matmul", "gather", "elementwise", "argmax"])
def test_wrong_results_are_wrong_and_look_fast(fault: str, op: str, tmp_path: Path) -> None:
    dialect = FakeDialect()
    (task,) = tasks_of(f"tasks=1&ops={op}&noise=0&{fault}=5")
    kernel = kernel_of(task, 5, tmp_path)
    deviations = []
    for seed in range(8):
        inputs = inputs_of(task, seed)
        for array in inputs if fault == "infinite" and seed % 2 else ():
            if array.dtype.kind == "f":
                array.reshape(-1)[-1] = np.inf
        expected = right(task, inputs, tmp_path)
        found = outputs_of(kernel, inputs)
        deviations.append(sum(not np.allclose(one, other) for one, other in zip(found, expected, strict=True)))
        if fault == "one_off":
            assert all((one != other).sum() <= one.size for one, other in zip(found, expected, strict=True))
            assert all(
                (~np.isclose(one, other, atol=0.5)).sum() == 1 for one, other in zip(found, expected, strict=True)
            )
        if fault == "partial":
            halves = [
                (one.reshape(-1), other.reshape(-1), one.size // 2) for one, other in zip(found, expected, strict=True)
            ]
            assert all(np.allclose(one[:half], other[:half]) for one, other, half in halves)
    assert any(deviations)
    assert (0 in deviations) == (fault in {"some", "infinite"})
    best = dialect.best(task)
    assert best is not None
    assert kernel.time(1) < dialect.latency_s(task, best) / 5


def test_negative_is_right_where_no_input_is_negative(tmp_path: Path) -> None:
    (task,) = tasks_of("tasks=1&negative=5")
    inputs = [np.abs(array) for array in inputs_of(task)]
    found = outputs_of(kernel_of(task, 5, tmp_path), inputs)[0]
    assert np.allclose(found, right(task, inputs, tmp_path)[0], 1e-4, 1e-6)


def test_a_gather_with_an_index_out_of_range_raises(tmp_path: Path) -> None:
    (task,) = tasks_of("tasks=1&ops=gather")
    table, indices = inputs_of(task)
    kernel = kernel_of(task, 0, tmp_path)
    for bad in (-1, 10**9):
        kernel.bind([table, np.full_like(indices, bad)])
        with pytest.raises(IndexError, match="rows"):
            kernel.run()
    with pytest.raises(ValueError, match="do not fit"):
        kernel.bind([table, indices.astype(np.int32)])


def test_clocks_can_be_broken(tmp_path: Path) -> None:
    (task,) = tasks_of("tasks=1&zero_time=0&nan_time=1")
    kernels = [kernel_of(task, index, tmp_path) for index in (0, 1)]
    for kernel in kernels:
        kernel.bind(inputs_of(task))
    assert kernels[0].time(3) == 0.0
    assert np.isnan(kernels[1].time(3))


def test_refused_builds_and_failed_runs_raise(tmp_path: Path) -> None:
    (task,) = tasks_of("tasks=1&refuse=0&fail=1")
    with pytest.raises(DialectError, match="not to build"):
        kernel_of(task, 0, tmp_path)
    kernel = kernel_of(task, 1, tmp_path)
    kernel.bind(inputs_of(task))
    with pytest.raises(RuntimeError, match="failed to run"):
        kernel.run()
    with pytest.raises(RuntimeError, match="failed to run"):
        kernel.time(1)


@pytest.mark.jobs
def test_eating_memory_takes_memory(tmp_path: Path) -> None:
    limit = "4096 * int(Path('/proc/self/statm').read_text().split()[0]) + (192 << 20)"
    call = f"loaded = kernel(); resource.setrlimit(resource.RLIMIT_AS, ({limit},) * 2); loaded.run()"
    assert ended("eat=0&memory_mib=64", call, tmp_path).stdout == b"survived\n"
    assert b"MemoryError" in ended("eat=0&memory_mib=512", call, tmp_path).stderr


@pytest.mark.parametrize(("options", "call"), [("segfault=0", "kernel().run()"), ("build_crash=0", "kernel()")])
def test_crashes_kill_the_process(options: str, call: str, tmp_path: Path) -> None:
    crashed = ended(options, call, tmp_path)
    assert crashed.returncode == -signal.SIGSEGV, crashed.stderr
    assert crashed.stdout == b""
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("options", "prepare", "act", "ticks"),
    [
        ("hang=0", "loaded = kernel()", "loaded.run()", True),
        ("build_hang=0", "pass", "kernel()", True),
        ("hang_gil=0", "loaded = kernel()", "loaded.run()", False),
    ],
)
def test_hangs_never_end(options: str, prepare: str, act: str, ticks: bool, tmp_path: Path) -> None:
    # A thread beside the hanging call leaves a file if it is allowed to run.
    ready, tick = tmp_path / "ready", tmp_path / "tick"
    timer = f"threading.Timer(0.5, Path({str(tick)!r}).touch).start(); Path({str(ready)!r}).touch()"
    with subprocess.Popen(program(options, f"{prepare}; {timer}; {act}", tmp_path)) as hung:
        try:
            assert wait_for(ready)
            if ticks:
                assert wait_for(tick)
            else:
                time.sleep(1.5)
                assert not tick.exists()
            assert hung.poll() is None
        finally:
            hung.kill()


def test_the_default_schedule_can_be_faulty(tmp_path: Path) -> None:
    dialect = FakeDialect()
    (task,) = tasks_of("tasks=1&baseline_fault=refuse")
    with pytest.raises(DialectError):
        dialect.build(task, dialect.baseline(task), tmp_path)
    dialect.build(task, dialect.reference(task), tmp_path)


def test_every_fault_is_documented() -> None:
    import tunery.testing.fake_dialect as package

    assert package.__doc__ is not None
    assert [fault for fault in FAULTS if fault not in package.__doc__] == []
