"""The libraries of a bundle: this installation's, or those of a directory of wheels for another kind of machine."""

import importlib.util
import platform
import re
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tunery._errors import DialectError, UsageError
from tunery.dialects.metaschedule.loading import library

ONNXRUNTIME = "libonnxruntime.so.1"
_FFI, _RUNTIME = "libtvm_ffi.so", "libtvm_runtime.so"
_WANTED = re.compile(r"(?:.*/)?(libtvm_ffi\.so|libtvm_runtime\.so|libonnxruntime\.so\.1)[\d.]*")
_LICENCES = re.compile(r"(?:.*/)?onnxruntime/(LICENSE|ThirdPartyNotices\.txt)")
_NAMED = re.compile(r"(?:.*/)?(apache_tvm(?:_ffi)?)-(\d[^-/]*)(?:\.dist-info/.*|-[^/]*\.whl)")
_VERSION = re.compile(r"(?:.*/)?tunery/.*/loading/lib/VERSION")
_MACHINES = {62: "x86_64", 183: "aarch64"}  # by the number in an ELF file
_ELF = struct.Struct("<4sB13xH")
_COMPILERS = ("cc", "gcc", "clang")
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014", "manylinux_2_17")


class Libraries:
    """The libraries for one kind of machine, `machine`, as `platform.machine` names it.

    Raises:
        UsageError: there are none in the directory `source`, or they are for several kinds of machines.
    """

    def __init__(self, source: Path | None = None) -> None:
        self._source = source
        found = dict(_in_directory(source)) if source else dict(_installed())
        self._read = {match[1]: read for name, read in found.items() if (match := _WANTED.fullmatch(name))}
        self._licences = {match[1]: read for name, read in found.items() if (match := _LICENCES.fullmatch(name))}
        self._versions = dict(_versions(found)) if source else library.versions()
        for name in (_FFI, _RUNTIME):
            if name not in self._read:
                raise UsageError(f"there is no {name} in {source}; {self.advice(platform.machine())}")
        machines = {_machine_of(read()) for read in self._read.values()}
        if len(machines) > 1:
            raise UsageError(f"the libraries in {source} are for {' and '.join(sorted(machines))}; keep those of one")
        [self.machine] = machines

    def advice(self, machine: str) -> str:
        own = library.versions()
        platforms = " ".join(f"--platform {name}_{machine}" for name in _PLATFORMS)
        names = " ".join(f"{name}=={version}" for name, version in own.items())
        return (
            f"get them: pip download --no-deps --only-binary :all: {platforms} -d runtime {names} onnxruntime; "
            "then add --runtime runtime"
        )

    def check(self, versions: Mapping[str, str]) -> None:
        if self._versions != versions:
            had, wanted = (
                ", ".join(f"{name:.40} {number:.40}" for name, number in sorted(of.items()))
                for of in (self._versions, versions)
            )
            raise UsageError(f"the network needs {wanted}, and {self._source or 'installed'} has {had or 'neither'}")

    def write(self, directory: Path, sources: Sequence[Path], *, onnxruntime: bool) -> None:
        for name in (_FFI, _RUNTIME):
            (directory / name).write_bytes(self._read[name]())
        if onnxruntime:
            self._write_onnxruntime(directory)
        command = [
            _compiler(self.machine), "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default",
            "-Wl,-soname,libtunery.so", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN", "-I", str(_ffi() / "include"), "-o",
            str(directory / "libtunery.so"), *map(str, sources), "-lpthread", "-ldl",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DialectError(f"the bundle's library does not compile: {' '.join(done.stderr.split())[-300:]}")

    def _write_onnxruntime(self, directory: Path) -> None:
        if ONNXRUNTIME not in self._read:
            where = f"in {self._source}" if self._source else "installed"
            advice = self.advice(self.machine) if self._source else "pip install onnxruntime"
            raise DialectError(
                f"ONNX Runtime runs this network, or parts of it, and there is no {ONNXRUNTIME} {where} to put into "
                f"the bundle: {advice}"
            )
        (directory / ONNXRUNTIME).write_bytes(self._read[ONNXRUNTIME]())
        for name, read in self._licences.items():
            (directory / f"{name}.onnxruntime").write_bytes(read())


def _installed() -> Iterator[tuple[str, Callable[[], bytes]]]:
    places = [_ffi() / "lib" / _FFI, library.runtime_library()]
    found = importlib.util.find_spec("onnxruntime")
    if found and found.origin:
        home = Path(found.origin).parent
        places += [*home.glob(f"capi/{ONNXRUNTIME}*"), home / "LICENSE", home / "ThirdPartyNotices.txt"]
    yield from ((str(path), path.read_bytes) for path in places if path.exists())


def _in_directory(source: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if not source.is_dir():
        raise UsageError(f"there is no directory {source}; name one of wheels, or of what they hold, for --runtime")
    for path in sorted(source.rglob("*")):
        yield str(path), path.read_bytes
        if path.suffix == ".whl":
            with _wheel(path) as wheel:
                names = wheel.namelist()
            yield from ((name, partial(_read, path, name)) for name in names)


def _read(path: Path, name: str) -> bytes:
    with _wheel(path) as wheel:
        return wheel.read(name)


@contextmanager
def _wheel(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as wheel:
            yield wheel
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise UsageError(f"{path} is damaged; download it again") from None


def _versions(found: Mapping[str, Callable[[], bytes]]) -> Iterator[tuple[str, str]]:
    for name, read in found.items():
        if match := _NAMED.fullmatch(name):
            yield match[1].replace("_", "-"), match[2]
        elif _VERSION.fullmatch(name):
            yield "apache-tvm", read().decode(errors="replace").strip()


def _machine_of(code: bytes) -> str:
    if len(code) < _ELF.size:
        return "nothing"
    magic, _, number = _ELF.unpack_from(code)
    return _MACHINES.get(number, f"machine {number}") if magic == b"\x7fELF" else "nothing"


def _compiler(machine: str) -> str:
    here = machine == platform.machine()
    names = _COMPILERS if here else (f"{machine}-linux-gnu-gcc",)
    package = "gcc" if here else f"gcc-{machine.replace('_', '-')}-linux-gnu"
    found = next((found for name in names if (found := shutil.which(name))), None)
    if found is None:
        raise DialectError(
            f"a bundle needs a C compiler to make its library for {machine}; install {package} (apt-get install "
            f"{package})"
        )
    return found


def _ffi() -> Path:
    return Path(str(library.tvm_ffi.__file__)).parent
