"""Large weights that only meet data at run time: set aside, since no step of simplifying has to know their values. Each
step copies whatever weights it is given, and a page that is new costs more than its copy: of a vision transformer's 353
MB there were twelve copies, most of what preparing it took."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import onnx

from tunery.models.onnx._file import graphs

_LARGE = 65_536  # elements; what is smaller may be folded
_PLACES = {"MatMul": 1, "Gemm": 1, "Gather": 0}
"""Operators, and which input may be set aside: no optimiser changes it where the other is data."""
_GRAPH, _INITIALIZER, _RAW_DATA = b"\x3a", b"\x2a", b"\x4a"  # fields 7, 5 and 9 of their messages, all with a length
_FIXED = frozenset({"Constant", "Shape", "ConstantOfShape"})  # known from shapes alone
_MOVES = frozenset({"Reshape", "Transpose"})
_FUSED = "BatchNormalization"  # is multiplied into the weights of what is before it


def may_stay(model: onnx.ModelProto, names: Collection[str]) -> set[str]:
    """Return which of the weights called so no step needs the values of."""
    return _only_met_by_data(model.graph).intersection(names)


def detach_weights(model: onnx.ModelProto) -> dict[str, bytes]:
    """Take the values of such weights from the model and return them by name; names, shapes and types stay."""
    names = Counter(tensor.name for tensor in model.graph.initializer)
    free = {name for name in _only_met_by_data(model.graph) if names[name] == 1}
    values = {}
    for tensor in model.graph.initializer:
        if tensor.name in free and tensor.HasField("raw_data") and _size(tensor) > _LARGE:
            values[tensor.name] = tensor.raw_data
            tensor.ClearField("raw_data")
    return values


def serialised(model: onnx.ModelProto, values: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the bytes of a file with the model and the values of the weights that were set aside. These come last, each
    as a model of its own with one weight in it: protobuf reads several behind one another as one."""
    weights = [tensor for tensor in model.graph.initializer if tensor.name in values]
    heads = {tensor.name: tensor.SerializeToString(deterministic=True) for tensor in weights}
    for number in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[number].name in heads:
            del model.graph.initializer[number]
    yield model.SerializeToString(deterministic=True)
    for name, head in heads.items():
        start = head + _RAW_DATA + _length(len(values[name]))
        weight = _INITIALIZER + _length(len(start) + len(values[name]))
        yield _GRAPH + _length(len(weight) + len(start) + len(values[name])) + weight + start
        yield values[name]


def _length(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def as_inputs(model: onnx.ModelProto, aside: Collection[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number in reversed(range(len(copy.graph.initializer))):
        tensor = copy.graph.initializer[number]
        if tensor.name in aside:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            del copy.graph.initializer[number]
    return copy


def as_weights(model: onnx.ModelProto, source: onnx.ModelProto, aside: Collection[str]) -> onnx.ModelProto:
    used = {name for graph in graphs(model.graph) for node in graph.node for name in node.input}
    for number in reversed(range(len(model.graph.input))):
        if model.graph.input[number].name in aside:
            del model.graph.input[number]
    model.graph.initializer.extend(t for t in source.graph.initializer if t.name in aside and t.name in used)
    return model


def _only_met_by_data(graph: onnx.GraphProto) -> set[str]:
    """Return the initialisers that are read by the operators of `_PLACES` alone, which have data as other input."""
    fixed = _fixed(graph)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    barred = set(_nested_inputs(graph)) | {value.name for value in graph.output}
    return {
        tensor.name
        for tensor in graph.initializer
        if tensor.name not in barred
        and tensor.name in readers
        and all(_meets_data(node, tensor.name, fixed, readers) for node in readers[tensor.name])
    }


def _meets_data(
    node: onnx.NodeProto, name: str, fixed: Collection[str], readers: Mapping[str, list[onnx.NodeProto]]
) -> bool:
    place = _PLACES.get(node.op_type)
    if place is None or node.domain or [at for at, each in enumerate(node.input) if each == name] != [place]:
        return False
    return node.input[1 - place] not in fixed and not _normalised(node, readers)


def _normalised(node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]]) -> bool:
    """Return whether a normalisation follows, which is multiplied into the weights across what only moves elements."""
    after = [reader for output in node.output for reader in readers.get(output, ())]
    return any(
        reader.op_type == _FUSED or (reader.op_type in _MOVES and _normalised(reader, readers)) for reader in after
    )


def _fixed(graph: onnx.GraphProto) -> set[str]:
    fixed = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in _FIXED or all(name in fixed for name in node.input if name):
            fixed.update(node.output)
    return fixed


def _nested_inputs(graph: onnx.GraphProto) -> Iterator[str]:
    for each in graphs(graph):
        if each is not graph:
            yield from (name for node in each.node for name in node.input)
            yield from (value.name for value in each.output)


def _size(tensor: onnx.TensorProto) -> int:
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size
