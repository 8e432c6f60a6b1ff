"""Functions in the place of their calls, the model's own and those of ONNX's operators; sparse constants as plain ones.
Compilers know the functions' parts, and no sparse constants."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import defs, inliner, numpy_helper

from tunery._errors import ModelError
from tunery.models.onnx._file import STANDARD, graphs

_EXPANDED = frozenset(
    {"Attention", "CenterCropPad", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SoftmaxCrossEntropyLoss"}
    | {"Swish"}
)
_MOST_ELEMENTS = 1 << 28
_DOMAIN = "tunery.expanded"


def expandable(model: onnx.ModelProto) -> list[str]:
    return sorted({node.op_type for node in _nodes(model)} | {function.name for function in model.functions})


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each such function in its place; an operator without one stays as it is."""
    nodes = _nodes(model)
    opset = next((entry.version for entry in model.opset_import if entry.domain in STANDARD), 0)
    if nodes:
        graph = onnx.shape_inference.infer_shapes(model).graph
        types = {tensor.name: _type_of(tensor) for tensor in graph.initializer}
        types.update({value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)})
        del model.graph.value_info[:]  # of another version, a function is converted by the types around it
        for name in sorted(types.keys() - {value.name for value in (*graph.input, *graph.output)}):
            model.graph.value_info.add(name=name, type=types[name])
    for number, node in enumerate(nodes):
        function = _function(node, opset, types)
        if function is not None:
            function.domain, function.name = _DOMAIN, f"{node.op_type}_{number}"
            model.functions.append(function)
            node.domain, node.op_type = _DOMAIN, function.name
    if not model.functions:
        return model
    if all(entry.domain != _DOMAIN for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    try:
        inlined = _inlined(model)
    except Exception:  # noqa: BLE001 - of other versions than the model's: ONNX Runtime runs them as they are
        return model
    return model if inlined.functions else expand(inlined)  # functions may hold such operators


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put all functions in the place of their calls. The inliner forgets what the model's functions say of attributes
    left out, so that is written at their calls before. An inner call may refer to an attribute that is left out at the
    outer one: the outer functions come first."""
    if not any(one.attribute_proto for one in model.functions):
        return inliner.inline_local_functions(model, convert_version=True)
    inlined = onnx.ModelProto()
    inlined.CopyFrom(model)
    left = list(model.functions)
    while left:
        called = {_called(node) for one in left for node in _all_nodes(onnx.GraphProto(node=one.node))}
        outer = [one for one in left if _id(one) not in called]
        if not outer:
            raise ValueError("functions call each other in a circle")
        left = [one for one in left if _id(one) in called]
        del inlined.functions[:]
        inlined.functions.extend(outer)
        _write_defaults(inlined.graph, outer)
        inlined = inliner.inline_local_functions(inlined, convert_version=True)
    return inlined


def _write_defaults(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto]) -> None:
    defaults = {_id(one): one.attribute_proto for one in functions}
    for node in _all_nodes(graph):
        given = {one.name for one in node.attribute}
        known = defaults.get(_called(node), ())
        node.attribute.extend(one for one in known if one.name not in given)


def _id(function: onnx.FunctionProto) -> tuple[str, str, str]:
    return function.domain, function.name, function.overload


def _called(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.domain, node.op_type, node.overload


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    return (node for each in graphs(graph) for node in each.node)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type in _EXPANDED and node.domain in STANDARD]


def _function(node: onnx.NodeProto, opset: int, types: dict[str, onnx.TypeProto]) -> onnx.FunctionProto | None:
    """Return the function of a node, None where its operator has none at this version."""
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        kinds = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        version = max(v for v in schema.context_dependent_function_opset_versions if v <= opset)
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), kinds)
        return onnx.FunctionProto.FromString(data)
    if not schema.has_function:
        return None
    given = {one.name for one in node.attribute}
    defaults = (one.default_value for name, one in schema.attributes.items() if name not in given)
    node.attribute.extend(one for one in defaults if one.name)  # the function's parts refer to them
    return schema.function_body


def _type_of(tensor: onnx.TensorProto) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def write_out(model: onnx.ModelProto) -> None:
    for graph in graphs(model.graph):
        found = [(sparse.values.name, sparse) for sparse in graph.sparse_initializer]
        for node in [node for node in graph.node if node.op_type == "Constant" and not node.domain]:
            if node.attribute and node.attribute[0].HasField("sparse_tensor"):
                found.append((node.output[0], node.attribute[0].sparse_tensor))
                graph.node.remove(node)
        graph.initializer.extend(_dense(name, sparse) for name, sparse in found)
        del graph.sparse_initializer[:]


def _dense(name: str, sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    sizes = tuple(sparse.dims)
    if min(sizes, default=1) < 0 or math.prod(sizes) > _MOST_ELEMENTS:
        raise ModelError(f"the sparse constant {name!r} has the sizes {list(sizes)}; export the model with plain ones")
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full = np.zeros(sizes, values.dtype)
    places = np.where(places < 0, np.iinfo(np.int64).max, places)  # NumPy counts these from the end
    try:
        full[tuple(places.T) if places.ndim > 1 else np.unravel_index(places, sizes)] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"the sparse constant {name!r} has values outside of it; export the model again") from error
    return numpy_helper.from_array(full, name)
