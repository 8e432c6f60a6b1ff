"""Networks that ONNX Runtime's own tool quantised, to operators on quantised values or as they run, all native."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byte_products import exact_session
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Array
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.variants import place_sums
from tunery.dialects.metaschedule.variants.program import variants
from tunery.domain import Network
from tunery.models import prepare

pytestmark = pytest.mark.tvm

SHAPE = (1, 8, 12, 12)
STEP = 0.02
"""More than one step of the results' quantisation: a rounding may fall otherwise."""


def network(folder: Path) -> Path:
    """Write convolutions (dense, strided, depthwise), an addition, a concatenation, pools, a product, activations."""
    rng = np.random.default_rng(2)
    constants: list[onnx.TensorProto] = []

    def weights(*shape: int) -> str:
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        constants.append(numpy_helper.from_array(array, f"w{len(constants)}"))
        return constants[-1].name

    def node(kind: str, *names: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(kind, names[:-1], [names[-1]], names[-1], **attributes)

    nodes = [
        node("Conv", "x", weights(16, 8, 3, 3), weights(16), "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b", weights(16, 1, 3, 3), weights(16), "c", group=16, pads=[1, 1, 1, 1]),
        node("LeakyRelu", "c", "d", alpha=0.1),
        node("Add", "b", "d", "e"),
        node("Concat", "b", "e", "f", axis=1),
        node("MaxPool", "f", "g", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "g", weights(24, 32, 3, 3), "h", strides=[2, 2]),
        node("Sigmoid", "h", "i"),
        node("Mul", "h", "i", "j"),
        node("GlobalAveragePool", "j", "k"),
        node("Flatten", "k", "l"),
        node("Gemm", "l", weights(10, 24), weights(10), "y", transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, (1, 10))], constants
    )
    path = folder / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class Readings(quantization.CalibrationDataReader):  # type: ignore[misc] # has no types
    """Inputs to calibrate with."""

    def __init__(self) -> None:
        self._left = [image(seed) for seed in range(4)]

    def get_next(self) -> dict[str, Array] | None:
        return {"x": self._left.pop()} if self._left else None


def image(seed: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def static(source: Path, made: Path, **how: object) -> None:
    form = quantization.QuantFormat.QOperator
    quantization.quantize_static(source, made, Readings(), quant_format=form, **how)


def dynamic(source: Path, made: Path) -> None:
    quantization.quantize_dynamic(source, made)


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "static": static,
    "per channel": lambda source, made: static(source, made, per_channel=True),
    "signed": lambda source, made: static(source, made, activation_type=quantization.QuantType.QInt8),
    "dynamic": dynamic,
}


