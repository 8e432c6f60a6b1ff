"""An output appears whole, and takes the place of nothing but an output of its kind."""

import errno
import json
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tunery import _outputs as outputs
from tunery._errors import UsageError
from tunery._outputs import Kind, check_output, publish, replacing, whole_file

KINDS = [each for each in vars(outputs).values() if isinstance(each, Kind)]


def network(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights", bytes(1000))
        archive.writestr("manifest.json", json.dumps({"dialect": "fake"}))


def dataset(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({b"tunery": b"{}"}), path)


def others_dataset(path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1]}), path)


def chart(path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.savefig(path, format="png")


def archive_of_others(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", '{"manifest_version": 3}')


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content) and None


MAKERS: dict[str, Callable[[Path], None]] = {
    "a compiled network": network,
    "a file of exported records": text('{"format":"tunery-records","version":1}\n'),
    "a file of measured results": text('{\n "device_name": "a device",\n "cache": {}}\n'),
    "a dataset of records": dataset,
    "a dataset's description": text('{\n "tunery": "dataset"}'),
    "a chart": chart,
    "a suite's results": text('{\n "suite": 1}'),
    "a study's results": text('{\n "study": "x"}'),
    "a text that tunery wrote": text("/* square, tuned; made by tunery */\n"),
    "a report": text('<!doctype html><html><head><meta name="generator" content="made by tunery report">'),
    "a page of others": text("<!doctype html><html><head><title>x</title>"),
    "a model": lambda path: path.write_bytes(b"\x08\x07\x12\x07pytorch") and None,
    "a price sheet": text('currency = "EUR"\n'),
    "another archive": archive_of_others,
    "a directory-less archive": lambda path: path.write_bytes(b"PK\5\6" + bytes(18)) and None,
    "an archive with a huge directory": lambda path: path.write_bytes(b"PK\5\6" + b"\xff" * 16 + bytes(2)) and None,
    "another dataset": others_dataset,
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)) and None,
}


