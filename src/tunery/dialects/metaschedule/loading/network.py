"""A compiled network in this process, on the virtual machine of TVM's runtime, and its segments in ONNX Runtime."""

import os
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any, TypeVar

from typing_extensions import override

from tunery._archive import Archive
from tunery._errors import UsageError, WorkError
from tunery._processor import granted_cores
from tunery.dialects import Array, CompiledNetwork
from tunery.dialects._loaded import numpy_dtype, thread_count
from tunery.dialects._sessions import OnnxRuntimeSession
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.archive import LIBRARY, read_archive
from tunery.domain import SEGMENT, TensorSpec

A = TypeVar("A")

_SUFFIXES = ("_prepacked", "_transformed")
"""What is added to a function's name when its weights are packed (by TVM) or transformed (by `arguments`)."""

_PROFILED = 20
"""Executions that a profile is the median of."""

_CONTEXTS, _SHORT_S = 8, 1e-4
"""A network has at most one context for each core, but at least so many if its calls are short: waiting costs more."""

_PATIENCE_S = 60.0
"""How long a fork waits for calls of other threads."""

_current = threading.local()
_registered: set[int] = set()


class TvmNetwork(CompiledNetwork):
    """A compiled network in this process, on Relax's virtual machine."""

    def __init__(self, archive: Archive, threads: int | None = None) -> None:
        with tempfile.TemporaryDirectory(prefix="tunery-") as scratch:
            manifest, self._weights, segments = read_archive(archive, Path(scratch))
            self.threads = thread_count(threads, manifest["threads"])
            self._library = library.load(Path(scratch, LIBRARY))
            library.set_threads(self._library, self.threads)
        self._segments = SegmentCalls(segments, self.threads)
        self.inputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["inputs"])
        self.outputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in manifest["outputs"])
        rows = dict(manifest["rows"])
        self._indices = [(at, int(rows[one.name])) for at, one in enumerate(self.inputs) if one.name in rows]
        self._workloads: dict[str, str] = {
            **{candidate: key for key, candidate in manifest["coverage"].items() if candidate},
            **manifest.get("kernels", {}),
        }  # fmt: skip
        self._cores = granted_cores()
        self._contexts: weakref.WeakSet[_Context] = weakref.WeakSet()
        self._idle: SimpleQueue[_Context] = SimpleQueue()
        self._idle.put(self._new_context(self._segments))
        self.begin_anew()
        _forks.watch(self)

    def _new_context(self, segments: "SegmentCalls") -> "_Context":
        context = _Context(self._library, self.inputs, self.outputs, self._weights, segments)
        self._contexts.add(context)
        return context

    def begin_anew(self) -> None:
        idle, self._idle = self._idle, SimpleQueue()
        self._contexts = weakref.WeakSet()
        while not idle.empty():
            context = idle.get()
            self._contexts.add(context)
            self._idle.put(context)
        self._adding, self._at_work = threading.RLock(), set[int]()

    def is_called_by_others(self) -> bool:
        return bool(self._at_work - {threading.get_ident()})

    def _alone(self, function: Callable[..., A], *given: Any) -> A:
        """Return what a function returns of a context that no other call has, and of what is given."""
        thread = threading.get_ident()
        if thread in self._at_work:
            raise WorkError("the network is at work for this very thread; call it when the signal's handler is done")
        try:
            self._at_work.add(thread)
            while _forks.threads and thread not in _forks.threads:
                self._at_work.discard(thread)
                _forks.done.wait()
                self._at_work.add(thread)
            try:
                context = self._idle.get_nowait()
            except Empty:
                context = self._another_context()
            try:
                return function(context, *given)
            finally:
                self._idle.put(context)
        finally:
            self._at_work.discard(thread)

    def _another_context(self) -> "_Context":
        with self._adding:
            short = any(0 < context.took_s < _SHORT_S for context in self._contexts)
            if len(self._contexts) < (max(_CONTEXTS, self._cores) if short else self._cores):
                return self._new_context(self._segments.another())
        return self._idle.get()

    @override
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        for at, rows in self._indices:
            array: Any = arrays[at]
            if array.size and not (array.min() >= -rows and array.max() < rows):
                wrong = array[(array < -rows) | (array >= rows)].flat[0]
                raise UsageError(
                    f"input {self.inputs[at].name!r:.80} has the index {wrong} of a table of {rows} rows; give indices "
                    f"from {-rows} to {rows - 1}"
                )
        return self._alone(_Context.run, arrays)

    @override
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        checked = self.checked(arrays)
        return self._alone(_Context.time, checked, calls)

    @override
    def profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        checked = self.checked(arrays)
        return self._alone(self._profile, checked)

    def _profile(self, context: "_Context", arrays: Sequence[Array]) -> Mapping[str, float]:
        context.fill(arrays)
        spent: Counter[str] = Counter()
        started = [0]

        def watch(_: Any, name: str, before: bool, *_rest: Any) -> int:
            now = time.perf_counter_ns()
            if not before and not name.startswith("vm."):
                spent[name] += now - started[0]
            started[0] = time.perf_counter_ns()
            return 0

        with context.segments:
            context.call()
        # An instrument cannot be taken off again, so this is another machine on the same library.
        run = library.VirtualMachine(self._library).watched("main", watch)
        taken: list[Counter[str]] = []
        for _ in range(1 + _PROFILED):
            spent.clear()
            with context.segments:
                run(*context.arguments)
            taken.append(Counter(spent))
        # Without the new machine's first call; and medians, as the network itself is told by.
        by_workload: defaultdict[str, float] = defaultdict(float)
        for name in spent:
            by_workload[self._workload_of(name)] += median(call[name] for call in taken[1:]) * 1e-9
        return by_workload

    def _workload_of(self, name: str) -> str:
        """Return the key of the workload that a kernel computes, its name if it is none's. One that was built as a part
        is called by its candidate's key; of others the name tells what became of weights."""
        function = name
        for suffix in _SUFFIXES:
            function = function.removesuffix(suffix)
        return self._workloads.get(function) or self._workloads.get(name.rpartition("_")[2], name)


