"""Random valid ONNX graphs from a grammar of some eighty operators, with inputs on which they are well defined."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
_MOST_ELEMENTS, _LARGEST = 4096, 1e5
_KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class RandomGraph:
    """A graph that grows: what its values are on its inputs, and which of them rounding cannot have changed."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def model(self) -> onnx.ModelProto:
        """The graph with all that nobody reads as outputs."""
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name and name not in read]
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        return _model(self.nodes, {name: self.values[name] for name in self.inputs}, made, constants)

    def feed(self) -> dict[str, np.ndarray]:
        return {name: self.values[name] for name in self.inputs}

    def add(
        self, operator: str, reads: list[str | np.ndarray], outputs: int = 1, *, exact: bool, **attributes: Any
    ) -> None:
        """Add a node, unless ONNX Runtime refuses it or a value of it is not finite, or too large."""
        names, constants = [], {}
        for one in reads:
            name = one if isinstance(one, str) else f"c{len(self.constants) + len(constants)}"
            names.append(name)
            if not isinstance(one, str):
                constants[name] = one
        made = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        node = helper.make_node(operator, names, made, **attributes)
        given = {name: self.values[name] for name in names if name in self.values}
        tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        try:
            found = run(_model([node], given, made, tensors), given)
        except Exception:  # noqa: BLE001 - it is no valid node
            return
        if not all(_is_fine(value) for value in found):
            return
        self.nodes.append(node)
        self.constants |= constants
        self.values |= dict(zip(made, found, strict=True))
        if exact and all(name in self.exact for name in given):
            self.exact |= set(made)


def _is_fine(value: np.ndarray) -> bool:
    if not 0 < value.size <= _MOST_ELEMENTS or str(value.dtype) not in _KINDS:
        return False
    return value.dtype.kind != "f" or bool(np.isfinite(value).all() and np.abs(value).max() < _LARGEST)


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], outputs: list[str], constants: list[onnx.TensorProto]
) -> onnx.ModelProto:
    declared = [helper.make_tensor_value_info(name, _KINDS[str(one.dtype)], one.shape) for name, one in inputs.items()]
    graph = helper.make_graph(
        nodes, "random", declared, [onnx.ValueInfoProto(name=name) for name in outputs], constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes without any optimisation."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(one) for one in session.run(None, feed)]


SMOOTH = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Neg",
    "Abs",
    "Sqrt",
    "Erf",
    "LeakyRelu",
    "Elu",
    "Selu",
    "HardSigmoid",
    "HardSwish",
    "Softplus",
    "Softsign",
    "Sin",
    "Log",
]
JUMPS = ["Floor", "Ceil", "Round", "Sign"]
EXACT = {"Relu", "Neg", "Abs", *JUMPS}
REDUCE = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]


@st.composite
def graphs(draw: Draw, most_nodes: int = 12) -> RandomGraph:
    """Graphs of up to so many nodes."""
    graph = RandomGraph()
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    shapes = [(2, 4, 6, 5), (1, 4, 8, 6), (3, 8), (4, 6, 5), (1, 4, 1, 5)]
    for number, shape in enumerate(draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=2))):
        values = rng.standard_normal(shape) * draw(st.sampled_from([1.0, 5.0]))
        if draw(st.booleans()):  # ties, zeros, halves
            values = np.round(2 * values) / 2
        _input(graph, f"x{number}", values.astype(np.float32))
    if draw(st.booleans()):
        _input(graph, "i0", rng.integers(-7, 8, draw(st.sampled_from(shapes))))
    wanted = draw(st.integers(2, most_nodes))
    for _ in range(3 * wanted):  # some are refused
        if len(graph.nodes) < wanted:
            rule = draw(st.sampled_from(RULES))
            rule(draw, graph, rng)
    if not graph.nodes:
        graph.add("Relu", [graph.inputs[0]], exact=True)
    return graph


def _input(graph: RandomGraph, name: str, value: np.ndarray) -> None:
    graph.values[name] = value
    graph.inputs.append(name)
    graph.exact.add(name)


