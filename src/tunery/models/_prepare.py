"""The way from a model source to its normal form on disk."""

import contextlib
import errno
import mmap
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from tunery._errors import ModelError, brief, tells_of_memory
from tunery.domain import Network, TensorSpec, canonical_json, digest, merged_specs
from tunery.models import zoo
from tunery.models._files import SCRATCH, check, gigabytes
from tunery.models.onnx import _file as _onnx_file
from tunery.models.onnx._beside import copy_weights, digest_of, name_beside, weights_of
from tunery.models.onnx._bind import batch_of_one, bind, declared_dims, declared_ranks, free_inputs, unfit
from tunery.models.onnx._detached import detach_weights, may_stay, serialised
from tunery.models.onnx._expand import expandable
from tunery.models.onnx._loops import loops
from tunery.models.onnx._ranges import input_ranges
from tunery.models.onnx._simplify import MisfitError, simplify
from tunery.models.onnx._unfuse import fused
from tunery.models.torch import _export_process as _torch

PREPARING_VERSION = "4"
_STALE_S = 86_400.0


@dataclass(frozen=True)
class _Source:
    """A model as read: `content` identifies it; `complete` adds what binding does not need (the zoo's weights). `large`
    are weights that were not read, of a model that no ONNX file can hold. Those of which no step of simplifying needs
    the values are `kept` as they are, in a file whose digest is `weights`."""

    name: str
    content: str
    model: onnx.ModelProto
    batch: int | None = None
    beside: Mapping[str, _onnx_file.FileStamp] = field(default_factory=dict)
    large: Mapping[str, _onnx_file.ByteRange] = field(default_factory=dict)
    kept: Mapping[str, _onnx_file.ByteRange] = field(default_factory=dict)
    weights: str = ""
    complete: Callable[[onnx.ModelProto], None] | None = None


def prepare(
    model: str,
    shapes: Mapping[str, tuple[int, ...]],
    directory: Path,
    *,
    trust: bool = False,
    known: Callable[[str], Path | None] = lambda _: None,
) -> Network:
    """Bring a model to its normal form, `directory/<digest>.onnx`, and describe it; a file already there is reused. So
    is the whole file that `known` gives for the network's digest: the network's `path` says which it is. A network of
    more than 2 GB has its large weights in a second file beside the first, whose name is its digest (`weights`). The
    network's `original` is the path of the model as it was read, with its shapes bound. `model` is the path of an ONNX
    file or of a saved torch ExportedProgram (`.pt2`), or `zoo:NAME`, or `zoo:NAME@BATCH`; `shapes` gives static shapes
    to inputs by name, for example `{"input": (1, 3, 224, 224)}`, and sizes to dimensions by name, for example
    `{"batch": (4,)}`. `trust` lets a torch program run code that it holds; without it, one that needs that is
    refused."""
    with _explained(model, directory):
        return _prepare(model, shapes, directory, known, trust=trust)


def identify(model: str, shapes: Mapping[str, tuple[int, ...]], directory: Path, *, trust: bool = False) -> str:
    with _explained(model, directory):
        directory.mkdir(parents=True, exist_ok=True)
        return _identity(_open(model, directory, trust=trust), shapes)


def prepare_free(
    model: str,
    bindings: Sequence[Mapping[str, tuple[int, ...]]],
    outputs: Sequence[Sequence[TensorSpec]],
    directory: Path,
    *,
    trust: bool = False,
) -> Network:
    """Write a model to `directory` as it is, for ONNX Runtime to run with inputs of many shapes: -1 is any size. Free
    are the dimensions that the model declares so, and those that are not the same in all `bindings` of its shapes;
    `outputs` are those of the model bound so."""
    with _explained(model, directory):
        directory.mkdir(parents=True, exist_ok=True)
        source = _open(model, directory, trust=trust)
        if source.large:
            raise ModelError(f"{model!r} has more than 2 GB, too many for a file that runs any shape; name the shapes")
        free_inputs(source.model, bindings, source.batch)
        if source.complete:
            source.complete(source.model)
        inputs = tuple(_spec(value) for value in source.model.graph.input)
        given = merged_specs([_fixed(source.model, one) for one in outputs])
        for value in source.model.graph.output:
            value.type.tensor_type.ClearField("shape")
        path = directory / "free.onnx"
        path.write_bytes(source.model.SerializeToString(deterministic=True))
        return Network(source.name, model, source.content, str(path), inputs, given, 0)