class _Context:
    """What one call at a time needs: a virtual machine with buffers of its own, and the network's weights."""

    def __init__(
        self,
        code: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        weights: Sequence[Any],
        segments: "SegmentCalls",
    ) -> None:
        self._buffers = [library.Input(spec) for spec in inputs]
        self._outputs = _Outputs(len(outputs))
        self.segments, self._whole = segments, segments.whole(inputs, outputs)
        self.took_s = 0.0  # by the last call that was timed
        machine = library.VirtualMachine(code)
        if machine.parameters("main") != len(self._buffers) + len(weights):
            raise ValueError("it has not the weights that its code takes")
        self.arguments = [*(buffer.tensor for buffer in self._buffers), *weights]
        self.call = machine.bound("main", self.arguments)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        if self._whole is not None:
            return self._whole(arrays)
        if not self._outputs.known:
            self.fill(arrays)
            start = time.perf_counter()
            with self.segments:
                results = self.call()
            self.took_s = time.perf_counter() - start
            return self._outputs.taken(results)
        for buffer, array in zip(self._buffers, arrays, strict=True):
            buffer.place(array)
        try:
            if not self.segments:
                return self._outputs.taken(self.call())
            with self.segments:
                return self._outputs.taken(self.call())
        finally:
            for buffer in self._buffers:
                buffer.reset()

    def time(self, arrays: Sequence[Array], calls: int) -> float:
        self.fill(arrays)
        run = self.call if self._whole is None else partial(self._whole, arrays)
        with self.segments:
            start = time.perf_counter_ns()
            for _ in range(calls):
                run()
        return (time.perf_counter_ns() - start) * 1e-9

    def fill(self, arrays: Sequence[Array]) -> None:
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


class _Forks:
    """Has a process fork between calls: in one it may hold a lock of TVM's memory, which the child would wait for."""

    def __init__(self) -> None:
        self._one = threading.RLock()  # a signal's handler may fork while its thread is about to
        self.threads: list[int] = []  # the one that forks, as often as it does; it may call a network meanwhile
        self._networks: weakref.WeakSet[TvmNetwork] = weakref.WeakSet()
        self.done = threading.Event()

    def watch(self, network: TvmNetwork) -> None:
        with self._one:  # while no fork looks through them
            self._networks.add(network)

    def begin(self) -> None:
        self._one.acquire()
        self.threads.append(threading.get_ident())
        self.done.clear()
        until = time.monotonic() + _PATIENCE_S
        while any(network.is_called_by_others() for network in list(self._networks)) and time.monotonic() < until:
            time.sleep(1e-4)

    def end(self) -> None:
        if threading.get_ident() not in self.threads:
            return  # a signal has ended `begin` while another thread was forking
        self.threads.pop()
        if not self.threads:
            self.done.set()
        self._one.release()

    def begin_anew(self) -> None:
        networks = list(self._networks)
        self.__init__()  # type: ignore[misc]
        for network in networks:
            network.begin_anew()
            self.watch(network)


