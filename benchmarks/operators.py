"""Single operators against ONNX Runtime: what no program of our own is written for, as a library would be asked for it.

Each is a small ONNX model that calls one operator many times in a row, with other weights each time, so that the calls
of the networks' executors do not count and weights come from where they would in a network. It is tuned on a cold store
for its budget, compiled, and timed in turns with ONNX Runtime on as many threads.

    python benchmarks/operators.py [--budget 15s] [--operators gemv-1024,softmax-128] [--json FILE]

Prints a row for each: both latencies of one call, their ratio, and what ours is in GB/s of data and weights. One line
of JSON is kept for each in --json; run it again to go on, with the same code on the same device.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx
from networks import measure
from onnx import TensorProto, helper, numpy_helper
from rows import Kept, Row

from tunery._errors import TuneryError
from tunery.domain import Budget
from tunery.reports.format import as_text, new_table

_OPSET = 17
_SECONDS = 3.0


@dataclass(frozen=True)
class Chain:
    """`calls` of an operator on an array of `shape`, one after the other; `add` adds one to a graph.

    `add` takes the input's name, the call's number and the random numbers, and returns nodes and weights; the last
    node's output is the next call's input. `moved` is how many bytes one call reads and writes.
    """

    shape: tuple[int, ...]
    calls: int
    add: Callable[[str, int, np.random.Generator], tuple[list[Any], list[Any]]]
    moved: int


def _softmax(x: str, number: int, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:  # noqa: ARG001 - as all
    return [helper.make_node("Softmax", [x], [f"y{number}"], axis=-1)], []


def _layer_norm(width: int, x: str, number: int, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    weights = [_weight(f"{name}{number}", rng.normal(1, 0.1, width)) for name in ("scale", "shift")]
    inputs = [x, *(weight.name for weight in weights)]
    return [helper.make_node("LayerNormalization", inputs, [f"y{number}"], axis=-1, epsilon=1e-5)], weights


def _dense(width: int, x: str, number: int, rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    weight = _weight(f"w{number}", rng.normal(0, width**-0.5, (width, width)))
    return [helper.make_node("MatMul", [x, weight.name], [f"y{number}"])], [weight]


def _weight(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def _rows(shape: tuple[int, ...], calls: int, add: Callable[..., Any]) -> Chain:
    return Chain(shape, calls, add, 2 * 4 * int(np.prod(shape)))


def _product(rows: int, width: int, calls: int) -> Chain:
    return Chain((rows, width), calls, partial(_dense, width), 4 * (width * width + 2 * rows * width))


OPERATORS: Mapping[str, Chain] = {
    "gemv-512": _product(1, 512, 32),
    "gemv-1024": _product(1, 1024, 16),
    "gemv-4096": _product(1, 4096, 4),
    "dense-4x1024": _product(4, 1024, 16),
    "dense-16x1024": _product(16, 1024, 16),
    "softmax-8x128x128": _rows((8, 128, 128), 16, _softmax),
    "softmax-3x197x197": _rows((3, 197, 197), 16, _softmax),
    "softmax-12x50x50": _rows((12, 50, 50), 16, _softmax),
    "layer-norm-128x512": _rows((128, 512), 16, partial(_layer_norm, 512)),
    "layer-norm-197x192": _rows((197, 192), 16, partial(_layer_norm, 192)),
    "layer-norm-50x768": _rows((50, 768), 16, partial(_layer_norm, 768)),
}


def write(chain: Chain, path: Path) -> None:
    """Write the chain's model."""
    rng, x, nodes, weights = np.random.default_rng(0), "x", list[Any](), list[Any]()
    for number in range(chain.calls):
        more, constants = chain.add(x, number, rng)
        nodes, weights, x = [*nodes, *more], [*weights, *constants], more[-1].output[0]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, chain.shape) for name in ("x", x)]
    graph = helper.make_graph(nodes, path.stem, ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8), path)


def run(names: Sequence[str], budget: str, file: Path) -> int:
    """Measure what the file does not hold yet, print all, and return the exit code."""
    kept, failed = Kept(file, __file__, budget=budget), list[str]()
    rows = {row["network"]: row for row in kept.read() if row["network"] in names}
    for name in (name for name in names if name not in rows):
        try:
            with tempfile.TemporaryDirectory(prefix="tunery-operators-") as scratch:
                write(OPERATORS[name], model := Path(scratch, f"{name}.onnx"))
                found = measure(str(model), Budget.parse(budget), ("onnxruntime",), _SECONDS)
            rows[name] = kept.add({**found, "network": name})
            print(f"{name}: {ratio(rows[name]):.2f} x ONNX Runtime", flush=True)
        except TuneryError as error:
            failed.append(f"{name} failed: {error}")
            print(failed[-1], flush=True)
    print(table([rows[name] for name in names if name in rows]))
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


def ratio(row: Row) -> float:
    """Return how many times as fast as ONNX Runtime ours is."""
    return float(row["latency_s"]["onnxruntime"]["median"] / row["latency_s"]["tunery"]["median"])


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, with the geometric mean of the ratios."""
    shown = new_table("operator", "#tunery us", "#ONNX Runtime us", "#times as fast", "#GB/s", "#trials")
    for row in rows:
        chain = OPERATORS[row["network"]]
        ours, theirs = (row["latency_s"][side] for side in ("tunery", "onnxruntime"))
        cells = (
            " to ".join(f"{side[key] / chain.calls * 1e6:.3g}" for key in ("p10", "p90")) for side in (ours, theirs)
        )
        moved = chain.moved * chain.calls / ours["median"] / 1e9
        shown.add_row(row["network"], *cells, f"{ratio(row):.2f}", f"{moved:.0f}", str(row["trials"]))
    mean = f"geometric mean {geometric_mean(map(ratio, rows)):.2f}" if rows else "nothing was measured"
    return f"{as_text(shown)}\n{mean}; latencies are 10th to 90th percentiles of one call of a chain"


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="15s")
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--json", default="out/operators.jsonl")
    options = parser.parse_args()
    names = options.operators.split(",")
    if unknown := sorted(set(names) - set(OPERATORS)):
        parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(OPERATORS)}")
    sys.exit(run(names, options.budget, Path(options.json)))


if __name__ == "__main__":
    main()
