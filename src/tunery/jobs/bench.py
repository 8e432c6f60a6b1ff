"""Whole-network latency against rivals, interleaved, with the same thread count."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunery._errors import UsageError
from tunery.domain import Network
from tunery.engines import Role, WorkerSpec
from tunery.jobs._request import BenchReport, Latency
from tunery.jobs.runtime import Runtime

RIVALS = ("onnxruntime", "untuned")
_ROUNDS = 7
_DEADLINE_S = 900.0
_SEED = 17


def check_rivals(against: Sequence[str]) -> None:
    """Check the names of rivals.

    Raises:
        UsageError: one is unknown.
    """
    for name in against:
        if name not in RIVALS:
            raise UsageError(f"unknown rival {name!r}; use {', '.join(RIVALS)}")


async def compare(
    runtime: Runtime, network: Network, compiled: Mapping[str, Path], against: Sequence[str], seconds: float
) -> BenchReport:
    """Time `compiled` (label to file) and ONNX Runtime if asked for, in turns of a few runs each.

    `seconds` is the time per contestant. The error is measured against ONNX Runtime in any case.
    """
    workers = {label: _start(runtime, "CompiledContestant", path, network) for label, path in compiled.items()}
    workers["onnxruntime"] = _start(runtime, "OnnxRuntimeContestant", Path(network.path), network)
    outputs = {label: await _call(runtime, worker, "outputs") for label, worker in workers.items()}
    error = max_abs_error(outputs["tunery"], outputs["onnxruntime"])
    timed = [label for label in workers if label == "tunery" or label in against]
    samples: dict[str, list[float]] = {label: [] for label in timed}
    for turn in range(_ROUNDS):
        for label in timed[turn % len(timed) :] + timed[: turn % len(timed)]:
            least = 3 if turn == 0 else 1
            samples[label] += await _call(runtime, workers[label], "samples", seconds / _ROUNDS, least)
    latency = {label: spread(samples[label]) for label in timed}
    return BenchReport(network.name, runtime.threads, latency, error)


def _start(runtime: Runtime, service: str, path: Path, network: Network) -> str:
    settings = {"path": path, "threads": runtime.threads, "inputs": list(network.inputs), "seed": _SEED}
    return runtime.engine.start(
        WorkerSpec(
            Role.MEASURER,
            f"tunery.delivery.contestants:{service}",
            settings,
            cores=runtime.measure_cores,
            threads=runtime.threads,
        )
    )


async def _call(runtime: Runtime, worker: str, method: str, *args: object) -> Any:
    return await runtime.call(worker, method, *args, deadline_s=_DEADLINE_S)


def spread(samples: Sequence[float]) -> Latency:
    """Return median, 10th and 90th percentile."""
    low, high = np.quantile(samples, [0.1, 0.9])
    return Latency(statistics.median(samples), float(low), float(high), len(samples))


def max_abs_error(
    ours: Sequence[tuple[str, tuple[int, ...], bytes]], theirs: Sequence[tuple[str, tuple[int, ...], bytes]]
) -> float:
    """Return the largest absolute difference over all outputs; infinite where shape or finiteness differ."""
    worst = 0.0
    for (dtype, shape, data), (other_dtype, other_shape, other) in zip(ours, theirs, strict=True):
        if tuple(shape) != tuple(other_shape):
            return float("inf")
        a = np.frombuffer(data, dtype).astype(np.float64)
        b = np.frombuffer(other, other_dtype).astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        finite = np.isfinite(a)
        if finite.any():
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()))
    return worst
