"""A network's graph in segments: what TVM takes stays, what it does not take becomes models for ONNX Runtime."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import onnx

from tunery._errors import DialectError
from tunery.dialects._nodes import labels
from tunery.dialects.metaschedule.importing.mapped import read_in
from tunery.domain import TensorSpec

OPERATOR = "TunerySegment"
"""The operator of a node that stands for a segment; its attribute `number` says for which."""
_DOMAIN = "tunery"
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a network as an ONNX model, with the names of its inputs. A dimension of an output is -1 where it depends
    on the data; `ranked` says of which outputs the rank is known."""

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[TensorSpec, ...]
    ranked: tuple[bool, ...]

    @property
    def is_static(self) -> bool:
        return all(self.ranked) and not any(_UNKNOWN in spec.shape for spec in self.outputs)


class Graph:
    """The outermost graph of a model, with what its values are and where they come from."""

    def __init__(self, model: onnx.ModelProto) -> None:
        made = {name for node in model.graph.node for name in node.output if name}
        if not model.graph.value_info and made - {value.name for value in model.graph.output}:  # it was not prepared
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        self.model = model
        self.nodes = list(model.graph.node)
        self.labels = labels(self.nodes)
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.outputs = [value.name for value in model.graph.output]
        self.opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        self._types = {
            value.name: value.type for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
        }
        self.reads = [tuple(dict.fromkeys(_read_by(node))) for node in self.nodes]
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node, names in zip(self.nodes, self.reads, strict=True):
            for name in names:
                self._readers.setdefault(name, []).append(node)
        self.producer = {name: at for at, node in enumerate(self.nodes) for name in node.output if name}

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return self._readers.get(name, [])

    def is_number_tensor(self, name: str) -> bool:
        if name in self.constants:
            return bool(self.constants[name].data_type != onnx.TensorProto.STRING)
        kind = self._types.get(name)
        if kind is None or not kind.HasField("tensor_type"):
            return False
        return kind.tensor_type.elem_type not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return a value's dimensions, -1 for one that is not known before the data is; None: not even the rank."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        kind = self._types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return tuple(dim.dim_value if dim.HasField("dim_value") else _UNKNOWN for dim in dims)

    def is_static(self, name: str) -> bool:
        shape = self.shape(name)
        return shape is not None and _UNKNOWN not in shape

    def spec(self, name: str) -> TensorSpec:
        """Return a value as a spec, without dimensions where its rank is not known."""
        if not self.is_number_tensor(name):
            raise DialectError(f"the value {name!r} between two parts of the network is not a tensor of numbers")
        return TensorSpec(name, self.shape(name) or (), self._dtype(name))

    def _dtype(self, name: str) -> str:
        return str(onnx.helper.tensor_dtype_to_np_dtype(self.element_type(name)).name)

    def element_type(self, name: str) -> int:
        """Return ONNX's number of a value's element type, 0 where it is not known."""
        if name in self.constants:
            return int(self.constants[name].data_type)
        return int(self._types[name].tensor_type.elem_type) if name in self._types else 0

    def info(self, name: str) -> onnx.ValueInfoProto:
        found = onnx.ValueInfoProto(name=name)
        found.type.CopyFrom(self._types[name])
        return found


def _read_by(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for nested in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*nested.input, *nested.initializer)}
            own |= {name for each in nested.node for name in each.output}
            for each in nested.node:
                yield from (name for name in _read_by(each) if name not in own)
            yield from (value.name for value in nested.output if value.name not in own)


def groups(graph: Graph, elsewhere: Collection[int]) -> list[list[int]]:
    """Return the nodes in `elsewhere` in as few convex groups as their order allows: none waits for what needs it. A
    node's level is the number of changes between the two sides on the way to it; nodes of one level and side never
    depend on each other through the other side."""
    level: list[int] = []
    for at in range(len(graph.nodes)):
        away = at in elsewhere
        before = [graph.producer[name] for name in graph.reads[at] if name in graph.producer]
        level.append(max([int(away), *(level[p] + ((p in elsewhere) != away) for p in before)]))
    found: dict[int, list[int]] = {}
    for at in sorted(elsewhere):
        found.setdefault(level[at], []).append(at)
    return [found[key] for key in sorted(found)]


