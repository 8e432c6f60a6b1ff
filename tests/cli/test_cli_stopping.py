"""A run that is stopped or killed goes on with the same command, and nothing is measured twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_tools import run_in_process

from tunery.domain import JobState, Mode
from tunery.reports.spending import SHARED
from tunery.store import open_store

pytestmark = pytest.mark.jobs

TRIALS = 30
# Builds take real time, so that there is a middle to stop in.
SLOW = "fake:slow?build_s=0.05&tasks=2"
TUNE = [sys.executable, "-m", "tunery", "tune", SLOW, "--dialect", "fake", "--budget", f"{TRIALS}trials", "--json"]
PATIENCE_S = 100.0


def start(directory: Path, command: list[str] = TUNE) -> subprocess.Popen[str]:
    places = {"TUNERY_STORE": str(directory / "store.db"), "TUNERY_CACHE": str(directory / "cache")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | places, cwd=directory,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509 - no other thread runs here
    )  # fmt: skip


def hear_ctrl_c() -> None:
    """Undo what a shell does to whatever it starts in the background, such as the whole test run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def raced(directory: Path) -> Counter[tuple[str, str]]:
    if not (directory / "store.db").exists():
        return Counter()
    with open_store(str(directory / "store.db")) as store:
        return Counter((r.candidate.task_key, r.candidate.key) for r in store.records(modes=[Mode.RACE]))


def finish(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, json.loads(out) if out else None, err


def expect_gone(family: list[psutil.Process]) -> None:
    def runs(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # it ended between the two questions
            return False

    wait_until(lambda: not any(map(runs, family)))


def expect_all_measured_once(directory: Path, job: str) -> None:
    counts = raced(directory)
    assert set(counts.values()) == {1}, "a candidate was measured twice"
    assert len(counts) >= TRIALS
    with open_store(str(directory / "store.db")) as store:
        assert [status.job_id for status in store.jobs()] == [job]
    assert not list((directory / "cache").glob("run-*")), "a scratch directory was left"


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        wait_until(lambda: len(raced(tmp_path)) >= 5)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        code, stopped, err = finish(process)
    assert code == 130
    assert stopped["status"] == "stopped"
    assert "same command" in stopped["message"]
    assert "stopping" in err
    assert "Traceback" not in err
    expect_gone(family)
    known = len(raced(tmp_path))

    with start(tmp_path) as process:
        code, done, _ = finish(process)
    assert code == 0
    assert (done["job"], done["status"], done["resumed"]) == (stopped["job"], "done", True)
    assert done["spend"]["trials"] == TRIALS > known - 2 > 0
    rows = run_in_process("spend", done["job"], "--store", str(tmp_path / "store.db"), "--json").data["outcomes"]
    spent = sum(row["count"] for row in rows if row["name"] not in {SHARED, "filtered"})
    assert spent == TRIALS, "`spend` and `jobs show` count the same trials, charged or not"
    expect_all_measured_once(tmp_path, done["job"])


SCRIPT = f"""
import tunery
from tunery import TuneryError

try:
    tunery.load({SLOW!r}).on(dialect="fake").within("{TRIALS}trials").tune()
except TuneryError as error:
    raise SystemExit(f"not tuned: {{error}}") from None
"""


def test_ctrl_c_in_a_script_leaves_a_job_that_goes_on_and_no_worker(tmp_path: Path) -> None:
    (tmp_path / "tuning.py").write_text(SCRIPT)
    script = [sys.executable, "tuning.py"]
    with start(tmp_path, script) as process:
        wait_until(lambda: len(raced(tmp_path)) >= 5)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    expect_gone(family)
    with open_store(str(tmp_path / "store.db")) as store:
        [stopped] = store.jobs()
    assert (stopped.state, 0 < stopped.spend.trials < TRIALS) == (JobState.STOPPED, True)

    with start(tmp_path, script) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.job(stopped.job_id).spend.trials == TRIALS
    expect_all_measured_once(tmp_path, stopped.job_id)


@pytest.mark.slow  # the same command goes on above; what an id goes on with is told in service/test_resuming.py
def test_a_stopped_job_is_resumed_by_its_id(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        wait_until(lambda: len(raced(tmp_path)) >= 5)
        process.send_signal(signal.SIGTERM)
        code, stopped, _ = finish(process)
    assert (code, stopped["status"]) == (143, "stopped")
    resume = [sys.executable, "-m", "tunery", "jobs", "resume", stopped["job"], "--json"]
    with start(tmp_path, resume) as process:
        code, done, _ = finish(process)
    assert (code, done["job"], done["status"]) == (0, stopped["job"], "done")
    expect_all_measured_once(tmp_path, done["job"])


@pytest.mark.attack
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_importing_ends_at_once(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    command = [*TUNE[:4], "fake:slow?extract_s=1000", "--dialect", "fake"]
    with start(tmp_path, command) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("reading the model")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signum)
        ended, _, err = finish(process)
    assert ended == code
    assert err.splitlines()[-1].startswith("error: stopped"), err
    assert "Traceback" not in err
    expect_gone(family)
    assert not list((tmp_path / "cache").glob("run-*"))


HANDLER = """
import time
from tunery.cli.console.live import Interrupt
with Interrupt(lambda: print("restored", flush=True)) as interrupt:
    interrupt.begun = True
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_ctrl_c_ends_at_once(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    with start(tmp_path, [sys.executable, "-c", HANDLER]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        assert "stopping" in process.stderr.readline()
        process.send_signal(signum)
        assert "at once" in process.stderr.readline()
        assert process.stdout.read() == "restored\nrestored\n"
        assert process.wait(PATIENCE_S) == code


def test_output_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tunery zoo list --json | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.strip() in {"0", "1"}
    assert done.stderr == ""
