"""Half precision computed in single, as ONNX Runtime does, where a processor has no arithmetic for it. There LLVM
converts before and after each operation, and vectors are half empty: a MobileNet took 15 times as long."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.importing.segments.graph import OPERATOR

_HALF, _SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
_TYPES = frozenset({"to", "dtype", "output_dtype", "softmax_precision"})
"""Attributes that are an element type."""
_LARGEST = float(np.finfo(np.float16).max)
_FEATURES = ("avx512fp16", "fullfp16")


def has_halves(target: object) -> bool:
    return any(tvm.target.codegen.target_has_features(feature, target) for feature in _FEATURES)


def in_single(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its half precision in single, but for inputs, outputs and what segments read and make."""
    graph = model.graph
    values = [*graph.input, *graph.value_info, *graph.output]
    halves = {value.name for value in values if value.type.tensor_type.elem_type == _HALF}
    halves |= {tensor.name for tensor in graph.initializer if tensor.data_type == _HALF}
    if not halves or any(node.op_type == "BitCast" for node in graph.node):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    given, outputs = [value.name for value in graph.input], {value.name for value in graph.output}
    for tensor in graph.initializer:
        if uses_external_data(tensor) or tensor.name in outputs:
            given.append(tensor.name)
        elif tensor.data_type == _HALF:
            _widen(tensor)
    for value in graph.value_info:
        if value.name in halves:
            value.type.tensor_type.elem_type = _SINGLE
    outputs -= set(given)
    wide = {name: f"{name}/single" for name in halves if name in given or name in outputs}
    half = {name: name for name in given if name in wide}
    read = {name for node in graph.node if not _stays(node) for name in node.input}
    nodes = [_cast(name, wide[name], _SINGLE) for name in half if name in read]
    for node in graph.node:
        if not _stays(node):
            if node.op_type == "Clip" and node.output[0] in halves:
                _bound(node)
            nodes.append(_of_singles(node, wide))
            continue
        nodes += _cast_before(node, wide, halves, half)
        nodes.append(node)
        made = {name: name if name in outputs else f"{name}/half" for name in node.output if name in halves}
        node.output[:] = [made.get(name, name) for name in node.output]
        nodes += [_cast(kept, wide.get(name, name), _SINGLE) for name, kept in made.items() if name in read]
        half |= made
    nodes += [_cast(wide[name], name, _HALF) for name in sorted(outputs & halves) if half.get(name) != name]
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def _widen(tensor: onnx.TensorProto) -> None:
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _cast(source: str, made: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [made], to=kind)


def _bound(node: onnx.NodeProto) -> None:
    given = {one.name for one in node.attribute}
    for at, name, end in ((1, "min", -_LARGEST), (2, "max", _LARGEST)):
        if name not in given and not any(node.input[at : at + 1]):
            node.attribute.append(helper.make_attribute(name, end))


def _of_singles(node: onnx.NodeProto, wide: Mapping[str, str]) -> onnx.NodeProto:
    node.input[:] = [wide.get(name, name) for name in node.input]
    node.output[:] = [wide.get(name, name) for name in node.output]
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i == _HALF:
            attribute.i = _SINGLE
        if attribute.t.data_type == _HALF:
            _widen(attribute.t)
    return node


def _stays(node: onnx.NodeProto) -> bool:
    """Return whether a node is of half precision: a segment's call, Cast but to single, and Sign, whose NaN is 0."""
    wide = node.op_type == "Cast" and all(one.i == _SINGLE for one in node.attribute if one.name == "to")
    return node.op_type in {OPERATOR, "Sign"} or (node.op_type == "Cast" and not wide)


def _cast_before(
    node: onnx.NodeProto, wide: Mapping[str, str], halves: set[str], half: dict[str, str]
) -> list[onnx.NodeProto]:
    """Let a node read what there is in `half` precision, and return the conversions that are needed before."""
    lacking = dict.fromkeys(name for name in node.input if name in halves and name not in half)
    half |= {name: f"{name}/half" for name in lacking}
    node.input[:] = [half.get(name, name) for name in node.input]
    return [_cast(wide.get(name, name), half[name], _HALF) for name in lacking]
