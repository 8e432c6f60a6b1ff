"""Quantised networks: products in integers, exactly as ONNX Runtime computes them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from byte_products import exact_session
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Array
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants import dots
from tunery.dialects.metaschedule.variants.program import space_of, tvm_target, variants
from tunery.domain import Candidate, Target
from tunery.measuring.inputs import make_inputs
from tunery.models import prepare

pytestmark = pytest.mark.tvm
SLOW = pytest.mark.slow  # each of two properties is in a case that is not


class Net:
    """An ONNX graph that quantises, written node by node."""

    def __init__(self, shape: Sequence[int], *, signed: bool = False) -> None:
        self.kind: type[np.generic] = np.int8 if signed else np.uint8
        self._rng = np.random.default_rng(5)
        self._shape = shape
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._count = 0

    def constant(self, array: np.ndarray) -> str:
        self._count += 1
        self._constants.append(numpy_helper.from_array(array, f"c{self._count}"))
        return f"c{self._count}"

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        self._count += 1
        self._nodes.append(helper.make_node(kind, inputs, [f"v{self._count}"], domain=domain, **attributes))
        return f"v{self._count}"

    def parameters(self, scale: float, zero: int) -> tuple[str, str]:
        return self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, self.kind))

    def quantised(self, value: str, scale: float, zero: int) -> str:
        parameters = self.parameters(scale, zero)
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *parameters), *parameters)

    def weights(self, *shape: int, scales: int = 1, axis: int = 0) -> str:
        values = self._rng.integers(-127, 128, shape).astype(np.int8)
        scale = self._rng.uniform(0.01, 0.02, scales).astype(np.float32)
        zero = np.zeros(scales, np.int8)
        scale, zero = (scale, zero) if scales > 1 else (scale[0], zero[0])
        given = self.constant(values), self.constant(np.asarray(scale)), self.constant(np.asarray(zero))
        return self.node("DequantizeLinear", *given, axis=axis)

    def save(self, path: Path, result: str) -> Path:
        """Write it as a file, with one input called x."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self._shape)
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self._nodes, "net", [x], [y], self._constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
        return path


def compared(path: Path, x: Array, folder: Path) -> tuple[Array, Array]:
    """Return a network's output with our kernels, all of them native, and with ONNX Runtime's."""
    dialect = MetaScheduleDialect()
    network = prepare(str(path), {}, folder)
    made = dialect.compile(network, dialect.resolve_target("native", 1), {}, folder / "n.tunery")
    assert not made.elsewhere
    [ours] = load_compiled(folder / "n.tunery", 1)(x)
    [theirs] = exact_session(str(path)).run(None, {"x": x})
    return np.asarray(ours), np.asarray(theirs)


def _image(*shape: int) -> Array:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("signed", "scales"),
    [(False, 40), (True, 1), pytest.param(False, 1, marks=SLOW), pytest.param(True, 40, marks=SLOW)],
)
def test_dense_layers_are_exact(tmp_path: Path, signed: bool, scales: int) -> None:
    net = Net((7, 50), signed=signed)
    zero = 3 if signed else 131
    hidden = net.node("MatMul", net.quantised("x", 0.008, zero), net.weights(50, 40, scales=scales, axis=1))
    after = net.quantised(net.node("Relu", net.quantised(hidden, 0.09, zero)), 0.05, zero)
    weights = net.weights(24, 40, scales=24 if scales > 1 else 1)
    bias = net.constant(np.linspace(-2, 2, 24).astype(np.float32))
    result = net.quantised(net.node("Gemm", after, weights, bias, transB=1), 0.2, zero)
    ours, theirs = compared(net.save(tmp_path / "n.onnx", result), _image(7, 50), tmp_path)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("pads", "stride", "signed"),
    [
        ((1, 1, 1, 1), 1, False), ((0, 1, 2, 0), 2, True), ((0, 0, 0, 0), 1, False),
        pytest.param((1, 1, 1, 1), 1, True, marks=SLOW), pytest.param((0, 1, 2, 0), 2, False, marks=SLOW),
        pytest.param((0, 0, 0, 0), 1, True, marks=SLOW),
    ],
)  # fmt: skip
def test_convolutions_are_exact_and_padded_with_their_zero_point(
    tmp_path: Path, signed: bool, pads: tuple[int, ...], stride: int
) -> None:
    net = Net((1, 3, 9, 10), signed=signed)
    zero = -20 if signed else 117
    kernel = net.weights(20, 3, 3, 3, scales=20)
    data = net.quantised("x", 0.008, zero)
    first = net.node("Conv", data, kernel, pads=list(pads), strides=[stride, stride])
    kept = net.quantised(first, 0.06, zero)
    second = net.quantised(net.node("Conv", kept, net.weights(20, 20, 1, 1)), 0.11, zero)
    result = net.quantised(net.node("Add", kept, second), 0.13, zero)
    ours, theirs = compared(net.save(tmp_path / "n.onnx", result), _image(1, 3, 9, 10), tmp_path)
    assert np.abs(ours - theirs).max() <= 0.131  # ONNX Runtime's sum of integers rounds otherwise, by a step
    assert np.mean(ours == theirs) > 0.98


