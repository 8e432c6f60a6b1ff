"""A service in a process of its own, asked by the commands of another user's machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from base_install import WITHOUT
from dashboard_site import matmul_model

pytestmark = pytest.mark.jobs
PATIENCE_S = 120.0
JOB = ("--dialect", "fake", "--threads", "1")


class Machine:
    """A user's directories; with a `base` install nothing of the compiler can be imported."""

    def __init__(self, directory: Path, *, base: bool = False) -> None:
        self.directory = directory
        self.program = ("-c", f"{WITHOUT}from tunery.cli import main\nmain()") if base else ("-m", "tunery")
        directory.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNERY_")} | {
            "TUNERY_STORE": str(directory / "store.db"), "TUNERY_CACHE": str(directory / "cache"),
            "TUNERY_LOAD_WATCH": "off", "TUNERY_TEST_DIALECTS": "on",
            "XDG_DATA_HOME": str(directory / "data"),
        }  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self.program, *args], cwd=self.directory, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *args: str, says: str = "", code: int = 0) -> Any:
        process = self.start(*args, "--json")
        out, err = process.communicate(says, PATIENCE_S)
        assert process.returncode == code, (args, out, err)
        return json.loads(out)


class Service:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.communicate()
            text += line
        self.told = json.loads(text)
        self.url = self.told["url"]