def _fixed(model: onnx.ModelProto, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    declared = {value.name: value.type.tensor_type.shape.dim for value in model.graph.output}
    found = []
    for spec in outputs:
        dims = [dim.dim_value for dim in declared[spec.name]] or [0] * len(spec.shape)
        sizes = zip(spec.shape, dims, strict=True)
        found.append(replace(spec, shape=tuple(size if size == dim else -1 for size, dim in sizes)))
    return found


@contextlib.contextmanager
def _explained(model: str, directory: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except MemoryError:
        raise ModelError(_too_much_memory(model)) from None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise ModelError(_too_much_memory(model)) from None
        reason = error.strerror or str(error)
        raise ModelError(f"the prepared model cannot be written to {str(directory)!r}: {reason}") from error
    except Exception as error:  # whatever native parsers throw at hostile bytes, the user made a wrong choice of file
        if tells_of_memory(str(error)):
            raise ModelError(_too_much_memory(model)) from None
        reason = brief(error) or type(error).__name__
        raise ModelError(f"{model!r} cannot be prepared: {reason}; check the file, or export it again") from error


def _too_much_memory(model: str) -> str:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "there is" if limit == resource.RLIM_INFINITY else f"the {gigabytes(limit)} that an import may take here"
    return f"{model!r} needs more memory than {allowed}; check the sizes of its constants and inputs"


def _identity(source: _Source, shapes: Mapping[str, tuple[int, ...]]) -> str:
    bound = bind(source.model, {name: tuple(shape) for name, shape in shapes.items()}, source.batch)
    wanted = canonical_json({name: list(shape) for name, shape in bound.items()})
    known = (*expandable(source.model), *fused(source.model), *loops(source.model))
    return digest(source.content, wanted, PREPARING_VERSION, *known)


def _prepare(
    model: str,
    shapes: Mapping[str, tuple[int, ...]],
    directory: Path,
    known: Callable[[str], Path | None],
    *,
    trust: bool,
) -> Network:
    directory.mkdir(parents=True, exist_ok=True)
    source = _open(model, directory, trust=trust)
    declared, ranks = declared_dims(source.model), declared_ranks(source.model)
    identity = _identity(source, shapes)
    parameters = _parameters(source.model)
    path, original = (known(name) or directory / f"{name}.onnx" for name in (identity, original_of(identity)))
    prepared = _reuse(path)
    if prepared is None or not _is_whole(original):
        path, original = directory / f"{identity}.onnx", directory / f"{original_of(identity)}.onnx"
        if source.complete:
            source.complete(source.model)
        _sweep(directory)
        _read_others(source, Path(model))
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=directory) as scratch:
            name_beside(source.model, source.kept, source.weights)
            weights, copy = detach_weights(source.model), onnx.ModelProto()
            copy.CopyFrom(source.model)
            _write(serialised(copy, weights), Path(scratch) / "original.onnx", original)
            try:
                prepared = simplify(source.model, weights, Path(scratch), ranks, source.kept)
            except MisfitError as error:
                raise ModelError(unfit(declared, shapes, error.detail) if shapes else str(error)) from error
            if source.large:
                _onnx_file.check_unchanged(source.beside, Path(model))
            ranges = input_ranges(prepared)
            name_beside(prepared, source.kept, source.weights)
            _write(serialised(prepared, weights), Path(scratch) / "prepared.onnx", path)
    else:
        ranges = input_ranges(prepared)
    weights_file = weights_of(prepared)
    if weights_file and not (path.parent / weights_file).exists():
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=directory) as scratch:
            copied = Path(scratch) / "weights"
            copy_weights(source.kept.values(), copied)
            _onnx_file.check_unchanged(source.beside, Path(model))
            copied.replace(directory / weights_file)
    inputs = tuple(_spec(value) for value in prepared.graph.input)
    outputs = tuple(_spec(value) for value in prepared.graph.output)
    sizes = {spec.name: spec.shape for spec in inputs}
    assumed = () if model.startswith(zoo.PREFIX) else batch_of_one(declared, sizes, shapes)
    return Network(
        source.name,
        model,
        identity,
        str(path),
        inputs,
        outputs,
        parameters,
        batch_of_one=assumed,
        beside=dict(source.beside),
        weights=weights_file,
        original=str(original),
        ranges=ranges,
    )


