"""The normal form: static, simplified, stable in name, and equal in value to the original."""

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_models import conv_net, model, run, save
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunery import models as frontends
from tunery._errors import ModelError
from tunery.domain import TensorSpec


def test_a_dynamic_model_becomes_static_and_keeps_its_values(tmp_path: Path) -> None:
    original = save(conv_net(), tmp_path / "net.onnx")
    network = frontends.prepare(original, {"x": (2, 3, 8, 8)}, tmp_path / "out")
    assert network.name == "net"
    assert network.source == original
    assert network.inputs == (TensorSpec("x", (2, 3, 8, 8), "float32"),)
    assert network.outputs == (TensorSpec("y", (2, 256), "float32"),)
    assert network.parameters == 4 * 27 + 4
    operators = [node.op_type for node in onnx.load(network.path).graph.node]
    assert operators == ["Conv", "Relu", "Reshape"]
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype("float32")
    np.testing.assert_allclose(run(network.path, {"x": x})[0], run(original, {"x": x})[0], rtol=1e-5)


def test_the_same_request_names_the_same_network_and_reuses_its_file(tmp_path: Path) -> None:
    original = save(conv_net(), tmp_path / "net.onnx")
    first = frontends.prepare(original, {"x": (1, 3, 8, 8)}, tmp_path)
    written = Path(first.path).stat().st_mtime_ns
    again = frontends.prepare(original, {"x": (1, 3, 8, 8)}, tmp_path)
    assert again == first
    assert Path(first.path).stat().st_mtime_ns == written
    assert Path(first.path).name == f"{first.digest}.onnx"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["net.onnx", f"{first.digest}.onnx", f"original {first.digest}.onnx"]
    )


def test_shapes_and_weights_are_part_of_the_digest(tmp_path: Path) -> None:
    original = save(conv_net(), tmp_path / "net.onnx")
    other = conv_net()
    other.graph.initializer[1].raw_data = np.zeros(4, "float32").tobytes()
    changed = save(other, tmp_path / "other.onnx")
    requests = [(original, (1, 3, 8, 8)), (original, (1, 3, 8, 9)), (changed, (1, 3, 8, 8))]
    assert len({frontends.prepare(path, {"x": shape}, tmp_path).digest for path, shape in requests}) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "weight", "seal", "longer"])
def test_a_damaged_prepared_file_is_written_again(damage: str, tmp_path: Path) -> None:
    proto = conv_net((1, 3, 8, 8))
    original, weight = save(proto, tmp_path / "net.onnx"), proto.graph.initializer[0].raw_data
    network = frontends.prepare(original, {}, tmp_path)
    whole = Path(network.path).read_bytes()
    assert whole.count(weight) == 1
    other = weight[:-1] + bytes([weight[-1] ^ 64])
    damaged = {"cut": whole[:100], "empty": b"", "weight": whole.replace(weight, other), "seal": whole[:-1] + b"?",
               "longer": whole + whole}[damage]  # fmt: skip
    Path(network.path).write_bytes(damaged)
    assert frontends.prepare(original, {}, tmp_path) == network
    assert Path(network.path).read_bytes() == whole
    onnx.checker.check_model(network.path)


def test_initialisers_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    proto = conv_net((1, 3, 8, 8))
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]))
    network = frontends.prepare(save(proto, tmp_path / "net.onnx"), {}, tmp_path)
    assert [spec.name for spec in network.inputs] == ["x"]


def test_an_input_and_a_constant_may_be_outputs(tmp_path: Path) -> None:
    proto = conv_net(("N", 3, 8, 8))
    proto.graph.output.extend(
        [
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8]),
        ]
    )
    network = frontends.prepare(save(proto, tmp_path / "net.onnx"), {"x": (2, 3, 8, 8)}, tmp_path)
    assert [spec.shape for spec in network.outputs][1:] == [(4, 3, 3, 3), (2, 3, 8, 8)]


def test_stale_shapes_of_other_values_are_dropped(tmp_path: Path) -> None:
    proto = conv_net()
    proto.graph.value_info.append(helper.make_tensor_value_info("conv", TensorProto.FLOAT, [1, 4, 99, 99]))
    network = frontends.prepare(save(proto, tmp_path / "net.onnx"), {"x": (1, 3, 8, 8)}, tmp_path)
    assert network.outputs[0].shape == (1, 256)


def test_external_data_is_read_and_identifies_the_network(tmp_path: Path) -> None:
    proto = conv_net((1, 3, 8, 8))
    inline = frontends.prepare(save(proto, tmp_path / "a.onnx"), {}, tmp_path)
    onnx.save(
        proto, str(tmp_path / "b.onnx"), save_as_external_data=True, location="b.bin", size_threshold=0,
        all_tensors_to_one_file=True,
    )  # fmt: skip
    x = {"x": np.ones((1, 3, 8, 8), "float32")}
    outside = frontends.prepare(str(tmp_path / "b.onnx"), {}, tmp_path)
    np.testing.assert_array_equal(run(outside.path, x)[0], run(inline.path, x)[0])
    (tmp_path / "b.bin").write_bytes(bytes(len((tmp_path / "b.bin").read_bytes())))
    assert frontends.prepare(str(tmp_path / "b.onnx"), {}, tmp_path).digest != outside.digest


def test_only_standard_operators_remain(tmp_path: Path) -> None:
    network = frontends.prepare("zoo:bert-tiny", {}, tmp_path)
    prepared = onnx.load(network.path)
    assert {node.domain for node in prepared.graph.node} == {""}
    assert [entry.domain for entry in prepared.opset_import] == [""]