Start = Callable[..., Service]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services, which end with the test, however it ends."""
    started: list[subprocess.Popen[str]] = []

    def one(machine: Machine, port: str = "0") -> Service:
        process = machine.start("serve", "--listen", f"127.0.0.1:{port}", "--log-format", "json", "--json")
        started.append(process)
        return Service(process)

    yield one
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if process.stderr and not process.stderr.closed:
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def server(tmp_path: Path, start: Start) -> tuple[Machine, Service]:
    machine = Machine(tmp_path / "server")
    return machine, start(machine)


@pytest.mark.slow  # the next one ends so as well, with a model and a compiler
def test_a_job_ends_at_the_same_command_though_the_coordinator_that_it_talks_to_was_killed(
    start: Start, postgres_database: str, tmp_path: Path
) -> None:
    coordinators = [Machine(tmp_path / name) for name in ("first", "second")]
    for one in coordinators:
        one.environment["TUNERY_STORE"] = postgres_database
    first, second = map(start, coordinators)
    ann, both = Machine(tmp_path / "ann"), f"{first.url},{second.url}"
    kept = ann.run("login", both, says=first.told["token"])
    assert (kept["account"]["name"], kept["silent"]) == ("admin", [])
    following = ann.start("tune", "fake:long?tasks=2&build_s=0.1", *JOB, "--budget", "60trials", "-o", "net.bin",
                          "--server", first.url, "--json")  # fmt: skip
    assert following.stderr is not None
    job = next(line.split()[1].rstrip(";") for line in following.stderr if line.startswith("job "))
    while ann.run("jobs", "show", job, "--server", first.url)["status"] == "queued":
        time.sleep(0.1)
    first.process.kill()
    out, _ = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0
    assert (json.loads(out)["status"], json.loads(out)["spend"]["trials"]) == ("done", 60)
    assert (ann.directory / "net.bin").stat().st_size > 0
    assert ann.run("login", both, says=first.told["token"])["silent"] == [first.url]
    assert ann.run("jobs", "watch", job, "--server", first.url)["status"] == "done"


def test_a_model_that_was_uploaded_is_compiled_by_the_coordinator_that_is_left(
    start: Start, postgres_database: str, tmp_path: Path
) -> None:
    coordinators = [Machine(tmp_path / name) for name in ("first", "second")]
    for one in coordinators:
        one.environment["TUNERY_STORE"] = postgres_database
    first, second = map(start, coordinators)
    ann = Machine(tmp_path / "ann", base=True)
    ann.run("login", f"{first.url},{second.url}", says=first.told["token"])
    (tmp_path / "net.onnx").write_bytes(matmul_model("net"))
    following = ann.start("tune", str(tmp_path / "net.onnx"), "--budget", "8trials", "--threads", "1", "-o", "net.bin",
                          "--server", first.url, "--json")  # fmt: skip
    assert following.stderr is not None
    next(line for line in following.stderr if line.startswith("job "))
    first.process.kill()
    out, err = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, (out, err)
    assert (json.loads(out)["status"], json.loads(out)["spend"]["trials"]) == ("done", 8)
    assert (ann.directory / "net.bin").stat().st_size > 0


def test_tokens_of_several_services_are_kept(start: Start, tmp_path: Path) -> None:
    servers = [start(Machine(tmp_path / name)) for name in ("first", "second")]
    ann = Machine(tmp_path / "ann")
    for one in servers:
        ann.run("login", one.url, says=one.told["token"])
    for one in servers:
        assert [found["name"] for found in ann.run("accounts", "list", "--server", one.url)["accounts"]] == ["admin"]
    ann.run("login", f"{servers[0].url},{servers[1].url}", says=servers[0].told["token"], code=2)
    ann.environment["TUNERY_SERVER"] = servers[1].url
    assert ann.run("jobs", "list")["jobs"] == []


def test_two_users_tune_on_a_third_machine(server: tuple[Machine, Service], tmp_path: Path) -> None:
    _, service = server
    chief, ann = Machine(tmp_path / "chief"), Machine(tmp_path / "ann")
    assert chief.run("login", service.url, says=service.told["token"])["account"]["role"] == "admin"
    token = chief.run("accounts", "create", "ann")["token"]
    assert [one["name"] for one in chief.run("accounts", "list")["accounts"]] == ["admin", "ann"]
    ann.run("login", service.url, says=token)
    tuned = ann.run("tune", "fake:far?tasks=1", *JOB, "--budget", "8trials", "--server", service.url, "-o", "net.bin")
    assert (tuned["status"], tuned["spend"]["trials"], len(tuned["tasks"])) == ("done", 8, 1)
    assert tuned["compiled"]["path"] == "net.bin"
    assert (ann.directory / "net.bin").stat().st_size > 0
    assert not (ann.directory / "store.db").exists()
    again = ann.run("compile", "fake:far?tasks=1", *JOB, "--effort", "records", "--server", service.url, "-o", "b.bin")
    assert {one["rung"] for one in again["coverage"].values()} == {"exact"}
    shown = ann.run("jobs", "show", tuned["job"], "--server", service.url)
    assert (shown["job"], shown["status"], shown["tasks"]) == (tuned["job"], "done", tuned["tasks"])
    kept = ann.directory / "data" / "tunery" / "login.json"
    assert kept.stat().st_mode & 0o077 == 0
    service.process.send_signal(signal.SIGTERM)
    _, err = service.process.communicate(timeout=PATIENCE_S)
    logged = [json.loads(line) for line in err.splitlines()]
    of_job = [line for line in logged if line.get("job") == tuned["job"]]
    assert [line["state"] for line in of_job] == ["queued", "running", "done"]
    assert {(line["account"], line["host"], line["kind"], line["level"]) for line in of_job} == {
        ("ann", "here", "tune", "info")
    }


def test_a_user_without_the_compiler_asks_a_service_for_everything(
    server: tuple[Machine, Service], tmp_path: Path
) -> None:
    _, service = server
    ann = Machine(tmp_path / "ann", base=True)
    ann.run("login", service.url, says=service.told["token"])
    there, net = ("--server", service.url), ("fake:far?tasks=1", *JOB)
    tuned = ann.run("tune", *net, "--budget", "8trials", *there, "-o", "net.bin")
    assert (tuned["status"], tuned["compiled"]["path"]) == ("done", "net.bin")
    assert [task["rung"] for task in ann.run("query", *net, *there)["tasks"]] == ["exact"]
    assert tuned["job"] in [job["job"] for job in ann.run("jobs", "list", *there)["jobs"]]
    assert ann.run("jobs", "show", tuned["job"], *there)["status"] == "done"
    assert ann.run("spend", tuned["job"], *there)["total"]
    assert ann.run("records", "stats", *there)["records"] >= 8
    assert ann.run("devices", "list", *there)
    assert ann.run("hosts", "list", *there)


def test_without_a_token_or_a_service_a_sentence_says_what_to_do(
    server: tuple[Machine, Service], tmp_path: Path
) -> None:
    _, service = server
    ann = Machine(tmp_path / "ann")
    tune = ("tune", "fake:far?tasks=1", *JOB, "--budget", "8trials")
    assert "tunery login" in ann.run(*tune, "--server", service.url, code=2)["error"]
    assert "token" in ann.run("login", service.url, says="tunery_nonsense", code=2)["error"]
    assert "does not answer" in ann.run("login", "http://127.0.0.1:9", says="tunery_x", code=1)["error"]
    assert "write for example" in ann.run("serve", "--listen", "7433", code=2)["error"]
    assert "in the clear" in ann.run("serve", "--listen", "0.0.0.0:0", code=2)["error"]


def test_a_service_that_cannot_begin_keeps_its_first_token(tmp_path: Path, start: Start) -> None:
    machine = Machine(tmp_path / "server")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = machine.run("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", code=2)
        assert "cannot listen" in refused["error"]
    (tmp_path / "empty.pem").touch()
    tls = ("--tls-certificate", str(tmp_path / "empty.pem"), "--tls-key", str(tmp_path / "none.pem"))
    assert "TLS cannot use" in machine.run("serve", "--listen", "127.0.0.1:0", *tls, code=2)["error"]
    assert start(machine).told["token"]


def test_a_job_and_its_follower_outlive_the_service(tmp_path: Path, start: Start) -> None:
    machine, ann = Machine(tmp_path / "server"), Machine(tmp_path / "ann")
    service = start(machine)
    port = service.url.rpartition(":")[2]
    ann.run("login", service.url, says=service.told["token"])
    model = "fake:slow?tasks=1&build_s=0.05&space=16x16x16"
    tuning = ann.start("tune", model, *JOB, "--budget", "48trials", "--server",
                       service.url, "--json")  # fmt: skip
    assert tuning.stderr is not None
    assert "leaves it running" in tuning.stderr.readline()
    service.process.kill()
    service.process.wait(PATIENCE_S)
    service = start(machine, port)
    assert service.told["token"] is None
    assert len(service.told["resumed"]) == 1
    out, err = tuning.communicate(timeout=PATIENCE_S)
    assert tuning.returncode == 0, (out[:700], err)
    done = json.loads(out)
    assert (done["status"], done["spend"]["trials"]) == ("done", 48)


def follow(url: str, token: str, job_id: str, found: list[int], over: threading.Event) -> None:
    """Add the numbers of a job's events to `found`, by connections that begin after the last one seen, until `over`."""
    while True:
        ending = over.is_set()  # so the last connection begins after the job's end
        try:
            with (
                httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S) as client,
                client.stream(
                    "GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(found[-1] if found else 0)}
                ) as stream,
            ):
                if stream.status_code == httpx.codes.OK:
                    lines = (line for line in stream.iter_lines() if line.startswith("id: "))
                    found.extend(int(line.removeprefix("id: ")) for line in lines)
                    if ending:
                        return
        except httpx.TransportError:
            pass
        time.sleep(0.1)


