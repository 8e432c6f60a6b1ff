"""Real faults: kill -9, a torn file, a full disk, several writers."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection
from store_samples import HERE, record, task

from tunery._errors import StoreError
from tunery.store import Store, open_store

CHILD = Path(__file__).parent / "store_child.py"
CONV = task()


def start_writer(url: str, prefix: str, count: int, limit: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, str(CHILD), url, "write", prefix, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)  # noqa: PLW1509


def keys(store: Store) -> list[str]:
    return [r.candidate.key for r in store.records(CONV.key)]


@pytest.mark.jobs
@pytest.mark.parametrize("seed", range(4))
def test_kill_nine_loses_no_acknowledged_record(tmp_path: Path, seed: int) -> None:
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        store.add_record(CONV, record(CONV, "before"))
    acknowledged = ["before"]
    with start_writer(url, "w", 1_000_000) as process:
        assert process.stdout is not None
        acknowledged.append(process.stdout.readline().strip())
        time.sleep(random.Random(seed).uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout]
    with open_store(url) as store:
        store.check()
        stored = keys(store)
        assert stored[: len(acknowledged)] == acknowledged
        assert len(stored) - len(acknowledged) <= 1  # committed, but killed before it could say so
        store.add_record(CONV, record(CONV, "after"))
        assert keys(store) == [*stored, "after"]


@pytest.mark.jobs
@pytest.mark.parametrize("seed", range(2))
def test_kill_nine_of_many_that_share_commits_loses_nothing_acknowledged_and_parts_no_charge(
    tmp_path: Path, seed: int
) -> None:
    url = str(tmp_path / "store.db")
    with open_store(url) as store:
        job = store.create_job({"model": "x"}).job_id
    command = [sys.executable, str(CHILD), url, "write-many", job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip()]
        time.sleep(random.Random(seed).uniform(0, 0.25))
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout]
    with open_store(url) as store:
        store.check()
        stored = keys(store)
        assert set(acknowledged) <= set(stored)
        assert {charge.task_key for charge in store.ledger(job)} == set(stored)
        assert len(stored) == len(set(stored)) <= len(acknowledged) + 16


def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    # Losing power cannot be tried here; this is what SQLite asks for to survive it.
    def pragma(name: str) -> object:
        return store.write(lambda connection: connection.exec_driver_sql(f"PRAGMA {name}").scalar())

    with open_store(str(tmp_path / "store.db")) as store:
        assert [pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys")] == ["wal", 2, 1]


@pytest.mark.jobs
def test_several_processes_create_and_write_one_store_at_once(tmp_path: Path) -> None:
    url = str(tmp_path / "store.db")
    writers = [start_writer(url, prefix, 60) for prefix in ("a", "b", "c")]
    said = [writer.communicate()[0].split() for writer in writers]
    with open_store(url) as store:
        store.check()
        stored = keys(store)
    assert [len(words) for words in said] == [60, 60, 60]
    assert sorted(stored) == sorted(word for words in said for word in words)


def test_several_threads_share_one_store(store: Store) -> None:
    def work(name: str) -> None:
        for number in range(20):
            store.add_record(CONV, record(CONV, f"{name}{number}"))
            store.best(CONV.key, HERE)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.measured_keys(CONV.key, HERE)) == 60


def check_full_disk(url: str, process: "subprocess.Popen[str]", expected: str) -> None:
    """The writer must have ended with a clear error, and everything it acknowledged must be there."""
    *acknowledged, last = process.communicate()[0].splitlines()
    assert last.startswith("StoreError: ")
    assert expected in last
    assert len(acknowledged) > 10
    with open_store(url) as store:
        store.check()
        assert keys(store) == acknowledged


@pytest.mark.jobs
def test_a_file_that_may_not_grow_is_a_clear_error(tmp_path: Path) -> None:
    url, most = str(tmp_path / "store.db"), 800_000
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
    check_full_disk(url, start_writer(url, "w", 100_000, limit), "is the disk full, over quota or failing?")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.jobs
def test_a_full_disk_is_a_clear_error_and_resumes_after_making_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 100_000)
    url = str(small_disk / "store.db")
    process = start_writer(url, "w", 100_000)
    *acknowledged, last = process.communicate()[0].splitlines()
    assert "is full; what was stored before is intact: free some space and resume" in last
    assert len(acknowledged) > 10
    ballast.unlink()
    with open_store(url) as store:
        store.check()
        assert keys(store) == acknowledged
        store.add_record(CONV, record(CONV, "with room again"))


def test_a_file_of_garbage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(random.Random(0).randbytes(10_000))
    with pytest.raises(StoreError, match="is not a tunery store; name another file"):
        open_store(str(path))


def filled(path: Path) -> Path:
    with open_store(str(path)) as store:
        for number in range(50):
            store.add_record(CONV, record(CONV, f"c{number}", context={"padding": [number] * 200}))
    return path


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path / "store.db")
    os.truncate(path, path.stat().st_size // 2 + 100)
    with pytest.raises(StoreError, match="is damaged; restore a copy"):
        open_store(str(path))


def test_a_damaged_page_is_found_by_check(tmp_path: Path) -> None:
    path = filled(tmp_path / "store.db")
    data = bytearray(path.read_bytes())
    page = len(data) // 4096 * 3 // 4 * 4096  # of records: those that hold the tables' names come first
    data[page : page + 4096] = random.Random(0).randbytes(4096)
    path.write_bytes(data)
    with open_store(str(path)) as store, pytest.raises(StoreError, match="damaged"):
        store.check()


def test_a_lock_that_is_never_released_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.store.database.file.BUSY_S", 0.05)
    url = str(tmp_path / "store.db")
    with open_store(url) as mine, open_store(url) as theirs:

        def meanwhile(_: Connection) -> None:
            with pytest.raises(StoreError, match="locked; wait for it or end it"):
                mine.add_record(CONV, record(CONV))
            assert mine.records() == []  # readers never wait

        theirs.write(meanwhile)
