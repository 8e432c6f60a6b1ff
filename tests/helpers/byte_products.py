"""Products of bytes at the ends of their range, where sums of 16 bits would overflow."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tunery.delivery.comparing.contestants import exact_products
from tunery.dialects import Array
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import Candidate, Network, Target

ROWS, DEPTH, CHANNELS = 6, 38, 40
TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def _weights() -> Array:
    """Return columns of the smallest number, of the largest, of both in turn, and of others."""
    weights = np.random.default_rng(2).integers(-128, 128, (DEPTH, CHANNELS)).astype(np.int8)
    weights[:, :8], weights[:, 8:16] = -128, 127
    weights[::2, 16:24], weights[1::2, 16:24] = -128, 127
    return weights


def write_product(path: Path, kind: str) -> Path:
    """Write a network whose input, of one kind of bytes, is multiplied by a matrix."""
    value = helper.make_tensor_value_info
    ends = value("x", TYPES[kind], [ROWS, DEPTH]), value("y", TensorProto.INT32, [ROWS, CHANNELS])
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], [numpy_helper.from_array(_weights(), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def data(kind: str) -> Array:
    """Return rows of the smallest number, of the largest, and of others."""
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    rows = np.random.default_rng(3).integers(least, most + 1, (ROWS, DEPTH)).astype(kind)
    rows[0], rows[1] = least, most
    return rows


def expected(rows: Array) -> Array:
    return np.asarray(rows.astype(np.int64) @ _weights().astype(np.int64))


def exact_session(path: Path | str) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime on a model as it is written, with exact sums on processors without VNNI too."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with suppress(Exception):  # it has no products of signed by unsigned bytes
        return onnxruntime.InferenceSession(exact_products(Path(path)), options, providers=["CPUExecutionProvider"])
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def with_dots(dialect: MetaScheduleDialect, network: Network, target: Target) -> dict[str, Candidate]:
    """Return a candidate of dot products for each task that has them."""
    from tunery.dialects.metaschedule.search.proposer import SurrogateProposer
    from tunery.dialects.metaschedule.variants import dots
    from tunery.dialects.metaschedule.variants.program import space_of, variants

    tasks = [task for task in dialect.extract(network, target) if dots.NAME in variants(task).found]
    proposed = {
        task.workload.key: SurrogateProposer(task, space_of(task, dots.NAME), [], None, 0).propose(1) for task in tasks
    }
    return {key: candidate for key, [candidate] in proposed.items()}