@pytest.mark.slow
def test_a_service_is_killed_under_load_and_no_event_is_lost_or_doubled(tmp_path: Path, start: Start) -> None:
    machine, ann = Machine(tmp_path / "server"), Machine(tmp_path / "ann")
    service = start(machine)
    url, port, token = service.url, service.url.rpartition(":")[2], service.told["token"]
    ann.run("login", url, says=token)
    names = [f"fake:load{number}?tasks=1&build_s=0.05&space=16x16x16" for number in range(5)]
    tuning = [ann.start("tune", name, *JOB, "--budget", "20trials", "--server", url, "--json") for name in names]
    for one in tuning:
        assert one.stderr is not None
        assert "leaves it running" in one.stderr.readline()
    asked = {"headers": {"Authorization": f"Bearer {token}"}, "timeout": PATIENCE_S}
    jobs = [one["id"] for one in httpx.get(f"{url}/v1/jobs", **asked).json()["jobs"]]
    assert len(jobs) == len(names)
    over = threading.Event()
    found: dict[str, list[list[int]]] = {job_id: [[] for _ in range(4)] for job_id in jobs}
    followers = [
        threading.Thread(target=follow, args=(url, token, job_id, one, over))
        for job_id, lists in found.items()
        for one in lists
    ]
    for follower in followers:
        follower.start()
    try:
        for _ in range(3):
            time.sleep(2.0)
            service.process.kill()
            service.process.wait(PATIENCE_S)
            service = start(machine, port)
        for one in tuning:
            out, err = one.communicate(timeout=PATIENCE_S)
            assert one.returncode == 0, (out[:700], err)
            assert json.loads(out)["spend"]["trials"] == 20
    finally:
        over.set()
        for follower in followers:
            follower.join(PATIENCE_S)
    for job_id, lists in found.items():
        whole: list[int] = []
        follow(url, token, job_id, whole, over)
        assert whole
        assert lists == [whole] * len(lists)
