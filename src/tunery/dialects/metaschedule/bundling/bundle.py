"""Writing a bundle: the network, TVM's runtime libraries, and a small library in C (`native/tunery.h`)."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tunery._archive import ArchiveError, lacking_in, open_archive
from tunery._errors import DialectError, UsageError
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.archive import SEGMENTS, read_archive

_NATIVE = Path(__file__).parent / "native"
_NETWORK, _VERSION = "network", 1
_ONNXRUNTIME = "libonnxruntime.so.1"
_SOURCES = ("tunery.c", "segments.c")
_RUNTIME = ("libtvm_ffi.so", "libtvm_runtime.so")
_NAME = re.compile(r"[\w.-]{1,40}")
_COMPILERS = ("cc", "gcc", "clang")


def write_bundle(path: Path, directory: Path, digest: str = "") -> None:
    """Write a bundle of a compiled network to an empty directory.

    Raises:
        UsageError: the file is damaged, or was compiled with another version of TVM than is installed.
        DialectError: it has outputs whose sizes depend on the data, or there is no C compiler.
    """
    _check_processor(path, digest)
    for name in (_NETWORK, "lib/cmake/tunery", "include"):
        (directory / name).mkdir(parents=True)
    manifest, weights, segments = read_archive(path, directory / _NETWORK, digest)
    if growing := [name for name, shape, _ in manifest["outputs"] if any(size < 0 for size in shape)]:
        raise DialectError(
            f"the size of output {growing[0]!r:.80} depends on the data, which a bundle cannot give; load the file "
            "from Python (tunery.load_compiled)"
        )
    lines = [f"tunery-network {_VERSION}", f"threads {int(manifest['threads'])}"]
    lines += [f"needs {name}" for name in manifest.get("instructions", ()) if _NAME.fullmatch(str(name))]
    lines += [f"{kind} {_told(*one)}" for kind in ("input", "output") for one in manifest[f"{kind}s"]]
    lines += [f"segment {len(one)}" for one in segments]
    with (directory / _NETWORK / "weights.bin").open("xb") as file:
        for number, weight in enumerate(weights):
            array = np.ascontiguousarray(library.view(weight))
            file.write(bytes(-file.tell() % library.ALIGNMENT))
            lines.append(f"weight {file.tell()} {_told(f'weight{number}', array.shape, str(array.dtype))}")
            file.write(array.reshape(-1).view(np.uint8).data)
    (directory / _NETWORK / "network.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if segments:
        (directory / _NETWORK / SEGMENTS).write_bytes(b"".join(segments))
        _add_onnxruntime(directory / "lib")
    _add_libraries(directory)
    (directory / "README").write_text(_README.format_map(_Named(manifest)), encoding="utf-8")


def _check_processor(path: Path, digest: str) -> None:
    """Check that a network is for processors like this one, whose libraries are at hand.

    Raises:
        UsageError: it is not, or the file is damaged, or another than that of the digest.
    """
    try:
        with open_archive(path, digest) as archive:
            missing = lacking_in(archive.manifest)
    except ArchiveError as error:
        raise UsageError(f"{path} is damaged: {error}; write it again with `tunery compile`") from error
    if missing:
        raise UsageError(
            f"{path} was compiled for a processor with {', '.join(missing[:4]):.80}, which this one lacks; a bundle "
            "has libraries of the machine that writes it: run `tunery bundle` on one of that kind"
        )


def _add_onnxruntime(place: Path) -> None:
    """Copy the library of ONNX Runtime's wheel, with its licences.

    Raises:
        DialectError: there is none.
    """
    found = importlib.util.find_spec("onnxruntime")
    home = Path(found.origin or "").parent if found else Path("onnxruntime")
    library = next(home.glob(f"capi/{_ONNXRUNTIME}*"), None)
    if library is None:
        raise DialectError(
            f"ONNX Runtime runs parts of this network, and there is no {_ONNXRUNTIME} to put into the bundle: "
            "pip install onnxruntime"
        )
    shutil.copy(library, place / _ONNXRUNTIME)
    for name in ("LICENSE", "ThirdPartyNotices.txt"):
        if (home / name).exists():
            shutil.copy(home / name, place / f"{name}.onnxruntime")


class _Named(dict[str, Any]):
    """What the README says of a network."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        super().__init__(network=str(manifest["network"])[:200], cpu=str(manifest["target"].get("mcpu", "?"))[:200])


_README = """{network}, compiled by tunery for {cpu}: all that it needs to run beside glibc and libstdc++.

    cc example.c -Iinclude -Llib -ltunery -Wl,-rpath,'$ORIGIN/lib' -o example && ./example network

include/tunery.h is the interface. With CMake: find_package(tunery) with tunery_DIR=lib/cmake/tunery, and link with
tunery::tunery. Copy this directory as it is: the libraries find one another.
"""


def _told(name: str, shape: Any, dtype: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in name)[:1000]
    return " ".join([dtype, str(len(shape)), *(str(int(size)) for size in shape), shown])


def _add_libraries(directory: Path) -> None:
    include = _ffi() / "include"
    for path in (_ffi() / "lib" / "libtvm_ffi.so", library.runtime_library()):
        shutil.copy(path, directory / "lib" / path.name)
    for name, place in (("tunery.h", "include"), ("example.c", "."), ("tuneryConfig.cmake", "lib/cmake/tunery")):
        shutil.copy(_NATIVE / name, directory / place / name)
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise DialectError("a bundle needs a C compiler to make its library; install gcc (apt-get install gcc)")
    command = [
        compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=default", "-Wl,-soname,libtunery.so",
        "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-I", str(include), "-o", str(directory / "lib" / "libtunery.so"),
        *(str(_NATIVE / name) for name in _SOURCES), *(f"-l:{name}" for name in _RUNTIME), "-L",
        str(directory / "lib"), "-lpthread", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DialectError(f"the bundle's library does not compile: {' '.join(done.stderr.split())[-300:]}")


def _ffi() -> Path:
    return Path(str(library.tvm_ffi.__file__)).parent
