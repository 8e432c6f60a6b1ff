"""A disk that is full, or never was one: a clear sentence, nothing half-written, and earlier records stay."""

import json
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from job_tools import PATIENCE_S, family, raced, role_of, run_in, start, wait_until

from tunery._errors import UsageError
from tunery.domain import Mode, Outcome
from tunery.store import open_store

TRIALS = 50
SOURCE = "fake:disk?tasks=2&build_s=0.03"


def fill_disk_of(processes: list[psutil.Process], size: int = 64) -> None:
    """Let no file of these processes, and of those they fork from now on, grow past `size` bytes."""
    for process in processes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def run_out_of_disk(directory: Path, choose: Callable[[psutil.Process], bool]) -> subprocess.CompletedProcess[str]:
    with start(directory, SOURCE, TRIALS) as process:
        wait_until(lambda: raced(directory).total() >= 10)
        fill_disk_of([member for member in family(directory) if choose(member)])
        out, err = process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not family(directory))
    return subprocess.CompletedProcess([], process.returncode, out, err)


def expect_clear(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    sentence = json.loads(done.stdout)["error"]
    assert "\n" not in sentence
    assert all(word in sentence for word in words), sentence


def expect_to_go_on(directory: Path) -> None:
    """The store is whole, and with room again the same command ends well."""
    before = raced(directory)
    assert before.total() >= 10
    with open_store(str(directory / "store.db")) as store:
        store.check()
        outcomes = {record.measurement.outcome for record in store.records(modes=[Mode.RACE])}
    assert outcomes <= {Outcome.OK, Outcome.ABANDONED}, "no candidate is blamed for the disk"
    with start(directory, SOURCE, TRIALS) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    answer = json.loads(out)
    assert (answer["status"], answer["resumed"], answer["spend"]["trials"]) == ("done", True, TRIALS)
    assert before <= raced(directory)
    assert set(raced(directory).values()) == {1}
    assert not list((directory / "cache").glob("run-*"))


@pytest.mark.jobs
def test_a_store_that_cannot_grow(tmp_path: Path) -> None:
    done = run_out_of_disk(tmp_path, lambda process: role_of(process) == "main")
    expect_clear(done, "store.db")
    expect_to_go_on(tmp_path)


@pytest.mark.jobs
def test_a_scratch_directory_that_cannot_grow(tmp_path: Path) -> None:
    done = run_out_of_disk(tmp_path, lambda process: role_of(process) in ("zygote", "builder"))
    expect_clear(done, "cache", "TUNERY_CACHE")
    expect_to_go_on(tmp_path)


def test_a_cache_that_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / place))
        with pytest.raises(UsageError, match=r"cannot use .*; set TUNERY_CACHE"):
            run_in(tmp_path, SOURCE)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.jobs
def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "shared"))
    with pytest.raises(UsageError, match=r"cannot use .*; set TUNERY_CACHE to a directory of your own"):
        run_in(tmp_path, SOURCE)
    assert not list((tmp_path / "shared").iterdir())
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "shared" / "mine"))
    assert run_in(tmp_path, SOURCE, "4trials").job.spend.trials == 4, "the advice helps"
    assert (tmp_path / "shared" / "mine").stat().st_mode & 0o077 == 0


def test_a_store_that_cannot_be_there(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(UsageError, match=r"store\.db"):
        run_in(tmp_path, SOURCE)
    assert not list(tmp_path.glob("cache/run-*"))


def test_limits_on_file_size_raise_no_signal() -> None:
    # The tests above rest on it: Python ignores the signal, so a full disk is an error code as on a real one.
    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN
