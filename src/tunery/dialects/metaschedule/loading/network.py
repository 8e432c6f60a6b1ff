"""A compiled network in this process, on the virtual machine of TVM's runtime."""

import os
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from typing_extensions import override

from tunery.dialects import Array, CompiledNetwork
from tunery.dialects._loaded import thread_count
from tunery.dialects.metaschedule.loading import callers, library
from tunery.dialects.metaschedule.loading.archive import LIBRARY, read_archive
from tunery.dialects.metaschedule.loading.segment_calls import SegmentCalls
from tunery.domain import TensorSpec

_SUFFIXES = ("_prepacked", "_transformed")
"""What is added to a function's name when its weights are packed (by TVM) or transformed (by `arguments`)."""


class TvmNetwork(CompiledNetwork):
    """A compiled network in this process, on Relax's virtual machine."""

    def __init__(self, path: Path, threads: int | None = None, digest: str = "") -> None:
        with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
            manifest, self._weights, segments = read_archive(path, Path(scratch), digest)
            self.threads = thread_count(threads, manifest["threads"])
            self._library = library.load(Path(scratch, LIBRARY))
        self._segments = SegmentCalls(segments, self.threads)
        self.inputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["inputs"])
        self.outputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["outputs"])
        self._workloads: dict[str, str] = {
            **{candidate: key for key, candidate in manifest["coverage"].items() if candidate},
            **manifest.get("kernels", {}),
        }  # fmt: skip
        self._process = os.getpid()
        self._running = threading.Lock()  # buffers and virtual machine serve one call at a time
        self._buffers = [library.empty(spec.shape, spec.dtype) for spec in self.inputs]
        machine = library.Machine(self._library)
        if machine.parameters("main") != len(self._buffers) + len(self._weights):
            raise ValueError("it has not the weights that its code takes")
        self._run = machine.bound("main", [*self._buffers, *self._weights])

    @override
    def __call__(self, *arrays: Array) -> list[Array]:
        checked = self.checked(arrays)
        with self._lock():
            return callers.run(lambda: self._call(checked))

    def _call(self, arrays: Sequence[Array]) -> list[Array]:
        with self._segments:
            _use_threads(self.threads)
            self._fill(arrays)
            results = self._run()
        return [library.read(one) for one in ([results] if library.is_tensor(results) else results)]

    def _lock(self) -> threading.Lock:
        """Return what lets in one call at a time; a fork may have copied it while another thread held it."""
        if self._process != os.getpid():
            self._process, self._running = os.getpid(), threading.Lock()
        return self._running

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        checked = self.checked(arrays)
        return callers.run(lambda: self._time(checked, calls))

    def _time(self, arrays: Sequence[Array], calls: int) -> float:
        _use_threads(self.threads)
        self._fill(arrays)
        run = self._run
        with self._segments:
            start = time.perf_counter_ns()
            for _ in range(calls):
                run()
        return (time.perf_counter_ns() - start) * 1e-9

    @override
    def profile(self, arrays: Sequence[Array], calls: int) -> Mapping[str, float]:
        checked = self.checked(arrays)
        return callers.run(lambda: self._profile(checked, calls))

    def _profile(self, arrays: Sequence[Array], calls: int) -> Mapping[str, float]:
        _use_threads(self.threads)
        self._fill(arrays)
        spent: Counter[str] = Counter()
        started = [0]

        def watch(_: Any, name: str, before: bool, *_rest: Any) -> int:
            now = time.perf_counter_ns()
            if not before and not name.startswith("vm."):
                spent[name] += now - started[0]
            started[0] = time.perf_counter_ns()
            return 0

        with self._segments:
            self._run()
        # An instrument cannot be taken off again, so this is another machine on the same library.
        run = library.Machine(self._library).watched("main", watch)
        taken: list[Counter[str]] = []
        for _ in range(1 + calls):
            spent.clear()
            with self._segments:
                run(*self._buffers, *self._weights)
            taken.append(Counter(spent))
        # Without the new machine's first call; and medians, as the network itself is told by.
        by_workload: defaultdict[str, float] = defaultdict(float)
        for name in spent:
            by_workload[self._workload_of(name)] += median(call[name] for call in taken[1:]) * 1e-9
        return by_workload

    def _workload_of(self, name: str) -> str:
        """Return the key of the workload that a kernel computes, its name if it is none's.

        One that was built as a part is called by its candidate's key; of others the name tells what became of weights.
        """
        function = name
        for suffix in _SUFFIXES:
            function = function.removesuffix(suffix)
        return self._workloads.get(function) or self._workloads.get(name.rpartition("_")[2], name)

    def _fill(self, arrays: Sequence[Array]) -> None:
        for buffer, array in zip(self._buffers, arrays, strict=True):
            library.write(buffer, array)


def _use_threads(threads: int) -> None:
    """Have the kernels that this thread calls from now on use so many threads.

    TVM keeps a pool for each thread that calls kernels, and it takes every processor of the process, whatever the
    target says. Another network in this process may want another number, so it is set before each call; that is free.
    """
    library.configure_threads(1, threads)  # 1: any cores, fastest first