class SegmentCalls:
    """The segments of one compiled network, as sessions of ONNX Runtime with so many threads. Inputs are read where
    they are. Outputs are written where TVM reads them; those of a segment with an output whose size depends on the data
    are copied."""

    def __init__(self, models: Sequence[bytes], threads: int) -> None:
        self._sessions = [_Session(model, threads) for model in models]
        for number in range(len(models)):
            _register(number)

    def another(self) -> "SegmentCalls":
        made = copy(self)
        made._sessions = [session.another() for session in self._sessions]
        return made

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def whole(
        self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> "Callable[[Sequence[Array]], list[Array]] | None":
        """Return what runs the network without TVM, ten times as fast for one small operator; None where the one
        segment is not all of it."""
        if len(self._sessions) == 1 and self._sessions[0].takes(inputs, outputs):
            return partial(self._sessions[0].call, [one.name for one in inputs], [one.name for one in outputs])
        return None

    def __enter__(self) -> None:
        """Serve this thread's calls until the context ends; another network of the thread is served again after it."""
        self._before = getattr(_current, "segments", None)
        _current.segments = self

    def __exit__(self, *_: object) -> None:
        _current.segments = self._before

    def run(self, number: int, given: Sequence[Any]) -> Any:
        """Run a segment on tensors of TVM's; those of outputs are among them, or are returned: one, or a list."""
        return self._sessions[number].run(given)


def _register(number: int) -> None:
    if number not in _registered:
        library.register(f"{SEGMENT}{number}", lambda *given: _current.segments.run(number, given))
        _registered.add(number)


class _Session:
    def __init__(self, model: bytes, threads: int) -> None:
        import onnx

        self._session = OnnxRuntimeSession(model, threads, spinning=False)  # TVM's threads need the cores
        graph = onnx.load_model_from_string(model).graph
        self._inputs = [(one.name, one.type.tensor_type.elem_type) for one in graph.input]
        self._outputs = [(one.name, one.type.tensor_type.elem_type) for one in graph.output]
        self._binding: Any = None
        self._bound_to: Any = None
        self._places: list[Any] = []
        self._growing = [at for at, one in enumerate(graph.input) if not _is_static(one.type.tensor_type)]

    def another(self) -> "_Session":
        made = copy(self)
        made._binding, made._bound_to, made._places = None, None, []
        return made

    def takes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
        """Whether these are all inputs and outputs of the segment, of types that NumPy knows itself."""
        same = {one.name for one in inputs} == {name for name, _ in self._inputs} and {one.name for one in outputs} == {
            name for name, _ in self._outputs
        }
        return same and all(numpy_dtype(one.dtype).isbuiltin == 1 for one in (*inputs, *outputs))

    def call(self, inputs: Sequence[str], outputs: Sequence[str], arrays: Sequence[Array]) -> list[Array]:
        made: list[Array] = self._session.get().run(outputs, dict(zip(inputs, arrays, strict=True)))
        return made

    def run(self, given: Sequence[Any]) -> Any:
        """Run on inputs, followed by the outputs where the sizes of all are known; else return the outputs."""
        session = self._session.get()
        if len(given) > len(self._inputs):
            session.run_with_iobinding(self._bound(session, given))
            return None
        binding = session.io_binding()
        self._bind_inputs(binding, given)
        for name, _ in self._outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        made = [library.tensor(one.numpy()) for one in binding.get_outputs()]
        return made[0] if len(made) == 1 else made

    def _bound(self, session: Any, given: Sequence[Any]) -> Any:
        """Return a binding of these tensors: that of the call before, if it was of the same memory."""
        places: list[Any] = [tensor.data_ptr() for tensor in given]
        places += [tuple(given[at].shape) for at in self._growing]
        if places != self._places or session is not self._bound_to:
            self._binding, self._bound_to = session.io_binding(), session
            self._bind_inputs(self._binding, given[: len(self._inputs)])
            for (name, kind), tensor in zip(self._outputs, given[len(self._inputs) :], strict=True):
                _check_type(name, kind, tensor)
                self._binding.bind_output(name, "cpu", 0, kind, [int(dim) for dim in tensor.shape], tensor.data_ptr())
            self._places = places
        return self._binding

    def _bind_inputs(self, binding: Any, given: Sequence[Any]) -> None:
        for (name, kind), tensor in zip(self._inputs, given, strict=True):
            _check_type(name, kind, tensor)
            binding.bind_input(name, "cpu", 0, kind, [int(dim) for dim in tensor.shape], tensor.data_ptr())


def _check_type(name: str, kind: int, tensor: Any) -> None:
    """Raise ValueError where a session would read or write another type than TVM's tensor has: it takes any address."""
    import onnx

    wanted = onnx.helper.tensor_dtype_to_np_dtype(kind).name
    if str(tensor.dtype) != wanted:
        raise ValueError(f"a segment's {name!r:.60} is {wanted}, and the network's is {tensor.dtype}")


def _is_static(kind: Any) -> bool:
    return kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)


_forks = _Forks()
os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end, after_in_child=_forks.begin_anew)