def split(graph: Graph, elsewhere: Collection[int]) -> tuple[onnx.ModelProto, list[Segment]]:
    """Return the model with a node in place of each group of nodes in `elsewhere`, and the groups as models."""
    grouped = groups(graph, elsewhere)
    segments = [_segment(graph, nodes) for nodes in grouped]
    parts: list[tuple[Sequence[int], onnx.NodeProto]] = [
        (nodes, _call(number, segment)) for number, (nodes, segment) in enumerate(zip(grouped, segments, strict=True))
    ]
    parts += [((at,), node) for at, node in enumerate(graph.nodes) if at not in elsewhere]
    main = onnx.ModelProto()
    main.CopyFrom(graph.model)
    del main.graph.node[:]
    main.graph.node.extend(_in_order(graph, parts))
    used = {name for node in main.graph.node for name in _read_by(node)} | set(graph.outputs)
    for number in reversed(range(len(main.graph.initializer))):
        if main.graph.initializer[number].name not in used:
            del main.graph.initializer[number]
    return main, segments


def _segment(graph: Graph, nodes: Sequence[int]) -> Segment:
    made = {name for at in nodes for name in graph.nodes[at].output if name}
    inside = set(nodes)
    read_outside = {name for at, names in enumerate(graph.reads) if at not in inside for name in names}
    needed = list(dict.fromkeys(name for at in nodes for name in graph.reads[at] if name not in made))
    outputs = [name for name in made if name in read_outside or name in graph.outputs]
    outputs.sort(key=lambda name: (graph.producer[name], name))
    inputs = [name for name in needed if name not in graph.constants and (name in graph._types)]
    specs = tuple(graph.spec(name) for name in outputs)
    for name in inputs:
        graph.spec(name)
    model = onnx.ModelProto(ir_version=graph.model.ir_version, functions=graph.model.functions)
    model.opset_import.extend(graph.model.opset_import)
    model.graph.name = "segment"
    model.graph.node.extend(graph.nodes[at] for at in nodes)
    model.graph.initializer.extend(read_in(graph.constants[name]) for name in needed if name in graph.constants)
    model.graph.input.extend(graph.info(name) for name in inputs)
    model.graph.output.extend(graph.info(name) for name in outputs)
    ranked = tuple(graph.shape(name) is not None for name in outputs)
    return Segment(model.SerializeToString(), tuple(inputs), specs, ranked)


def _call(number: int, segment: Segment) -> onnx.NodeProto:
    names = [spec.name for spec in segment.outputs]
    return onnx.helper.make_node(OPERATOR, segment.inputs, names, domain=_DOMAIN, number=number)


def _in_order(graph: Graph, parts: Sequence[tuple[Sequence[int], onnx.NodeProto]]) -> Iterator[onnx.NodeProto]:
    """Yield the parts' nodes so that each comes after what it needs, else as they were."""
    owner = {at: number for number, (nodes, _) in enumerate(parts) for at in nodes}
    needs: dict[int, set[int]] = {number: set() for number in range(len(parts))}
    needed_by: dict[int, set[int]] = {number: set() for number in range(len(parts))}
    for at, names in enumerate(graph.reads):
        for name in names:
            before = owner[graph.producer[name]] if name in graph.producer else owner[at]
            if before != owner[at]:
                needs[owner[at]].add(before)
                needed_by[before].add(owner[at])
    ready = [(parts[number][0][0], number) for number, wanted in needs.items() if not wanted]
    heapify(ready)
    while ready:
        _, number = heappop(ready)
        yield parts[number][1]
        for after in needed_by[number]:
            needs[after].discard(number)
            if not needs[after]:
                heappush(ready, (parts[after][0][0], after))


def named(graph: Graph, reasons: Mapping[int, str]) -> dict[str, str]:
    return {graph.labels[at]: reasons[at] for at in sorted(reasons)}