def test_an_unwritable_directory_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="cannot be written"):
        frontends.prepare(save(conv_net((1, 3, 8, 8)), tmp_path / "n.onnx"), {}, tmp_path / "file" / "below")


def test_parameters_in_constant_nodes_count(tmp_path: Path) -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [8], [float(i) for i in range(8)])
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    network = frontends.prepare(save(model(nodes, {"x": (8,)}, {"y": (8,)}), tmp_path / "n.onnx"), {}, tmp_path)
    assert network.parameters == 8


def test_what_killed_workers_left_is_removed_and_what_runs_is_not(tmp_path: Path) -> None:
    for name, age in ((".scratch-old", 200_000), (".scratch-new", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "optimised.onnx").write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    frontends.prepare(save(conv_net((1, 3, 8, 8)), tmp_path / "n.onnx"), {}, tmp_path)
    assert not (tmp_path / ".scratch-old").exists()
    assert (tmp_path / ".scratch-new").exists()


def half_precision(proto: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return proto


def test_half_precision_stays_half_precision_and_is_folded_all_the_same(tmp_path: Path) -> None:
    original = save(half_precision(conv_net()), tmp_path / "half.onnx")
    network = frontends.prepare(original, {"x": (1, 3, 8, 8)}, tmp_path)
    prepared = onnx.load(network.path)
    assert [node.op_type for node in prepared.graph.node] == ["Conv", "Relu", "Reshape", "Identity"]
    kinds = {tensor.name: tensor.data_type for tensor in prepared.graph.initializer}
    assert kinds == {"w": TensorProto.FLOAT16, "b": TensorProto.FLOAT16, "target": TensorProto.INT64}
    assert network.inputs[0].dtype == network.outputs[0].dtype == "float16"
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float16")
    np.testing.assert_array_equal(run(network.path, {"x": x})[0], run(original, {"x": x})[0])


def test_every_quantisation_of_several_in_a_row_rounds(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[4] y)
        <float one = {1.0}, int8 none = {0}, float scale = {0.3}, int8 zero = {3}> {
        a = QuantizeLinear(x, one, none)  b = DequantizeLinear(a, one, none)
        c = QuantizeLinear(b, scale, zero)  y = DequantizeLinear(c, scale, zero) }""")
    original, x = save(proto, tmp_path / "q.onnx"), np.array([-0.9, 0.556, -0.24, 1.554], np.float32)
    network = frontends.prepare(original, {}, tmp_path / "out")
    (found,) = ReferenceEvaluator(network.path).run(None, {"x": x})
    np.testing.assert_allclose(found, np.float32([-0.9, 0.9, 0, 2.1]), rtol=1e-6)


def test_operators_of_the_optimiser_itself_are_not_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(proto: onnx.ModelProto, path: Path, aside: object) -> onnx.ModelProto:
        spoilt = onnx.ModelProto.FromString(proto.SerializeToString())
        spoilt.graph.node[0].domain = "com.microsoft"
        return spoilt

    monkeypatch.setattr("tunery.models.onnx._simplify._optimise", spoil)
    network = frontends.prepare(save(conv_net((1, 3, 8, 8)), tmp_path / "n.onnx"), {}, tmp_path)
    assert {node.domain for node in onnx.load(network.path).graph.node} == {""}


def test_large_weights_come_through_unchanged(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((256, 256)).astype("float32")
    multiplied = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = model([multiplied], {"x": (1, 256)}, {"y": (1, 256)}, {"w": values})
    network = frontends.prepare(save(proto, tmp_path / "large.onnx"), {}, tmp_path / "out")
    assert network.outputs == (TensorSpec("y", (1, 256), "float32"),)
    [weight] = onnx.load(network.path).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), values)


def test_what_is_prepared_can_be_optimised_again(tmp_path: Path) -> None:
    """ONNX Runtime makes constants with names of its own of a product of three dimensions and a sum behind it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["q"]), helper.make_node("Add", ["q", "b"], ["y"]),
    ]  # fmt: skip
    constants = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)}
    path = save(model(nodes, {"x": (1, 3, 4)}, {"y": (1, 3, 4)}, constants), tmp_path / "m.onnx")
    prepared = onnx.load(frontends.prepare(path, {}, tmp_path).path)
    assert not any(tensor.name.startswith("gemm_") for tensor in prepared.graph.initializer)


def test_a_prepared_model_may_be_a_part_of_another(tmp_path: Path) -> None:
    constants = {"w": np.ones((4, 5), np.float32), "b": np.ones(5, np.float32)}
    product = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
    first = save(model(product, {"x": (1, 3, 4)}, {"y": (1, 3, 5)}, constants), tmp_path / "first.onnx")
    whole = onnx.load(frontends.prepare(first, {}, tmp_path).path)
    whole.graph.node.add(op_type="Tanh", input=["y"], output=["t"])
    whole.graph.node.add(op_type="MatMul", input=["t", "v"], output=["q"])
    whole.graph.node.add(op_type="Add", input=["q", "c"], output=["z"])
    values = {"v": np.ones((5, 2), np.float32), "c": np.ones(2, np.float32)}
    whole.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    whole.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 3, 2)))
    path = save(whole, tmp_path / "whole.onnx")
    x = np.random.default_rng(1).standard_normal((1, 3, 4)).astype("float32")
    again = frontends.prepare(path, {}, tmp_path)
    np.testing.assert_allclose(run(again.path, {"x": x})[0], run(path, {"x": x})[0], rtol=1e-5)
