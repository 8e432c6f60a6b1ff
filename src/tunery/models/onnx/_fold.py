"""Constant folding without ONNX Runtime, for models whose types or operators its optimiser would change."""

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tunery.models.onnx._file import graphs

_MAX_ELEMENTS = 65_536
_MAX_ROUNDS = 8
_KEPT = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every small computation on constants and static shapes replaced by its value.

    Only the outermost graph is folded. A node whose value cannot be computed stays.
    """
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    for _ in range(_MAX_ROUNDS):
        # Each folded value makes more shapes static, and each static shape more values constant.
        shapes = _static_shapes(onnx.shape_inference.infer_shapes(folded, data_prop=True).graph)
        if not _fold_once(folded, shapes):
            break
    _drop_unused_constants(folded.graph)
    return folded


def _fold_once(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> bool:
    graph = model.graph
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if np.prod(tensor.dims, dtype=np.int64) <= _MAX_ELEMENTS
    }
    outputs = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        computed = None if outputs & set(node.output) else _evaluate(model, node, values, shapes)
        if computed is None:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            continue
        for name, value in zip(node.output, computed, strict=True):
            values[name] = value
            graph.initializer.append(numpy_helper.from_array(value, name))
    changed = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    return changed


def _evaluate(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    values: dict[str, np.ndarray],
    shapes: dict[str, tuple[int, ...]],
) -> list[np.ndarray] | None:
    """Return the node's outputs, or None if they are not constant, too large, or beyond the reference evaluator."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type == "Shape" and node.input[0] in shapes:
        shape = shapes[node.input[0]]
        first = attributes["start"].i if "start" in attributes else 0
        last = attributes["end"].i if "end" in attributes else len(shape)
        return [np.array(shape[first:last], np.int64)]
    names = [name for name in node.input if name]
    nested = any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)
    if nested or node.domain or node.op_type in _KEPT or not all(name in values for name in names):
        return None
    if any(np.prod(shapes.get(name, ()), dtype=np.int64) > _MAX_ELEMENTS for name in node.output):
        return None
    graph = onnx.helper.make_graph(
        [node],
        "node",
        [_value(name, values[name]) for name in dict.fromkeys(names)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output],
    )
    try:
        single = onnx.helper.make_model(graph, opset_imports=model.opset_import)
        results = ReferenceEvaluator(single).run(None, {name: values[name] for name in names})
    except Exception:  # noqa: BLE001 - whatever the evaluator lacks, the node simply stays
        return None
    arrays = [np.asarray(result) for result in results]
    return arrays if all(array.size <= _MAX_ELEMENTS for array in arrays) else None


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, list(array.shape))


def _static_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return shapes


def _drop_unused_constants(graph: onnx.GraphProto) -> None:
    used = set(_read(graph))
    kept = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _read(graph: onnx.GraphProto) -> Iterable[str]:
    for each in graphs(graph):
        for node in each.node:
            yield from node.input
        yield from (value.name for value in each.output)
