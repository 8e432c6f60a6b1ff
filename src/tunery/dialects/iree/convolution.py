"""Convolutions with windows or groups as tasks: each with what is behind it a network of its own, compiled as one. IREE
makes several dispatches of such a convolution, some of which it shares with its neighbours, so none of them is the
operator that other compilers tune. Its program is its operator key, and its candidates are the ways in which whole
networks are compiled: flags, and the network rewritten. Weights are numbers that the key decides, constants as in a
network; images have their channels first."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.configurations.space import ConfigurationSpace
from tunery.dialects.iree.tools import (
    FLAGS,
    OPSET,
    REWRITINGS,
    REWRITTEN,
    SEARCHED,
    compile_module,
    cpu_flags,
    import_onnx,
)
from tunery.domain import OperatorKey, OperatorKeyError, TensorSpec, Workload, digest, operator_key
from tunery.domain.operator_key import number

WAY, DEFAULT = "way", "default"
SPACE = ConfigurationSpace({WAY: (*REWRITINGS, "channels-last", "im2col-data-tiling", "microkernels", "im2col")}, [])
"""The most promising first."""
_KEY = re.compile(r"conv[12]d:")
_NODES = {"relu": "Relu", "clip": "Clip", "add": "Add", "sigmoid": "Sigmoid", "multiply": "Mul"}
"""What steps behind a convolution are called in ONNX."""
_IR = 9  # what IREE's importer reads
_FUNCTION = re.compile(r"^ *func\.func @main\([^)]*(?=\) -> )", re.MULTILINE)
_RETURN = re.compile(r"^ *return (%\w+) : (!torch\.vtensor<\S+>)", re.MULTILINE)


@dataclass(frozen=True)
class _Graph:
    """A network's nodes by what they read; `shapes` are of float32 values, `constants` are its weights."""

    nodes: Sequence[Any]
    readers: Mapping[str, Sequence[Any]]
    outputs: frozenset[str]
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Any]

    def only_reader(self, value: str) -> Any:
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and value not in self.outputs else None


def is_convolution(program: str) -> bool:
    return _KEY.match(program) is not None


def convolution_keys(model: Path) -> Counter[str]:
    graph = _read(model)
    found: Counter[str] = Counter()
    taken: set[str] = set()
    for node in graph.nodes:
        key = _key(graph, node, taken) if node.op_type == "Conv" else None
        if key is not None:
            found[key] += 1
    return found


def workload_of(key: str) -> Workload:
    one = _Convolution.parse(key)
    added = sum(step.startswith("add=") for step in one.steps)
    inputs = [TensorSpec(f"input{at}", shape, "float32") for at, shape in enumerate((one.image, *[one.result] * added))]
    name = "_".join([one.kind, *["add"] * one.has_bias, *(step.partition("=")[0] for step in one.steps)])
    flop = 2.0 * math.prod(one.result) * math.prod(one.weights[1:])
    output = TensorSpec("output0", one.result, "float32")
    return Workload(digest(key), name, one.kind, key, (*inputs, output), 1, flop, key)


def build(key: str, way: str, config: Mapping[str, Any], path: Path) -> None:
    from tunery.dialects.iree.rewriting import rewrite

    model, module = (path.with_name(f"{path.name}.{end}") for end in ("onnx", "mlir"))
    flags = {**FLAGS, **SEARCHED, **dict.fromkeys(REWRITINGS, REWRITTEN)}[way]
    try:
        write_model(key, model)
        if way in REWRITINGS:
            rewrite(model, model, winograd=REWRITINGS[way])
        import_onnx(model, module)
        module.write_text(_with_output(module.read_text()))
        compile_module(module, [*cpu_flags(config), *flags, "--mlir-disable-threading"], path)
    finally:
        for one in (model, module):
            one.unlink(missing_ok=True)


def _with_output(module: str) -> str:
    """Return a module whose function writes its result to an argument that it is given."""
    head, last = _FUNCTION.search(module), _RETURN.search(module)
    if head is None or last is None:
        raise DialectError("IREE's importer has written no function")
    value, kind = last.groups()
    tensor = kind.replace("vtensor", "tensor")
    written = f"    torch.overwrite.tensor.contents {value} overwrites %output : {kind}, {tensor}\n"
    begin, end = head.end(), last.start()
    return f"{module[:begin]}, %output: {tensor}{module[begin:end]}{written}{module[end:]}"


# -- a network's convolutions -----------------------------------------------------------------------------------------


def _read(path: Path) -> _Graph:
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {one.name: tuple(one.dims) for one in graph.initializer if one.data_type == onnx.TensorProto.FLOAT}
    for one in (*graph.value_info, *graph.input, *graph.output):
        kind = one.type.tensor_type
        sizes = tuple(dim.dim_value for dim in kind.shape.dim)
        if kind.elem_type == onnx.TensorProto.FLOAT and all(sizes):
            shapes[one.name] = sizes
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    constants = {one.name: one for one in graph.initializer}
    return _Graph(graph.node, readers, frozenset(one.name for one in graph.output), shapes, constants)


def _key(graph: _Graph, node: Any, taken: set[str]) -> str | None:
    """`taken` are the sums that are behind another convolution, and then those of this one as well."""
    from onnx import helper

    told = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    image, weights, result = (graph.shapes.get(name) for name in (*node.input[:2], node.output[0]))
    if not image or not weights or not result or not set(node.input[1:]) <= graph.constants.keys():
        return None
    rank = len(image) - 2
    attributes = {"strides": tuple(told.get("strides", (1,) * rank)), "pads": tuple(told.get("pads", (0,) * 2 * rank)),
                  "dilations": tuple(told.get("dilations", (1,) * rank)), "groups": told.get("group", 1)}  # fmt: skip
    is_of_points = math.prod(weights[2:]) == attributes["groups"] == 1 and not any(attributes["pads"])
    if rank not in {1, 2} or is_of_points or told.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    bias = [f"add=1x{weights[0]}" + "x1" * rank] * (len(node.input) > len(("x", "w")))
    steps = [*bias, *_behind(graph, node, len(bias), taken)]
    tensors = {"x": (image, "float32"), "w": (weights, "float32")}
    try:
        return operator_key(f"conv{rank}d", tensors, attributes, steps)
    except OperatorKeyError:
        return None


