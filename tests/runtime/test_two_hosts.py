"""Two hosts on one machine: each has directories of its own, and what one has built the other gets by content."""

import asyncio
import math
import platform
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from job_tools import (
    builds,
    expect_nothing_held,
    family,
    is_agent,
    outcomes_of,
    raced,
    records_in,
    request_in,
    run_in,
    runtimes,
    wait_until,
)
from onnx import TensorProto, helper

from tunery._errors import GoneDeviceError, UsageError
from tunery.blobs import DirectoryBlobs
from tunery.delivery.files.inference_session import InferenceSession
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import HERE, Artifact, Budget, JobState, JobStatus, Mode, Outcome
from tunery.domain.request import CompileOptions, Progress, Request
from tunery.engines import AgentEngine, JoinedEngine, LocalEngine, Role, WorkerSpec
from tunery.engines.local import nursery
from tunery.engines.remote.facts import host_facts
from tunery.engines.remote.registry import add_host, remove_host
from tunery.runtime.hosts import further
from tunery.runtime.hosts.workers import MEASURER
from tunery.runtime.runtime import Runtime
from tunery.service.job import Job
from tunery.service.machines import machines
from tunery.service.running import run_here
from tunery.service.runtimes import Runtimes
from tunery.service.session import Session, tune
from tunery.store import open_store
from tunery.testing.fake_dialect import FakeDialect, fake_network

pytestmark = pytest.mark.jobs
PATIENCE_S = 120.0
FAR = "far"

# An agent that has its own idea of how long all that is measured takes.
LYING = """
import re, sys
from pathlib import Path
from tunery.engines.remote import agent

send = agent.LocalAgent._send
agent.LocalAgent._send = lambda self, header, body=b"": send(
    self, header, re.sub(rb'"samples_s": ?\\[[^]]+', b'"samples_s":[' + sys.argv[2].encode(), body)
)
sys.exit(agent.serve_stdio(Path(sys.argv[1])))
"""


def agent(directory: Path) -> str:
    """Return the command of an agent with directories of its own."""
    places = [f"{name}={directory}" for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "TMPDIR")]
    return shlex.join(["env", *places, sys.executable, "-m", "tunery", "agent", "--stdio"])


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add the host `far`, which works below the directory that is returned; its processes carry the test's mark."""
    monkeypatch.setenv("TUNERY_TEST_FAMILY", str(tmp_path))
    (tmp_path / "far").mkdir()
    add_host(FAR, agent(tmp_path / "far"))
    return tmp_path / "far"


@pytest.mark.usefixtures("far")
def test_both_hosts_build_and_one_measures(tmp_path: Path) -> None:
    with runtimes() as made:
        report = run_in(tmp_path, "fake:apart?tasks=2&build_s=0.2", "80trials")
    assert report.job.state is JobState.DONE
    # A host that nobody added by its name, such as a node of Ray, is listed where a job runs on it.
    assert [machine.name for machine in machines(host_facts(), (), made[0].dispatch, made)] == [HERE, FAR]
    assert builds(made[0])[HERE] > 0
    assert builds(made[0])[FAR] > 0
    assert {span.worker.partition("/")[0] for span in made[0].dispatch.spans if span.kind != "build"} == {HERE}
    assert set(raced(tmp_path).values()) == {1}
    assert {record.measurement.outcome for record in records_in(tmp_path, Mode.FINAL)} == {Outcome.OK}
    with open_store(str(tmp_path / "store.db")) as store:
        stages = {charge.stage for charge in store.ledger() if charge.host == FAR}
        assert stages == {"build"}
        sums = store.ledger_by_host()
        assert min(sums[FAR].core_s, sums[platform.node()].core_s) > 0.0
    expect_nothing_held(made[0])
    wait_until(lambda: len(family(tmp_path)) == 0)


def test_two_agents_find_what_one_host_finds_where_all_is_tried_and_times_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def winners(directory: Path, on: str) -> dict[str, str]:
        directory.mkdir()
        source = "fake:all?tasks=1&space=4x4x2&noise=0"
        assert tune(replace(request_in(directory, source, "100trials"), on=on)).job.state is JobState.DONE
        best: dict[str, tuple[float, str]] = {}
        for one in records_in(directory, Mode.FINAL):
            found = one.measurement.latency_s or math.inf, one.candidate.key
            best[one.candidate.task_key] = min(found, best.get(one.candidate.task_key, found))
        assert len(raced(directory)) >= 4 * 4 * 2
        return {task: key for task, (_, key) in best.items()}

    alone = winners(tmp_path / "alone", "")
    for name in ("near", FAR):
        (tmp_path / name).mkdir()
        add_host(name, agent(tmp_path / name))
    monkeypatch.setenv("TUNERY_BUILD_HERE", "off")
    assert winners(tmp_path / "agents", FAR) == alone
    assert len(alone) == 1


