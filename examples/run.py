"""Run any compiled network on random inputs; it needs NumPy and tunery's runtime alone.

tunery compile zoo:mobilenet_v2 -o mobilenet_v2.tunery && python examples/run.py mobilenet_v2.tunery

Without a file it lists the other examples.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

import tunery


def main(path: str) -> None:
    """Load a compiled network, call it some times, and print what it returns and how long it takes."""
    began = time.perf_counter()
    network = tunery.load_compiled(path)
    print(f"loaded in {time.perf_counter() - began:.2f} s")
    rng = np.random.default_rng(0)
    shapes = network.shapes[0] if hasattr(network, "shapes") else [spec.shape for spec in network.inputs]
    inputs = [(rng.random(shape) if "float" in spec.dtype else rng.integers(0, 2, shape)).astype(spec.dtype)
              for spec, shape in zip(network.inputs, shapes, strict=True)]  # fmt: skip
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        outputs = network(*inputs)
        taken.append(time.perf_counter() - began)
    for spec, output in zip(network.outputs, outputs, strict=True):
        print(f"{spec.name}: {output.dtype}{list(output.shape)}, mean {np.mean(output):.4g}")
    print(f"{1e3 * statistics.median(taken):.3g} ms, the median of {len(taken)} calls")


def list_examples() -> None:
    """Print what each example is about; its first lines say how it is run."""
    for path in sorted(Path(__file__).parent.glob("*.*")):
        print(f"{path.name:<25} {path.read_text().splitlines()[0].strip('/ ').strip(chr(34))}")


if __name__ == "__main__":
    main(sys.argv[1]) if sys.argv[1:] else list_examples()
