"""The local daemon, killed, flooded and left alone; on the fake dialect, in a process of its own."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from daemon_tools import PATIENCE_S, Client, Daemon, raced, request, state_of, wait_until
from second_user import needs_root, other_starts, shared_place

from tunery._errors import TuneryError, UsageError
from tunery.domain import JobState
from tunery.domain.request import Progress, Request, ShareRequest
from tunery.store import open_store

pytestmark = pytest.mark.jobs

LONG = "fake:long?tasks=2&build_s=0.02&space=16x16x16"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests that leave it alive."""
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    yield running
    assert running.end(signal.SIGTERM) == 0


def test_clients_submit_at_once_and_each_sees_its_own(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o600
    seen: dict[int, list[Progress]] = {}
    done = {}

    def submit(number: int) -> None:
        seen[number] = []
        asked = request(f"fake:n{number}?seed={number}", 10 + number)
        done[number] = daemon.client.submit(asked, ShareRequest(f"owner {number % 2}"), on_progress=seen[number].append)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [(done[n].state, done[n].spend.trials) for n in range(6)] == [(JobState.DONE, 10 + n) for n in range(6)]
    for number in range(6):
        assert {progress.job_id for progress in seen[number]} == {done[number].job_id}
        trials = [progress.trials for progress in seen[number]]
        assert trials == sorted(trials)
        assert trials[-1] <= 10 + number, "a look now and then, the last before the end"


def test_a_client_that_vanishes_leaves_its_job_running(daemon: Daemon) -> None:
    def told(progress: Progress) -> None:
        if progress.trials:
            raise ConnectionAbortedError

    jobs: list[str] = []
    with pytest.raises(ConnectionAbortedError):
        daemon.client.submit(request("fake:left?build_s=0.02", 30), ShareRequest(), jobs.append, told)
    wait_until(lambda: state_of(daemon.directory, jobs[0]) is JobState.DONE)


def test_killed_and_started_again_it_goes_on_with_every_job(tmp_path: Path) -> None:
    first = Daemon(tmp_path)
    jobs = [first.client.submit(request(f"{LONG}&seed={n}", 24), ShareRequest(priority=n)).job_id for n in range(3)]
    first.client.act("pause", jobs[2])
    wait_until(lambda: raced(tmp_path).total() > 8)
    first.end(signal.SIGKILL)
    before = raced(tmp_path)
    assert first.path.exists(), "a killed daemon cannot clean up"
    second = Daemon(tmp_path)
    assert "going on with 2 jobs" in second.greeting
    for job in jobs[:2]:
        status = second.client.act("follow", job)
        assert (status.state, status.spend.trials) == (JobState.DONE, 24)
    assert state_of(tmp_path, jobs[2]) is JobState.PAUSED
    assert second.client.act("resume", jobs[2], follow=True).state is JobState.DONE
    assert second.end(signal.SIGTERM) == 0
    assert set(raced(tmp_path).values()) == {1}, "nothing was measured twice"
    assert before.total() < raced(tmp_path).total()
    assert not second.path.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_clean_stop_leaves_the_queue_and_no_process(tmp_path: Path, number: int) -> None:
    daemon = Daemon(tmp_path)
    job = daemon.client.submit(request(LONG, 4000), ShareRequest()).job_id
    wait_until(lambda: raced(tmp_path).total() > 4)
    assert daemon.end(number) == 0
    assert state_of(tmp_path, job) is JobState.QUEUED
    assert not list((tmp_path / "cache").glob("run-*"))


def test_a_second_daemon_is_refused(daemon: Daemon) -> None:
    other = subprocess.run(
        [sys.executable, "-m", "tunery", "serve", "--socket", str(daemon.path)],
        capture_output=True, text=True, check=False, cwd=daemon.directory,
    )  # fmt: skip
    assert other.returncode == 2
    assert "listens" in other.stderr
    daemon.client.submit(request("fake:x", 5), ShareRequest())


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_socket_is_not_replaced_by_one(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "mine"
    if kind == "file":
        place.write_text("precious")
    else:
        place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tunery", "serve", "--socket", str(place)],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=PATIENCE_S,
        env=os.environ | {"TUNERY_STORE": str(tmp_path / "store.db")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "is not a socket" in done.stderr
    assert place.is_dir() if kind == "directory" else place.read_text() == "precious"


SUBMIT = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
NONSENSE = [
    b"hello\r\n\r\n",
    b"GET /v1/jobs/%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/jobs/aaaaaaaaaaaa:conquer HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n" + b"x: " + b"y" * 1_000_000 + b"\r\n\r\n",
    *(SUBMIT % (len(body), body) for body in (
        b"[1]", b"{}", b'{"model": 7}', b'{"model": "fake:x", "dialect": "fake", "flavour": "sour"}',
        b'{"model": "fake:x", "dialect": "fake", "threads": 4096}',
        b'{"model": "fake:x", "dialect": "fake", "priority": -1}',
        b'{"model": "fake:x", "dialect": "fake", "local": {"weight": "heavy"}}',
        b'{"model": "fake:\\ud800", "dialect": "fake", "local": {}}',
        b"[" * 100_000, b'{"model": "' + b"x" * 3_000_000 + b'"}',
    )),
]  # fmt: skip


def jobs_of(daemon: Daemon) -> list[str]:
    with open_store(str(daemon.directory / "store.db")) as store:
        return [status.job_id for status in store.jobs()]


def test_nonsense_is_refused_and_touches_nobody(daemon: Daemon) -> None:
    job = daemon.client.submit(request("fake:good?build_s=0.02", 20), ShareRequest()).job_id
    before = jobs_of(daemon)
    for text in NONSENSE:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(daemon.path))
            with suppress(BrokenPipeError):  # it has answered already
                connection.sendall(text)
            answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 4"), (text[:80], answer)
    with pytest.raises(UsageError, match="more than 262144 bytes"):
        daemon.client.submit(request("fake:x", 5, shapes={"x" * 300_000: (1,)}), ShareRequest())
    with pytest.raises(UsageError, match="no file"):
        daemon.client.submit(request("nowhere.onnx", 5), ShareRequest())
    with pytest.raises(UsageError, match="4096"):
        daemon.client.submit(request("x" * 5000, 5), ShareRequest())
    with pytest.raises(UsageError, match="did you mean resnet18"):
        daemon.client.submit(request("zoo:resnet188", 5), ShareRequest())
    wait_until(lambda: state_of(daemon.directory, job) is JobState.DONE)
    assert jobs_of(daemon) == before


IMPOSTOR = """
import json, os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
os.chmod(sys.argv[1], 0o777)
print("listens", flush=True)
while True:
    connection = listening.accept()[0]
    heard = connection.makefile("rb").readline()
    if heard:
        print(heard, flush=True)
        connection.sendall(json.dumps({"store": "/tmp/theirs.db"}).encode() + b"\\n")
    connection.close()
"""


def test_another_user_cannot_pose_as_the_daemon() -> None:
    needs_root()
    with shared_place() as place, other_starts([sys.executable, "-c", IMPOSTOR, place / "d.sock"]) as impostor:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "listens\n"
        client = Client(place / "d.sock")
        with pytest.raises(UsageError, match=r"another user's; .*TUNERY_SOCKET"):
            client.submit(request("fake:x", 5), ShareRequest())
        impostor.kill()
        assert impostor.stdout.read() == "", "it has heard nothing of us"


def test_the_daemons_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "d.sock.lock").symlink_to("mine")
    refused = Daemon(tmp_path)
    assert refused.end() == 2
    assert "choose another place with --socket" in refused.greeting
    (tmp_path / "d.sock.lock").unlink()
    (tmp_path / "d.sock.lock").symlink_to("not there")
    assert Daemon(tmp_path).end() == 2
    assert (tmp_path / "mine").read_text() == "precious"
    assert not (tmp_path / "not there").exists()


def test_without_a_daemon_the_client_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tunery serve"):
        Client(tmp_path / "nobody.sock").submit(request("fake:x", 5), ShareRequest())


def test_the_commands_against_a_daemon(daemon: Daemon) -> None:
    def tunery(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tunery", "jobs", *words, "--socket", str(daemon.path)],
            capture_output=True, text=True, check=False, cwd=daemon.directory,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    quick = ["--dialect", "fake", "--threads", "1", "--budget"]
    followed = json.loads(tunery("submit", "fake:cli", *quick, "8trials", "--json"))
    assert (followed["status"], followed["spend"]["trials"]) == ("done", 8)
    enough = tunery("submit", "fake:cli?tasks=1&seed=9&space=16x16x2", *quick, "400trials", "--latency-target", "300us")
    assert "the latency target of 0.3 ms: met" in enough
    job = json.loads(tunery("submit", LONG, *quick, "4000trials", "--detach", "--json"))["job"]
    assert "paused" in tunery("pause", job)
    assert json.loads(tunery("resume", job, "--detach", "--json"))["status"] in {"queued", "running"}
    assert json.loads(tunery("cancel", job, "--json"))["status"] == "cancelled"
    assert {job, followed["job"]} < {entry["job"] for entry in json.loads(tunery("list", "--json"))["jobs"]}
    assert "cancelled" in tunery("show", job)
    assert "cancelled already" in tunery("cancel", job, code=2)
    assert "priority is -3" in tunery("submit", "fake:cli", "--dialect", "fake", "--priority", "-3", code=2)


@pytest.mark.attack
def test_a_store_that_was_deleted_ends_the_service_with_a_sentence(tmp_path: Path) -> None:
    running = Daemon(tmp_path)
    asked = request(f"{LONG}&seed=7", 4000)
    threading.Thread(target=partial(ended_by_the_store, running, asked), daemon=True).start()
    wait_until(lambda: raced(tmp_path).total() > 4)
    for one in tmp_path.glob("store.db*"):
        one.unlink()
    assert running.process.stderr is not None
    with running.process.stderr as errors:
        said = errors.read()
    assert running.process.wait(PATIENCE_S) != 0
    kept = re.search(r"was deleted while it was in use; what it held.* is in (\S+\.rescued-\S+): move", said)
    assert kept is not None, said
    with open_store(kept[1]) as store:
        assert len(list(store.records())) > 4


def ended_by_the_store(running: Daemon, asked: Request) -> None:
    with suppress(TuneryError):
        running.client.submit(asked, ShareRequest())
