"""Writing a bundle: a network's parts, each for a shape and a processor, with libraries and an interface in C.
`native/tunery.c` reads what is written here."""

import hashlib
import platform
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from tunery._archive import ACCEPTS, Archive
from tunery._errors import DialectError, UsageError
from tunery.dialects import Array
from tunery.dialects.metaschedule.bundling.libraries import Libraries
from tunery.dialects.metaschedule.families import machine_of
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.archive import LIBRARY, SEGMENTS, read_archive
from tunery.dialects.onnxruntime import MODEL, run_once
from tunery.dialects.onnxruntime import NAME as ONNXRUNTIME

_NATIVE = Path(__file__).parent / "native"
_NETWORK, _VERSION, _MOST_PARTS, _WHOLE = "network", 2, 256, "model.onnx"
_MOST_LINES = {"input": 4096, "output": 4096, "weight": 4096, "segment": 1024}  # as in native/tunery.c
_NAME = re.compile(r"[\w.-]{1,40}")


def write_bundle(archive: Archive, directory: Path, runtime: Path | None = None) -> None:
    """Write a bundle of a compiled network to an empty directory, for machines like this one or those of `runtime`."""
    libraries = Libraries(runtime)
    for name in (_NETWORK, "lib/cmake/tunery", "include"):
        (directory / name).mkdir(parents=True)
    numbers = [number for shape in archive.shapes for number in shape]
    parts = [archive.of(number) for number in numbers if _is_for(archive.parts[number], libraries.machine)]
    if not parts:
        raise _of_another_machine(archive, libraries)
    with (directory / _NETWORK / "weights.bin").open("xb") as file:
        weights = _Weights(file)
        every = (entry for part in parts for entry in _written(part, directory, weights))
        written = list(islice(every, _MOST_PARTS + 1))
    _check_room(archive.path, written)
    for number, (lines, content) in enumerate(written):
        target = directory / _NETWORK / str(number)
        content.rename(target) if content else target.mkdir()
        (target / "network.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifests = [part.manifest for part in parts]
    for manifest in manifests:
        if manifest["dialect"] != ONNXRUNTIME:
            libraries.check(manifest["versions"])
    in_onnxruntime = any(manifest["dialect"] == ONNXRUNTIME or manifest.get("segments") for manifest in manifests)
    sources = [_NATIVE / name for name in ("tunery.c", "segments.c", "runtime.c")]
    libraries.write(directory / "lib", sources, onnxruntime=in_onnxruntime)
    for name, where in (("tunery.h", "include"), ("example.c", "."), ("tuneryConfig.cmake", "lib/cmake/tunery")):
        shutil.copy(_NATIVE / name, directory / where / name)
    (directory / "README").write_text(_README.format_map(_Named(manifests, libraries.machine)), encoding="utf-8")


def _is_for(manifest: Mapping[str, Any], machine: str) -> bool:
    return manifest["dialect"] == ONNXRUNTIME or machine_of(manifest.get("target", {})) == machine


def _of_another_machine(archive: Archive, libraries: Libraries) -> UsageError:
    machine = machine_of(archive.manifest.get("target", {}))
    if machine == platform.machine():
        return UsageError(f"{archive.path} was compiled for {machine}, and the libraries are for {libraries.machine}")
    return UsageError(
        f"{archive.path} was compiled for {machine:.40}, whose libraries are not here: "
        f"{libraries.advice(f'{machine:.40}')}"
    )


def _check_room(path: Path, written: Sequence["_Written"]) -> None:
    if len(written) > _MOST_PARTS:
        raise UsageError(f"{path} is for more than {_MOST_PARTS} pairs of shapes and processors; combine fewer files")
    for lines, _ in written:
        counts = Counter(line.partition(" ")[0] for line in lines)
        for kind, most in _MOST_LINES.items():
            if counts[kind] > most:
                raise DialectError(
                    f"the network has {counts[kind]} {kind}s, and a bundle holds at most {most}; load the file from "
                    "Python (tunery.load_compiled)"
                )


@dataclass
class _Weights:
    """The weights of all parts in one file, equal ones once."""

    file: IO[bytes]
    offsets: dict[str, int] = field(default_factory=dict)

    def line(self, number: int, array: Array) -> str:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.offsets:
            self.file.write(bytes(-self.file.tell() % library.ALIGNMENT))
            self.offsets[digest] = self.file.tell()
            self.file.write(data)
        return f"weight {self.offsets[digest]} {_described(f'weight{number}', array.shape, str(array.dtype))}"


_Written = tuple[list[str], Path | None]


def _written(part: Archive, directory: Path, weights: _Weights) -> Iterator[_Written]:
    """Write what a part needs, and yield the lines that describe it and the directory of its files."""
    if part.manifest["dialect"] == ONNXRUNTIME:
        yield from _whole(part, directory)
        return
    content = directory / f"part{len(list(directory.iterdir()))}"
    content.mkdir()
    manifest, arrays, segments = read_archive(part, content, anywhere=True)
    if segments:
        (content / SEGMENTS).write_bytes(b"".join(segments))
    code = f"code {(content / LIBRARY).stat().st_size}"
    lines = [*_head(manifest), code, *_ends(manifest["inputs"], manifest["outputs"])]
    lines += [f"segment {len(one)}" for one in segments]
    lines += [weights.line(number, library.view(weight)) for number, weight in enumerate(arrays)]
    yield lines, content


def _whole(part: Archive, directory: Path) -> Iterator[_Written]:
    """Write a model that ONNX Runtime runs, and yield the lines for each shape that it is run for."""
    manifest, model = part.manifest, part.read(MODEL)
    (directory / _NETWORK / _WHOLE).write_bytes(model)
    names = [(name, dtype) for name, _, dtype in manifest["inputs"]]
    for shapes in manifest.get(ACCEPTS, [[shape for _, shape, _ in manifest["inputs"]]]):
        inputs = [(name, shape, dtype) for (name, dtype), shape in zip(names, shapes, strict=True)]
        outputs = manifest["outputs"]
        if any(size < 0 for _, shape, _ in outputs for size in shape) and ACCEPTS in manifest:
            made = run_once(model, inputs)
            outputs = [(name, list(one), dtype) for (name, _, dtype), one in zip(outputs, made, strict=True)]
        yield [*_head(manifest), f"model {len(model)}", *_ends(inputs, outputs)], None


def _head(manifest: Mapping[str, Any]) -> list[str]:
    needed = [str(name) for name in manifest.get("instructions", ())]
    return [
        f"tunery-network {_VERSION}", f"threads {int(manifest['threads'])}",
        *(f"needs {name}" for name in needed if _NAME.fullmatch(name)),
    ]  # fmt: skip


def _ends(inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> list[str]:
    for name, shape, _ in (*inputs, *outputs):
        if any(size < 0 for size in shape):
            raise DialectError(
                f"the size of {name!r:.80} depends on the data, which a bundle cannot give; load the file from Python "
                "(tunery.load_compiled)"
            )
    return [f"{kind} {_described(*one)}" for kind, ends in (("input", inputs), ("output", outputs)) for one in ends]


class _Named(dict[str, Any]):
    """What the README says of a network."""

    def __init__(self, manifests: Sequence[Mapping[str, Any]], machine: str) -> None:
        targets = [str(one["target"].get("mcpu", "?"))[:100] for one in manifests if "target" in one]
        cpu = " and ".join(dict.fromkeys(targets)) or "ONNX Runtime"
        super().__init__(network=str(manifests[0]["network"])[:200], cpu=cpu, machine=machine)


_README = """{network}, compiled by tunery for {cpu}: all that it needs to run on {machine} beside glibc and libstdc++.

    cc example.c -Iinclude -Llib -ltunery -Wl,-rpath,'$ORIGIN/lib' -o example && ./example network

include/tunery.h is the interface. With CMake: find_package(tunery) with tunery_DIR=lib/cmake/tunery, and link with
tunery::tunery. Copy this directory as it is: the libraries find one another.
"""


def _described(name: str, shape: Any, dtype: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in name)[:1000]
    return " ".join([dtype, str(len(shape)), *(str(int(size)) for size in shape), shown])
