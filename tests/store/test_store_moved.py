"""A store's file that is deleted, replaced or linked while a process writes it: nothing is lost in silence."""

import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_samples import record, task

from tunery._errors import StoreError
from tunery.store import open_store

CHILD = Path(__file__).parent / "store_child.py"
CONV = task()


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for one in path.parent.glob(f"{path.name}*"):
        one.unlink()


def move_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("away"))


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def replace(path: Path) -> None:
    Path(path.parent, "other.db").rename(path)


def replace_by_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").rename(path)


@pytest.mark.attack
@pytest.mark.parametrize(
    "change", [delete, delete_all, move_folder, delete_log, delete_index, replace, replace_by_copy]
)
def test_every_acknowledged_record_is_in_the_store_or_in_the_file_that_the_error_names(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "folder" / "store.db"
    with open_store(str(path.with_name("other.db"))) as other:
        other.add_record(CONV, record(CONV, "theirs"))
    command = [sys.executable, str(CHILD), str(path), "write", "k", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(20)]
        change(path)
        said += [line.strip() for line in child.stdout]
    *acknowledged, last = said
    kept = re.search(r"is in (\S+\.rescued-\S+): move", last)
    assert kept is not None, last
    log = {delete_log: "-wal", delete_index: "-shm"}.get(change, "")
    assert last.startswith(f"StoreError: the store {path}{log} was "), last
    with open_store(kept[1]) as store:
        store.check()
        stored = [one.candidate.key for one in store.records()]
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) == len(acknowledged) + 1, "what was to be written is kept too"
    if change is replace:
        with open_store(str(path)) as store:
            store.check()
            assert [one.candidate.key for one in store.records()] == ["theirs"]
    if not kept[1].startswith(str(tmp_path)):
        Path(kept[1]).unlink()


@pytest.mark.attack
def test_a_store_with_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(str(path)).close()
    os.link(path, tmp_path / "again.db")
    for name in ("store.db", "again.db"):
        with pytest.raises(StoreError, match="hard links"):
            open_store(str(tmp_path / name))


@pytest.mark.attack
def test_what_is_made_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_store(str(tmp_path / "a" / "b" / "store.db")) as store:
            store.add_record(CONV, record(CONV))
            modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*")}
    finally:
        os.umask(before)
    files = ("store.db", "store.db-wal", "store.db-shm", "store.db-lock")
    assert modes == {"a": 0o700, "b": 0o700} | dict.fromkeys(files, 0o600)


@pytest.mark.attack
def test_a_store_that_was_moved_away_is_not_read_either(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(str(path)) as store:
        path.rename(tmp_path / "elsewhere.db")
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE t (x)")
        with pytest.raises(StoreError, match="replaced while it was in use"):
            store.records()


@pytest.mark.attack
def test_writers_that_are_stopped_while_files_move_lose_nothing_and_spoil_no_file(tmp_path: Path) -> None:
    command = [sys.executable, str(CHILD.with_name("store_turns.py")), str(tmp_path), "0", "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tried 12\n"


@pytest.mark.attack
def test_the_log_of_a_file_that_was_moved_away_is_no_other_files(tmp_path: Path) -> None:
    path, other = tmp_path / "store.db", tmp_path / "other.db"
    with open_store(str(other)) as store:
        store.add_record(CONV, record(CONV, "theirs"))
    command = [sys.executable, str(CHILD), str(path), "write", "k", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(20)]
        child.kill()
        said += [line.strip() for line in child.stdout]
    path.rename(away := tmp_path / "away.db")
    other.rename(path)
    with open_store(str(path)) as store:
        store.check()
        assert [one.candidate.key for one in store.records()] == ["theirs"]
    (log,) = tmp_path.glob("*.rescued-*-wal")
    log.rename(f"{away}-wal")
    with open_store(str(away)) as store:
        assert {one.candidate.key for one in store.records()} >= set(said)


@pytest.mark.attack
def test_a_file_is_used_by_one_name_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    command = [sys.executable, str(CHILD), str(path), "write", "k", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(20)]
        child.send_signal(signal.SIGSTOP)
        path.rename(tmp_path / "again.db")
        with pytest.raises(StoreError, match="in use under another name"):
            open_store(str(tmp_path / "again.db"))
        (tmp_path / "again.db").rename(path)
        with open_store(str(path)) as store:
            assert {one.candidate.key for one in store.records()} >= set(said)
        child.kill()


@pytest.mark.attack
def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path) -> None:
    path, second = tmp_path / "store.db", tmp_path / "second.db"
    open_store(str(path)).close()
    second.touch()
    script = 'mount --bind "$1" "$2" && exec "$3" "$4" "$2" write k 3'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(path), str(second), sys.executable, str(CHILD)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert "is mounted alone" in done.stdout
    with open_store(str(path)) as store:
        assert not store.records()


@pytest.mark.attack
def test_what_a_full_disk_cannot_hold_is_kept_elsewhere(tmp_path: Path) -> None:
    """The store's disk is full, and $TMPDIR is on it."""
    script = """
        mount -t tmpfs -o size=3m none "$1" || exit
        "$2" "$3" "$1/store.db" write k 100000 >"$1.out" &
        until grep -q k-20 "$1.out"; do sleep 0.01; done
        kill -STOP $!
        dd if=/dev/zero of="$1/ballast" bs=4k 2>/dev/null
        mv "$1/store.db" "$1/away.db"
        kill -CONT $!
        wait
        cat "$1.out"
        ls "$1" >&2
    """
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, str(CHILD)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    if not done.stdout:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    *said, last = done.stdout.splitlines()
    assert ".rescued-" not in done.stderr
    kept = re.search(r"is in (\S+\.rescued-\S+): move", last)
    assert kept is not None, last
    with open_store(kept[1]) as store:
        assert {one.candidate.key for one in store.records()} >= set(said)
    Path(kept[1]).unlink()
