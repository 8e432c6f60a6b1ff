"""Nothing survives a parent that is killed with SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.jobs

PARENT = """
import sys, time
from pathlib import Path
from tunery.domain import Environment
from tunery.engines import LocalEngine, Role, WorkerSpec
directory = Path(sys.argv[1])
engine = LocalEngine()
environment = Environment(preload=tuple(sys.argv[2].split()))
spec = WorkerSpec(Role.BUILDER, "engine_services:Rogue", environment=environment)
idle, hung, linking = (engine.start(spec) for _ in range(3))
pids = [engine.call(worker, "pid", deadline_s=100).result(100) for worker in (idle, hung, linking)]
engine.call(hung, "hold_gil_after", directory / "hung", deadline_s=1000)
engine.call(linking, "spawn_and_hang", directory / "linking", deadline_s=1000)
while not all((directory / name).exists() and (directory / name).read_text() for name in ("hung", "linking")):
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(1000)
"""

SLOW_PRELOAD = """
import time
time.sleep(1000)
"""


def start_parent(directory: Path, preload: str = "") -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), str(directory), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(directory), preload],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(directory)},  # killed, it leaves its logs behind
    )


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def expect_all_gone(family: list[psutil.Process]) -> None:
    for _ in range(3000):
        left = [p for p in family if runs(p)]
        if not left:
            return
        time.sleep(0.01)
    for process in left:
        process.kill()
    raise AssertionError(f"left behind: {left}")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_busy_hung_and_linking_workers_go_with_their_parent(tmp_path: Path, signum: signal.Signals) -> None:
    with start_parent(tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 5  # the zygote, three workers, and what one of them runs
        parent.send_signal(signum)
        parent.wait()
        expect_all_gone(family)
    assert len(list(tmp_path.glob("tunery-*"))) == 1, "what a killed process leaves goes with the test"


def test_zygote_that_still_imports_goes_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "slow_preload.py").write_text(SLOW_PRELOAD)
    with start_parent(tmp_path, "slow_preload") as parent:
        family: list[psutil.Process] = []
        while not family:
            family = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
        parent.wait()
        expect_all_gone(family)
