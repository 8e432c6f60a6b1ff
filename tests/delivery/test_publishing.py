"""A finished file appears whole, or what was there stays."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tunery._errors import UsageError
from tunery.delivery import publish


def to_another_filesystem(path: Path, to: Path) -> Path:
    if path.name == "made":
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    os.replace(path, to)  # noqa: PTH105 - `Path.replace` is this function
    return to


@pytest.mark.parametrize("copied", [False, True])
def test_a_file_is_replaced_and_the_leftovers_of_the_dead_go(
    copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copied:
        monkeypatch.setattr(Path, "replace", to_another_filesystem)
    made, output = tmp_path / "made", tmp_path / "net[1].tunery"
    made.write_bytes(b"new" * 1000)
    output.write_bytes(b"old")
    dead, living, other = (tmp_path / f".{name}.part" for name in ("net[1].tunery.999999999", "net[1].tunery.1", "x.9"))
    for path in (dead, living, other):
        path.touch()
    publish(made, output)
    assert output.read_bytes() == b"new" * 1000
    assert made.exists() == copied
    assert not dead.exists()
    assert living.exists()
    assert other.exists()
    assert not (tmp_path / f".net[1].tunery.{os.getpid()}.part").exists()


def test_a_disk_that_fills_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(bytes(1 << 16))
    (tmp_path / "net").write_bytes(b"old")
    code = """
import errno, pathlib, signal, tunery.delivery
def to_another_filesystem(path, to): raise OSError(errno.EXDEV, "Invalid cross-device link")
pathlib.Path.replace = to_another_filesystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tunery.delivery.publish(pathlib.Path("made"), pathlib.Path("net"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
    )  # fmt: skip
    assert "cannot write net: File too large; choose another place with -o" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "net"]
    assert (tmp_path / "net").read_bytes() == b"old"


def test_a_place_that_is_gone_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    with pytest.raises(UsageError, match="choose another place"):
        publish(tmp_path / "made", tmp_path / "gone" / "net")
