"""A compiled network in this process, on the virtual machine of TVM's runtime."""

import os
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from typing_extensions import override

from tunery._errors import WorkError
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects._loaded import thread_count
from tunery.dialects.metaschedule.loading import callers, library
from tunery.dialects.metaschedule.loading.archive import LIBRARY, read_archive
from tunery.dialects.metaschedule.loading.segment_calls import SegmentCalls
from tunery.domain import TensorSpec

A = TypeVar("A")

_SUFFIXES = ("_prepacked", "_transformed")
"""What is added to a function's name when its weights are packed (by TVM) or transformed (by `arguments`)."""

_PROFILED = 20
"""Executions that a profile is the median of."""


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
        self.begin_anew()
        _networks.add(self)
        self._buffers = [library.Input(spec) for spec in self.inputs]
        self._outputs = _Outputs(len(self.outputs))
        machine = library.Machine(self._library)
        if machine.parameters("main") != len(self._buffers) + len(self._weights):
            raise ValueError("it has not the weights that its code takes")
        self._arguments = [*(buffer.tensor for buffer in self._buffers), *self._weights]
        self._call = machine.bound("main", self._arguments)

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        return self._alone(self._run_here, arrays)

    def _run_here(self, arrays: Sequence[Array]) -> list[Array]:
        library.configure_threads(1, self.threads)
        if not self._outputs.known:
            self._fill(arrays)
            with self._segments:
                return self._outputs.taken(self._call())
        for buffer, array in zip(self._buffers, arrays, strict=True):
            buffer.place(array)
        try:
            if not self._segments:
                return self._outputs.taken(self._call())
            with self._segments:
                return self._outputs.taken(self._call())
        finally:
            for buffer in self._buffers:
                buffer.reset()

    def begin_anew(self) -> None:
        """Forget, in a process that was forked, that another thread may have been calling."""
        self._running, self._at_work = threading.RLock(), False

    def _alone(self, function: Callable[..., A], *given: Any) -> A:
        """Return what a function returns, called when no other is: buffers and virtual machine serve one at a time.

        Raises:
            WorkError: this thread is in it already, and called from a signal's handler: it would wait for itself.
        """
        with self._running:
            if self._at_work:
                raise WorkError(
                    "the network is at work for this very thread; call it when the signal's handler is done"
                )
            self._at_work = True
            try:
                return callers.run(function, *given)
            finally:
                self._at_work = False

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        checked = self.checked(arrays)
        return self._alone(self._time, checked, calls)

    def _time(self, arrays: Sequence[Array], calls: int) -> float:
        library.configure_threads(1, self.threads)
        self._fill(arrays)
        run = self._call
        with self._segments:
            start = time.perf_counter_ns()
            for _ in range(calls):
                run()
        return (time.perf_counter_ns() - start) * 1e-9

    @override
    def profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        checked = self.checked(arrays)
        return self._alone(self._profile, checked)

    def _profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        library.configure_threads(1, self.threads)
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
            self._call()
        # An instrument cannot be taken off again, so this is another machine on the same library.
        run = library.Machine(self._library).watched("main", watch)
        taken: list[Counter[str]] = []
        for _ in range(1 + _PROFILED):
            spent.clear()
            with self._segments:
                run(*self._arguments)
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
            buffer.copy(array)


class _Outputs:
    """Takes what a call returns: as it is where each call makes it anew, else copied.

    A network may give an input, a constant, or one tensor twice. That shows once the outputs of two calls are held,
    with inputs at the same addresses; those of both are copied.
    """

    def __init__(self, count: int) -> None:
        self.known = False
        self._count = count
        self._first: list[Any] = []
        self._anew: list[bool] = []

    def taken(self, results: Any) -> list[Array]:
        tensors = [results] if self._count == 1 and library.is_tensor(results) else list(results)
        if self.known:
            views = [library.view(one) for one in tensors]
            return [view if anew else view.copy() for view, anew in zip(views, self._anew, strict=True)]
        if self._first:
            places, before = [library.address(one) for one in tensors], [library.address(one) for one in self._first]
            self._anew = [places.count(one) == 1 and one not in before for one in places]
            self.known, self._first = True, []
        else:
            self._first = tensors
        return [library.view(one).copy() for one in tensors]


_networks: "weakref.WeakSet[TvmNetwork]" = weakref.WeakSet()


def _begin_anew() -> None:
    for network in list(_networks):
        network.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
