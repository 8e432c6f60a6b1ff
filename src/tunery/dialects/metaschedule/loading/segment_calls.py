"""Segments of a compiled network: parts that ONNX Runtime runs, called from TVM's code as functions."""

import threading
from collections.abc import Sequence
from copy import copy
from typing import Any

from tunery.dialects._sessions import OnnxRuntimeSession
from tunery.dialects.metaschedule.loading import library
from tunery.domain import SEGMENT

_current = threading.local()
_registered: set[int] = set()


class SegmentCalls:
    """The segments of one compiled network, as sessions of ONNX Runtime with so many threads.

    Inputs are read where they are. Outputs are written where TVM reads them; those of a segment with an output whose
    size depends on the data are copied.
    """

    def __init__(self, models: Sequence[bytes], threads: int) -> None:
        self._sessions = [_Session(model, threads) for model in models]
        for number in range(len(models)):
            _register(number)

    def another(self) -> "SegmentCalls":
        """Return the same segments for calls at the same time as these."""
        made = copy(self)
        made._sessions = [session.another() for session in self._sessions]
        return made

    def __bool__(self) -> bool:
        return bool(self._sessions)

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
    """Let TVM's code call segment `number` of the network that the calling thread is running."""
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
