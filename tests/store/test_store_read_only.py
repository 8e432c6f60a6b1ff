"""A store that cannot be written is read through a copy, by whoever does not need to keep what they write."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_samples import HERE, record, task

from tunery._errors import StoreError, UsageError
from tunery.store import open_store

CONV = task()
CHILD = Path(__file__).parent / "store_child.py"


@pytest.fixture
def closed_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which, once it has mode 0500, nothing can be written; the superuser is told so as well."""
    directory = tmp_path / "closed"
    directory.mkdir()
    real = os.access

    def access(path: str | Path, mode: int) -> bool:
        inside = Path(path).resolve().is_relative_to(directory) and directory.stat().st_mode & 0o200 == 0
        return real(path, mode) and not (inside and mode & os.W_OK)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    yield directory
    directory.chmod(0o700)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_what_is_written_goes_to_a_copy_that_goes_with_the_store(closed_directory: Path) -> None:
    path = closed_directory / "store.db"
    with open_store(str(path)) as store:
        store.add_record(CONV, record(CONV, "a"))
    before = contents(closed_directory)
    closed_directory.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be written"):
        open_store(str(path))
    with open_store(str(path), keep=False) as store:
        assert store.url == str(path)
        store.add_record(CONV, record(CONV, "b"))
        assert {one.candidate.key for one in store.best(CONV.key, HERE, limit=None)} == {"a", "b"}
        with pytest.raises(UsageError):
            store.export_records(path)
    with open_store(str(path), keep=False) as store:
        assert [one.candidate.key for one in store.records()] == ["a"]
    assert {name: text for name, text in contents(closed_directory).items() if name == "store.db"} == before
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_a_store_that_is_being_written_is_read_as_of_one_moment(closed_directory: Path) -> None:
    path = closed_directory / "store.db"
    with open_store(str(path)) as writer:
        writer.add_record(CONV, record(CONV, "a"))
        closed_directory.chmod(0o500)
        with open_store(str(path), keep=False) as store:
            writer.add_record(CONV, record(CONV, "b"))
            assert [one.candidate.key for one in store.records()] == ["a"]
        with open_store(str(path), keep=False) as store:
            assert [one.candidate.key for one in store.records()] == ["a", "b"]


def test_what_a_killed_process_acknowledged_is_read(closed_directory: Path) -> None:
    path = closed_directory / "store.db"
    command = [sys.executable, str(CHILD), str(path), "write", "k", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        acknowledged = [child.stdout.readline().strip() for _ in range(5)]
        child.kill()
    Path(f"{path}-shm").unlink()  # as after a copy, or a restart of the machine
    assert Path(f"{path}-wal").stat().st_size
    closed_directory.chmod(0o500)
    with open_store(str(path), keep=False) as store:
        assert set(acknowledged) <= {one.candidate.key for one in store.records()}


@pytest.mark.parametrize("create", [True, False])
def test_where_no_store_can_be_made_it_reads_as_empty(
    closed_directory: Path, create: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNERY_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(closed_directory))
    (closed_directory / "tunery").mkdir()
    closed_directory.chmod(0o500)
    with open_store(create=create, keep=False) as store:
        assert store.stats().records == 0
    with pytest.raises(StoreError, match="cannot be"):
        open_store(create=create)
    closed_directory.chmod(0o700)
    assert not contents(closed_directory / "tunery")


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 8176])
def test_what_is_no_store_is_named_and_leaves_no_copy(closed_directory: Path, content: bytes) -> None:
    (closed_directory / "x.db").write_bytes(content)
    closed_directory.chmod(0o500)
    with pytest.raises(StoreError, match=r"x\.db"):
        open_store(str(closed_directory / "x.db"), keep=False)
    assert not list(Path(tempfile.gettempdir()).iterdir())
