"""Prepare and run every network of the zoo: `python tools/check_zoo.py [NAME ...]`.

A network is alive if its outputs are finite, not constant, and differ between two inputs. Exit code 1 if one is not.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from tunery import models as frontends
from tunery.domain import Network, TensorSpec


def inputs(network: Network, seed: int) -> dict[str, np.ndarray]:
    """Return random inputs: token numbers, masks of ones, or normal floats."""
    return {spec.name: _array(spec, np.random.default_rng(seed)) for spec in network.inputs}


def _array(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    if "mask" in spec.name:
        return np.ones(spec.shape, spec.dtype)
    if spec.dtype.startswith("int"):
        return rng.integers(0, 1000, spec.shape).astype(spec.dtype)
    return rng.standard_normal(spec.shape).astype(spec.dtype)


def check(name: str) -> bool:
    """Print one line about a network and return whether it is alive."""
    with tempfile.TemporaryDirectory() as directory:
        network = frontends.prepare(f"zoo:{name}", {}, Path(directory))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(network.path, options, providers=["CPUExecutionProvider"])
        first, second = (session.run(None, inputs(network, seed)) for seed in (0, 1))
    finite = all(np.isfinite(output).all() for output in first)
    spread = min(float(output.std()) for output in first)
    change = min(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True)) / max(spread, 1e-30)
    alive = bool(finite and spread > 1e-4 and change > 1e-3)
    verdict = "ok  " if alive else "DEAD"
    print(f"{verdict} {name}: spread {spread:.3g}, change {change:.3g}, {network.parameters:,} weights", flush=True)
    return alive


if __name__ == "__main__":
    results = [check(name) for name in sys.argv[1:] or [entry.name for entry in frontends.zoo.names()]]
    sys.exit(0 if all(results) else 1)
