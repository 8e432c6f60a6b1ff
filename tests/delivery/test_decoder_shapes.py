"""A decoder in one file: a prompt, then token by token with a cache that grows from one size to the next."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery.dialects import Array, CompiledNetwork, NetworkCompiler, get_dialect
from tunery.models import prepare

pytestmark = pytest.mark.tvm

HEADS, SIZE, VOCABULARY = 2, 8, 32
WIDTH = HEADS * SIZE
PROMPT, SMALL, LARGE = 4, 8, 16
BINDINGS = ({"new": PROMPT, "past": SMALL}, {"new": 1, "past": SMALL}, {"new": 1, "past": LARGE})


def decoder(path: Path) -> Path:
    """Write one layer of attention with its cache, as exporters do: the mask's length is the sum of two sizes."""
    rng, value = np.random.default_rng(1), helper.make_tensor_value_info
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * 0.3 for name in ("q", "k", "v", "o")}
    table = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    constants = {**weights, "table": table, "out": np.ascontiguousarray(table.T), "scale": np.float32(SIZE**-0.5),
                 "split": np.array([1, -1, HEADS, SIZE]), "joined": np.array([1, -1, WIDTH])}  # fmt: skip
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h"])]
    for one in "qkv":
        nodes += [
            helper.make_node("MatMul", ["h", one], [f"{one}_flat"]),
            helper.make_node("Reshape", [f"{one}_flat", "split"], [f"{one}_split"]),
            helper.make_node("Transpose", [f"{one}_split"], [f"{one}_new"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        helper.make_node("Concat", ["past_k", "k_new"], ["present_k"], axis=2),
        helper.make_node("Concat", ["past_v", "v_new"], ["present_v"], axis=2),
        helper.make_node("Transpose", ["present_k"], ["k_turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q_new", "k_turned"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["share"], axis=-1),
        helper.make_node("MatMul", ["share", "present_v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "joined"], ["flat"]),
        helper.make_node("MatMul", ["flat", "o"], ["projected"]),
        helper.make_node("Add", ["projected", "h"], ["sum"]),
        helper.make_node("MatMul", ["sum", "out"], ["scores"]),
    ]
    cache = (1, HEADS, "past", SIZE)
    graph = helper.make_graph(
        nodes, "decoder",
        [value("ids", TensorProto.INT64, (1, "new")), value("mask", TensorProto.FLOAT, (1, 1, "new", "past + new")),
         value("past_k", TensorProto.FLOAT, cache), value("past_v", TensorProto.FLOAT, cache)],
        [value("scores", TensorProto.FLOAT, (1, "new", VOCABULARY)),
         value("present_k", TensorProto.FLOAT, (1, HEADS, "past + new", SIZE)),
         value("present_v", TensorProto.FLOAT, (1, HEADS, "past + new", SIZE))],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


class Cache:
    """The keys and values of what was read, at the end of arrays of one of the sizes that the network takes."""

    def __init__(self) -> None:
        self.length = 0
        self.keys = self.values = np.zeros((1, HEADS, SMALL, SIZE), np.float32)

    def step(self, network: CompiledNetwork, ids: list[int]) -> Array:
        """Read more, and return the scores of what comes next."""
        if self.length > SMALL:
            grown = np.zeros((1, HEADS, LARGE - self.keys.shape[2], SIZE), np.float32)
            self.keys, self.values = (np.concatenate([grown, one], axis=2) for one in (self.keys, self.values))
        past, new = self.keys.shape[2], len(ids)
        mask = np.triu(np.full((new, past + new), -1e9, np.float32), past + 1)
        mask[:, : past - self.length] = -1e9
        scores, keys, values = network(np.array([ids]), mask[None, None], self.keys, self.values)
        self.length += new
        keep = past if self.length <= past else min(self.length, LARGE)
        self.keys, self.values = (np.ascontiguousarray(one[:, :, -keep:]) for one in (keys, values))
        return scores[0, -1]


def expected(path: Path, ids: list[int]) -> Array:
    """Return the scores of what comes next, as ONNX Runtime computes them from all ids at once."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    empty = np.zeros((1, HEADS, 0, SIZE), np.float32)
    mask = np.triu(np.full((len(ids), len(ids)), -1e9, np.float32), 1)[None, None]
    found: Array = session.run(None, {"ids": np.array([ids]), "mask": mask, "past_k": empty, "past_v": empty})[0][0, -1]
    return found


def test_a_decoder_reads_a_prompt_and_goes_on_while_its_cache_grows(tmp_path: Path) -> None:
    source, dialect = decoder(tmp_path / "decoder.onnx"), get_dialect("metaschedule")
    files = []
    for number, sizes in enumerate(BINDINGS):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        network = prepare(str(source), {name: (size,) for name, size in sizes.items()}, scratch)
        files.append(tmp_path / f"{number}.tunery")
        NetworkCompiler.of(dialect).compile(network, dialect.resolve_target("native", 1), {}, files[-1])
    loaded, cache = tunery.load_compiled(tunery.combine(files, tmp_path / "decoder.tunery")), Cache()
    ids = [3, 1, 4, 1]
    scores = cache.step(loaded, ids)
    while True:
        np.testing.assert_allclose(scores, expected(source, ids), rtol=1e-3, atol=1e-3)
        ids.append(int(np.argmax(scores)))
        if len(ids) > LARGE:
            break
        scores = cache.step(loaded, ids[-1:])