@pytest.mark.usefixtures("far")
def test_where_this_host_is_not_to_build_others_do_as_soon_as_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_BUILD_HERE", "off")
    with runtimes() as made:
        report = run_in(tmp_path, "fake:only?tasks=2&build_s=0.4", "60trials")
    assert report.job.state is JobState.DONE
    spans = [span for span in made[0].dispatch.spans if span.kind == "build"]
    there = [span.start_s for span in spans if span.worker.startswith(FAR)]
    here = [span.start_s for span in spans if not span.worker.startswith(FAR)]
    assert len(there) > len(here)
    assert max(here, default=0.0) <= min(there)
    expect_nothing_held(made[0])


@pytest.mark.slow
def test_what_crosses_slowly_counts_against_a_host(far: Path, tmp_path: Path) -> None:
    # What the agent says arrives late: its builds take no longer, but their artifacts are here later.
    late = (
        "import os, subprocess, sys, time\n"
        "agent = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "while said := os.read(agent.stdout.fileno(), 1 << 16):\n"
        "    time.sleep(0.5)\n"
        "    os.write(1, said)\n"
    )
    add_host(FAR, f"{shlex.join([sys.executable, '-c', late])} {agent(far)}")
    with runtimes() as made:
        report = run_in(tmp_path, "fake:slowly?tasks=2&build_s=0.1", "600trials")
    assert report.job.state is JobState.DONE
    assert builds(made[0])[HERE] > builds(made[0])[FAR] > 0
    assert made[0].builds.paces.pace(FAR) > 1.0


def test_where_no_host_comes_this_one_builds_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_BUILD_HERE", "off")
    add_host("gone", "sh -c 'exit 255' x")
    assert run_in(tmp_path, "fake:alone", "10trials").job.state is JobState.DONE


