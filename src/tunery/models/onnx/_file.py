"""Read ONNX files nobody vouches for: what is wrong with one is said in a sentence, never in a traceback."""

import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import external_data_helper

from tunery._errors import ModelError
from tunery.models._files import open_regular, read_regular

MOST_BYTES = 2**31 - 1
STANDARD = frozenset({"", "ai.onnx"})
"""Names of ONNX's own domain of operators."""
"""What one message of protobuf, and so one ONNX file, can hold."""
_MOST_NODES = 100_000
_LARGE_BYTES = 1 << 20
_PLAIN = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "INT64")
)
_TOO_LARGE = "an ONNX file has at most 2 GB: check the file, or export the model with its weights as external data"
_LOOKALIKES = (
    (b"version https://git-lfs", "is a Git LFS pointer, not the model itself; run `git lfs pull` in its repository"),
    (b"<", "is a web page or XML, not an ONNX model; download the file itself, not its page"),
    (b"PK\x03\x04", "is a zip archive; unpack it, or name it .pt2 if it is a saved torch program"),
    (b"\x89HDF", "is a Keras HDF5 file; convert it to ONNX with tf2onnx first"),
)


FileStamp = tuple[int, int, int, int]
"""What changes whenever a file is written or replaced: device, inode, bytes, and when, by a clock nobody can set."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Where the value of a large weight lies: a file, the offset of its first byte, and how many there are."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class ReadModel:
    """A model, the files that its external data were read from, as they were, and its `large` weights by name.

    These have more than one ONNX file can hold, and stay where they are.
    """

    model: onnx.ModelProto
    beside: Mapping[str, FileStamp]
    large: Mapping[str, ByteRange]


def read(path: Path) -> ReadModel:
    """Return the model in `path` with its external data."""
    model = parse(read_regular(path, MOST_BYTES, _TOO_LARGE), str(path))
    return ReadModel(model, *_read_external_data(model, path))


def parse(data: bytes, name: str) -> onnx.ModelProto:
    """Return the model serialised in `data`; `name` is how messages call it."""
    if not data:
        raise ModelError(f"{name!r} is empty; export or download it again")
    for start, remark in _LOOKALIKES:
        if data.startswith(start):
            raise ModelError(f"{name!r} {remark}")
    try:
        model = onnx.load_model_from_string(data)
    except Exception:  # noqa: BLE001 - protobuf's DecodeError, whose package has no types
        raise ModelError(f"{name!r} is not an ONNX model, or a truncated one; export or download it again") from None
    del model.training_info[:]  # how it was trained: nobody reads that
    if not _readable(model):
        raise ModelError(f"{name!r} is corrupt: it holds names that are not text; export or download it again")
    _check_versions(model, name)
    check_size(model, _MOST_NODES, name)
    given = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    if not model.graph.output or not (model.graph.node or given.issuperset(one.name for one in model.graph.output)):
        raise ModelError(f"{name!r} holds no computation; check that the export wrote its graph and outputs")
    [(twice, times)] = Counter(value.name for value in model.graph.output).most_common(1)
    if times > 1:
        raise ModelError(f"{name!r} has two outputs called {twice!r}; export it with a name of its own for each output")
    _check_kinds(model)
    return model


def _check_kinds(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise ModelError(
                f"input {value.name!r} holds text, which no compiler takes; export the steps after its text processing "
                "alone (of scikit-learn `pipeline[1:]`), and prepare the text in Python"
            )
    for value in model.graph.output:
        if value.type.WhichOneof("value") not in {None, "tensor_type"}:
            raise no_numbers(value)


def no_numbers(value: onnx.ValueInfoProto) -> ModelError:
    """Return the refusal of an output that holds other things than numbers."""
    what = "holds text" if value.type.HasField("tensor_type") else "is no tensor"
    maps = value.type.sequence_type.elem_type.HasField("map_type")  # as skl2onnx writes probabilities
    how = "with `options={'zipmap': False}`" if maps else "without post-processing"
    return ModelError(f"output {value.name!r} {what}; export the model {how}")


def check_size(model: onnx.ModelProto, most_nodes: int, name: str) -> None:
    """Refuse a model of more nodes than a compiler gets through in minutes."""
    nodes = _Sizes(model, name).of(model.graph.node)
    if nodes > most_nodes:
        raise ModelError(
            f"{name!r} has {nodes:,} nodes, more than the {most_nodes:,} that are taken; "
            "export it with its loops not unrolled, or in parts"
        )


class _Sizes:
    """Counts nodes as they will be once functions are in the place of their calls: forty lines can be 10^12 nodes."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self._bodies = {(each.domain, each.name): each for each in model.functions}
        self._known: dict[tuple[str, str], int | None] = {}
        self._name = name

    def of(self, nodes: Iterable[onnx.NodeProto]) -> int:
        """Return how many nodes there are, those of nested graphs included."""
        count = 0
        for node in nodes:
            called = (node.domain, node.op_type)
            count += self._of_function(called) if called in self._bodies else 1
            for attribute in node.attribute:
                count += sum(self.of(nested.node) for nested in (attribute.g, *attribute.graphs))
        return count

    def _of_function(self, called: tuple[str, str]) -> int:
        if called not in self._known:
            self._known[called] = None  # being counted
            self._known[called] = self.of(self._bodies[called].node)
        found = self._known[called]
        if found is None:
            raise ModelError(f"{self._name!r} has a function {called[1]!r} that calls itself; export the model again")
        return found


