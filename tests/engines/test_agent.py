"""Agents, hosts and pipes that fail in every way they can: only calls in flight are lost, nothing is left behind."""

import math
import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from job_tools import family, wait_until

from tunery._errors import CrashError, HostError, LostWorkerError
from tunery.domain import Artifact, BlobDigest, Measurement, Network, Outcome, Target, Task, TensorSpec, Workload
from tunery.engines import AgentEngine, Role, WorkerSpec
from tunery.engines._loop import MOST_SENT_BYTES, FrameError, FrameReader
from tunery.engines._payload import blob_finder
from tunery.engines.remote._connection import agent_command
from tunery.engines.remote._link import Timing
from tunery.engines.remote._protocol import check_told
from tunery.testing.engine_probe import Probe
from tunery.testing.fake_blobs import FakeBlobs

PATIENCE_S = 120.0
PROBE = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")
AGENT = f"{shlex.quote(sys.executable)} -m tunery agent --stdio"
QUICK = Timing(keep_alive_s=1.0, first_retry_s=0.05)
# An agent that a test has altered by the lines `change`.
BENT = """
import sys
from pathlib import Path
from tunery.engines import _loop
from tunery.engines.remote import agent, facts
{change}
sys.exit(agent.serve_stdio(Path(sys.argv[1])))
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mark all processes that this test starts, which have a temporary directory of their own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("TUNERY_TEST_FAMILY", str(tmp_path))
    return tmp_path


@pytest.fixture
def engine(mark: Path) -> Iterator[AgentEngine]:
    with FakeBlobs() as blobs, AgentEngine("far", AGENT, blobs, timing=QUICK) as engine:
        yield engine
    wait_until(lambda: not family(mark))
    assert not list((mark / "temporary").iterdir())


def bent(change: str, cache: Path) -> str:
    """Return the command of an agent that the lines `change` have altered."""
    return f"{shlex.join([sys.executable, '-c', BENT.format(change=change), str(cache)])} agent --stdio"


def ask(engine: AgentEngine, worker: str, method: str, *args: object, deadline_s: float = PATIENCE_S) -> Any:
    return engine.call(worker, method, *args, deadline_s=deadline_s).result(PATIENCE_S)


def agent_of(engine: AgentEngine, worker: str) -> psutil.Process:
    """Return the agent of a worker that has answered: the parent of its zygote."""
    pid = engine.pid(worker)
    zygote = psutil.Process(pid).parent()
    agent = None if zygote is None else zygote.parent()
    assert agent is not None
    return agent


def hanging(engine: AgentEngine, worker: str, directory: Path) -> Future[Any]:
    """Begin a call that never ends, and return when it is at work."""
    call = engine.call(worker, "meet", directory / "here", directory / "never", deadline_s=PATIENCE_S)
    wait_until((directory / "here").exists)
    return call


@pytest.mark.jobs
def test_a_killed_agent_costs_the_call_in_flight_and_leaves_nothing(engine: AgentEngine, mark: Path) -> None:
    worker = engine.start(PROBE)
    assert ask(engine, worker, "count") == 1
    flying = hanging(engine, worker, mark)
    waiting = engine.call(worker, "count", deadline_s=PATIENCE_S)
    before = {process.pid for process in family(mark)}
    agent_of(engine, worker).kill()
    with pytest.raises(LostWorkerError, match="far"):
        flying.result(PATIENCE_S)
    assert waiting.result(PATIENCE_S) == 1, "on a fresh worker of a fresh agent"
    assert engine.generation(worker) == 2
    wait_until(lambda: not before & {process.pid for process in family(mark)})


@pytest.mark.jobs
def test_a_killed_worker_is_a_crash_and_its_host_stays(engine: AgentEngine, mark: Path) -> None:
    worker = engine.start(PROBE)
    ask(engine, worker, "count")
    agent, flying = agent_of(engine, worker), hanging(engine, worker, mark)
    os.kill(engine.pid(worker) or 0, signal.SIGKILL)
    with pytest.raises(CrashError) as caught:
        flying.result(PATIENCE_S)
    assert not isinstance(caught.value, LostWorkerError)
    assert ask(engine, worker, "count") == 1
    assert agent_of(engine, worker) == agent


@pytest.mark.jobs
def test_a_host_is_reached_by_another_command_given_up_and_reached_again(mark: Path) -> None:
    with FakeBlobs() as blobs, AgentEngine("far", "sh -c 'exit 255' x", blobs) as engine:
        with pytest.raises(HostError):
            engine.wait(PATIENCE_S, tries=1)
        engine.reach_by(AGENT)
        worker = engine.start(PROBE)
        assert ask(engine, worker, "count") == 1
        flying = hanging(engine, worker, mark)
        engine.give_up("it was removed")
        for call in (flying, engine.call(worker, "count", deadline_s=PATIENCE_S)):
            with pytest.raises(LostWorkerError, match="it was removed"):
                call.result(PATIENCE_S)
        wait_until(lambda: not family(mark))
        engine.reach_by(AGENT)
        assert ask(engine, worker, "count") == 1


@pytest.mark.attack
@pytest.mark.jobs
def test_a_host_that_is_slow_to_greet_says_why_and_is_waited_for(mark: Path) -> None:
    late = (
        f"""sh -c 'echo Welcome; while [ ! -e "$0" ]; do sleep 0.05; done; exec "$@"' {shlex.quote(str(mark / "go"))}"""
    )
    with (
        FakeBlobs() as blobs,
        AgentEngine("far", f"{late} {AGENT}", blobs, timing=Timing(slow_greeting_s=0.1)) as engine,
    ):
        wait_until(lambda: "Welcome" in engine.trouble())
        assert engine.facts() is None
        (mark / "go").touch()
        engine.wait(PATIENCE_S)
        assert engine.trouble() == ""


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("printf 'rub\\000bish'; sleep 1000", "rub"),
        ("printf '\\000tunery ag'; sleep 1000", "tunery ag"),
        ("sleep 1000 & exit 3", "exit code 3"),
    ],
)
def test_what_cannot_become_a_greeting_any_more_is_not_waited_for(command: str, said: str) -> None:
    timing = Timing(slow_greeting_s=1.0, greeting_s=math.inf)
    with (
        FakeBlobs() as blobs,
        AgentEngine("far", f"sh -c {shlex.quote(command)} x", blobs, timing=timing) as engine,
        pytest.raises(HostError, match=said),
    ):
        engine.wait(PATIENCE_S, tries=1)


@pytest.mark.jobs
def test_a_stopped_agent_is_given_up_and_replaced(engine: AgentEngine, mark: Path) -> None:
    worker = engine.start(PROBE)
    ask(engine, worker, "count")
    agent, flying = agent_of(engine, worker), hanging(engine, worker, mark)
    agent.suspend()
    with pytest.raises(LostWorkerError):
        flying.result(PATIENCE_S)
    assert ask(engine, worker, "count") == 1
    wait_until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.jobs
def test_an_agent_that_hears_nothing_ends(tmp_path: Path, mark: Path) -> None:
    """Its coordinator is stopped, or the network is cut: no end of file comes."""
    held, go = os.pipe()
    silent = threading.Event()

    def used(*_: object) -> None:  # on the engine's thread, which then says nothing
        if silent.is_set():
            os.read(held, 1)

    timing = replace(QUICK, keep_alive_s=0.5)
    with FakeBlobs() as blobs, AgentEngine("far", AGENT, blobs, on_usage=used, timing=timing) as engine:
        worker = engine.start(PROBE)
        ask(engine, worker, "count")
        agent = agent_of(engine, worker)
        silent.set()
        engine.call(worker, "count", deadline_s=PATIENCE_S)
        wait_until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE)
        silent.clear()
        os.write(go, b".")
        with suppress(LostWorkerError):  # what is sent before the engine has noticed is lost
            ask(engine, worker, "count")
        assert ask(engine, worker, "count") in {1, 2}
        os.close(held)
        os.close(go)


COORDINATOR = """
import sys, time
from tunery.testing.fake_blobs import FakeBlobs
from tunery.engines import AgentEngine, Role, WorkerSpec
engine = AgentEngine("far", sys.argv[1], FakeBlobs())
worker = engine.start(WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe"))
engine.call(worker, "count", deadline_s=100).result(100)
engine.call(worker, "sleep", 1000.0, deadline_s=1000)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.jobs
def test_nothing_survives_a_killed_coordinator(mark: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", COORDINATOR, AGENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert len(family(mark)) == 4  # the coordinator, the agent, its zygote, the worker
        parent.kill()
        parent.wait()
    wait_until(lambda: not family(mark))


HUGE = "agent.pack = lambda *_: _loop._LENGTHS.pack(10 << 30, 20)"


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ("agent.MAGIC = b'Welcome to this machine.'; agent.host_facts = sys.exit", "Welcome to this machine"),
        (HUGE, str(10 << 30)),
        ("agent.host_facts = lambda: __import__('dataclasses').replace(facts.host_facts(), cores='many')", "facts"),
    ],
)
def test_what_is_no_agent_is_refused(change: str, sign: str, tmp_path: Path) -> None:
    with (
        FakeBlobs() as blobs,
        AgentEngine("odd", bent(change, tmp_path), blobs, timing=replace(QUICK, patience_s=0.0)) as engine,
    ):
        worker = engine.start(PROBE)
        with pytest.raises(LostWorkerError):
            ask(engine, worker, "count")
        wait_until(lambda: sign in engine.trouble())
        assert engine.facts() is None


