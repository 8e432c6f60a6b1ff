"""A network whose weights lie beside its file: imported without a copy of them, compiled with one in the file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery._archive import Archive
from tunery.delivery.files.loading import load_compiled
from tunery.dialects import get_dialect
from tunery.dialects.metaschedule.codegen.compilation import compile_network
from tunery.dialects.metaschedule.importing.lowering import lower
from tunery.domain import Network, TensorSpec

pytestmark = pytest.mark.tvm

ROWS, COLUMNS, WIDTH = 40_000, 1024, 4096
TABLE_BYTES = ROWS * COLUMNS * 4


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """A lookup in 164 MB and a product with 17 MB, in a file of holes but for a few rows."""
    rng = np.random.default_rng(3)
    rows, matrix = rng.standard_normal((2, COLUMNS), np.float32), rng.standard_normal((COLUMNS, WIDTH), np.float32)
    with (tmp_path / "weights").open("wb") as file:
        file.write(rows.tobytes())
        file.seek(TABLE_BYTES)
        file.write(matrix.tobytes())
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("MatMul", ["e", "matrix"], ["y"])],
        "large", [value("ids", TensorProto.INT64, [1, 3])], [value("y", TensorProto.FLOAT, [1, 3, WIDTH])],
        value_info=[value("e", TensorProto.FLOAT, [1, 3, COLUMNS])],
    )  # fmt: skip
    for name, shape, offset in (("table", (ROWS, COLUMNS), 0), ("matrix", (COLUMNS, WIDTH), TABLE_BYTES)):
        weight = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=shape)
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "weights"), ("offset", str(offset)), ("length", str(4 * shape[0] * shape[1]))):
            weight.external_data.add(key=key, value=text)
    path = tmp_path / "large.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    inputs, outputs = (TensorSpec("ids", (1, 3), "int64"),), (TensorSpec("y", (1, 3, WIDTH), "float32"),)
    return Network("large", str(path), "large", str(path), inputs, outputs, 0, weights="weights")


def own_bytes() -> int:
    """Return how much memory this process has that no file backs."""
    told = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["RssAnon"].split()[0]) << 10


def test_large_weights_are_neither_read_nor_copied_by_an_import(network: Network) -> None:
    target = get_dialect("metaschedule").resolve_target("native", 1)
    lower(replace(network, digest="before"), target)  # whatever is loaded once
    before = own_bytes()
    lowered = lower(network, target)
    assert own_bytes() - before < TABLE_BYTES // 4
    assert lowered.calls


def test_large_weights_are_kept_beside_the_code_whoever_scheduled_it(network: Network, tmp_path: Path) -> None:
    target = get_dialect("metaschedule").resolve_target("native", 1)
    made = tmp_path / "made"
    compile_network(network, target, {}, made)
    with Archive(made) as archive:
        assert archive.sizes["network.so"] < 1 << 20
    ids = np.array([[1, -ROWS, 7]], np.int64)
    [theirs] = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"]).run(None, {"ids": ids})
    [ours] = load_compiled(made)(ids)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_segment_has_large_weights_in_it(network: Network, tmp_path: Path) -> None:
    target = get_dialect("metaschedule").resolve_target("native", 1)
    lowered = lower(
        replace(network, elsewhere={"Gather e": "asked for"}),
        target,
    )
    [segment] = lowered.segments
    [table] = onnx.load_model_from_string(segment.model).graph.initializer
    array = numpy_helper.to_array(table)
    assert array.shape == (ROWS, COLUMNS)
    assert array[:2].all()
    assert not array[2:].any()
