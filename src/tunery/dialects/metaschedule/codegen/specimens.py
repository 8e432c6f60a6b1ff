"""Reference programs to calibrate a device with: one that the processor limits, one that memory does."""

from collections.abc import Mapping
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.program import normalised, program_key
from tunery.domain import Target, Task, TensorSpec, Workload

_SIZE = 256  # three matrices of 256 KiB: second-level cache
_ROWS, _COLUMNS = 2048, 4096  # 32 MiB of weights, each read once: more than a core's share of any cache


def calibration_tasks(target: Target) -> Mapping[str, Task]:
    """Return a square matrix product and a product of a matrix with a vector."""
    return {
        "compute": _matmul("calibration_compute", _SIZE, _SIZE, _SIZE, target),
        "memory": _matmul("calibration_memory", 1, _ROWS, _COLUMNS, target),
    }


def _matmul(name: str, n: int, k: int, m: int, target: Target) -> Task:
    te: Any = tvm.te
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="c")
    module = normalised(te.create_prim_func([a, b, c]))
    arguments = tuple(TensorSpec(f"a{i}", shape, "float32") for i, shape in enumerate([(n, k), (k, m), (n, m)]))
    workload = Workload(program_key(module), name, "matmul", tvm.ir.save_json(module), arguments, 1, 2.0 * n * k * m)
    return Task(workload, target)