@pytest.mark.usefixtures("far")
def test_a_host_that_is_lost_again_and_again_costs_nothing_but_time(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        agents = [process for process in family(tmp_path) if is_agent(process)]
        if builds(made[0])[FAR] > 3 * len(killed) and agents and agents[0].pid not in killed and len(killed) < 3:
            killed.append(agents[0].pid)
            agents[0].kill()

    with runtimes() as made:
        report = run_in(tmp_path, "fake:lost?tasks=2&build_s=0.2", "80trials", on_progress=kill)
    assert killed
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == 80
    assert set(raced(tmp_path).values()) == {1}
    assert set(outcomes_of(report)) <= {"ok", "abandoned", "filtered"}
    expect_nothing_held(made[0])
    wait_until(lambda: len(family(tmp_path)) == 0)


@pytest.mark.usefixtures("far")
def test_a_candidate_whose_builder_was_killed_from_outside_is_built_again(tmp_path: Path) -> None:
    killed: list[psutil.Process] = []

    def kill(progress: Progress) -> None:
        agents = [process for process in family(tmp_path) if is_agent(process)]
        if builds(made[0])[FAR] > 2 and agents and not killed:
            zygote = agents[0].children()[0]
            killed.extend(zygote.children())
            for worker in killed:
                worker.kill()

    with runtimes() as made:
        report = run_in(tmp_path, "fake:again?tasks=2&build_s=0.2", "60trials", on_progress=kill)
    assert killed
    assert set(outcomes_of(report)) <= {"ok", "abandoned", "filtered"}
    assert report.job.spend.trials == 60


@pytest.mark.usefixtures("far")
def test_one_measures_on_a_host_and_waits_for_it_when_it_is_lost(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        agents = [process for process in family(tmp_path) if is_agent(process)]
        if progress.trials >= 10 * (1 + len(killed)) and agents and agents[0].pid not in killed and len(killed) < 2:
            killed.append(agents[0].pid)
            agents[0].kill()

    with runtimes() as made:
        report = tune(replace(request_in(tmp_path, "fake:there?tasks=2&run_s=0.02", "40trials"), on=FAR), kill)
    assert len(killed) == 2
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == 40
    assert set(raced(tmp_path).values()) == {1}
    assert set(outcomes_of(report)) <= {"ok", "abandoned", "filtered"}
    measured = [span for span in made[0].dispatch.spans if span.kind in {"measure", "finals"}]
    assert {span.worker.partition("/")[0] for span in measured} == {FAR}
    assert {record.host for record in records_in(tmp_path)} == {FAR}
    with open_store(str(tmp_path / "store.db")) as store:
        assert [device.host for device in store.devices.find()] == [FAR]
    expect_nothing_held(made[0])
    wait_until(lambda: len(family(tmp_path)) == 0)


@contextmanager
def without_room(far: Path, room_after_s: float) -> Iterator[Callable[[Progress], None]]:
    """Yield what takes a host its place for blobs at ten trials; it gets it back after so many seconds."""
    blobs, away, timers = far / "blobs", far / "away", list[threading.Timer]()

    def room() -> None:
        blobs.unlink()
        away.rename(blobs)

    def fill(progress: Progress) -> None:
        if progress.trials >= 10 and not timers:
            blobs.rename(away)
            blobs.touch()
            timers.append(threading.Timer(room_after_s, room))
            timers[0].start()

    yield fill
    assert timers
    timers[0].cancel()
    timers[0].join()


def test_a_host_without_room_is_waited_for_and_no_candidate_blamed(far: Path, tmp_path: Path) -> None:
    with without_room(far, 3.0) as fill:
        report = tune(replace(request_in(tmp_path, "fake:there?tasks=2&run_s=0.02", "40trials"), on=FAR), fill)
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == 40
    assert set(raced(tmp_path).values()) == {1}
    found = outcomes_of(report)
    assert set(found) <= {"ok", "abandoned", "filtered", "run-failed"}
    assert found.get("run-failed", 0) <= 1, "the call whose files were taken from under it"


def test_a_job_ends_where_its_host_has_no_room_for_long_and_keeps_what_was_measured(
    far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(further, "_FULL_LOOK_S", 0.1)

    def impatient(progress: Progress) -> None:
        if progress.trials >= 10:  # the agent may take its time to come
            monkeypatch.setattr(further, "_AWAY_S", 1.0)
        fill(progress)

    asked = replace(request_in(tmp_path, "fake:there?tasks=2&run_s=0.02", "40trials"), on=FAR)
    with without_room(far, 60.0) as fill, pytest.raises(GoneDeviceError, match=FAR):
        tune(asked, impatient)
    measured = {record.measurement.outcome for record in records_in(tmp_path, Mode.RACE)}
    assert measured <= {Outcome.OK, Outcome.ABANDONED, Outcome.RUN_FAILED}, "that of a call in flight"
    assert len(raced(tmp_path)) >= 10
    with open_store(asked.store) as store:
        assert [job.state for job in store.jobs()] == [JobState.STOPPED], "it can go on"


@pytest.mark.attack
@pytest.mark.parametrize("latency_s", ["1e-9", "-1.0", "NaN", "Infinity"])
def test_a_job_ends_at_once_where_its_host_tells_times_that_no_processor_needs(latency_s: str, tmp_path: Path) -> None:
    add_host(FAR, f"{shlex.join([sys.executable, '-c', LYING, str(tmp_path / 'far'), latency_s])} agent --stdio")
    asked = replace(request_in(tmp_path, "fake:there?tasks=2", "40trials"), on=FAR)
    with pytest.raises(GoneDeviceError, match="look at its clock"):
        tune(asked)
    assert not raced(tmp_path)


def test_other_jobs_go_on_while_a_host_is_waited_for(far: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    slow = f'while [ ! -e {shlex.quote(str(ready))} ]; do sleep 0.05; done; exec "$@"'
    add_host(FAR, f"sh -c {shlex.quote(slow)} x {agent(far)}")
    (tmp_path / "near").mkdir()
    add_host("near", agent(tmp_path / "near"))  # it answers first, and is not the one that is waited for
    asked = request_in(tmp_path, "fake:waited?tasks=1", "10trials")

    async def main() -> list[JobStatus]:
        with open_store(asked.store) as store:
            async with Runtimes(store) as runtimes:
                there = asyncio.create_task(run_here(Job(replace(asked, on=FAR), runtimes)))
                here = await run_here(Job(replace(asked, seed=1), runtimes))
                assert not there.done()
                ready.touch()
                return [here, await there]

    jobs = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert [job.state for job in jobs] == [JobState.DONE] * 2
    nursery.end()
    wait_until(lambda: len(family(tmp_path)) == 0)


def test_a_service_uses_a_host_that_is_added_while_it_runs_and_leaves_one_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_TEST_FAMILY", str(tmp_path))
    (tmp_path / "far").mkdir()
    asked = request_in(tmp_path, "fake:followed?tasks=2&build_s=0.2", "5000trials")

    async def soon(said: Callable[[], bool]) -> None:
        while not said():
            await asyncio.sleep(0.05)

    async def main(made: list[Runtime]) -> JobStatus:
        with open_store(asked.store) as store:
            async with Runtimes(store, follow_hosts=True) as runtimes:
                stop = threading.Event()
                work = asyncio.create_task(run_here(Job(asked, runtimes, stop=stop)))
                await soon(lambda: bool(made) and builds(made[0])[HERE] > 0)
                add_host(FAR, agent(tmp_path / "far"))
                await soon(lambda: builds(made[0])[FAR] > 2)
                remove_host(FAR)
                await soon(lambda: not any(map(is_agent, family(tmp_path))))
                there, here = (builds(made[0])[host] for host in (FAR, HERE))
                await soon(lambda: builds(made[0])[HERE] > here + 2)
                assert FAR not in [machine.name for machine in machines(host_facts(), (), made[0].dispatch, made)]
                with pytest.raises(UsageError, match="no host 'far'"):
                    await run_here(Job(replace(asked, on=FAR), runtimes))
                add_host(FAR, agent(tmp_path / "far"))
                await soon(lambda: builds(made[0])[FAR] > there)
                stop.set()
                return await work

    with runtimes() as made:
        status = asyncio.run(asyncio.wait_for(main(made), PATIENCE_S))
    assert {outcome for task in status.tasks for outcome in task.outcomes} <= {"ok", "abandoned", "filtered"}
    assert set(raced(tmp_path).values()) == {1}
    nursery.end()
    wait_until(lambda: len(family(tmp_path)) == 0)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.usefixtures("far")
def test_a_real_operator_is_built_and_measured_in_an_agent(tmp_path: Path) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.01] * 64 * 64)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    request = Request(
        str(tmp_path / "m.onnx"), threads=1, budget=Budget.parse("12trials"), store=str(tmp_path / "store.db"), on=FAR
    )
    with runtimes() as made, Session(request.store) as session:
        report = session.tune(request, lambda _: None, threading.Event())
        session.compile(request, tmp_path / "out.tunery", CompileOptions(predict=True))
    assert report.job.state is JobState.DONE
    assert {record.measurement.outcome for record in records_in(tmp_path, Mode.FINAL)} == {Outcome.OK}
    measured = [span for span in made[0].dispatch.spans if span.kind in {"measure", "finals"}]
    assert {span.worker.partition("/")[0] for span in measured} == {FAR}
    assert builds(made[0])[FAR] > 0
    x = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    [y] = InferenceSession(str(tmp_path / "out.tunery")).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ np.full((64, 64), 0.01, np.float32), rtol=1e-4, atol=1e-5)


def test_a_host_that_cannot_be_reached_is_done_without(tmp_path: Path) -> None:
    add_host("gone", "sh -c 'exit 255' x")
    with runtimes() as made:
        report = run_in(tmp_path, "fake:without", "20trials")
    assert report.job.state is JobState.DONE
    assert set(builds(made[0])) == {HERE}
    expect_nothing_held(made[0])


def test_what_one_host_has_built_the_other_measures(tmp_path: Path) -> None:
    dialect = FakeDialect()
    task = dialect.extract(fake_network("fake:moved"), dialect.resolve_target("native", 1))[0]
    (tmp_path / "far").mkdir()
    with (
        DirectoryBlobs(tmp_path / "here") as blobs,
        JoinedEngine({HERE: LocalEngine(tmp_path / "logs", blobs=blobs),
                      FAR: AgentEngine(FAR, agent(tmp_path / "far"), blobs)}) as engine,
    ):  # fmt: skip
        builder = engine.start(WorkerSpec(
            Role.BUILDER, "tunery.runtime.services:Builder", {"dialect": "fake", "device": "cpu"}, host=FAR
        ))  # fmt: skip
        reference, artifact = (
            engine.call(builder, "build", task, candidate, deadline_s=PATIENCE_S).result(PATIENCE_S)
            for candidate in (dialect.reference(task), dialect.baseline(task))
        )
        assert isinstance(artifact, Artifact)
        assert found(tmp_path / "far", artifact.blob)
        settings = {"dialect": "fake", "device": "cpu", "cores": usable_cores(), "slot": usable_cores()[:1]}
        measurer = engine.start(WorkerSpec(Role.MEASURER, MEASURER, settings))
        measured = engine.call(
            measurer, "race", task, artifact, dialect.baseline(task), None, reference, 1, 0.0, deadline_s=PATIENCE_S
        ).result(PATIENCE_S)
        assert measured.outcome is Outcome.OK
        engine.blobs.release(artifact.blob)
        assert not engine.blobs.has(artifact.blob)
        wait_until(lambda: not found(tmp_path / "far", artifact.blob))


def found(directory: Path, blob: str) -> bool:
    return any(directory.rglob(blob))
