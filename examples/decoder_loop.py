"""Generate tokens with a decoder that keeps keys and values of earlier tokens: its outputs are its next inputs.

python examples/decoder_loop.py

It writes a decoder of one layer with random weights, compiles it (which needs `tunery[tune]`), and runs the loop.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tunery

WORDS, WIDTH, LENGTH = 512, 64, 48


def write(path: Path) -> None:
    """Write a decoder: a token, its position, and the keys and values so far; out come scores, keys and values."""
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for name in ("q", "k", "v", "o")
    }
    arrays |= {
        "words": rng.standard_normal((WORDS, WIDTH)).astype(np.float32),
        "head": rng.standard_normal((WIDTH, WORDS)).astype(np.float32),
        "places": np.arange(LENGTH, dtype=np.int64)[:, None],
        "row": np.arange(LENGTH, dtype=np.int64)[None],
        "far": np.float32(-1e9), "none": np.float32(0), "scale": np.float32(WIDTH**-0.5),
    }  # fmt: skip
    steps = [
        ("Gather", ["words", "token"], "x"), ("MatMul", ["x", "q"], "query"), ("MatMul", ["x", "k"], "key"),
        ("MatMul", ["x", "v"], "value"), ("Equal", ["places", "position"], "here"),
        ("Where", ["here", "key", "past_keys"], "keys"), ("Where", ["here", "value", "past_values"], "values"),
        ("Transpose", ["keys"], "turned"), ("MatMul", ["query", "turned"], "raw"), ("Mul", ["raw", "scale"], "scaled"),
        ("Greater", ["row", "position"], "later"), ("Where", ["later", "far", "none"], "mask"),
        ("Add", ["scaled", "mask"], "masked"), ("Softmax", ["masked"], "share"),
        ("MatMul", ["share", "values"], "seen"), ("MatMul", ["seen", "o"], "told"), ("Add", ["x", "told"], "state"),
        ("MatMul", ["state", "head"], "scores"),
    ]  # fmt: skip
    value, number, real = helper.make_tensor_value_info, TensorProto.INT64, TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(kind, given, [made]) for kind, given, made in steps], "decoder",
        [value("token", number, [1]), value("position", number, [1]), value("past_keys", real, [LENGTH, WIDTH]),
         value("past_values", real, [LENGTH, WIDTH])],
        [value("scores", real, [1, WORDS]), value("keys", real, [LENGTH, WIDTH]),
         value("values", real, [LENGTH, WIDTH])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def generated(network: Callable[..., list[np.ndarray]], token: int, count: int) -> list[int]:
    """Return so many tokens, each the likeliest behind those before."""
    keys, values, tokens = np.zeros((LENGTH, WIDTH), np.float32), np.zeros((LENGTH, WIDTH), np.float32), [token]
    for position in range(count):
        scores, keys, values = network(np.array([tokens[-1]]), np.array([position]), keys, values)
        tokens.append(int(scores.argmax()))
    return tokens[1:]


def main() -> None:
    """Write, compile, load and run it."""
    with tempfile.TemporaryDirectory() as place:
        write(Path(place, "decoder.onnx"))
        made = Path(place, "decoder.tunery")
        subprocess.run([sys.executable, "-m", "tunery", "compile", f"{place}/decoder.onnx", "-o", made], check=True)
        network = tunery.load_compiled(made)
    began = time.perf_counter()
    tokens = generated(network, 1, LENGTH)
    took = time.perf_counter() - began
    print(f"{len(tokens)} tokens, {1e6 * took / len(tokens):.0f} µs each: {' '.join(map(str, tokens[:10]))} ...")


if __name__ == "__main__":
    main()