def original_of(identity: str) -> str:
    return f"original {identity}"


def _read_others(source: _Source, path: Path) -> None:
    for tensor in source.model.graph.initializer:
        if tensor.name in source.large and tensor.name not in source.kept:
            _onnx_file.load_weight(tensor, path)


def _open(model: str, directory: Path, *, trust: bool) -> _Source:
    check(model)
    if model.startswith(zoo.PREFIX):
        return _open_zoo(model.removeprefix(zoo.PREFIX))
    path = Path(model)
    if path.suffix == ".pt2":
        exported = _torch.export(path, directory, trust=trust)
        return _Source(_name(path), _torch.content_of(path), _onnx_file.read(exported).model)
    return _with_digests(_onnx_file.read(path), path)


def _with_digests(found: _onnx_file.ReadModel, path: Path) -> _Source:
    """Return a model that was read with the digests of what was not: more than 2 GB of it need not be read later."""
    staying, stamps = may_stay(found.model, found.large.keys()), list(found.beside.values())
    kept = {name: place for name, place in found.large.items() if name in staying}
    others = [place for name, place in found.large.items() if name not in staying]
    if sum(place.length for place in others) > _onnx_file.MOST_BYTES:
        raise ModelError(
            f"{str(path)!r} has more than 2 GB of weights that are not read by products of matrices alone; split it or "
            "use half precision"
        )
    digests = [digest_of(places, stamps) for places in (kept.values(), others) if places]
    content = digest(found.model.SerializeToString(deterministic=True), *digests)
    weights = digests[0] if kept else ""
    return _Source(_name(path), content, found.model, None, found.beside, found.large, kept, weights)


def _name(path: Path) -> str:
    return " ".join(path.stem.split()) or "network"


def _open_zoo(text: str) -> _Source:
    name, batch = zoo.parts(text)
    data = zoo.graph(name)
    proto = _onnx_file.parse(data, f"zoo:{name}")
    return _Source(text, digest(data, zoo.FILL_VERSION), proto, batch, complete=lambda model: zoo.fill(model, name))


def _parameters(model: onnx.ModelProto) -> int:
    """Count the numbers a network has learnt: floating-point constants, and integer matrices of quantised ones."""
    count = 0
    for tensor in _onnx_file.tensors(model):
        quantised = tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) and len(tensor.dims) > 1
        if quantised or tensor.data_type in _FLOATS:
            count += TensorSpec(tensor.name, tuple(tensor.dims), "float32").size
    return count


_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)


def _reuse(path: Path) -> onnx.ModelProto | None:
    """Return the prepared file, or None if it is not there or is not what was written, to the last bit of a weight."""
    data = path.read_bytes() if _is_whole(path) else b""
    return _onnx_file.parse(data[: -len(_seal(b""))], str(path)) if data else None


def _is_whole(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    body = data[: -len(_seal(b""))]
    return data[len(body) :] == _seal(body)


def _seal(body: bytes | mmap.mmap) -> bytes:
    """Return a message with the digest of `body`; written behind it, protobuf reads the two as one model."""
    seal = onnx.ModelProto()
    seal.metadata_props.add(key="tunery_digest", value=digest(body))
    return bytes(seal.SerializeToString())


def _sweep(directory: Path) -> None:
    for left in directory.glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left)


def _write(body: Iterable[bytes], temporary: Path, path: Path) -> None:
    """Write under a temporary name first: nobody ever sees a torn file, and of two writers the last one wins."""
    with temporary.open("w+b") as stream:
        stream.writelines(body)
        stream.flush()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as written:
            seal = _seal(written)
        stream.write(seal)  # tells a file that a power cut has torn, so nobody need wait for the disk
    temporary.replace(path)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return TensorSpec(value.name, tuple(dim.dim_value or -1 for dim in kind.shape.dim), dtype)
