"""What a compiled file says of itself, read without loading it; nothing in it is believed to be well formed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tunery._archive import ACCEPTS, Archive, ArchiveError, lacking_in
from tunery._errors import UsageError, misfit
from tunery.delivery.files.loading import Trusted, check_trusted, write_one
from tunery.dialects._loaded import thread_count
from tunery.domain import shape_text
from tunery.domain.request import Speed, Verdict

_MOST = 4096
_Text = Annotated[str, Field(max_length=1000)]
_Count = Annotated[int, Field(ge=0)]
_Texts = Annotated[list[_Text], Field(max_length=64)]
_Tensor = tuple[_Text, Annotated[list[int], Field(max_length=64)], _Text]
_Parameters = Annotated[dict[_Text, float | int | bool | _Text], Field(max_length=_MOST)]
_Tensors = Annotated[list[_Tensor], Field(max_length=_MOST)]


@dataclass(frozen=True)
class FileDevice:
    """The device that a file was compiled for and compared on."""

    name: _Text
    cores: _Count
    fingerprint: _Text


@dataclass(frozen=True)
class FileVerification:
    """What a file's outputs were compared with before it was delivered. `inputs` are the kinds of values that were
    tried, `left_out` those on which ONNX Runtime fails, `not_kept` those on which the file computes something else;
    `optimiser` says what ONNX Runtime's own optimiser changes. `version` is that of the values; the network `differed`
    from the model before parts of it, or all, were left to ONNX Runtime."""

    against: _Text
    outputs: _Count
    max_abs_error: float
    inputs: _Texts
    left_out: _Texts
    not_kept: _Texts
    optimiser: _Text
    version: _Count = 0
    differed: bool = False


@dataclass(frozen=True)
class FileOrigin:
    """Where a file comes from; `rungs` counts operators by how strong the evidence for their kernels is."""

    tunery: _Text
    compiler: _Text
    device: FileDevice
    rungs: dict[_Text, _Count]
    elsewhere: _Count
    verified: FileVerification | None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class CompiledFile:
    """What a compiled file says of itself. `segments` are the bytes of each part that ONNX Runtime runs; `coverage`
    names the candidate of each workload, None for the compiler's default. `accepts` are the shapes of inputs that a
    model with free dimensions is run for, which runs all `others` too if so. `parameters` are those of a user's own
    kernel, `default` those that its author began with."""

    dialect: _Text
    network: _Text = ""
    digest: _Text = ""
    threads: _Count | None = None
    target: dict[_Text, JsonValue] = Field(default_factory=dict)
    versions: dict[_Text, _Text] = Field(default_factory=dict)
    inputs: _Tensors = Field(default_factory=list)
    outputs: _Tensors = Field(default_factory=list)
    segments: Annotated[list[_Count], Field(max_length=_MOST)] = Field(default_factory=list)
    coverage: dict[_Text, _Text | None] = Field(default_factory=dict)
    origin: FileOrigin | None = None
    accepts: Annotated[list[Annotated[list[list[int]], Field(max_length=_MOST)]], Field(max_length=_MOST)] | None = None
    others: bool = False
    instructions: Annotated[list[_Text], Field(max_length=_MOST)] = Field(default_factory=list)
    parameters: _Parameters = Field(default_factory=dict)
    default: _Parameters = Field(default_factory=dict)

    @property
    def lacking(self) -> list[str]:
        return lacking_in({"instructions": self.instructions})


@dataclass(frozen=True)
class Inspection:
    """A compiled file, its members' sizes, and its signature (`none`, `unchecked` or `trusted`). `file` is what it
    would be loaded as here, of `targets` for several processors the best first; of several `shapes` it is the first.
    `damaged` are the members that are not what its manifest says."""

    path: str
    size_bytes: int
    manifest_digest: str
    members: dict[str, int]
    signature: str
    file: CompiledFile
    targets: list[CompiledFile]
    shapes: list[CompiledFile]
    damaged: list[str]
    threads: _Count


_MANIFEST = TypeAdapter(CompiledFile)


def inspect(path: str | Path, trusted: Trusted | None = None) -> Inspection:
    """Return what a compiled file says of itself; nothing of it is run. `trusted` is as for `load_compiled`. A
    signature covers all that is said here."""
    path = Path(path)
    again = write_one(path)
    try:
        size_bytes = path.stat().st_size
        with Archive(path) as archive:
            signature = "none" if archive.signature is None else "unchecked"
            if trusted is not None:
                check_trusted(archive, path, trusted)
                signature = "trusted"
            return _inspected(archive, path, size_bytes, signature)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}; {again}") from None
    except ArchiveError as error:
        raise UsageError(f"{path} is not a compiled network: {error}; {again}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; name another file") from None


def _inspected(archive: Archive, path: Path, size_bytes: int, signature: str) -> Inspection:
    try:
        files = [_MANIFEST.validate_python(part) for part in archive.parts]
        file, targets = files[archive.number], [files[number] for number in archive.shapes[0]]
        shapes = [files[part.number] for part in archive.here]
        if len(shapes) == 1 and ACCEPTS not in archive.manifest:
            shapes = []
        return Inspection(
            str(path), size_bytes, archive.digest, archive.sizes, signature, file, targets, shapes, archive.damaged(),
            thread_count(None, file.threads) if file.threads else 0,
        )  # fmt: skip
    except ValidationError as error:
        raise ArchiveError(f"in its manifest {misfit(error.errors())}") from None


def better_there(made: Path, there: Path) -> CompiledFile | None:
    """Return what the file `there` says of itself, if it is of the same network and device and was judged faster than
    ONNX Runtime, and what was `made` was not judged so or is slower: for one shape at least, and for none faster."""
    from tunery.measuring.inputs import VERSION

    try:
        old, new = inspect(there), inspect(made)
    except UsageError:
        return None
    olds, news = (one.shapes or [one.file] for one in (old, new))
    if old.damaged or max(len(old.targets), len(new.targets)) > 1 or [*map(_of, olds)] != [*map(_of, news)]:
        return None
    checked = ([one.origin.verified for one in each if one.origin and one.origin.verified] for each in (olds, news))
    if any(one.version != VERSION for one in next(checked)) or any(one.differed for one in next(checked)):
        return None  # nobody knows whether it is right
    pairs = [(_speed(before), _speed(now)) for before, now in zip(olds, news, strict=True)]
    worse = any(before and before.ratio > 1 and (now is None or now.high < before.low) for before, now in pairs)
    better = any(now and (before is None or now.low > before.high) for before, now in pairs)
    return old.file if worse and not better else None


def _of(file: CompiledFile) -> tuple[object, ...]:
    made_by = (file.origin.tunery, file.origin.device.fingerprint) if file.origin else ()
    return file.digest, file.inputs, file.threads, file.accepts, file.others, made_by


def _speed(file: CompiledFile) -> Speed | None:
    return file.origin.verdict.delivered if file.origin and file.origin.verdict else None


def said_in(data: Inspection) -> dict[str, Any]:
    whole: dict[str, Any] = TypeAdapter(Inspection).dump_python(data)
    file = whole.pop("file")
    whole["targets"] = [
        {"target": one.target, "threads": one.threads, "instructions": one.instructions, "lacking": one.lacking}
        for one in data.targets
    ]
    whole["shapes"] = [
        {
            "inputs": [shape for _, shape, _ in one.inputs],
            "dialect": one.dialect,
            "accepts": one.accepts,
            "any_shape": one.others,
        }
        for one in data.shapes
    ]
    whole["threads_here"] = whole.pop("threads")
    for name in ("instructions", "accepts", "others"):
        file.pop(name)
    verdict = data.file.origin.verdict if data.file.origin else None
    file["headline"] = verdict.headline if verdict else None
    for side in ("inputs", "outputs"):
        file[side] = [{"name": name, "shape": shape, "dtype": dtype} for name, shape, dtype in file[side]]
    return {**whole, **file}


def tensors(found: Sequence[_Tensor]) -> list[str]:
    shown = [f"{name}: {dtype}{shape_text(shape)}" for name, shape, dtype in found[:_SHOWN]]
    return [*shown, f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else shown


_SHOWN = 16