@pytest.mark.parametrize(
    "change",
    ["agent.PROTOCOL = 99",
     "agent.host_facts = lambda: __import__('dataclasses').replace(facts.host_facts(), version='99.0')"],
)  # fmt: skip
def test_an_agent_of_another_version_is_refused_once_and_for_all(change: str, tmp_path: Path) -> None:
    with FakeBlobs() as blobs, AgentEngine("old", bent(change, tmp_path), blobs) as engine:
        worker = engine.start(PROBE)
        with pytest.raises(HostError) as caught:
            engine.wait(PATIENCE_S)
        assert "99" in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(LostWorkerError, match="99"):
            ask(engine, worker, "count")


def test_a_host_says_how_busy_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_LOAD_WATCH", "on")
    shared = (
        "from tunery.devices.cpu.load import CpuForeignLoad\n"
        "CpuForeignLoad.taken = lambda self: 1.5"
    )  # fmt: skip
    heard: list[str] = []
    with FakeBlobs() as blobs, AgentEngine("far", bent(shared, tmp_path), blobs, timing=QUICK) as engine:
        assert engine.use() is None
        engine.watch(heard.append)
        wait_until(lambda: engine.use() is not None)
        use = engine.use()
        assert use is not None
        assert use.others == 1.5
        assert use.ours >= 0.0
        wait_until(lambda: len(heard) > 1)