@pytest.mark.parametrize("found", MAKERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_output_replaces_its_own_kind_only(kind: Kind, found: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    MAKERS[found](path)
    before = path.read_bytes()
    if found == kind.name:
        with whole_file(path, kind) as file:
            file.write(b"new")
        assert path.read_bytes() == b"new"
        return
    with pytest.raises(UsageError, match=f"is not {kind.name}.*--force"), whole_file(path, kind):
        pytest.fail("nothing may be done before it is refused")
    assert path.read_bytes() == before
    with whole_file(path, kind, force=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_every_kind_is_recognised() -> None:
    assert {kind.name for kind in KINDS} <= MAKERS.keys()


def database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    return path


def plain(path: Path) -> Path:
    path.write_text("mine")
    return path


def symlink(to: Path, path: Path) -> Path:
    path.symlink_to(to)
    return path


def hard_link(to: Path, path: Path) -> Path:
    path.hardlink_to(to)
    return path


@pytest.mark.parametrize("link", [lambda to, path: to, symlink, hard_link], ids=["itself", "symlink", "hard link"])
@pytest.mark.parametrize("make", [database, plain], ids=["a database", "its own input"])
def test_nothing_is_forced_upon_a_database_or_an_input(
    make: Callable[[Path], Path], link: Callable[[Path, Path], Path], tmp_path: Path
) -> None:
    victim = make(tmp_path / "victim")
    before = victim.read_bytes()
    name = link(victim, tmp_path / "name")
    inputs = [victim] if make is plain else []
    for force in (False, True):
        with pytest.raises(UsageError, match="name another file"):
            check_output(name, outputs.NETWORK, inputs=inputs, force=force)
        with pytest.raises(UsageError), whole_file(name, outputs.NETWORK, inputs=inputs, force=force):
            pass
    assert victim.read_bytes() == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("there", [True, False])
def test_what_belongs_to_a_database_is_left_alone(suffix: str, there: bool, tmp_path: Path) -> None:
    beside = database(tmp_path / "a.db").with_name(f"a.db{suffix}")
    if there:
        beside.touch()
    with pytest.raises(UsageError, match="belongs to one"):
        check_output(beside, outputs.RECORDS, force=True)
    check_output(tmp_path / f"b.db{suffix}", outputs.RECORDS)


def test_a_store_that_is_still_to_be_made_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new.db")
    for name in ("new.db", "link", "../" + tmp_path.name + "/new.db"):
        with pytest.raises(UsageError, match="works on"):
            check_output(tmp_path / name, outputs.RECORDS, inputs=[tmp_path / "new.db"])


@pytest.mark.parametrize("kind", ["device", "pipe", "directory"])
def test_what_is_no_file_is_never_replaced(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place = Path("/dev/null")
    with pytest.raises(UsageError, match="is not a file"):
        check_output(place, outputs.RECORDS, force=True)


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    kept, link, dangling = tmp_path / "kept", tmp_path / "link", tmp_path / "dangling"
    MAKERS["a file of exported records"](kept)
    before = kept.read_bytes()
    link.symlink_to(kept)
    dangling.symlink_to(tmp_path / "elsewhere")
    for path in (link, dangling):
        with whole_file(path, outputs.RECORDS) as file:
            file.write(b"new")
        assert not path.is_symlink()
        assert path.read_bytes() == b"new"
    assert kept.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


def test_an_empty_file_is_nothing_to_lose(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with whole_file(tmp_path / "out", outputs.NETWORK) as file:
        file.write(b"new")
    assert (tmp_path / "out").read_bytes() == b"new"


def test_what_appears_while_the_work_goes_on_stays(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write() -> None:
        with whole_file(path, outputs.NETWORK) as file:
            file.write(b"new")
            path.write_text("mine")

    with pytest.raises(UsageError, match="--force"):
        write()
    assert path.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_work_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    network(tmp_path / "out")
    before = (tmp_path / "out").read_bytes()

    def write() -> None:
        with whole_file(tmp_path / "out", outputs.NETWORK) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert (tmp_path / "out").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_obeys_the_umask_and_a_replaced_one_keeps_its_mode(umask: int, tmp_path: Path) -> None:
    old = tmp_path / "old"
    network(old)
    old.chmod(0o640)
    before = os.umask(umask)
    try:
        for path in (old, tmp_path / "new"):
            with whole_file(path, outputs.NETWORK) as file:
                file.write(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~umask


def test_the_longest_name_that_a_file_system_takes_will_do(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with whole_file(path, outputs.NETWORK) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(UsageError, match=r"File name too long; name another file"):
        check_output(tmp_path / ("x" * 256), outputs.NETWORK)


def to_another_filesystem(path: Path, to: Path) -> Path:
    if path.name == "made":
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    os.replace(path, to)  # noqa: PTH105 - `Path.replace` is this function
    return to


@pytest.mark.parametrize("copied", [False, True])
def test_a_finished_file_is_moved(copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if copied:
        monkeypatch.setattr(Path, "replace", to_another_filesystem)
    made, output = tmp_path / "made", tmp_path / "net[1].tunery"
    made.write_bytes(b"new" * 1000)
    network(output)
    publish(made, output, outputs.NETWORK)
    assert output.read_bytes() == b"new" * 1000
    assert made.exists() == copied


def test_a_file_of_ours_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with replacing(path) as part:
        part.write_text("old")
        assert not path.exists()
    with pytest.raises(TypeError), replacing(path) as part:
        part.write_text(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one", "of two writers the last one wins"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_the_dead_go(tmp_path: Path) -> None:
    dead, living, fresh, other = (
        tmp_path / name
        for name in (".tunery.999999999.0.part", ".tunery.1.0.part", ".tunery.999999998.0.part", ".x.999999999.0.part")
    )
    for path in (dead, living, fresh, other):
        path.touch()
        if path != fresh:
            os.utime(path, (0, 0))
    with whole_file(tmp_path / "out", outputs.NETWORK) as file:
        file.write(b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"out", living.name, fresh.name, other.name}


def test_a_disk_that_fills_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(bytes(1 << 16))
    network(tmp_path / "net")
    before = (tmp_path / "net").read_bytes()
    code = """
import errno, pathlib, signal
from tunery import _outputs
def to_another_filesystem(path, to): raise OSError(errno.EXDEV, "Invalid cross-device link")
pathlib.Path.replace = to_another_filesystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_outputs.publish(pathlib.Path("made"), pathlib.Path("net"), _outputs.NETWORK)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
    )  # fmt: skip
    assert "cannot write net: File too large; name another file" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "net"]
    assert (tmp_path / "net").read_bytes() == before


def test_a_place_that_is_gone_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    with pytest.raises(UsageError, match=r"there is no directory .*; create it, or name another file"):
        publish(tmp_path / "made", tmp_path / "gone" / "net", outputs.NETWORK)