def _pick(
    draw: Draw, graph: RandomGraph, kind: str = "f", rank: int | None = None, *, exact: bool = False
) -> str | None:
    names = [
        name for name, value in graph.values.items()
        if value.dtype.kind in kind and (rank is None or value.ndim == rank) and (not exact or name in graph.exact)
    ]  # fmt: skip
    return draw(st.sampled_from(names)) if names else None


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _axis(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def unary(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    operator = draw(st.sampled_from([*SMOOTH, *JUMPS]))
    if x := _pick(draw, graph, exact=operator in JUMPS):
        graph.add(operator, [x], exact=operator in EXACT)


def clip(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph):
        low = draw(st.sampled_from([-1.0, 0.0, 0.5]))
        graph.add("Clip", [x, np.float32(low), np.float32(low + 2)], exact=True)


def binary(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph):
        operator = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow"]))
        graph.add(operator, [x, _other(draw, graph, rng, x)], exact=operator in {"Max", "Min"})


def _other(draw: Draw, graph: RandomGraph, rng: np.random.Generator, x: str) -> str | np.ndarray:
    """Another value of the same shape, or a constant that is broadcast."""
    shape = graph.values[x].shape
    same = [
        name for name, value in graph.values.items() if value.shape == shape and value.dtype == graph.values[x].dtype
    ]
    if draw(st.booleans()):
        return str(draw(st.sampled_from(same)))
    kept = [size if draw(st.booleans()) else 1 for size in shape][draw(st.integers(0, max(0, len(shape) - 1))) :]
    if graph.values[x].dtype.kind == "i":
        return np.asarray(rng.choice([-3, -2, 2, 3, 5], kept))
    return _floats(rng, *kept)


def integers(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph, "i"):
        operator = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Abs", "Neg"]))
        reads = [x] if operator in {"Abs", "Neg"} else [x, _other(draw, graph, rng, x)]
        if operator in {"Div", "Mod"} and (isinstance(reads[-1], str)):
            return  # by zero
        graph.add(operator, reads, exact=True)


def compare(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph, "fi", exact=True):
        operator = draw(st.sampled_from(["Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"]))
        other = np.asarray(draw(st.sampled_from([0, 1, -1])), graph.values[x].dtype)
        graph.add(operator, [x, other], exact=True)


def where(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if (x := _pick(draw, graph, exact=True)) and (y := _pick(draw, graph)):
        graph.add("Greater", [x, np.float32(0)], exact=True)
        made = graph.nodes[-1].output[0] if graph.nodes else ""
        if made in graph.values and graph.values[made].dtype.kind == "b":
            graph.add("Where", [made, y, np.float32(draw(st.sampled_from([0.0, -2.0])))], exact=True)


def cast(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph, "fib", exact=True):
        graph.add("Cast", [x], exact=True, to=draw(st.sampled_from(sorted(_KINDS.values()))))


def reduce(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if x := _pick(draw, graph):
        rank = graph.values[x].ndim
        axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=rank, unique=True)) if rank else []
        operator = draw(st.sampled_from(REDUCE))
        graph.add(operator, [x, np.array(axes, np.int64)], exact=operator in {"ReduceMax", "ReduceMin"},
                  keepdims=draw(st.integers(0, 1)))  # fmt: skip


def arg(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if (x := _pick(draw, graph, exact=True)) and graph.values[x].ndim:
        graph.add(draw(st.sampled_from(["ArgMax", "ArgMin"])), [x], exact=True, axis=_axis(draw, graph.values[x].ndim),
                  keepdims=draw(st.integers(0, 1)))  # fmt: skip


def along(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if (x := _pick(draw, graph)) and (rank := graph.values[x].ndim):
        operator = draw(st.sampled_from(["Softmax", "LogSoftmax", "CumSum", "LayerNormalization"]))
        axis = _axis(draw, rank)
        if operator == "CumSum":
            graph.add(operator, [x, np.array(axis)], exact=False, exclusive=draw(st.integers(0, 1)),
                      reverse=draw(st.integers(0, 1)))  # fmt: skip
        elif operator == "LayerNormalization":
            shape = graph.values[x].shape[axis:]
            graph.add(operator, [x, _floats(rng, *shape), _floats(rng, *shape)], exact=False, axis=axis)
        else:
            graph.add(operator, [x], exact=False, axis=axis)


def views(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if not (x := _pick(draw, graph, "fib")) or not (rank := graph.values[x].ndim):
        return
    shape = graph.values[x].shape
    operator = draw(st.sampled_from(["Transpose", "Reshape", "Flatten", "Unsqueeze", "Squeeze", "Expand", "Tile"]))
    if operator == "Transpose":
        graph.add(operator, [x], exact=True, perm=draw(st.permutations(range(rank))))
    elif operator == "Reshape":
        wanted = draw(st.sampled_from([[-1], [shape[0], -1], [-1, shape[-1]], [1, *shape], [0, -1]]))
        graph.add(operator, [x, np.array(wanted)], exact=True)
    elif operator == "Flatten":
        graph.add(operator, [x], exact=True, axis=draw(st.integers(0, rank)))
    elif operator == "Unsqueeze":
        graph.add(operator, [x, np.array([draw(st.integers(-rank - 1, rank))])], exact=True)
    elif operator == "Squeeze":
        graph.add(operator, [x], exact=True)
    elif operator == "Expand":
        graph.add(operator, [x, np.array([2, *(1 for _ in shape)])], exact=True)
    else:
        graph.add(operator, [x, np.array(draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))], exact=True)


def pieces(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if not (x := _pick(draw, graph, "fi")) or not (rank := graph.values[x].ndim):
        return
    axis = _axis(draw, rank)
    size = graph.values[x].shape[axis]
    operator = draw(st.sampled_from(["Slice", "Split", "Concat", "Pad", "Gather", "GatherElements"]))
    if operator == "Slice":
        start, end, step = draw(
            st.sampled_from([(0, 2, 1), (-2, 100, 1), (1, -1, 1), (-1, -100, -1), (-1, -100, -2), (0, 100, 2)])
        )
        graph.add(operator, [x, *(np.array([one]) for one in (start, end, axis, step))], exact=True)
    elif operator == "Split" and size > 1:
        first = draw(st.integers(1, size - 1))
        graph.add(operator, [x, np.array([first, size - first])], 2, exact=True, axis=axis)
    elif operator == "Concat":
        graph.add(operator, [x, _other(draw, graph, rng, x), x], exact=True, axis=axis)
    elif operator == "Pad":
        pads = np.array(draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank)))
        mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
        graph.add(operator, [x, pads], exact=True, mode=mode)
    elif operator == "Gather":
        graph.add(
            operator, [x, rng.integers(-size, size, draw(st.sampled_from([(), (3,), (2, 2)])))], exact=True, axis=axis
        )
    elif operator == "GatherElements":
        graph.add(operator, [x, rng.integers(-size, size, graph.values[x].shape)], exact=True, axis=axis)


def products(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    operator = draw(st.sampled_from(["MatMul", "Gemm"]))
    if not (x := _pick(draw, graph, rank=2 if operator == "Gemm" else None)) or graph.values[x].ndim < 1:
        return
    rows, columns = graph.values[x].shape[-2:] if graph.values[x].ndim > 1 else (1, graph.values[x].shape[-1])
    if operator == "MatMul":
        graph.add(operator, [x, _floats(rng, columns, 4)], exact=False)
        return
    left, right = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    inner = rows if left else columns
    other = _floats(rng, 5, inner) if right else _floats(rng, inner, 5)
    bias = _floats(rng, *draw(st.sampled_from([(5,), (1, 5), (1,)])))
    graph.add(operator, [x, other, bias], exact=False, transA=left, transB=right, alpha=0.5, beta=2.0)


def windows(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if not (x := _pick(draw, graph, rank=4)):
        return
    channels = graph.values[x].shape[1]
    operator = draw(st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"]))
    kernel = draw(st.sampled_from([[1, 1], [3, 3], [2, 3], [1, 3]]))
    common: dict[str, Any] = {"kernel_shape": kernel, "strides": draw(st.sampled_from([[1, 1], [2, 2], [1, 2]]))}
    padding = draw(st.sampled_from(["none", "same", "auto", "lower", "uneven"]))
    if padding == "same":
        common["pads"] = [(kernel[0] - 1) // 2, (kernel[1] - 1) // 2] * 2
    elif padding == "uneven":
        common["pads"] = [0, 0, kernel[0] // 2, kernel[1] // 2]
    elif padding in {"auto", "lower"}:
        common["auto_pad"] = "SAME_UPPER" if padding == "auto" else "SAME_LOWER"
    group = draw(st.sampled_from([1, channels, 2 if channels % 2 == 0 else 1]))
    if operator == "Conv":
        dilations = draw(st.sampled_from([[1, 1], [2, 1]]))
        weights = _floats(rng, 2 * group, channels // group, *kernel)
        graph.add(
            operator, [x, weights, _floats(rng, 2 * group)], exact=False, group=group, dilations=dilations, **common
        )
    elif operator == "ConvTranspose":
        graph.add(operator, [x, _floats(rng, channels, 2, *kernel)], exact=False, group=group, **common)
    elif operator == "GlobalAveragePool":
        graph.add(operator, [x], exact=False)
    else:
        more = {"count_include_pad": draw(st.integers(0, 1))} if operator == "AveragePool" else {}
        graph.add(operator, [x], exact=operator == "MaxPool", ceil_mode=draw(st.integers(0, 1)), **more, **common)


def channels(draw: Draw, graph: RandomGraph, rng: np.random.Generator) -> None:
    if not (x := _pick(draw, graph, rank=4)):
        return
    count = graph.values[x].shape[1]
    operator = draw(
        st.sampled_from(["BatchNormalization", "InstanceNormalization", "DepthToSpace", "SpaceToDepth", "Resize"])
    )
    if operator == "BatchNormalization":
        four = [_floats(rng, count), _floats(rng, count), _floats(rng, count), np.abs(_floats(rng, count)) + 0.5]
        graph.add(operator, [x, *four], exact=False)
    elif operator == "InstanceNormalization":
        graph.add(operator, [x, _floats(rng, count), _floats(rng, count)], exact=False)
    elif operator == "Resize":
        scales = np.float32(draw(st.sampled_from([(1, 1, 2, 2), (1, 1, 0.5, 2), (1, 1, 1.5, 1.7), (1, 1, 3, 1)])))
        mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
        how = draw(st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
        rounding = (
            {"nearest_mode": draw(st.sampled_from(["floor", "ceil", "round_prefer_floor"]))}
            if mode == "nearest"
            else {}
        )
        graph.add(operator, [x, np.float32([]), scales], exact=mode == "nearest", mode=mode,
                  coordinate_transformation_mode=how, **rounding)  # fmt: skip
    else:
        mode = {"mode": draw(st.sampled_from(["DCR", "CRD"]))} if operator == "DepthToSpace" else {}
        graph.add(operator, [x], exact=True, blocksize=2, **mode)


RULES = (
    unary, clip, binary, integers, compare, where, cast, reduce, arg, along, views, pieces, products,
    unary, binary, windows, views, pieces, windows, channels, windows, channels,
)  # fmt: skip