def _behind(graph: _Graph, node: Any, before: int, taken: set[str]) -> list[str]:
    """Return the steps from a convolution's result on, which nothing else needs; so many are `before` these."""
    steps: list[str] = []
    value, read = node.output[0], {node.input[0]}
    shape = graph.shapes[value]
    while value not in graph.outputs:
        readers = {one.op_type: one for one in graph.readers.get(value, ())}
        last: Any = readers.get("Mul")
        if readers.keys() == {"Sigmoid", "Mul"} and len(graph.readers[value]) == len(readers):
            factor = readers["Sigmoid"].output[0]
            if graph.only_reader(factor) is not last or {*last.input} != {value, factor}:
                break
            steps += ["sigmoid", f"multiply=${before + len(steps)}"]
        else:
            last = graph.only_reader(value)
            step = last and _step(graph, last, value, shape)
            others = {*last.input} - {value} if step and last.op_type == "Add" else set()
            if not step or others & read or (others and last.output[0] in taken):
                break
            if others:
                taken.add(last.output[0])
            read |= others
            steps.append(step)
        value = last.output[0]
    return steps


def _step(graph: _Graph, node: Any, value: str, shape: tuple[int, ...]) -> str | None:
    from onnx import numpy_helper

    if node.op_type == "Relu":
        return "relu"
    bounds = [graph.constants.get(name) for name in node.input[1:]]
    if node.op_type == "Clip" and len(bounds) == len(("low", "high")) and all(bound is not None for bound in bounds):
        low, high = (float(numpy_helper.to_array(bound)) for bound in bounds)
        return f"clip={number(low)},{number(high)}" if low <= high else None
    if node.op_type == "Add" and list(node.input).count(value) == 1:
        [other] = [name for name in node.input if name != value]
        # Of a single place it would look like a bias.
        is_other = graph.shapes.get(other) == shape and other not in graph.constants and math.prod(shape[2:]) > 1
        return f"add={'x'.join(map(str, shape))}" if is_other else None
    return None


# -- one of them as a network -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Convolution:
    """What the operator key of a convolution says; `steps` are those behind its bias."""

    kind: str
    image: tuple[int, ...]
    weights: tuple[int, ...]
    attributes: Mapping[str, tuple[int, ...]]
    has_bias: bool
    steps: tuple[str, ...]

    @staticmethod
    def parse(key: str) -> "_Convolution":
        operator = OperatorKey.parse(key)
        fields = dict(operator.fields)
        image, weights = (_sizes(fields.pop(name).partition(":")[0]) for name in ("x", "w"))
        bias = f"add=1x{weights[0]}" + "x1" * (len(weights) - 2)
        has_bias = operator.fused[:1] == (bias,)
        attributes = {name: _sizes(value) for name, value in fields.items()}
        steps = operator.fused[1:] if has_bias else operator.fused
        return _Convolution(operator.kind, image, weights, attributes, has_bias, steps)

    @property
    def result(self) -> tuple[int, ...]:
        rank = len(self.image) - 2
        pads = self.attributes.get("pads", (0,) * 2 * rank)
        steps, gaps = (self.attributes.get(name, (1,) * rank) for name in ("strides", "dilations"))
        sizes = zip(self.image[2:], self.weights[2:], pads[:rank], pads[rank:], steps, gaps, strict=True)
        return (self.image[0], self.weights[0],
                *((size + before + behind - gap * (taps - 1) - 1) // step + 1
                  for size, taps, before, behind, step, gap in sizes))  # fmt: skip


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


def write_model(key: str, path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    one, rng = _Convolution.parse(key), np.random.default_rng(zlib.crc32(key.encode()))
    attributes: dict[str, Any] = {name: sizes for name, sizes in one.attributes.items() if name != "groups"}
    attributes["group"] = one.attributes.get("groups", (1,))[0]
    constants = {"w": rng.standard_normal(one.weights) / math.sqrt(math.prod(one.weights[1:]))}
    if one.has_bias:
        constants["b"] = rng.standard_normal(one.weights[0])
    inputs = ["input0"]
    # Values are called by the number that a key has for them: a bias is the first step.
    now = int(one.has_bias)
    nodes = [helper.make_node("Conv", ["input0", *constants], [f"v{now}"], **attributes)]
    for step in one.steps:
        name, _, told = step.partition("=")
        operands = [f"v{now}"]
        if name == "clip":
            bounds = {f"bound{at}": np.array(float(bound)) for at, bound in enumerate(told.split(","))}
            constants |= bounds
            operands += bounds
        elif name == "add":
            inputs.append(f"input{len(inputs)}")
            operands.append(inputs[-1])
        elif name == "multiply":
            operands.append(f"v{told.removeprefix('$')}")
        now += 1
        nodes.append(helper.make_node(_NODES[name], operands, [f"v{now}"]))
    shapes = dict.fromkeys(inputs, one.result) | {"input0": one.image}
    graph = helper.make_graph(
        nodes, "main",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(f"v{now}", TensorProto.FLOAT, one.result)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", int(OPSET))], ir_version=_IR), path)
