"""Virtual environments of dialects whose compilers cannot be in one environment with others. Each is made by one
command, below the user's data directory, and holds what the dialect requires, this installation of tunery by a link,
and the packages that tunery itself needs, in the versions that run here."""

import fcntl
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tunery._errors import UsageError, WorkError
from tunery._locks import open_lock, own_directory
from tunery._settings import environments_directory

_STAMP = "tunery.json"
_WORKERS = ("onnx", "onnxruntime", "psutil", "scipy")
"""What workers need beyond what tunery requires of every installation: ONNX Runtime runs what a compiler leaves."""


def environment_python(name: str) -> Path:
    return environments_directory() / name / "bin" / "python"


def site_packages(name: str) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environments_directory() / name)}))


def environment_fault(name: str, requirements: Sequence[str]) -> str:
    command = f"tunery dialects install {name}"
    try:
        found = json.loads((environments_directory() / name / _STAMP).read_bytes())
    except FileNotFoundError:
        return f"the dialect {name} has no environment on this machine; install it with `{command}`"
    except (OSError, ValueError) as error:
        return f"the environment of the dialect {name} cannot be read ({error}); install it again with `{command}`"
    if found != _stamp(requirements):
        return f"the environment of the dialect {name} is of other versions; install it again with `{command}`"
    if not environment_python(name).exists():
        return f"the environment of the dialect {name} has lost its Python; install it again with `{command}`"
    return ""


def check_environment(name: str, requirements: Sequence[str]) -> None:
    if requirements and (fault := environment_fault(name, requirements)):
        raise UsageError(fault)


def install_environment(name: str, requirements: Sequence[str]) -> Path:
    with _held(name) as (place, lock):
        _clear(place)
        try:
            _run([sys.executable, "-P", "-m", "venv", str(place)], "a virtual environment cannot be made", lock)
            needed = [*requirements, *_own_packages()]
            pip = [str(environment_python(name)), "-P", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([*pip, *needed], f"the packages of the dialect {name} cannot be installed", lock)
            try:
                _link_tunery(site_packages(name))
                (place / _STAMP).write_text(json.dumps(_stamp(requirements)))  # the last of it: now it may be used
            except OSError as error:
                raise WorkError(f"{place} cannot be written: {error.strerror or error}; make room there") from error
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return place


def remove_environment(name: str) -> bool:
    if not os.path.lexists(environments_directory() / name):
        return False
    with _held(name) as (place, _):
        return _clear(place)


@contextmanager
def _held(name: str) -> Iterator[tuple[Path, int]]:
    """Yield an environment's place and its lock. A program that works on it has the lock as well, and goes on with it
    should this process be killed."""
    directory = environments_directory()
    try:
        own_directory(directory)
        lock = open_lock(directory / f"{name}.lock")
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror or error}; make it yours") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory / name, lock
    finally:
        os.close(lock)


def _clear(place: Path) -> bool:
    """Remove whatever is at an environment's place, of a link the link alone; return whether there was anything."""
    try:
        if place.is_dir() and not place.is_symlink():
            (place / _STAMP).unlink(missing_ok=True)  # the first of it: from now on it may not be used
            shutil.rmtree(place)
        else:
            place.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{place} cannot be removed: {error.strerror or error}; remove it yourself") from error
    return True


def _stamp(requirements: Sequence[str]) -> dict[str, object]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"requirements": list(requirements), "python": version, "tunery": str(_package())}


def _package() -> Path:
    return Path(__file__).resolve().parent


def _own_packages() -> list[str]:
    needed = [line for line in importlib.metadata.requires("tunery") or () if "extra ==" not in line]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    return [f"{name}=={importlib.metadata.version(name)}" for name in (*names, *_WORKERS)]


def _link_tunery(site: Path) -> None:
    (site / "tunery").symlink_to(_package())
    ours = importlib.metadata.distribution("tunery")
    about = site / f"tunery-{ours.version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tunery\nVersion: {ours.version}\n")
    (about / "entry_points.txt").write_text(ours.read_text("entry_points.txt") or "")


def _run(command: Sequence[str], fault: str, lock: int) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_variables(), pass_fds=[lock])
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or [shlex.join(command)]
        if any("Retrying (" in line for line in said):  # pip calls that a distribution which does not exist
            errors = ["pip cannot reach its package index"]
        raise WorkError(f"{fault}: {errors[-1].removeprefix('ERROR: ')[:300]}; try again when that is mended")


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
