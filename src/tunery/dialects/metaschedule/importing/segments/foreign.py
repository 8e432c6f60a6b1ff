"""Which nodes of a network TVM does not take, or would compute otherwise than ONNX defines them; and why."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import onnx
from onnx import numpy_helper

from tunery.dialects.metaschedule.importing.integers import dequantised
from tunery.dialects.metaschedule.importing.rules import microsoft
from tunery.dialects.metaschedule.importing.segments.graph import Graph
from tunery.dialects.metaschedule.importing.special import Special, keeps

Rule = Callable[[Graph, onnx.NodeProto], str]
"""From a node to why it is left to ONNX Runtime; empty where it is not."""

_STANDARD = ("", "ai.onnx")
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_SCATTERS = frozenset({"Scatter", "ScatterElements", "ScatterND"})
_EMPTY = frozenset({"Split", "Concat"})
"""Operators whose tensors may have no elements."""
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "ConvInteger", "MatMulInteger"}
    | {"QLinearConv", "QLinearMatMul", "QGemm", "FusedMatMul", "FusedGemm", "MatMulNBits"}
    | {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
)
_NARROW = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")
)
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})
_TRUTH_OPSET = 10  # since when a mask has truth values
_ONE_AXIS_OPSET = 13  # since when a softmax is of one axis
_ALIGNED_OPSET = 16  # since when regions are moved by half a pixel, if nothing else is said
_SMALL_ISLAND = 16
_FEW = 1024
_MOST_ROWS = 3  # of a determinant
_MOST_ARRAYS = 96  # in a concatenation: of 200 it is compiled for nine seconds, of 400 for a minute
_DEPENDS = "its size depends on the data"


def foreign_nodes(graph: Graph, decided: Mapping[str, str] = MappingProxyType({})) -> dict[int, str]:
    """Return the nodes that are left to ONNX Runtime by rule, and why; with those that are `decided`, by their labels.
    Small islands are added where nothing was decided."""
    known = _imported_operators()
    found: dict[int, str] = {}
    for at, node in enumerate(graph.nodes):
        decision = decided.get(graph.labels[at], "")
        if reason := decision or _outside(node, known) or next(filter(None, (r(graph, node) for r in _RULES)), ""):
            found[at] = reason
    return found if decided else with_small_islands(graph, found)


def _imported_operators() -> frozenset[str]:
    from tvm.relax.frontend.onnx import onnx_frontend

    from tunery.dialects.metaschedule.importing.operators import OWN_OPERATORS

    return frozenset({*onnx_frontend._get_convert_map(), *OWN_OPERATORS, *dequantised.OPERATORS, "Constant"})


def _outside(node: onnx.NodeProto, known: frozenset[str]) -> str:
    is_fused = node.domain == microsoft.DOMAIN and node.op_type in microsoft.OPERATORS | dequantised.OPERATORS
    if node.domain not in _STANDARD and not is_fused:
        return f"an operator of {node.domain[:60]}"
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        return "control flow"
    return "" if node.op_type in known else "TVM has no import for it"


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    found = next((one for one in node.attribute if one.name == name), None)
    if found is None:
        return default
    value = onnx.helper.get_attribute_value(found)
    return value.decode() if isinstance(value, bytes) else value


def _no_numbers(graph: Graph, node: onnx.NodeProto) -> str:
    values = [name for name in (*node.input, *node.output) if name]
    return "" if all(graph.is_number_tensor(name) for name in values) else "it handles other things than numbers"


def _unknown_size(graph: Graph, node: onnx.NodeProto) -> str:
    if any(name and not graph.is_static(name) for name in node.output):
        return _DEPENDS
    if any(name and not graph.is_static(name) for name in node.input):
        return "the size of its input depends on the data"
    ignored = graph.constants.keys() & node.input[1:]  # as a region or scales of Resize, or axes that are none
    handled = {*node.input, *node.output} - ignored - {""}
    empty = any(0 in (graph.shape(name) or ()) for name in handled)
    return "it handles tensors without elements" if empty and node.op_type not in _EMPTY else ""


def _unknown_steps(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type not in dequantised.OPERATORS or node.op_type == "QLinearMatMul":
        return ""
    return "" if dequantised.converted(graph, node) else "its scales are not constant, or TVM does not know its form"


def _preferred(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type in {"LSTM", "GRU", "RNN"}:
        return "ONNX Runtime is faster at recurrent cells"
    if node.op_type == "TopK" or (node.op_type == "Hardmax" and graph.opset < _ONE_AXIS_OPSET):
        return "ONNX Runtime is as fast, and its order of NaN is its own"
    if node.op_type in _NORMS and attribute(node, "noop_with_empty_axes", 0):
        return "TVM returns its input where it reduces no axis"
    return ""


_NORMS = frozenset({"ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"})


def _random(_: Graph, node: onnx.NodeProto) -> str:
    return "random numbers" if node.op_type in _RANDOM else ""


def _narrow(graph: Graph, node: onnx.NodeProto) -> str:
    """TVM makes nothing of a number that is rounded to such a type and widened again: it keeps what was cut off."""
    values = {*node.input, *node.output} & graph.producer.keys()
    rounded = any(graph.element_type(name) in _NARROW and graph.readers(name) for name in values)
    return "TVM leaves out the rounding to its type" if rounded else ""


def _batch_norm(_: Graph, node: onnx.NodeProto) -> str:
    training = node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0)
    return "it is in training mode" if training or (node.op_type == _NORM and len(node.output) > 1) else ""


_NORM = "BatchNormalization"


def _dropout(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type != "Dropout":
        return ""
    if len(node.output) > 1 and node.output[1] and graph.opset < _TRUTH_OPSET:
        return "its mask has another type"
    mode = node.input[2] if len(node.input) > 2 else ""
    if not mode:
        return ""
    constant = graph.constants.get(mode)
    return "it is in training mode" if constant is None or numpy_helper.to_array(constant).any() else ""


def _is_nan(graph: Graph, node: onnx.NodeProto) -> str:
    if keeps(node.op_type, Special.NAN):
        return ""
    tested = any(after.op_type == "IsNaN" for name in node.output for after in graph.readers(name))
    return "its result is tested for NaN" if tested else ""


def _conv_transpose(_: Graph, node: onnx.NodeProto) -> str:
    if node.op_type != "ConvTranspose":
        return ""
    if attribute(node, "output_shape"):
        return "TVM does not know its output_shape"
    return "TVM pads it at other sides" if attribute(node, "auto_pad", "NOTSET") == "SAME_LOWER" else ""


def _pools(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type not in {"MaxPool", "AveragePool", "LpPool"}:
        return ""
    if attribute(node, "auto_pad", "NOTSET") == "SAME_LOWER":
        return "TVM pads it at other sides"
    if len(node.output) > 1 and node.output[1]:
        return "its indices are asked for"
    if node.op_type == "LpPool" and attribute(node, "ceil_mode", 0):
        return "TVM rounds its sizes down"
    sides, kernel = (graph.shape(node.input[0]) or ())[2:], attribute(node, "kernel_shape", [])
    gaps, pads = attribute(node, "dilations", [1] * len(kernel)), attribute(node, "pads", [0] * 2 * len(kernel))
    rooms = [side + before + after for side, before, after in zip(sides, pads, pads[len(sides) :], strict=False)]
    if any((size - 1) * gap >= room > 0 for size, gap, room in zip(kernel, gaps, rooms, strict=False)):
        return "its window is larger than what it slides over"
    return ""


def _pad(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type != "Pad" or attribute(node, "mode", "constant") == "constant":
        return ""
    constant = graph.constants.get(node.input[1]) if len(node.input) > 1 else None
    cut = constant is not None and numpy_helper.to_array(constant).min(initial=0) < 0
    return "TVM repeats what it cuts off otherwise" if cut else ""


def _resize(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type not in {"Resize", "Upsample"}:
        return ""
    if attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "TVM does not know its policy"
    if attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return "TVM does not know its region"
    exact = attribute(node, "mode", "nearest") != "nearest" and graph.element_type(node.input[0]) not in _FLOATS
    return "TVM does not round between integers as it does" if exact else ""


def _grid(_: Graph, node: onnx.NodeProto) -> str:
    """It reflects a place before it rounds it, and takes seconds for code that reflects each of 16 neighbours."""
    if node.op_type != "GridSample" or attribute(node, "padding_mode", "zeros") != "reflection":
        return ""
    smooth = attribute(node, "mode", "linear") in {"linear", "bilinear"}
    return "" if smooth else "TVM reflects its places otherwise"


def _regions(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type != "RoiAlign":
        return ""
    if attribute(node, "mode", "avg") == "max":
        return "TVM takes the largest of other values"
    if attribute(node, "spatial_scale", 1.0) == 1:
        return ""
    usual = "half_pixel" if graph.opset >= _ALIGNED_OPSET else "output_half_pixel"
    moved = attribute(node, "coordinate_transformation_mode", usual) == "half_pixel"
    return "TVM moves its regions before it scales them" if moved else ""


def _scatters(graph: Graph, node: onnx.NodeProto) -> str:
    if node.op_type not in _SCATTERS:
        return ""
    data, indices = (list(graph.shape(name) or ()) for name in node.input[:2])
    if node.op_type == "ScatterND" or not data or not indices:
        return ""
    del data[(axis := attribute(node, "axis", 0) % len(data))], indices[axis]
    return "" if data == indices else "TVM writes it to other places where it has fewer than the data"


def _concatenation(_: Graph, node: onnx.NodeProto) -> str:
    many = node.op_type == "Concat" and len(node.input) > _MOST_ARRAYS
    return "TVM asks of every element from which of so many arrays it comes" if many else ""


def _mean(graph: Graph, node: onnx.NodeProto) -> str:
    whole = node.op_type == "ReduceMean" and graph.element_type(node.input[0]) not in _FLOATS
    return "TVM has another type for the mean of integers" if whole else ""


def _determinant(graph: Graph, node: onnx.NodeProto) -> str:
    large = node.op_type == "Det" and (graph.shape(node.input[0]) or (0,))[-1] > _MOST_ROWS
    return "TVM has no import for large determinants" if large else ""


def _einsum(_: Graph, node: onnx.NodeProto) -> str:
    unusual = node.op_type == "Einsum" and "..." in str(attribute(node, "equation", ""))
    return "TVM does not know an ellipsis in its equation" if unusual else ""


_RULES: tuple[Rule, ...] = (
    _no_numbers, _random, _narrow, _unknown_steps, _unknown_size, _batch_norm, _dropout, _is_nan, _conv_transpose,
    _pools, _pad, _resize, _grid, _regions, _scatters, _preferred, _determinant, _einsum,
    _concatenation, _mean, microsoft.objection,
)  # fmt: skip


def with_small_islands(graph: Graph, found: dict[int, str]) -> dict[int, str]:
    """Return `found` and the groups of a few cheap nodes beside those: their borders would cost more than they gain."""
    if not found:
        return found
    islands: dict[int, str] = {}
    for group in _native_groups(graph, found):
        cheap = not any(graph.nodes[at].op_type in _HEAVY for at in group)
        if cheap and len(group) <= _SMALL_ISLAND and _touches(graph, group, found):
            islands |= dict.fromkeys(group, "a few cheap operators beside others that run there")
    return found | islands


def _native_groups(graph: Graph, found: dict[int, str]) -> Iterator[list[int]]:
    """Yield connected nodes that are not in `found`."""
    parent = list(range(len(graph.nodes)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for at, names in enumerate(graph.reads):
        for name in names:
            before = graph.producer.get(name)
            if before is not None and at not in found and before not in found:
                parent[root(at)] = root(before)
    members: dict[int, list[int]] = {}
    for at in range(len(graph.nodes)):
        if at not in found:
            members.setdefault(root(at), []).append(at)
    yield from members.values()


def _touches(graph: Graph, group: list[int], found: dict[int, str]) -> bool:
    inside = set(group)
    made = {name for at in group for name in graph.nodes[at].output}
    reads = any(graph.producer.get(name) in found for at in inside for name in graph.reads[at])
    return reads or any(made.intersection(graph.reads[at]) for at in found)


def failing_nodes(graph: Graph, known: dict[int, str], attempt: Callable[[onnx.ModelProto], str]) -> dict[int, str]:
    """Return the nodes beside the `known` ones for which `attempt` has an objection, each tried as a model of its own.
    Nodes that are alike are tried once."""
    said: dict[str, str] = {}
    found: dict[int, str] = {}
    for at, node in enumerate(graph.nodes):
        if at in known:
            continue
        alone = _alone(graph, at)
        key = _signature(alone, node)
        if key not in said:
            said[key] = attempt(alone)
        if said[key]:
            found[at] = said[key]
    return found


def _alone(graph: Graph, at: int) -> onnx.ModelProto:
    node = graph.nodes[at]
    model = onnx.ModelProto(ir_version=graph.model.ir_version)
    model.opset_import.extend(graph.model.opset_import)
    model.graph.name = "node"
    model.graph.node.append(node)
    for name in graph.reads[at]:
        if name in graph.constants:
            model.graph.initializer.append(graph.constants[name])
        else:
            model.graph.input.append(graph.info(name))
    model.graph.output.extend(graph.info(name) for name in node.output if name)
    return model


def _signature(alone: onnx.ModelProto, node: onnx.NodeProto) -> str:
    hashed = hashlib.sha256(f"{node.domain} {node.op_type} {len(node.output)}".encode())
    for one in sorted(node.attribute, key=lambda one: str(one.name)):
        hashed.update(one.SerializeToString())
    declared = {value.name: value.type.SerializeToString() for value in alone.graph.input}
    declared |= {tensor.name: _constant(tensor) for tensor in alone.graph.initializer}
    for name in node.input:
        hashed.update(declared.get(name, b"") + b"|")
    return hashed.hexdigest()


def _constant(tensor: onnx.TensorProto) -> bytes:
    """Return what matters of a constant: of weights the size."""
    values = b"" if math.prod(tensor.dims) > _FEW else numpy_helper.to_array(tensor).tobytes()
    return f"{tensor.data_type} {list(tensor.dims)} ".encode() + values
