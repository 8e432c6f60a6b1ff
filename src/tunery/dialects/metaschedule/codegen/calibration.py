"""What a device is calibrated with: its peak, and reference programs that the processor or memory limits. The peak are
multiply-adds of vectors that stay in registers. A large matrix product of ONNX Runtime, which was the measure before,
reached 0.62 of it on two threads of a Zen 4, and many an operator passed that."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 - as its documentation has it

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.program import normalised, program_key, tvm_target
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.domain import Target, Task, TensorSpec, Workload

# In flight at once: two units of four cycles take 8, four take 16; with the two operands 12 fill 14 registers of 16.
_CHAINS = (12, 24)
_STEPS = 1 << 18
_SECONDS = 0.3  # for each


def peak_flops(target: Target) -> float:
    """Return the float32 operations per second of the fastest of many runs on the target's threads, in under a second.
    A multiply-add counts as two."""
    return max(_flops(target, chains) for chains in _CHAINS)


def _flops(target: Target, chains: int) -> float:
    lanes = lanes_of(tvm_target(target))
    run = tvm.tirx.build(_program(target.threads, chains, lanes), target=tvm_target(target))["main"]
    factor, summand = (tvm.runtime.tensor(np.full(lanes, 0.5, "float32")) for _ in range(2))
    sums = tvm.runtime.tensor(np.zeros((target.threads, chains, lanes), "float32"))
    fastest, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        run(factor, summand, sums)
        fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * target.threads * _STEPS * chains * lanes / fastest


def _program(threads: int, chains: int, lanes: int) -> Any:
    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator] # TVM has no types
    def main(
        factor: T.Buffer((lanes,), "float32"),  # type: ignore[valid-type]
        summand: T.Buffer((lanes,), "float32"),  # type: ignore[valid-type]
        sums: T.Buffer((threads, chains, lanes), "float32"),  # type: ignore[valid-type]
    ) -> None:
        T.func_attr({"tirx.noalias": True})  # else each result is stored before the next operand is read
        for thread in T.parallel(threads):
            for _step in T.serial(_STEPS):
                for chain in T.unroll(chains):
                    for lane in T.vectorized(lanes):
                        sums[thread, chain, lane] = sums[thread, chain, lane] * factor[lane] + summand[lane]

    return tvm.IRModule({"main": main})


_SIZE = 256  # three matrices of 256 KiB: second-level cache
_ROWS, _COLUMNS = 2048, 4096  # 32 MiB of weights, each read once: more than a core's share of any cache


def calibration_tasks(target: Target) -> Mapping[str, Task]:
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
