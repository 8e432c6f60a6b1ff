"""A store's file that is deleted, replaced or linked while a process writes it: nothing is lost in silence."""

import os
import re
import shutil
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


def replace(path: Path) -> None:
    Path(path.parent, "other.db").rename(path)


def replace_by_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").rename(path)


@pytest.mark.attack
@pytest.mark.parametrize("change", [delete, delete_all, move_folder, delete_log, replace, replace_by_copy])
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
    assert last.startswith("StoreError: "), last
    assert kept is not None, last
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
    assert modes == {"a": 0o700, "b": 0o700} | dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)


@pytest.mark.attack
def test_a_store_that_was_moved_away_is_not_read_either(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with open_store(str(path)) as store:
        path.rename(tmp_path / "elsewhere.db")
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("CREATE TABLE t (x)")
        with pytest.raises(StoreError, match="replaced while it was in use"):
            store.records()
