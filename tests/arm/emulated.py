"""An ARM machine without hardware: Debian's Python and TVM's wheel for aarch64 under qemu's user mode.

Nothing is installed but what lies in the user's cache directory, and it is made once. Timings there mean nothing;
all else is real. `python tests/arm/emulated.py` makes it and says how to reach it.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import platformdirs

from tunery.dialects.iree import IreeDialect

HERE = Path(__file__).resolve()
TREE = HERE.parents[2]
_VERSION = "3"  # of what is prepared: raise it, and it is made again
_LIBRARIES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5"),
    *("libsqlite3-0", "libuuid1", "libncursesw6", "libtinfo6", "libreadline8", "libdb5.3", "libgomp1"),
)
_PYTHON = ("python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
_RUNTIME = (
    *("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "psutil", "typing_extensions", "platformdirs", "pydantic"),
    *("typer", "rich"),
    *(one for one in IreeDialect.requirements if one.startswith("iree-base-runtime")),
)
"""What a host that measures needs: of TVM only the runtime library is loaded, of IREE the runtime."""
_PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)] + ["manylinux2014_aarch64"]
_LINKER = "aarch64-linux-gnu-ld"


class CannotPrepareError(Exception):
    """Something that the machine is made of cannot be had; the message says what to do."""


def prepared() -> Path:
    """Return the directory that holds the machine, made if it is not there.

    Raises:
        CannotPrepareError: this machine lacks something that it is made with, or a package cannot be had.
    """
    if shutil.which(_LINKER) is None and shutil.which("ld.lld") is None:
        raise CannotPrepareError(f"there is no {_LINKER}; install it: apt-get install binutils-aarch64-linux-gnu")
    whole = platformdirs.user_cache_path("tunery-arm") / _VERSION
    if not (whole / "complete").exists():
        whole.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=whole.parent) as scratch:
            made = Path(scratch, "made")
            _unpack_system(Path(scratch, "packages"), made)
            _install_packages(made / "site")
            (made / "complete").touch()
            shutil.rmtree(whole, ignore_errors=True)
            made.rename(whole)
    _describe_tunery(whole / "site")
    return whole


def python(machine: Path, cpu: str = "max") -> Path:
    """Return a program that runs Python on the machine, as if its processor were of this kind.

    It is a script, so that what Python starts as its own executable is started the same way: the kernel here cannot
    run the other one.
    """
    root = machine / "root"
    started = root / f"usr/bin/python-{cpu}"
    command = [*program(machine, cpu), "-0", str(started), str(root / "usr/bin/python3.11")]
    if not started.exists():
        part = started.with_name(f"{started.name}.{os.getpid()}")
        part.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        part.chmod(0o755)
        part.replace(started)
    return started


def program(machine: Path, cpu: str = "max") -> list[str]:
    """Return the command by which the machine runs a program, which is to follow."""
    return [str(machine / "qemu/usr/bin/qemu-aarch64-static"), "-cpu", cpu, "-L", str(machine / "root")]


def path(machine: Path) -> str:
    """Return the PYTHONPATH by which the machine has the tunery of this tree."""
    return f"{TREE / 'src'}:{machine / 'site'}"


def agent(machine: Path, cpu: str = "max") -> str:
    """Return the connect command of the machine's agent."""
    return shlex.join(
        ["env", f"PYTHONPATH={path(machine)}", str(python(machine, cpu)), "-m", "tunery", "agent", "--stdio"]
    )


def _unpack_system(packages: Path, made: Path) -> None:
    """Unpack qemu, and Python with its libraries for ARM, without installing them."""
    packages.mkdir()
    _need("dpkg", "this needs Debian or Ubuntu")
    names = ["qemu-user-static", *(f"{name}:arm64" for name in (*_LIBRARIES, *_PYTHON))]
    with _apt(packages.parent / "apt") as options:
        _run(
            ["apt-get", *options, "update", "-q"], "the lists of packages for arm64 cannot be had; is there a network?"
        )
        _run(
            ["apt-get", *options, "download", "-q", *names],
            "Debian's packages for arm64 cannot be had; this was tried on Debian 12",
            cwd=packages,
        )
    for file in sorted(packages.iterdir()):
        place = made / ("qemu" if file.name.startswith("qemu") else "root")
        place.mkdir(parents=True, exist_ok=True)
        _run(["dpkg", "-x", str(file), str(place)], f"{file.name} cannot be unpacked: is the disk full?")


@contextmanager
def _apt(directory: Path) -> Iterator[Sequence[str]]:
    """Yield options by which apt knows ARM's packages, with lists of its own: the machine's are left as they are."""
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    status = directory / "status"
    status.touch()
    own = _run(["dpkg", "--print-architecture"], "dpkg does not run").strip()
    yield [
        "-o", f"Dir::State::Lists={directory / 'lists'}", "-o", f"Dir::Cache={directory / 'cache'}",
        "-o", f"Dir::State::status={status}", "-o", f"APT::Architectures::={own}", "-o", "APT::Architectures::=arm64",
        "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip


def _install_packages(site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "-c"]
    command += [str(TREE / "constraints.txt"), *(f"--platform={one}" for one in _PLATFORMS)]
    command += [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    pinned = {name: _pin(name) for name in _RUNTIME}
    _run([*command, *pinned.values()], "the wheels for aarch64 cannot be had: is there a network, and Python's index?")


def _pin(name: str) -> str:
    lines = [line.partition(";")[0].strip() for line in distribution("tunery").requires or ()]
    return next((line for line in lines if line.startswith(f"{name}==")), name)


def _describe_tunery(site: Path) -> None:
    """Tell Python there that tunery is installed; its files are this tree's."""
    found = distribution("tunery")
    place = site / f"tunery-{found.version}.dist-info"
    place.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        text = found.read_text(name) or found.read_text("PKG-INFO") or ""
        part = place / f"{name}.{os.getpid()}"
        part.write_text(text, encoding="utf-8")
        part.replace(place / name)


def _need(program: str, why: str) -> None:
    if shutil.which(program) is None:
        raise CannotPrepareError(f"there is no {program}; {why}")


def _run(command: Sequence[str], why: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CannotPrepareError(f"{why} ({command[0]}: {last[:300]})")
    return done.stdout


if __name__ == "__main__":
    try:
        place = prepared()
    except CannotPrepareError as error:
        sys.exit(f"error: {error}")
    print(place if "--place" in sys.argv else f"tunery hosts add pi --connect {shlex.quote(agent(place))}")