def _readable(model: onnx.ModelProto) -> bool:
    """Tell whether all names are text: protobuf hands broken ones out as bytes, which no library expects."""
    names: list[object] = [entry.domain for entry in model.opset_import]
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output):
            names += [value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim)]
        names += [tensor.name for tensor in graph.initializer]
        names += _names_in(graph.node)
    for function in model.functions:
        names += [function.name, function.domain, *function.input, *function.output, *function.attribute]
        names += [entry.domain for entry in function.opset_import]
        names += _names_in(function.node)
    return all(isinstance(name, str) for name in names)


def _names_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _check_versions(model: onnx.ModelProto, name: str) -> None:
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(
            f"{name!r} uses ONNX opset {opset}, newer than the {newest} this installation knows; "
            "export it with opset 18, or upgrade onnx and onnxruntime"
        )
    if model.ir_version == 0 or not opsets:
        raise ModelError(f"{name!r} is not an ONNX model: it names no format version; export or download it again")


def _read_external_data(model: onnx.ModelProto, path: Path) -> tuple[dict[str, FileStamp], dict[str, ByteRange]]:
    external = [tensor for tensor in tensors(model) if external_data_helper.uses_external_data(tensor)]
    stamps, places = dict[str, FileStamp](), list[ByteRange]()
    for tensor in external:
        with _readable_weights(tensor, path):
            location, stamp, place = _external_bytes(tensor, path.parent)
            stamps.setdefault(location, stamp)
            places.append(place)
    large: dict[int, tuple[str, ByteRange]] = {}
    if sum(place.length for place in places) > MOST_BYTES:
        names = Counter(tensor.name for tensor in model.graph.initializer)
        own = {id(tensor) for tensor in model.graph.initializer if names[tensor.name] == 1}
        large = {
            id(tensor): (tensor.name, place)
            for tensor, place in zip(external, places, strict=True)
            if id(tensor) in own and place.length >= _LARGE_BYTES and _is_whole(tensor, place, path.parent)
        }
    found = dict(large.values())
    if sum(place.length for place in places) - sum(place.length for place in found.values()) > MOST_BYTES:
        raise ModelError(
            f"{str(path)!r} has more than 2 GB of weights that are small, or not where they should be; split it or "
            "use half precision"
        )
    if sum(place.length for place in {*found.values()}) > sum(size for _, _, size, _ in {*stamps.values()}):
        raise ModelError(f"{str(path)!r} has weights that overlap in their files; export it again")
    for tensor in external:
        if id(tensor) not in large:
            load_weight(tensor, path)
    return stamps, found


def load_weight(tensor: onnx.TensorProto, path: Path) -> None:
    """Read the value of a weight that the model in `path` keeps in another file."""
    with _readable_weights(tensor, path):
        external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


@contextmanager
def _readable_weights(tensor: onnx.TensorProto, path: Path) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - a hostile location fails in many ways, with one meaning for the user
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        raise ModelError(
            f"{str(path)!r} keeps weights in {location!r}, which cannot be read; put that file beside the model"
        ) from None


def _external_bytes(tensor: onnx.TensorProto, folder: Path) -> tuple[str, FileStamp, ByteRange]:
    """Return where a tensor's value is, in which file; the reading itself checks that this stays in `folder`."""
    info = external_data_helper.ExternalDataInfo(tensor)
    path = folder / info.location
    with open_regular(path, sys.maxsize, "") as file:
        found = os.fstat(file.fileno())
    offset = info.offset or 0
    left = found.st_size - offset
    length = left if info.length is None else min(left, info.length)
    return info.location, _stamp_of(found), ByteRange(path, offset, length)


def _stamp_of(found: os.stat_result) -> FileStamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def check_unchanged(beside: Mapping[str, FileStamp], path: Path) -> None:
    """Check that the files beside the model in `path` are those that were looked at before they were copied."""
    for location, stamp in beside.items():
        try:
            same = _stamp_of((path.parent / location).stat()) == stamp
        except OSError:
            same = False
        if not same:
            raise ModelError(f"{location!r} beside {str(path)!r} has changed while it was read; prepare it again")


def _is_whole(tensor: onnx.TensorProto, place: ByteRange, folder: Path) -> bool:
    if tensor.data_type not in _PLAIN or place.offset < 0:
        return False
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    inside = place.path.resolve().is_relative_to(folder.resolve())
    return inside and place.length == math.prod(tensor.dims) * itemsize


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for nested in (attribute.g, *attribute.graphs):
                if nested.node or nested.output:
                    yield from graphs(nested)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
        yield from _of_attributes(function.attribute_proto)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for sparse in attribute.sparse_tensors:
            yield from (sparse.values, sparse.indices)
        if attribute.HasField("sparse_tensor"):
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        if attribute.HasField("g"):
            yield from _of_graph(attribute.g)
        for nested in attribute.graphs:
            yield from _of_graph(nested)