def with_dots(dialect: MetaScheduleDialect) -> Target:
    """Return the target of a processor with dot products of bytes, which the one at hand may lack: nothing is run."""
    here = dialect.resolve_target("x86-64-v3", 1)
    config = {name: value for name, value in here.config.items() if name != "vector-width"}
    return replace(here, config={**config, "mcpu": "znver4"})


@pytest.mark.parametrize(
    ("group", "signed"),
    [(4, True), (20, False), pytest.param(4, False, marks=SLOW), pytest.param(20, True, marks=SLOW)],
)
def test_grouped_convolutions_are_in_integers_and_exact(tmp_path: Path, group: int, signed: bool) -> None:
    net = Net((1, 20, 9, 10), signed=signed)
    zero = -20 if signed else 117
    kernel = net.weights(40, 20 // group, 3, 3, scales=40)
    made = net.node("Conv", net.quantised("x", 0.008, zero), kernel, group=group, pads=[1, 0, 1, 2], strides=[2, 1])
    path = net.save(tmp_path / "n.onnx", net.quantised(made, 0.05, zero))
    ours, theirs = compared(path, _image(1, 20, 9, 10), tmp_path)
    np.testing.assert_array_equal(ours, theirs)
    dialect = MetaScheduleDialect()
    tasks = dialect.extract(prepare(str(path), {}, tmp_path), with_dots(dialect))
    [_, weights, *_] = next(task.workload.arguments for task in tasks if "conv" in task.workload.name)
    assert weights.dtype == "int8"


@pytest.mark.parametrize(("group", "dtype"), [(2, "float32"), (32, "int8")])
def test_wide_groups_are_in_integers_only_where_that_is_faster(group: int, dtype: str, tmp_path: Path) -> None:
    net = Net((1, 32, 8, 8))
    made = net.node("Conv", net.quantised("x", 0.008, 120), net.weights(32, 32 // group, 3, 3), group=group)
    path = net.save(tmp_path / "n.onnx", net.quantised(made, 0.05, 120))
    dialect = MetaScheduleDialect()
    tasks = dialect.extract(prepare(str(path), {}, tmp_path), dialect.resolve_target("x86-64-v3", 1))
    [_, weights, *_] = next(task.workload.arguments for task in tasks if "conv" in task.workload.name)
    assert weights.dtype == dtype


def test_layers_that_differ_by_their_scales_are_one_task(tmp_path: Path) -> None:
    net = Net((4, 64))
    value = net.quantised("x", 0.008, 120)
    for scale in (0.3, 0.5, 0.7):
        value = net.quantised(net.node("MatMul", value, net.weights(64, 64)), scale, 120)
    dialect = MetaScheduleDialect()
    network = prepare(str(net.save(tmp_path / "n.onnx", value)), {}, tmp_path)
    tasks = dialect.extract(network, with_dots(dialect))
    assert sorted(task.weight for task in tasks if task.workload.kind == "matmul") == [1, 2]  # the last is dequantised


@pytest.mark.parametrize(
    ("processor", "shape"),
    [
        ("native", (23, 50)), ("native", (1, 70)), ("native", (1, 3, 14, 14)), ("x86-64-v3", (1, 3, 14, 14)),
        pytest.param("native", (1, 20, 9, 9), marks=SLOW), pytest.param("x86-64-v3", (23, 50), marks=SLOW),
        pytest.param("x86-64-v3", (1, 70), marks=SLOW),
    ],
)  # fmt: skip
def test_what_the_designs_of_dot_products_compute_is_exact(
    processor: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    dialect = MetaScheduleDialect()
    target = dialect.resolve_target(processor, 1)
    if dots.instruction_of(tvm_target(target)) is None:
        pytest.skip("this processor has no dot products")
    net = Net(shape)
    data = net.quantised("x", 0.008, 120)
    if len(shape) > 2:
        made = net.node("Conv", data, net.weights(40, shape[1], 3, 3, scales=40), pads=[1, 1, 1, 1])
    else:
        made = net.node("MatMul", data, net.weights(shape[1], 40, scales=40, axis=1))
    network = prepare(str(net.save(tmp_path / "n.onnx", net.quantised(made, 0.3, 120))), {}, tmp_path)
    [task] = [task for task in dialect.extract(network, target) if dots.NAME in variants(task).found]
    chosen = SurrogateProposer(task, space_of(task, dots.NAME), [], None, 0).propose(6)
    assert chosen
    inputs = make_inputs(task.workload.input_specs, 0)

    def outputs(candidate: Candidate) -> list[Array]:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        return list(kernel.outputs())

    [expected] = outputs(dialect.reference(task))
    for candidate in chosen:
        [found] = outputs(candidate)
        np.testing.assert_array_equal(found, expected)
    dialect.compile(network, target, {task.workload.key: chosen[0]}, tmp_path / "compiled")
    x = _image(*shape)
    [theirs] = exact_session(network.source).run(None, {"x": x})
    np.testing.assert_array_equal(load_compiled(tmp_path / "compiled", 1)(x)[0], theirs)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1), (1,)])
def test_a_bias_is_added_where_its_shape_says(tmp_path: Path, shape: tuple[int, ...]) -> None:
    net = Net((4, 16))
    bias = net.constant(np.linspace(-3, 3, 4)[: np.prod(shape)].reshape(shape).astype(np.float32))
    made = net.node("Gemm", net.quantised("x", 0.008, 120), net.weights(16, 4), bias)
    ours, theirs = compared(net.save(tmp_path / "n.onnx", made), _image(4, 16), tmp_path)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_parameters_may_be_arrays_of_one_element_and_the_zero_point_absent(tmp_path: Path) -> None:
    net = Net((4, 16))
    scale, zero = net.constant(np.array([0.008], np.float32)), net.constant(np.array([120], np.uint8))
    data = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", scale, zero), scale, zero)
    hidden = net.node("Relu", net.node("MatMul", data, net.weights(16, 8)))
    result = net.node("DequantizeLinear", net.node("QuantizeLinear", hidden, scale), scale)
    ours, theirs = compared(net.save(tmp_path / "n.onnx", result), _image(4, 16), tmp_path)
    np.testing.assert_array_equal(ours, theirs)


def test_a_table_is_looked_up_before_it_is_dequantised(tmp_path: Path) -> None:
    net = Net((3, 8))
    table = net.weights(500, 8)
    ids = net.constant(np.array([7, 0, 499]))
    result = net.node("Add", "x", net.node("Gather", table, ids))
    path = net.save(tmp_path / "n.onnx", result)
    ours, theirs = compared(path, _image(3, 8), tmp_path)
    np.testing.assert_array_equal(ours, theirs)
