"""What only processes can do: crash, hang, be limited and be cleaned away."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tunery._errors import CrashError, DeadlineError, DialectError, EngineError, ModelError, RemoteError, UsageError
from tunery.dialects import get_dialect
from tunery.domain import Environment
from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.engines.local import nursery as ahead
from tunery.engines.local._record import Process

PROBE = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")
ROGUE = WorkerSpec(Role.BUILDER, "engine_services:Rogue")
PATIENCE_S = 120.0


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as engine:
        yield engine


def ask(engine: LocalEngine, worker: str, method: str, *args: object, deadline_s: float = PATIENCE_S) -> object:
    return engine.call(worker, method, *args, deadline_s=deadline_s).result(PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 100)):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_worker_is_another_process_and_pid_names_it(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    pid = ask(engine, worker, "pid")
    assert pid == engine.pid(worker) != os.getpid()


@pytest.mark.parametrize(
    ("method", "args", "exitcode"),
    [("segfault", (), -signal.SIGSEGV), ("read_null", (), -signal.SIGSEGV), ("leave", (3,), 3), ("leave", (0,), 0)],
)
def test_crash_is_told_with_its_exit_code_and_hurts_only_that_call(
    engine: LocalEngine, method: str, args: tuple[object, ...], exitcode: int
) -> None:
    worker, bystander = engine.start(ROGUE), engine.start(ROGUE)
    slept = engine.call(bystander, "sleep", 0.3, deadline_s=PATIENCE_S)
    crash = engine.call(worker, method, *args, deadline_s=PATIENCE_S)
    after = engine.call(worker, "pid", deadline_s=PATIENCE_S)
    with pytest.raises(CrashError, match=method) as caught:
        crash.result(PATIENCE_S)
    assert caught.value.exitcode == exitcode
    assert after.result(PATIENCE_S) == engine.pid(worker)
    assert slept.result(PATIENCE_S) == 0.3
    assert (engine.generation(worker), engine.generation(bystander)) == (2, 1)


def test_crash_quotes_the_last_output_and_the_python_line(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    with pytest.raises(CrashError, match="the matter was this"):
        ask(engine, worker, "last_words")
    with pytest.raises(CrashError, match="in read_null"):
        ask(engine, worker, "read_null")


@pytest.mark.parametrize(("method", "args"), [("sleep", (1000.0,)), ("hold_gil", ())])
def test_deadline_ends_even_a_worker_that_holds_the_gil(engine: LocalEngine, method: str, args: tuple[object]) -> None:
    worker = engine.start(ROGUE)
    pid = ask(engine, worker, "pid")
    assert isinstance(pid, int)
    with pytest.raises(DeadlineError, match=method):
        ask(engine, worker, method, *args, deadline_s=0.3)
    assert gone(pid)
    assert ask(engine, worker, "pid") != pid


def test_deadline_does_not_count_the_start(engine: LocalEngine) -> None:
    worker = engine.start(WorkerSpec(Role.BUILDER, "engine_services:SlowStart", {"seconds": 1.5}))
    assert ask(engine, worker, "pid", deadline_s=1.0) == engine.pid(worker)


def test_start_is_bounded() -> None:
    with LocalEngine(startup_s=0.5) as engine:
        worker = engine.start(WorkerSpec(Role.BUILDER, "engine_services:SlowStart", {"seconds": 1000.0}))
        with pytest.raises(CrashError, match="come up"):
            ask(engine, worker, "pid")


def test_exit_of_the_interpreter_in_a_method_is_its_failure(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    with pytest.raises(RemoteError) as caught:
        ask(engine, worker, "sys_exit")
    assert caught.value.kind == "SystemExit"
    assert engine.generation(worker) == 1


def test_error_classes_and_odd_messages(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    for method, cls, message in [
        ("model_error", ModelError, "this model has no name"),
        ("dialect_error", DialectError, "refused"),
        ("own_crash_error", CrashError, "a worker of mine is gone"),
    ]:
        with pytest.raises(cls) as own:
            ask(engine, worker, method)
        assert str(own.value) == message
        assert f"in {method}" in own.value.__notes__[0]
    with pytest.raises(RemoteError) as caught:
        ask(engine, worker, "odd_message")
    assert b"not utf-8: ?" in str(caught.value).encode()
    assert engine.generation(worker) == 1


def test_a_constructor_may_raise_or_crash(engine: LocalEngine) -> None:
    refused = engine.start(WorkerSpec(Role.IMPORTER, "engine_services:Refused"))
    fallen = engine.start(WorkerSpec(Role.IMPORTER, "engine_services:CrashesAtStart"))
    with pytest.raises(ModelError) as caught:
        ask(engine, refused, "pid")
    assert str(caught.value) == "no such model"
    for _ in range(2):
        with pytest.raises(CrashError, match="about to fall"):
            ask(engine, fallen, "pid")


def test_memory_limit_fails_the_hog_only() -> None:
    with LocalEngine() as engine:
        limited = engine.start(WorkerSpec(Role.BUILDER, ROGUE.service, memory_bytes=256 << 20))
        free = engine.start(ROGUE)
        with pytest.raises(RemoteError) as caught:
            ask(engine, limited, "allocate", 1 << 30)
        assert caught.value.kind == "MemoryError"
        assert ask(engine, limited, "allocate", 1 << 20) == 1 << 20
        assert ask(engine, free, "allocate", 1 << 30) == 1 << 30


def test_the_kernel_ends_a_worker_before_anything_else(engine: LocalEngine) -> None:
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    if ours >= 900:
        pytest.skip("this process is the first to be ended itself")
    assert ask(engine, engine.start(ROGUE), "oom_score") > ours


def test_a_worker_that_does_not_read_holds_up_nobody(engine: LocalEngine) -> None:
    deaf, other = (engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")) for _ in range(2))
    ask(engine, deaf, "count")
    pid = engine.pid(deaf)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    data = bytes(20 << 20)  # far more than a socket holds
    waiting = [engine.call(deaf, "echo_bytes", data, deadline_s=PATIENCE_S) for _ in range(3)]
    for number in range(1, 4):
        assert ask(engine, other, "count") == number
    assert not any(call.done() for call in waiting)
    os.kill(pid, signal.SIGCONT)
    assert all(call.result(PATIENCE_S) == data for call in waiting)


def test_a_deaf_worker_is_ended_at_its_deadline(engine: LocalEngine) -> None:
    deaf = engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe"))
    ask(engine, deaf, "count")
    pid = engine.pid(deaf)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DeadlineError):
        ask(engine, deaf, "echo_bytes", bytes(20 << 20), deadline_s=0.3)
    assert gone(pid)
    assert ask(engine, deaf, "count") == 1


@pytest.mark.jobs
def test_a_zygote_that_was_stopped_is_replaced() -> None:
    with LocalEngine(startup_s=20.0) as engine:
        first = engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe"))
        ask(engine, first, "count")
        pid = engine.pid(first)
        assert pid is not None
        zygote = psutil.Process(pid).ppid()
        os.kill(zygote, signal.SIGSTOP)
        until(lambda: str(zygote) in engine.obstacle())
        second = engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe"))
        assert ask(engine, second, "count") == 1
        assert gone(zygote)
        assert ask(engine, first, "count") == 1, "it went with the zygote, and is started from another"
        assert engine.obstacle() == ""


def test_flood_of_output_neither_blocks_nor_grows_for_ever(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    assert ask(engine, worker, "flood", 60_000) == 60_000
    assert ask(engine, worker, "flood", 1) == 1
    log = engine.logs / f"{worker}.log"
    assert "noise 0" in log.read_text(errors="replace")
    assert log.stat().st_size < 1 << 20


def test_worker_takes_its_place(engine: LocalEngine) -> None:
    core = max(os.sched_getaffinity(0))
    niceness = min(os.nice(0) + 3, 19)
    pinned = engine.start(WorkerSpec(Role.MEASURER, ROGUE.service, cores=(core,), threads=3, nice=3))
    plain = engine.start(ROGUE)
    assert ask(engine, pinned, "place") == ((core,), niceness)
    assert ask(engine, plain, "place") == (tuple(sorted(os.sched_getaffinity(0))), os.nice(0))
    names = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"]
    assert ask(engine, pinned, "environment", names) == dict(zip(names, ["3", "3"], strict=True))
    assert ask(engine, plain, "environment", names) == dict(zip(names, ["1", "1"], strict=True))


def test_a_worker_keeps_the_place_it_was_given_through_restarts(engine: LocalEngine) -> None:
    cores = sorted(os.sched_getaffinity(0))
    worker = engine.start(ROGUE)
    ask(engine, worker, "pid")
    for core in (cores[0], cores[-1]):
        engine.place(worker, (core,))
        assert ask(engine, worker, "place")[0] == (core,)
        with pytest.raises(CrashError):
            ask(engine, worker, "segfault")
        assert ask(engine, worker, "place")[0] == (core,)
        engine.kill(worker)
        engine.place(worker, tuple(cores))  # while it is down
        assert ask(engine, worker, "place")[0] == tuple(cores)


def test_a_place_given_while_a_worker_starts_holds(engine: LocalEngine) -> None:
    core = max(os.sched_getaffinity(0))
    worker = engine.start(WorkerSpec(Role.BUILDER, "engine_services:SlowStart", {"seconds": 0.3}))
    engine.place(worker, (core,))
    pid = ask(engine, worker, "pid")
    assert isinstance(pid, int)
    assert os.sched_getaffinity(pid) == {core}


def test_an_impossible_place_is_told(engine: LocalEngine) -> None:
    worker = engine.start(WorkerSpec(Role.MEASURER, ROGUE.service, cores=(1023,)))
    with pytest.raises(RemoteError, match="starting"):
        ask(engine, worker, "pid")


def test_compiler_and_torch_exclude_each_other(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "tvm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    tvm = Environment(forbidden=("torch",), libraries=("tvm",))
    compiler = engine.start(replace(ROGUE, environment=tvm))
    other = engine.start(replace(ROGUE, environment=tvm.counterpart()))
    assert [ask(engine, compiler, "imports", name) for name in ("torch", "tvm")] == [False, True]
    assert [ask(engine, other, "imports", name) for name in ("torch", "tvm")] == [True, False]


def test_an_environment_gives_variables_and_thread_counts(engine: LocalEngine) -> None:
    environment = Environment(variables={"TUNERY_TEST_COLOUR": "blue"}, thread_variables=("TUNERY_TEST_THREADS",))
    worker = engine.start(replace(ROGUE, environment=environment, threads=3))
    names = ["TUNERY_TEST_COLOUR", "TUNERY_TEST_THREADS"]
    assert ask(engine, worker, "environment", names) == dict(zip(names, ["blue", "3"], strict=True))
    assert ask(engine, engine.start(ROGUE), "environment", names) == dict.fromkeys(names)


@pytest.mark.jobs
def test_workers_of_another_python_import_what_is_installed_there(engine: LocalEngine, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    [packages] = home.glob("lib/*/site-packages")
    (packages / "others.pth").write_text("\n".join(place for place in sys.path if place))
    (packages / "only_there.py").write_text("")
    environment = Environment(python=str(home / "bin" / "python"), preload=("only_there",))
    worker = engine.start(replace(ROGUE, environment=environment))
    assert ask(engine, worker, "loaded", "only_there")
    assert not ask(engine, engine.start(ROGUE), "imports", "only_there")


@pytest.mark.jobs
def test_cpu_seconds_count_children_and_the_killed(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    ask(engine, worker, "burn_in_child", 0.3)
    assert engine.cpu_s(worker) >= 0.28
    with pytest.raises(DeadlineError):
        ask(engine, worker, "burn", 1000.0, deadline_s=1.0)
    assert engine.cpu_s(worker) >= 0.4
    assert engine.pid(worker) is None


def test_kill_takes_along_what_the_worker_had_started(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    child = ask(engine, worker, "spawn_sleeper")
    assert isinstance(child, int)
    assert not gone(child)
    engine.kill(worker)
    assert engine.pid(worker) is None
    until(lambda: gone(child))


def test_kill_while_starting_fails_the_call_it_was_started_for(engine: LocalEngine) -> None:
    worker = engine.start(WorkerSpec(Role.BUILDER, "engine_services:SlowStart", {"seconds": 1000.0}))
    call = engine.call(worker, "pid", deadline_s=PATIENCE_S)
    engine.kill(worker)
    with pytest.raises(CrashError, match="killed"):
        call.result(PATIENCE_S)


def test_worker_killed_by_a_stranger_starts_again(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    pid = ask(engine, worker, "pid")
    assert isinstance(pid, int)
    call = engine.call(worker, "sleep", 1000.0, deadline_s=PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(CrashError) as caught:
        call.result(PATIENCE_S)
    assert caught.value.exitcode == -signal.SIGKILL
    assert ask(engine, worker, "pid") not in (pid, None)


def test_death_of_the_zygote_costs_the_calls_in_flight_only(engine: LocalEngine) -> None:
    worker = engine.start(ROGUE)
    pid = ask(engine, worker, "pid")
    assert isinstance(pid, int)
    call = engine.call(worker, "hold_gil", deadline_s=PATIENCE_S)
    parent = psutil.Process(pid).parent()
    assert parent is not None
    parent.kill()
    with pytest.raises(CrashError):
        call.result(PATIENCE_S)
    until(lambda: gone(pid))
    assert ask(engine, worker, "pid") == engine.pid(worker)


def test_preload_that_fails_is_told_with_its_reason() -> None:
    with LocalEngine() as engine:
        worker = engine.start(replace(ROGUE, environment=Environment(preload=("no_such_module",))))
        with pytest.raises(CrashError, match="no_such_module"):
            ask(engine, worker, "pid")


def test_calls_from_many_threads(engine: LocalEngine) -> None:
    workers = [engine.start(ROGUE) for _ in range(3)]
    failures: list[Exception] = []

    def caller() -> None:
        try:
            for worker in workers * 20:
                assert ask(engine, worker, "pid") == engine.pid(worker)
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=caller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_callback_may_use_and_close_the_engine() -> None:
    engine = LocalEngine()
    worker = engine.start(ROGUE)
    done = threading.Event()

    def second(_: object) -> None:
        engine.kill(worker)
        engine.close()
        done.set()

    def first(_: object) -> None:
        engine.call(worker, "pid", deadline_s=PATIENCE_S).add_done_callback(second)

    engine.call(worker, "pid", deadline_s=PATIENCE_S).add_done_callback(first)
    assert done.wait(PATIENCE_S)
    engine.close()
    with pytest.raises(EngineError):
        engine.start(ROGUE)


def test_close_leaves_nothing_but_what_waits_for_the_next(tmp_path: Path) -> None:
    ahead.end()
    before, files = descendants(), len(list(Path("/proc/self/fd").iterdir()))
    with LocalEngine() as engine:
        workers = [engine.start(ROGUE) for _ in range(2)]
        escaped = ask(engine, workers[0], "spawn_escaped_sleeper")
        call = engine.call(workers[1], "hold_gil_after", tmp_path / "hung", deadline_s=PATIENCE_S)
        until((tmp_path / "hung").exists)
        logs = engine.logs
        assert len(descendants() - before) >= 4
    assert isinstance(call.exception(0), CrashError)
    assert len(descendants() - before) == 1
    ahead.end()
    assert descendants() == before
    assert isinstance(escaped, int)
    assert gone(escaped)
    assert not logs.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.jobs
def test_interpreter_exit_without_close_is_clean() -> None:
    code = (
        "from tunery.engines import *\n"
        "engine = LocalEngine()\n"
        "worker = engine.start(WorkerSpec(Role.BUILDER, 'tunery.testing.engine_probe:Probe'))\n"
        "print(engine.call(worker, 'where', deadline_s=100).result(100)[0])\n"
        "engine.call(worker, 'sleep', 1000.0, deadline_s=1000)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ran.stderr == ""
    assert gone(int(ran.stdout))


def test_logs_may_be_kept(tmp_path: Path) -> None:
    with LocalEngine(logs=tmp_path / "logs") as engine:
        worker = engine.start(ROGUE)
        ask(engine, worker, "flood", 1)
        with pytest.raises(CrashError):
            ask(engine, worker, "leave", 1)
        ask(engine, worker, "pid")
    assert "noise 0" in (tmp_path / "logs" / f"{worker}.previous.log").read_text(errors="replace")
    assert (tmp_path / "logs" / f"{worker}.log").exists()


@pytest.mark.tvm
def test_preloaded_tvm_is_there_without_torch_and_obeys_threads() -> None:
    with LocalEngine() as engine:
        environment = get_dialect("metaschedule").environment()
        worker = engine.start(replace(ROGUE, environment=environment, threads=2))
        torch_worker = engine.start(replace(ROGUE, environment=environment.counterpart()))
        assert ask(engine, worker, "loaded", "tvm")
        assert not ask(engine, worker, "loaded", "torch")
        assert ask(engine, worker, "tvm_threads") == 2
        assert not ask(engine, torch_worker, "loaded", "tvm")
        pid = engine.pid(worker)
        assert pid is not None
        zygote = psutil.Process(pid).parent()
        assert zygote is not None
        assert zygote.num_threads() == 1


def test_a_kill_that_comes_after_the_end_is_none(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        process = Process("worker#1", None, None, ended.pid, os.pidfd_open(ended.pid))  # type: ignore[arg-type]
        ended.wait()
    process.kill()
    assert process.doomed
    assert process.pidfd is not None
    os.close(process.pidfd)


@pytest.mark.parametrize("text", ["x" * 24, "\0" * 24, "\2" + "\0" * 7 + "\2\0\0\0{}12"])
def test_a_worker_whose_code_writes_into_its_socket_is_ended_at_once(engine: LocalEngine, text: str) -> None:
    worker = engine.start(ROGUE)
    with pytest.raises(CrashError, match="answered with"):
        ask(engine, worker, "write_to_sockets", text)
    assert ask(engine, worker, "pid") == engine.pid(worker)


def test_what_a_worker_leaves_in_a_session_of_its_own_goes_with_it(engine: LocalEngine) -> None:
    worker, other = engine.start(ROGUE), engine.start(ROGUE)
    left, kept = (ask(engine, one, "spawn_sleeper_in_a_session") for one in (worker, other))
    assert isinstance(left, int)
    assert isinstance(kept, int)
    engine.kill(worker)
    until(lambda: gone(left))
    assert not gone(kept), "its worker is at work"
    engine.kill(other)
    until(lambda: gone(kept))


def test_a_launch_that_fails_is_answered_and_the_next_one_made(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with LocalEngine(logs=tmp_path) as engine:
        engine.call(engine.start(PROBE), "count", deadline_s=60).result(60)
        spare = os.open("/dev/null", os.O_RDONLY)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))  # which is the next descriptor
        try:
            other = engine.start(PROBE)
            failed = engine.call(other, "count", deadline_s=60).exception(60)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(failed, CrashError)
        assert engine.call(other, "count", deadline_s=60).result(60) == 1


def test_a_failure_of_the_loop_ends_every_call_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalEngine(logs=tmp_path) as engine:
        one, other = engine.start(PROBE), engine.start(PROBE)
        engine.call(one, "count", deadline_s=60).result(60)
        calls = [engine.call(other, "sleep", 60.0, deadline_s=60), engine.call(other, "count", deadline_s=60)]
        with monkeypatch.context() as broken:
            broken.setattr(engine, "_answer", lambda *_, **__: 1 / 0)
            calls.append(engine.call(one, "count", deadline_s=60))
            for call in calls:
                with pytest.raises(EngineError, match="ZeroDivisionError"):
                    call.result(60)
        assert engine.call(one, "count", deadline_s=60).result(60) == 1


def test_too_few_descriptors_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    with pytest.raises(UsageError, match="may open 40 files"):
        LocalEngine()
