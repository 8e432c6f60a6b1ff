"""Products with weights of 4 bits in blocks: native, and equal to ONNX Runtime's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery.devices import open_device
from tunery.dialects import Array
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
from tunery.dialects.metaschedule.variants import nibbles
from tunery.dialects.metaschedule.variants.program import space_of, variants
from tunery.domain import Network
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


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("sizes", "block"),
    [((1, 64, 48), 32), ((5, 96, 33), 32), ((1, 3, 128, 16), 16), ((2, 4, 256, 100), 128), ((17, 32, 7), 32)],
)
def test_they_are_native_and_right(tmp_path: Path, sizes: tuple[int, ...], block: int, zeros: bool) -> None:
    prepared = network(tmp_path, sizes, block, zeros=zeros, bias=len(sizes) > 3)
    dialect = MetaScheduleDialect()
    made = dialect.compile(prepared, dialect.resolve_target("native", 1), {}, tmp_path / "n.tunery")
    assert not made.elsewhere
    x = data_of(sizes)
    [ours] = dialect.load_network(tmp_path / "n.tunery", 1)(x)
    [theirs] = onnxruntime.InferenceSession(prepared.path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())
