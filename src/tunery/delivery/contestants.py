"""Whole networks as worker services, each in a process of its own, so that no runtime's threads disturb another's.

All make the same inputs from the same seed, so only outputs cross the process border.
"""

import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from tunery.blobs import Blobs
from tunery.dialects import Array
from tunery.domain import BlobDigest, TensorSpec
from tunery.measuring.inputs import make_inputs


class Contestant(ABC):
    """One way to run a network."""

    def __init__(self, inputs: Sequence[TensorSpec], seed: int) -> None:
        self._arrays: list[Array] = list(make_inputs(inputs, seed))

    @abstractmethod
    def _run(self) -> Sequence[Array]:
        """Run once on this contestant's inputs."""

    def outputs(self) -> list[tuple[str, tuple[int, ...], bytes]]:
        """Return each output's dtype, shape and bytes."""
        return [(str(a.dtype), tuple(a.shape), np.ascontiguousarray(a).tobytes()) for a in self._run()]

    def samples(self, seconds: float, least: int) -> list[float]:
        """Run for about `seconds`, at least `least` times, and return the seconds of each run but the first."""
        self._run()
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while len(taken) < least or time.perf_counter() < end:
            start = time.perf_counter_ns()
            self._run()
            taken.append((time.perf_counter_ns() - start) * 1e-9)
        return taken


class CompiledContestant(Contestant):
    """A network compiled by a dialect."""

    def __init__(self, blob: BlobDigest, threads: int, inputs: list[TensorSpec], seed: int, blobs: Blobs) -> None:
        from tunery.delivery.loading import load_compiled

        super().__init__(inputs, seed)
        self._network = load_compiled(blobs.get(blob), threads)

    def _run(self) -> Sequence[Array]:
        return self._network(*self._arrays)

    def profile(self) -> dict[str, float]:
        """Return the seconds that kernels take in one execution, by workload."""
        return dict(self._network.profile(self._arrays))


class OnnxRuntimeContestant(Contestant):
    """ONNX Runtime on the CPU, with all its optimisations."""

    def __init__(self, blob: BlobDigest, threads: int, inputs: list[TensorSpec], seed: int, blobs: Blobs) -> None:
        import onnxruntime

        super().__init__(inputs, seed)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._path, self._options = blobs.get(blob), options
        self._session = onnxruntime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        self._feed = {spec.name: array for spec, array in zip(inputs, self._arrays, strict=True)}

    def _run(self) -> Sequence[Array]:
        outputs: Sequence[Array] = self._session.run(None, self._feed)
        return outputs

    @override
    def outputs(self) -> list[tuple[str, tuple[int, ...], bytes]]:
        """Return each output's dtype, shape and bytes; no bytes of one with random numbers, of which no two agree."""
        first = super().outputs()
        if not _is_random(self._path):
            return first
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(self._path), self._options, providers=["CPUExecutionProvider"])
        again = super().outputs()
        return [one if one == other else (one[0], one[1], b"") for one, other in zip(first, again, strict=True)]


def _is_random(path: Path) -> bool:
    """Return whether a network draws random numbers; its operators are found by their names in the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in (b"Random", b"Bernoulli", b"Multinomial", b"Dropout"))
