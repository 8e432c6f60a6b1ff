"""Jobs over machines that ssh reaches, while networks, servers, agents, disks and clocks fail on them.

Only calls in flight are lost: every job ends with a result, nothing is measured twice, and no process is left.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from job_tools import (
    builds,
    expect_nothing_held,
    family,
    outcomes_of,
    raced,
    records_in,
    request_in,
    run_in,
    runtimes,
    start,
    wait_until,
)
from machines import Machine, machines, needs_namespaces

from tunery.domain import HERE, JobState, Mode, Outcome
from tunery.domain.request import Progress, TuneReport
from tunery.engines import AgentEngine
from tunery.engines.remote.registry import add_host
from tunery.runtime.runtime import Runtime
from tunery.service.session import tune
from tunery.testing.fake_blobs import FakeBlobs

# Both marks: what leaves out the slow ones leaves these out as well.
pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(600)]

SILENCE_S = 20.0  # after which either side gives the other up
STOP_S = float(os.environ.get("TUNERY_TEST_STOP_S", "25"))
_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Sequence[Machine]]:
    needs_namespaces()
    with machines(tmp_path, 2) as made:
        for machine in made:
            add_host(machine.name, machine.connect())
        yield made
        wait_until(lambda: not any(machine.processes() for machine in made))


class Fault:
    """Does something to a machine, once, on a thread of its own, when a job has come so far."""

    def __init__(self, what: Callable[[], object], due: Callable[[Progress], bool]) -> None:
        self._due = due
        self._thread = threading.Thread(target=what)
        self.done = False

    def __call__(self, progress: Progress) -> None:
        if not self.done and self._due(progress):
            self.done = True
            self._thread.start()

    def join(self) -> None:
        assert self.done, "the fault was never due"
        self._thread.join()


def expect_whole(directory: Path, report: TuneReport, runtime: Runtime, trials: int) -> None:
    """The job has ended with a result; nothing was measured twice or by two at once, and nothing is held."""
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == trials
    assert set(raced(directory).values()) == {1}
    assert set(outcomes_of(report)) <= {"ok", "abandoned", "filtered"}
    assert {record.measurement.outcome for record in records_in(directory, Mode.FINAL)} <= {Outcome.OK}
    measured = sorted(
        (span.start_s, span.end_s) for span in runtime.dispatch.spans if span.kind in {"measure", "finals"}
    )
    assert all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(measured))
    expect_nothing_held(runtime)


def agent_killed(machine: Machine) -> None:
    machine.agents()[0].kill()


def worker_killed(machine: Machine) -> None:
    zygote = machine.agents()[0].children()[0]
    wait_until(lambda: bool(zygote.children()))
    zygote.children()[0].kill()


def server_killed(machine: Machine) -> None:
    machine.kill_server()
    time.sleep(2.0)
    machine.start_server()


def cable_cut(machine: Machine) -> None:
    machine.cable.shape(lost=1.0)
    time.sleep(STOP_S)
    machine.cable.shape()


def agent_stopped(machine: Machine) -> None:
    [agent, *_] = machine.agents()
    agent.suspend()
    time.sleep(STOP_S)
    if agent.is_running():
        agent.resume()


def slow_network(machine: Machine) -> None:
    machine.cable.shape(delay_s=0.1, lost=0.03)


def disk_filled(machine: Machine) -> None:
    filler = machine.files / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass
    time.sleep(3.0)
    filler.unlink()


FAULTS = (agent_killed, worker_killed, server_killed, cable_cut, agent_stopped, slow_network, disk_filled)


def test_machines_build_beside_this_one(two: Sequence[Machine], tmp_path: Path) -> None:
    with runtimes() as made:
        report = run_in(tmp_path, "fake:net?tasks=2&build_s=0.3", "60trials")
    expect_whole(tmp_path, report, made[0], 60)
    assert {HERE, *(machine.name for machine in two)} == {host for host, count in builds(made[0]).items() if count}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_where_builds_are_made(
    fault: Callable[[Machine], None], two: Sequence[Machine], tmp_path: Path
) -> None:
    bad = two[0]
    with runtimes() as made:
        once = Fault(lambda: fault(bad), lambda _: builds(made[0])[bad.name] > 2)
        report = run_in(tmp_path, "fake:net?tasks=3&build_s=0.5", "150trials", on_progress=once)
    expect_whole(tmp_path, report, made[0], 150)
    assert builds(made[0])[two[1].name] > 0
    once.join()


@pytest.mark.parametrize(
    "fault", [agent_killed, server_killed, cable_cut, agent_stopped, slow_network], ids=lambda fault: fault.__name__
)
def test_a_fault_where_measurements_are_made(
    fault: Callable[[Machine], None], two: Sequence[Machine], tmp_path: Path
) -> None:
    bad = two[0]
    asked = replace(request_in(tmp_path, "fake:net?tasks=2&run_s=0.02", "40trials"), on=bad.name)
    once = Fault(lambda: fault(bad), lambda progress: progress.trials >= 10)
    with runtimes() as made:
        report = tune(asked, once)
    expect_whole(tmp_path, report, made[0], 40)
    measured = [span for span in made[0].dispatch.spans if span.kind in {"measure", "finals"}]
    assert {span.worker.partition("/")[0] for span in measured} == {bad.name}
    once.join()


@pytest.mark.parametrize("cut", [False, True])
def test_nothing_is_left_when_the_coordinator_is_killed(cut: bool, two: Sequence[Machine], tmp_path: Path) -> None:
    with start(tmp_path, "fake:net?tasks=2&build_s=0.3", 500) as coordinator:
        wait_until(lambda: all(machine.agents() and machine.agents()[0].children() for machine in two))
        wait_until(lambda: sum(raced(tmp_path).values()) > 3)
        if cut:
            two[0].cable.shape(lost=1.0)
        coordinator.kill()
        coordinator.communicate()
    wait_until(lambda: not any(machine.agents() for machine in two))  # the cable is still cut
    if cut:
        two[0].cable.shape()
        two[0].kill_server()  # its side of a connection that nobody ends any more
    wait_until(lambda: not family(tmp_path))


@pytest.mark.skipif(not _FAKETIME.exists(), reason="needs libfaketime (Debian, Ubuntu: apt-get install faketime)")
@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_off_changes_nothing(hours: int, two: Sequence[Machine], tmp_path: Path) -> None:
    off = {"LD_PRELOAD": str(_FAKETIME), "FAKETIME": f"{hours:+d}h", "DONT_FAKE_MONOTONIC": "1"}
    add_host(two[0].name, two[0].connect(**off))
    with runtimes() as made:
        report = tune(replace(request_in(tmp_path, "fake:net?tasks=1", "20trials"), on=two[0].name), lambda _: None)
    expect_whole(tmp_path, report, made[0], 20)
    with FakeBlobs() as blobs, AgentEngine("off", two[0].connect(**off), blobs) as engine:
        wait_until(lambda: engine.clock_off_s() is not None)
        assert abs((engine.clock_off_s() or 0.0) - 3600 * hours) < 600
