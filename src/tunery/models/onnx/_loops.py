"""Shapes that a loop hands out, which ONNX's inference leaves open: what one step leaves as it was has them always."""

from collections.abc import Iterator, Mapping, Sequence

import onnx

from tunery.models.onnx._file import STANDARD, graphs

Types = Mapping[str, onnx.TypeProto]
_MOST_ROUNDS = 8
_FEW = 64


def loops(model: onnx.ModelProto) -> list[str]:
    return ["Loop"] if any(map(is_loop, model.graph.node)) else []


def is_loop(node: onnx.NodeProto) -> bool:
    return node.op_type == "Loop" and node.domain in STANDARD


def types_of_loop(node: onnx.NodeProto, known: Types, model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of a loop's outputs as far as they can be told from those `known` of the model's values. A
    carried value begins with a shape. Where a step may give it another one, the dimensions that differ are open, and
    steps are taken from there until nothing changes."""
    [body] = [attribute.g for attribute in node.attribute if attribute.name == "body"]
    state = [known.get(name, onnx.TypeProto()) for name in node.input[2:]]
    if any(kind.WhichOneof("value") not in {None, "tensor_type"} for kind in state):
        return {}  # sequences
    for _ in range(_MOST_ROUNDS):
        found = _step(body, state, known, model)
        wider = [_either(before, after) for before, after in zip(state, found, strict=False)]
        if wider == state:
            break
        state = wider
    else:
        return {}
    collected = [_several(kind) for kind in found[len(state) :]]
    return {name: kind for name, kind in zip(node.output, [*state, *collected], strict=False) if name}


def _step(
    body: onnx.GraphProto, state: Sequence[onnx.TypeProto], known: Types, model: onnx.ModelProto
) -> list[onnx.TypeProto]:
    alone = onnx.ModelProto(ir_version=model.ir_version, functions=model.functions)
    alone.opset_import.extend(model.opset_import)
    alone.graph.CopyFrom(body)
    for value, kind in zip(alone.graph.input[2:], state, strict=True):
        value.type.CopyFrom(kind)
    for each in graphs(alone.graph):
        del each.value_info[:]
    del alone.graph.output[:]
    own = {value.name for value in (*body.input, *body.initializer)} | {name for n in body.node for name in n.output}
    outer = set(_read_in(body)) - own
    small = [one for one in model.graph.initializer if one.name in outer and sum(one.dims) <= _FEW]
    alone.graph.initializer.extend(small)
    for name in sorted(outer - {one.name for one in small}):
        if name in known:
            alone.graph.input.add(name=name).type.CopyFrom(known[name])
    graph = onnx.shape_inference.infer_shapes(alone, data_prop=True).graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info)}
    types |= {one.name: onnx.helper.make_tensor_type_proto(one.data_type, one.dims) for one in graph.initializer}
    return [types.get(value.name, onnx.TypeProto()) for value in body.output[1:]]


def _read_in(body: onnx.GraphProto) -> Iterator[str]:
    for graph in graphs(body):
        yield from (name for node in graph.node for name in node.input if name)
        yield from (value.name for value in graph.output)


def _either(one: onnx.TypeProto, other: onnx.TypeProto) -> onnx.TypeProto:
    """Return a type that holds for both, without a shape where their ranks differ or one is not known."""
    found = onnx.TypeProto()
    found.tensor_type.elem_type = one.tensor_type.elem_type
    kinds = [one.tensor_type, other.tensor_type]
    if all(kind.HasField("shape") for kind in kinds) and len({len(kind.shape.dim) for kind in kinds}) == 1:
        found.tensor_type.shape.SetInParent()
        for left, right in zip(*(kind.shape.dim for kind in kinds), strict=True):
            dim = found.tensor_type.shape.dim.add()
            if left.HasField("dim_value") and left == right:
                dim.dim_value = left.dim_value
    return found


def _several(kind: onnx.TypeProto) -> onnx.TypeProto:
    found = onnx.TypeProto()
    found.tensor_type.elem_type = kind.tensor_type.elem_type
    if kind.tensor_type.HasField("shape"):
        found.tensor_type.shape.dim.add()
        found.tensor_type.shape.dim.extend(kind.tensor_type.shape.dim)
        for dim in found.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return found
