"""Products with weights of 4 bits in blocks: native, and equal to ONNX Runtime's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from byte_products import exact_session
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Array
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.constructs import check_program
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants.program import space_of
from tunery.domain import Candidate, Network
from tunery.measuring.inputs import make_inputs
from tunery.models import prepare

pytestmark = pytest.mark.tvm


def network(folder: Path, sizes: Sequence[int], block: int, *, zeros: bool = False, bias: bool = False, bits: int = 4,
            level: int = 4) -> Network:  # fmt: skip
    """Prepare `Relu(x W)` with random weights of rows, depth and channels in `sizes`."""
    *rows, depth, channels = sizes
    rng, blocks = np.random.default_rng(3), depth // block
    weights = rng.integers(0, 256, (channels, blocks, block * bits // 8), np.uint8)
    arrays = {"w": weights, "s": rng.uniform(0.005, 0.015, channels * blocks).astype(np.float32)}
    if zeros:
        arrays["z"] = rng.integers(0, 256, channels * ((blocks * bits + 7) // 8), np.uint8)
    if bias:
        arrays["b"] = rng.standard_normal(channels).astype(np.float32)
    given = ["x", *(name if name in arrays else "" for name in ("w", "s", "z", "", "b"))]
    while not given[-1]:
        given.pop()
    kind = {"K": depth, "N": channels, "bits": bits, "block_size": block, "accuracy_level": level}
    nodes = [
        helper.make_node("MatMulNBits", given, ["h"], domain="com.microsoft", **kind),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, channels])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "n.onnx")
    return prepare(str(folder / "n.onnx"), {}, folder)


def data_of(sizes: Sequence[int]) -> Array:
    x = np.random.default_rng(4).standard_normal(sizes[:-1]).astype(np.float32)
    x[..., :16] = 0
    return x


def assert_as_onnxruntime(ours: Array, path: str, x: Array, share: float) -> None:
    """Compare with both of its ways, of which a model allows either: with data in bytes, as with VNNI, and in float."""
    usual = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ways = [session.run(None, {"x": x})[0] for session in (usual, exact_session(path))]
    assert min(np.abs(ours - way).max() / np.abs(way).max() for way in ways) <= share


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        ((1, 64, 48), 32),
        ((5, 96, 33), 32),
        ((1, 3, 128, 16), 16),
        ((2, 4, 256, 100), 128),
        ((17, 32, 7), 32),
        ((64, 20), 32),
        ((5, 5, 1152, 33), 64),
    ],
)
@pytest.mark.parametrize("level", [0, 4])
def test_they_are_native_and_right(tmp_path: Path, sizes: tuple[int, ...], block: int, zeros: bool, level: int) -> None:
    prepared = network(tmp_path, sizes, block, zeros=zeros, bias=len(sizes) > 3, level=level)
    dialect = MetaScheduleDialect()
    made = dialect.compile(prepared, dialect.resolve_target("native", 1), {}, tmp_path / "n.tunery")
    assert not made.elsewhere
    x = data_of(sizes)
    [ours] = load_compiled(tmp_path / "n.tunery", 1)(x)
    assert_as_onnxruntime(ours, prepared.path, x, 1e-3)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(
    ("sizes", "zeros"), [((1, 64, 96), True), ((7, 64, 33), True), ((19, 1024, 33), False), ((2, 12, 64, 32), True)]
)
def test_every_schedule_is_right(tmp_path: Path, sizes: tuple[int, ...], zeros: bool, level: int) -> None:
    dialect = MetaScheduleDialect()
    target = dialect.resolve_target("native", 1)
    prepared = network(tmp_path, sizes, 32, zeros=zeros, bias=True, level=level)
    [task] = dialect.extract(prepared, target)
    check_program(task.workload.program)
    chosen = SurrogateProposer(task, space_of(task), [], None, 0).propose(6)
    assert chosen
    inputs = make_inputs(task.workload.input_specs, 0)

    def output(candidate: Candidate) -> Array:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        return kernel.outputs()[0]

    expected = output(dialect.reference(task))
    for candidate in chosen:
        np.testing.assert_allclose(output(candidate), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    dialect.compile(prepared, target, {task.workload.key: chosen[0]}, tmp_path / "n.tunery")
    x = data_of(sizes)
    [ours] = load_compiled(tmp_path / "n.tunery", 1)(x)
    assert_as_onnxruntime(ours, prepared.path, x, 1e-3)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("gemm", [False, True])
def test_dequantised_weights_stay_in_4_bits(tmp_path: Path, gemm: bool, signed: bool) -> None:
    rng, depth, channels, block = np.random.default_rng(6), 96, 40, 32
    axis, shape = (1, (channels, depth)) if gemm else (0, (depth, channels))
    kind = TensorProto.INT4 if signed else TensorProto.UINT4
    low = -8 if signed else 0
    by_block = tuple(size // block if at == axis else size for at, size in enumerate(shape))
    constants = [
        helper.make_tensor("w", kind, shape, rng.integers(low, low + 16, shape).reshape(-1)),
        numpy_helper.from_array(rng.uniform(0.005, 0.015, by_block).astype(np.float32), "s"),
        numpy_helper.from_array(rng.standard_normal(channels).astype(np.float32), "b"),
        *([] if gemm else [helper.make_tensor("z", kind, by_block, rng.integers(low, low + 16, by_block).reshape(-1))]),
    ]
    product = helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1) if gemm else None
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *(() if gemm else ("z",))], ["d"], axis=axis, block_size=block),
        product or helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, channels])
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "n.onnx")
    prepared = prepare(str(tmp_path / "n.onnx"), {}, tmp_path)
    dialect = MetaScheduleDialect()
    target = dialect.resolve_target("native", 1)
    [task] = [task for task in dialect.extract(prepared, target) if task.workload.kind == "matmul"]
    assert "uint8" in {spec.dtype for spec in task.workload.input_specs}
    made = dialect.compile(prepared, target, {}, tmp_path / "n.tunery")
    assert not made.elsewhere
    data = data_of((5, depth, channels))
    [ours] = load_compiled(tmp_path / "n.tunery", 1)(data)
    assert_as_onnxruntime(ours, prepared.path, data, 1e-4)


@pytest.mark.parametrize("bits", [2, 8])
def test_other_sizes_run_in_onnx_runtime(tmp_path: Path, bits: int) -> None:
    prepared = network(tmp_path, (3, 64, 32), 32, bits=bits, level=0)
    dialect = MetaScheduleDialect()
    made = dialect.compile(prepared, dialect.resolve_target("native", 1), {}, tmp_path / "n.tunery")
    assert made.elsewhere