@pytest.mark.attack
def test_a_second_answer_is_none(tmp_path: Path) -> None:
    twice = (
        "once = agent.LocalAgent._send\n"
        "def send(self, header, body=b''):\n"
        "    for _ in range(1 + (header['do'] == 'answer')):\n"
        "        once(self, header, body)\n"
        "agent.LocalAgent._send = send"
    )
    with FakeBlobs() as blobs, AgentEngine("far", bent(twice, tmp_path), blobs, timing=QUICK) as engine:
        worker = engine.start(PROBE)
        calls = [engine.call(worker, "count", deadline_s=PATIENCE_S) for _ in range(20)]
        assert [call.result(PATIENCE_S) for call in calls] == list(range(1, 21))
        assert engine.generation(worker) == 1


@pytest.mark.attack
@pytest.mark.jobs
@pytest.mark.parametrize(
    "wrong",
    [
        "self._loop.post(lambda: self._channel.send_packed(b'\\xff' * 1000))",
        "header['cpu_s'] = float('nan')", "header['cpu_s'] = 1e15",
        "header['cpu_s'] = -1.0", "body = b'[' * 1000",
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_costs_what_is_in_flight(wrong: str, tmp_path: Path) -> None:
    broken = (
        "once = agent.LocalAgent._send\n"
        "def send(self, header, body=b''):\n"
        "    marker = Path(sys.argv[1], 'broken')\n"
        "    if header['do'] == 'answer' and not marker.exists():\n"
        "        marker.touch()\n"
        f"        {wrong}\n"
        "    once(self, header, body)\n"
        "agent.LocalAgent._send = send"
    )
    with FakeBlobs() as blobs, AgentEngine("far", bent(broken, tmp_path), blobs, timing=QUICK) as engine:
        worker = engine.start(PROBE)
        with pytest.raises(LostWorkerError):
            ask(engine, worker, "count")
        assert ask(engine, worker, "count") == 1
        assert 0 <= engine.cpu_s(worker) < PATIENCE_S


def task_of(flop: float) -> Task:
    spec = TensorSpec("y", (16,), "float32")
    return Task(Workload("k", "w", "dense", "", (spec,), 1, flop), Target("fake", {"kind": "fake"}, 1))


@pytest.mark.attack
@pytest.mark.parametrize(("flop", "latency_s", "believed"), [
    (1e6, 1e-9, False), (1e6, 1e-4, True), (1e12, 1e-2, False), (0.0, 1e-9, False), (0.0, float("inf"), False),
    (1e6, -1.0, False),
])  # fmt: skip
def test_a_time_that_no_processor_needs_is_not_believed(flop: float, latency_s: float, believed: bool) -> None:
    task = task_of(flop)
    measured = Measurement(Outcome.OK, (latency_s,))
    for told in (measured, [measured, measured]):
        with nullcontext() if believed else pytest.raises(HostError, match="add it again"):
            check_told(told, task)
    with pytest.raises(HostError, match="add it again"):
        check_told(replace(measured, samples_s=(1e-2,), measure_s=-10.0), task)


@pytest.mark.attack
def test_reading_takes_time_where_all_is_read() -> None:
    task = task_of(0.0)
    table = TensorSpec("x", (1 << 20,), "float32")
    sums = replace(task.workload, arguments=(table, *task.workload.arguments))
    told = Measurement(Outcome.OK, (1e-6,))
    check_told(told, replace(task, workload=sums))  # some numbers may only be looked up
    with pytest.raises(HostError, match="at least"):
        check_told(told, replace(task, workload=replace(sums, flop=float(1 << 20))))


@pytest.mark.attack
@pytest.mark.jobs
def test_a_host_that_tells_what_cannot_be_is_given_up(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with FakeBlobs() as blobs, AgentEngine("far", AGENT, blobs, timing=QUICK) as engine:
        worker = engine.start(replace(PROBE, service="engine_services:FalseMeasurer"))
        with pytest.raises(LostWorkerError, match="at least"):
            ask(engine, worker, "race", task_of(1e6))
        with pytest.raises(HostError, match="at least"):
            engine.wait(PATIENCE_S)
    wait_until(lambda: not family(mark))


@pytest.mark.attack
@pytest.mark.jobs
def test_an_engine_of_a_host_that_has_stopped_closes_within_seconds(mark: Path) -> None:
    with FakeBlobs() as blobs:
        engine = AgentEngine("far", AGENT, blobs)
        engine.wait(PATIENCE_S)
        for process in family(mark):
            process.suspend()
        start = time.monotonic()
        engine.close()
        assert time.monotonic() - start < 5.0
    wait_until(lambda: not family(mark))


@pytest.mark.attack
@pytest.mark.jobs
def test_an_answer_that_never_comes_costs_its_call(tmp_path: Path) -> None:
    swallows = (
        "once = agent.LocalAgent._send\n"
        "def send(self, header, body=b''):\n"
        "    marker = Path(sys.argv[1], 'swallowed')\n"
        "    if header['do'] == 'answer' and not marker.exists():\n"
        "        marker.touch()\n"
        "        return\n"
        "    once(self, header, body)\n"
        "agent.LocalAgent._send = send"
    )
    timing = replace(QUICK, late_s=2.0)
    with FakeBlobs() as blobs, AgentEngine("far", bent(swallows, tmp_path), blobs, timing=timing) as engine:
        worker = engine.start(PROBE)
        with pytest.raises(LostWorkerError):
            ask(engine, worker, "count", deadline_s=1.0)
        assert ask(engine, worker, "count") == 1


def test_an_agent_that_is_sent_garbage_ends_with_its_workers(mark: Path) -> None:
    done = subprocess.run(
        shlex.split(AGENT), input=b"\xff" * 1000, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert b"refused" in done.stdout
    assert not family(mark)


def test_a_host_without_room_loses_the_call_only(mark: Path) -> None:
    narrow = f"sh -c {shlex.quote(f'ulimit -f 2000; exec {AGENT}')} agent --stdio"
    with FakeBlobs() as blobs, AgentEngine("full", narrow, blobs, timing=QUICK) as engine:
        worker = engine.start(PROBE)
        with pytest.raises(LostWorkerError, match="takes no more"):
            ask(engine, worker, "reverse", blobs.put(os.urandom(3 << 20), temporary=True))
        small = blobs.put(b"small", temporary=True)
        assert blobs.get(ask(engine, worker, "reverse", small)).read_bytes() == b"llams"


@pytest.mark.parametrize(
    ("command", "sign"), [("/nowhere/ssh pi@host", "/nowhere/ssh"), ("sh -c 'echo Permission denied. >&2'", "denied")]
)
def test_a_command_that_fails_says_why(command: str, sign: str) -> None:
    with FakeBlobs() as blobs, AgentEngine("gone", command, blobs, timing=QUICK) as engine:
        wait_until(lambda: sign in engine.trouble())
        with pytest.raises(HostError, match=sign):
            engine.wait(0)


def test_words_of_a_login_shell_are_passed_over(mark: Path) -> None:
    with (
        FakeBlobs() as blobs,
        AgentEngine("far", f"sh -c 'echo Welcome.; exec {AGENT}' agent --stdio", blobs) as engine,
    ):
        assert engine.wait(PATIENCE_S).cores


def test_a_blob_crosses_once_in_each_direction(mark: Path) -> None:
    with FakeBlobs() as home, AgentEngine("far", AGENT, home, timing=QUICK) as engine:
        worker, data = engine.start(PROBE), os.urandom(3 << 20)
        given = engine.blobs.put(data, temporary=True)
        made = ask(engine, worker, "reverse", given)
        assert engine.blobs.get(made).read_bytes() == data[::-1]
        home.followers = ()  # without the host's hearing of it: the bytes are there only
        home.release(given)
        home.release(made)
        assert ask(engine, worker, "reverse", given) == made
        assert engine.blobs.get(made).read_bytes() == data[::-1]


def test_one_at_a_time_holds_the_device_of_a_host(engine: AgentEngine, mark: Path) -> None:
    with FakeBlobs() as blobs, AgentEngine("again", AGENT, blobs, timing=QUICK) as other:
        engine.wait(PATIENCE_S)
        other.wait(PATIENCE_S)
        let_go = engine.hold_device().result(PATIENCE_S)
        waiting = other.hold_device()
        worker = other.start(PROBE)
        ask(other, worker, "count")
        assert not waiting.done()
        let_go()
        theirs = waiting.result(PATIENCE_S)
        again = engine.hold_device()
        agent_of(other, worker).kill()
        again.result(PATIENCE_S)()
        theirs()  # of a connection that is over: without effect


@pytest.mark.jobs
def test_a_host_says_what_it_is_and_when(engine: AgentEngine) -> None:
    facts = engine.wait(PATIENCE_S)
    assert set(facts.cores) == os.sched_getaffinity(0)
    assert facts.python.split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert {"numpy", "onnxruntime"} <= facts.packages.keys(), "what extras bring is told as well"
    wait_until(lambda: engine.clock_off_s() is not None)
    assert abs(engine.clock_off_s() or 0.0) < PATIENCE_S
    assert {check.name for check in engine.checks().result(PATIENCE_S)} >= {"cache"}


@pytest.mark.parametrize("command", ["", "  ", 'ssh "pi@host'])
def test_a_connect_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(HostError):
        agent_command(command)


@dataclass
class Nested:
    one: Artifact
    many: dict[str, tuple[Artifact, ...]]
    maybe: Network | None
    text: str


def test_blobs_are_found_by_their_annotation() -> None:
    def artifact(blob: str) -> Artifact:
        return Artifact("key", blob, 1)

    digest = "0" * 64
    network = Network("n", "s", digest, "", (), (), 0, blob="d")
    nested = Nested(artifact("a"), {"x": (artifact("b"), artifact("c"))}, network, digest)
    for hint, value, found in (
        (Nested, nested, ["a", "b", "c", "d"]),
        (Nested, replace(nested, maybe=None), ["a", "b", "c"]),
        (tuple[str, Artifact | None], (digest, artifact("e")), ["e"]),
        (BlobDigest | None, "f", ["f"]),
        (BlobDigest, "", []),
    ):
        finder = blob_finder(hint)
        assert finder is not None
        assert list(finder(value)) == found
    assert blob_finder(str) is blob_finder(dict[str, list[int]]) is blob_finder(Probe) is None


@pytest.mark.attack
def test_memory_is_taken_as_bytes_come(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_bytes(b"\x00\x00\x00\x0f\x00\x00\x00\x00\x02\x00\x00\x00{}")  # says 250 MB, and has two bytes
    descriptor = os.open(torn, os.O_RDONLY)
    before = psutil.Process().memory_info().rss
    assert FrameReader(descriptor).read() is None
    assert psutil.Process().memory_info().rss - before < 50 << 20
    os.close(descriptor)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("data", "sign"),
    [
        (b"\xff" * 100, "too large"),
        (struct.pack("<QI", 10 << 30, 20), str(10 << 30)),
        (struct.pack("<QI", 0, 1 << 30), str(1 << 30)),
        (struct.pack("<QI", 0, 5) + b"{oops", "not JSON"),
        (struct.pack("<QI", 0, 100_000) + b"[" * 100_000, "not JSON"),
        (struct.pack("<QI", 0, 23) + b'{"do":"pong","s":1e999}', "not JSON"),
        (struct.pack("<QI", 0, 2) + b"[]", "what it is"),
        (struct.pack("<QI", 0, 8) + b'{"do":1}', "what it is"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, sign: str, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(data)
    descriptor = os.open(tmp_path / "sent", os.O_RDONLY)
    with pytest.raises(FrameError, match=sign):
        FrameReader(descriptor, MOST_SENT_BYTES).read()
    os.close(descriptor)
