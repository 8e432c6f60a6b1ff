"""The nodes of an ONNX graph: what they are called, in what people are told and between processes, and their sizes."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Value:
    """What a node reads or makes: elements and bytes, 0 where they depend on the data."""

    name: str
    elements: int
    size_bytes: int
    constant: bool = False


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node with its label and what it reads and makes."""

    label: str
    operator: str
    reads: tuple[Value, ...]
    makes: tuple[Value, ...]


def labels(nodes: Sequence[Any]) -> list[str]:
    """Return the operator and the name of each node; of one without a name of its own that of its first output."""
    taken = Counter(node.name for node in nodes)
    return [f"{node.op_type} {_name(node, taken)}".strip() for node in nodes]


def _name(node: Any, taken: Counter[str]) -> str:
    if node.name and taken[node.name] == 1:
        return str(node.name)
    return next((str(name) for name in node.output if name), "")


def node_labels(path: Path) -> list[str]:
    import onnx

    return labels(onnx.load(path, load_external_data=False).graph.node)


def dimension_names(path: Path) -> dict[str, list[str]]:
    """Return what a file calls the dimensions of its inputs, "" where it does not."""
    import onnx

    inputs = onnx.load(path, load_external_data=False).graph.input
    return {value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in inputs}


def graph_nodes(path: Path) -> list[GraphNode]:
    """Return the nodes in a file, in their order; their nested graphs are not looked into."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    values = {one.name: _declared(one) for one in (*graph.input, *graph.value_info, *graph.output)}
    values |= {one.name: _value(one.name, one.dims, one.data_type, constant=True) for one in graph.initializer}

    def found(names: Sequence[str]) -> tuple[Value, ...]:
        return tuple(values.get(name, Value(name, 0, 0)) for name in names if name)

    named = zip(labels(graph.node), graph.node, strict=True)
    return [GraphNode(label, node.op_type, found(node.input), found(node.output)) for label, node in named]


def _declared(value: Any) -> Value:
    kind = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim]
    return _value(value.name, dims, kind.elem_type)


def _value(name: str, dims: Sequence[int], kind: int, *, constant: bool = False) -> Value:
    from onnx.helper import tensor_dtype_to_np_dtype

    elements = math.prod(dims)
    try:
        size = np.dtype(tensor_dtype_to_np_dtype(kind)).itemsize
    except (KeyError, TypeError, ValueError):
        size = 0
    return Value(name, elements, elements * size, constant)