@pytest.mark.parametrize(
    ("how", "target"),
    [
        ("static", "native"), ("dynamic", "native"),
        *(pytest.param(how, "native", marks=pytest.mark.slow) for how in ("per channel", "signed")),
        *(pytest.param(how, "core-avx2", marks=pytest.mark.slow) for how in WAYS),
    ],
)  # fmt: skip
def test_a_quantised_network_is_native_and_right(how: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "quantised.onnx"
    WAYS[how](network(tmp_path), path)
    dialect = MetaScheduleDialect()
    prepared = prepare(str(path), {}, tmp_path / "prepared")
    made = dialect.compile(prepared, dialect.resolve_target(target, 1), {}, tmp_path / "n.tunery")
    assert not made.elsewhere
    x = image(9)
    [ours] = load_compiled(tmp_path / "n.tunery", 1)(x)
    [theirs] = exact_session(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, atol=STEP * float(np.ptp(theirs)))


def integers(kind: str, path: Path, **attributes: Any) -> None:
    """Write one product of integers as ONNX defines it, with a zero point of the data that is not known before."""
    rng = np.random.default_rng(4)
    kernel = (12, 6 // attributes.get("group", 1), 3, 3)
    shapes = ((2, 5, 24), (24, 7)) if kind == "MatMulInteger" else ((1, 6, 9, 9), kernel)
    weights = numpy_helper.from_array(rng.integers(100, 200, shapes[1]).astype(np.uint8), "w")
    zero = numpy_helper.from_array(np.array(140, np.uint8), "w_zero")
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.UINT8, shapes[0]), value("zero", TensorProto.UINT8, [])]
    node = helper.make_node(kind, ["x", "w", "zero", "w_zero"], ["y"], **attributes)
    graph = helper.make_graph([node], "net", inputs, [value("y", TensorProto.INT32, None)], [weights, zero])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MatMulInteger", {}), ("ConvInteger", {}), ("ConvInteger", {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ("ConvInteger", {"group": 6, "pads": [1, 1, 1, 1]}), ("ConvInteger", {"group": 3}),
    ],
)  # fmt: skip
def test_integers_are_the_same_to_the_last(kind: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "integers.onnx"
    integers(kind, path, **attributes)
    dialect = MetaScheduleDialect()
    prepared = prepare(str(path), {}, tmp_path / "prepared")
    made = dialect.compile(prepared, dialect.resolve_target("native", 1), {}, tmp_path / "n.tunery")
    assert not made.elsewhere
    rng = np.random.default_rng(6)
    feed = {"x": rng.integers(0, 256, prepared.inputs[0].shape).astype(np.uint8), "zero": np.array(117, np.uint8)}
    [ours] = load_compiled(tmp_path / "n.tunery", 1)(*feed.values())
    [theirs] = exact_session(str(path)).run(None, feed)
    np.testing.assert_array_equal(ours, theirs)


def quantising(folder: Path, shape: tuple[int, ...]) -> Network:
    """Write a network that quantises values as it runs."""
    value = helper.make_tensor_value_info
    scale, zero = value("s", TensorProto.FLOAT, []), value("z", TensorProto.UINT8, [])
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    outputs = [value("y", TensorProto.UINT8, shape), scale, zero]
    graph = helper.make_graph([node], "net", [value("x", TensorProto.FLOAT, shape)], outputs)
    path = folder / "quantising.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return prepare(str(path), {}, folder / "prepared")


@pytest.mark.parametrize("shape", [(1, 32, 64), (3, 48), (5, 7), (1,)])
def test_values_are_quantised_by_their_range(shape: tuple[int, ...], tmp_path: Path) -> None:
    network, dialect = quantising(tmp_path, shape), MetaScheduleDialect()
    dialect.compile(network, dialect.resolve_target("native", 1), {}, tmp_path / "n.tunery")
    ours = load_compiled(tmp_path / "n.tunery", 1)
    theirs = exact_session(network.path)
    spread = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    for x in (spread, np.abs(spread) + 1, -np.abs(spread), np.zeros(shape, np.float32)):
        steps, *parameters = ours(x)
        their_steps, *their_parameters = theirs.run(None, {"x": x})
        for one, other in zip(parameters, their_parameters, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        assert np.abs(steps.astype(int) - their_steps).max() <= 1  # of a value half-way between two


def test_the_range_of_values_is_found_in_vectors_and_the_rest_is_no_reduction(tmp_path: Path) -> None:
    network, dialect = quantising(tmp_path, (1, 32, 64)), MetaScheduleDialect()
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    assert sum(place_sums.NAME in variants(task).found for task in tasks) == 2
    [last] = [task for task in tasks if task.workload.arguments[-1].size == 32 * 64]
    assert last.workload.kind == "elementwise"


def test_products_that_differ_by_their_scales_are_one_task(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((64, 64)).astype(np.float32) * size for size in (0.1, 0.3, 0.2)]
    nodes = [helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"]) for at in range(3)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "net", [value("x0", TensorProto.FLOAT, [32, 64])], [value("x3", TensorProto.FLOAT, [32, 64])],
        [numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(arrays)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "f.onnx")
    dynamic(tmp_path / "f.onnx", tmp_path / "q.onnx")
    network, dialect = prepare(str(tmp_path / "q.onnx"), {}, tmp_path / "prepared"), MetaScheduleDialect()
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    assert [task.weight for task in tasks if task.workload.kind == "matmul"] == [3]
