"""Nodes of a Ray cluster as hosts: real raylets on loopback join, leave and die, and so does the head."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from job_tools import family, is_agent, wait_until
from ray_cluster import MARK, Cluster

from tunery._errors import HostError, LostWorkerError
from tunery.blobs import DirectoryBlobs
from tunery.domain import HERE, BlobDigest
from tunery.engines import Role, WorkerSpec
from tunery.engines.ray.engine import RayEngine
from tunery.engines.remote._link import Timing

# Both marks: what leaves out the slow ones leaves these out as well.
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 180.0
QUICK = Timing(keep_alive_s=2.0, first_retry_s=0.2, last_retry_s=2.0)
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


@pytest.fixture(autouse=True)
def _needs_ray() -> None:
    if find_spec("ray") is None:
        pytest.skip("needs Ray, which `make test-ray` installs")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("r")  # Ray's sockets have long names
    monkeypatch.setenv(MARK, str(place))
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    running = Cluster(place)
    try:
        yield running
    finally:
        running.close()


def ask(engine: RayEngine, worker: str, method: str, *args: object) -> Any:
    return engine.call(worker, method, *args, deadline_s=PATIENCE_S).result(PATIENCE_S)


def up(engine: RayEngine, host: str) -> None:
    wait_until(lambda: host in engine.hosts and engine.facts(host) is not None)


def probe(host: str) -> WorkerSpec:
    return WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe", host=host)


def agents(place: Path) -> list[psutil.Process]:
    return [process for process in family(place) if is_agent(process)]


def test_nodes_join_leave_die_and_come_again_while_calls_run(cluster: Cluster, tmp_path: Path) -> None:
    place = Path(os.environ[MARK])
    cluster.start_node(FIRST)
    with DirectoryBlobs(tmp_path / "blobs") as blobs, RayEngine(cluster.address, tmp_path, blobs, QUICK) as engine:
        heard: list[str] = []
        engine.watch(heard.append)
        up(engine, FIRST)
        assert engine.hosts == (HERE, FIRST)
        one = engine.start(probe(FIRST))
        digest = blobs.put(b"abc" * 100_000)
        assert blobs.get(ask(engine, one, "reverse", BlobDigest(digest))).read_bytes() == b"cba" * 100_000
        cluster.start_node(SECOND)
        up(engine, SECOND)
        two = engine.start(probe(SECOND))
        assert ask(engine, two, "count") == 1
        lost = engine.call(one, "sleep", PATIENCE_S, deadline_s=PATIENCE_S)
        cluster.kill_node(FIRST)
        with pytest.raises(LostWorkerError):
            lost.result(PATIENCE_S)
        assert engine.facts(FIRST) is None
        assert engine.trouble(FIRST)
        assert ask(engine, two, "count") == 2
        wait_until(lambda: len(agents(place)) == 1)
        cluster.start_node(FIRST)
        up(engine, FIRST)
        assert ask(engine, one, "count") == 1
        assert {FIRST, SECOND} <= set(heard)
    wait_until(lambda: not agents(place))


def test_a_head_that_dies_costs_its_nodes_only_and_a_new_one_is_found(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_node(FIRST)
    with DirectoryBlobs(tmp_path / "blobs") as blobs, RayEngine(cluster.address, tmp_path, blobs, QUICK) as engine:
        here = engine.start(probe(HERE))
        up(engine, FIRST)
        there = engine.start(probe(FIRST))
        lost = engine.call(there, "sleep", PATIENCE_S, deadline_s=PATIENCE_S)
        cluster.kill_head()
        with pytest.raises(LostWorkerError):
            lost.result(PATIENCE_S)
        assert ask(engine, here, "count") == 1
        cluster.start_head()
        cluster.start_node(FIRST)
        up(engine, FIRST)
        assert ask(engine, there, "count") == 1


def test_a_service_on_the_head_has_the_nodes_build(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start_node(FIRST)
    cluster.start_node(SECOND)
    for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("TUNERY_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setenv("TUNERY_BUILD_HERE", "off")
    command = [sys.executable, "-m", "tunery", "serve", "--engine", "ray", "--listen", "127.0.0.1:0", "--json"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as service:
        try:
            told = answer_of(service)
            monkeypatch.setenv("TUNERY_TOKEN", told["token"])
            there = ("--server", told["url"], "--json")
            job = ("--dialect", "fake", "--threads", "1", *there)
            tunery("tune", "fake:first?tasks=1", "--budget", "4trials", *job)  # what needs the nodes has them join
            wait_until(lambda: {FIRST, SECOND} <= {
                host["name"] for host in tunery("hosts", "list", *there)["hosts"] if host["builds"]
            })  # fmt: skip
            tuned = tunery("tune", "fake:nodes?tasks=2&build_s=0.1", "--budget", "40trials", *job)
            shown = tunery("jobs", "show", tuned["job"], *there)
        finally:
            service.terminate()
    assert shown["status"] == "done"
    assert shown["hosts"]["a server"]["build"] > 0, "a service that others use names none of its machines"
    assert "build" not in shown["hosts"]["here"]
    wait_until(lambda: not agents(Path(os.environ[MARK])))


def answer_of(service: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert service.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = service.stdout.readline()
        assert line, "the service has ended"
        text += line.decode()
    told: dict[str, Any] = json.loads(text)
    return told


def tunery(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "tunery", *words], capture_output=True, check=False, text=True,
                          timeout=PATIENCE_S)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_where_there_is_no_cluster_a_sentence_says_so(tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path / "blobs") as blobs, pytest.raises(HostError, match=r"127\.0\.0\.1:9"):
        RayEngine("127.0.0.1:9", tmp_path, blobs)
