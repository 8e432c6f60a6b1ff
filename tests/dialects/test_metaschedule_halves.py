"""Half precision is computed in single where the processor has no arithmetic for it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.importing import lowering
from tunery.dialects.metaschedule.importing.halves import in_single
from tunery.domain import Network
from tunery.models import prepare

pytestmark = pytest.mark.tvm
_HALF, _SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT


def half_network(directory: Path, border: str = "") -> Network:
    """Products in half precision around an operator, with a mask that the network makes itself."""
    rng = np.random.default_rng(4)
    arrays = {"w": rng.standard_normal((24, 32)) / 5, "v": rng.standard_normal((32, 8)) / 5}
    between = {
        "": helper.make_node("Sigmoid", ["a"], ["b"]),
        "another type": helper.make_node("Cast", ["a"], ["b"], to=_HALF),
        "a segment": helper.make_node("FusedConv", ["a4", "k"], ["b4"], domain="com.microsoft", activation="Clip",
                                      activation_params=[-1.0, 1.0]),
    }[border]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("ConstantOfShape", ["shape"], ["one"],
                         value=numpy_helper.from_array(np.ones(1, np.float16), "value")),
        helper.make_node("Add", ["m", "one"], ["a"]),
        between,
        helper.make_node("MatMul", ["b", "v"], ["y"]),
        helper.make_node("Cast", ["y"], ["z"], to=_SINGLE),
    ]  # fmt: skip
    if border == "a segment":
        nodes[3:4] = [
            helper.make_node("Reshape", ["a", "image"], ["a4"]),
            between,
            helper.make_node("Reshape", ["b4", "rows"], ["b"]),
        ]
        arrays["k"] = rng.standard_normal((1, 1, 1, 1))
    constants = [numpy_helper.from_array(array.astype(np.float16), name) for name, array in arrays.items()]
    sizes = {"shape": [32], "image": [1, 1, 16, 32], "rows": [16, 32]}
    constants += [numpy_helper.from_array(np.array(size), name) for name, size in sizes.items()]
    graph = helper.make_graph(
        nodes, "half", [helper.make_tensor_value_info("x", _HALF, [16, 24])],
        [helper.make_tensor_value_info("y", _HALF, [16, 8]), helper.make_tensor_value_info("z", _SINGLE, [16, 8])],
        constants,
    )  # fmt: skip
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = directory / "half.onnx"
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)
    return prepare(str(path), {}, directory)


@pytest.mark.parametrize("border", ["", "another type", "a segment"])
def test_all_between_inputs_and_outputs_is_computed_in_single(border: str, dialect: Dialect, tmp_path: Path) -> None:
    network = half_network(tmp_path, border)
    target = dialect.resolve_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}', 1)
    tasks = dialect.extract(network, target)
    products = [task.workload for task in tasks if task.workload.kind == "matmul"]
    assert products
    assert {spec.dtype for one in products for spec in one.input_specs} <= {"float32"}
    compiled = dialect.compile(network, target, {}, tmp_path / "compiled")
    assert bool(compiled.elsewhere) == (border == "a segment")
    x = np.random.default_rng(1).standard_normal((16, 24)).astype(np.float16)
    found = load_compiled(tmp_path / "compiled")(x)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    for ours, theirs in zip(found, session.run(None, {"x": x}), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), rtol=5e-3, atol=5e-3)


def test_an_output_in_half_precision_may_have_a_size_that_depends_on_the_data(dialect: Dialect, tmp_path: Path) -> None:
    weights = np.random.default_rng(4).standard_normal((24, 32)).astype(np.float16)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Compress", ["x", "is_first"], ["z"], axis=0),
    ]
    graph = helper.make_graph(
        nodes, "half",
        [helper.make_tensor_value_info("x", _HALF, [16, 24]),
         helper.make_tensor_value_info("is_first", TensorProto.BOOL, [16])],
        [helper.make_tensor_value_info("y", _HALF, [16, 32]), helper.make_tensor_value_info("z", _HALF, ["n", 24])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    path = tmp_path / "half.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    network = prepare(str(path), {}, tmp_path)
    target = dialect.resolve_target('{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}', 1)
    compiled = dialect.compile(network, target, {}, tmp_path / "compiled")
    assert len(compiled.elsewhere) == 1
    x = np.random.default_rng(1).standard_normal((16, 24)).astype(np.float16)
    chosen = np.arange(16) % 3 == 0
    product, kept = load_compiled(tmp_path / "compiled")(x, chosen)
    np.testing.assert_allclose(product, x.astype(np.float32) @ weights.astype(np.float32), rtol=5e-3, atol=5e-3)
    np.testing.assert_array_equal(kept, x[chosen])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"mcpu": "sapphirerapids"}, True),
        ({"mcpu": "znver5"}, False),
        ({"mcpu": "x86-64"}, False),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, True),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, False),
    ],
)
def test_a_processor_with_arithmetic_for_it_is_known(spec: dict[str, str], expected: bool) -> None:
    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.importing.halves import has_halves

    assert has_halves(tvm.target.Target({"kind": "llvm", **spec})) == expected


def test_a_whole_power_is_rounded_once(dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor has arithmetic for half precision, each product of the chain would be rounded to it."""
    monkeypatch.setattr(lowering, "has_halves", lambda _: True)
    x, y = (helper.make_tensor_value_info(name, _HALF, [64]) for name in "xy")
    exponent = numpy_helper.from_array(np.array(7, np.float16), "seven")
    graph = helper.make_graph([helper.make_node("Pow", ["x", "seven"], ["y"])], "power", [x], [y], [exponent])
    path = tmp_path / "power.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    network = prepare(str(path), {}, tmp_path)
    dialect.compile(network, dialect.resolve_target("native", 1), {}, tmp_path / "compiled")
    x = np.linspace(0.5, 1.5, 64).astype(np.float16)
    [found] = load_compiled(tmp_path / "compiled")(x)
    np.testing.assert_array_max_ulp(found, (x.astype(np.float64) ** 7).astype(np.float16), maxulp=1)


def test_what_several_nodes_read_in_half_precision_is_rounded_once() -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["a"])]
    nodes += [helper.make_node("Sign", ["a"], [name]) for name in ("b", "c")]
    nodes += [helper.make_node("Sign", ["b"], ["d"]), helper.make_node("Add", ["c", "d"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, _HALF, [4]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "half", [x], [y]), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    single = in_single(onnx.shape_inference.infer_shapes(model))
    onnx.checker.check_model(single)
    values = np.array([-2.0, 0.0, 1e-5, 3.0], np.float16)
    wanted, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, {"x": values}) for one in (model, single)
    )
    np.testing.assert_array_equal(found, wanted)
