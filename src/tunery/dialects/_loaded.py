"""What a dialect's compiler has made, loaded into this process: kernels and networks."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tunery._errors import TuneryError, UsageError, WorkError, brief
from tunery._processor import granted_cores
from tunery.devices import ConstantBuffers
from tunery.domain import TensorSpec, shape_text

Array = npt.NDArray[np.generic]


class Kernel(ABC):
    """A loaded candidate with its own argument buffers. `slack` is how many times the usual tolerance its rounding may
    need, for an algorithm that does not merely reorder sums; `traits` are facts about the implementation that its
    records should state. A timed sample should last `least_sample_s` at least, where the clock is in another process
    than the calls."""

    slack: float = 1.0
    least_sample_s: float = 0.0
    traits: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def bind(self, inputs: Sequence[Array]) -> None:
        """Copy the inputs (the workload's input specs, in order) to the device and allocate outputs if needed."""

    @abstractmethod
    def poison(self) -> None:
        """Overwrite the outputs with a value no right answer holds: NaN for floats, the type's minimum for integers."""

    @abstractmethod
    def run(self) -> None:
        """Execute once and wait for the end."""

    def use_cold_constants(self, buffers: ConstantBuffers) -> None:  # noqa: B027 - a kernel may have no constants
        """Let each call that `time` makes from now on read the network's constants from a buffer of its own."""

    @abstractmethod
    def time(self, calls: int) -> float:
        """Return the seconds `calls` back-to-back executions took, by the device's best clock."""

    @abstractmethod
    def outputs(self) -> list[Array]:
        """Return copies of the outputs."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled network on disk and which tasks are covered by which candidate (None: the compiler's default).
    `left_out` says, by workload, what the search that found a candidate did without, and why, and by `WHOLE` which
    rules failed on the network; `elsewhere`, by node of the network, why ONNX Runtime runs it; `not_kept`, which kinds
    of values operators may lose. `digest` is the SHA-256 of the file, where writing it gave that."""

    path: str
    coverage: Mapping[str, str | None]
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    digest: str = ""
    not_kept: tuple[str, ...] = ()


MOST_THREADS = 4096


def thread_count(asked: int | None, told: Any) -> int:
    """Return how many threads a compiled network takes: those asked for, else OMP_NUM_THREADS, else the file's. The
    last two are at most the cores that this process may use: a file of a larger machine starts no more."""
    if type(told) is not int or not 1 <= told <= MOST_THREADS:
        raise ValueError(f"it takes {told!r:.20} threads, not 1 to {MOST_THREADS}")
    if asked is None:
        first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        wanted = int(first) if first.isdecimal() and 0 < int(first) <= MOST_THREADS else told
        return min(wanted, granted_cores())
    if not 1 <= asked <= MOST_THREADS:
        raise ValueError(f"it takes {asked} threads, not 1 to {MOST_THREADS}")
    return asked


class CompiledNetwork(ABC):
    """A compiled network loaded into this process."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int

    def __repr__(self) -> str:
        sides = (
            ", ".join(f"{one.name}: {one.dtype}{shape_text(one.shape)}" for one in of)
            for of in (self.inputs, self.outputs)
        )
        return f"<compiled network: {' -> '.join(sides)}; threads={self.threads}>"

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{side}</td><td>{escape(one.name)}</td><td>{escape(one.dtype)}</td>"
            f"<td>{' x '.join('?' if size < 0 else str(size) for size in one.shape)}</td></tr>"
            for side, of in (("input", self.inputs), ("output", self.outputs))
            for one in of
        ]
        return f"<table><caption>compiled network, threads: {self.threads}</caption>{''.join(rows)}</table>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, or sent to another process: its code and threads are this one's."""
        raise UsageError("a loaded network cannot be copied or pickled; load its file where it is needed")

    def __call__(self, *arrays: Any, out: Sequence[Any] | None = None, **named: Any) -> list[Array]:
        """Run once on arrays, one per input in order; return the outputs. An array is NumPy's, or anything on the CPU
        that speaks DLPack, such as torch's tensors; it is not copied to look at it. With `out`, the outputs are written
        to these arrays or tensors, one per output in order, and returned as views of them."""
        if named:
            raise self._in_order()
        checked = self.checked(arrays)
        places = None if out is None else self._places(out)
        try:
            outputs = self._run(checked)
        except TuneryError:
            raise
        except Exception as error:  # of many kinds, from libraries: an index beyond a table, no memory
            reason = brief(error)
            raise WorkError(f"the network cannot be run on these inputs: {reason}; look at their values") from error
        if places is None:
            return outputs
        for spec, place, output in zip(self.outputs, places, outputs, strict=True):
            if place.shape != output.shape:  # of a network for any shape
                raise UsageError(
                    f"the array for output {spec.name!r:.80} must have the shape {list(output.shape)}, not "
                    f"{list(place.shape)}"
                )
            place[...] = output
        return places

    @abstractmethod
    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for arrays that fit, as arrays that nothing else writes to."""

    @abstractmethod
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        """Return the seconds `calls` back-to-back executions took."""

    def profile(self, arrays: Sequence[Array]) -> Mapping[str, float]:
        """Return the median seconds that kernels take in one execution, summed over their calls. By the key of the
        workload that a kernel computes; by its name where it is none's, as a copy or a part that ONNX Runtime runs
        (`SEGMENT`). Time between kernels is not in it. Empty where the compiler cannot tell."""
        self.checked(arrays)
        return {}

    def checked(self, arrays: Sequence[Any]) -> Sequence[Array]:
        """Return `arrays` as NumPy's, without a copy, if they fit the inputs."""
        wanted = self._wanted
        if len(arrays) == len(wanted):
            for array, (_, shape, dtype) in zip(arrays, wanted, strict=True):
                if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                    break
            else:
                return arrays
        if any(isinstance(array, Mapping) for array in arrays):
            raise self._in_order()
        if len(arrays) != len(wanted):
            raise UsageError(f"the network takes {len(wanted)} inputs, not {len(arrays)}")
        return [_fitting(array, "input", spec) for array, (spec, _, _) in zip(arrays, wanted, strict=True)]

    def _in_order(self) -> UsageError:
        names = ", ".join(spec.name for spec in self.inputs)
        return UsageError(f"give arrays in the order of the inputs ({names}), not by name")

    @cached_property
    def _wanted(self) -> list[tuple[TensorSpec, tuple[int, ...], Any]]:
        return [(spec, spec.shape, numpy_dtype(spec.dtype)) for spec in self.inputs]

    def _places(self, out: Sequence[Any]) -> list[Array]:
        given = len(out) if isinstance(out, Sized) else 0
        if given != len(self.outputs):
            raise UsageError(f"the network gives {len(self.outputs)} outputs, not {given}: list an array for each")
        places = [_fitting(one, "output", spec) for one, spec in zip(out, self.outputs, strict=True)]
        for spec, place in zip(self.outputs, places, strict=True):
            if not place.flags.writeable or np.isscalar(place):
                raise UsageError(f"the array for output {spec.name!r:.80} cannot be written; give one that can")
            if _overlaps_itself(place):
                raise UsageError(
                    f"elements of the array for output {spec.name!r:.80} share memory, as of what expand() returns; "
                    "give one with a place for each"
                )
        for at, place in enumerate(places):
            for before, other in enumerate(places[:at]):
                if np.may_share_memory(place, other):  # by their bounds
                    one, two = self.outputs[before].name, self.outputs[at].name
                    raise UsageError(
                        f"the arrays for outputs {one!r:.80} and {two!r:.80} share memory; give each one of its own"
                    )
        return places


def _overlaps_itself(array: Array) -> bool:
    """Return whether elements may be at the same address: a stride is shorter than what lies within it."""
    if array.flags.c_contiguous:
        return False
    reach = array.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def _fitting(value: Any, what: str, spec: TensorSpec) -> Array:
    """Return a value as an array, without a copy."""
    array: Array = value
    if isinstance(value, np.generic):
        array = np.asarray(value)
    elif not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise UsageError(f"{what} {spec.name!r:.80} must be an array of NumPy's or DLPack's, not {_type_of(value)}")
        if getattr(value, "is_neg", bool)():  # torch gives it away without the sign
            raise UsageError(f"{what} {spec.name!r:.80} has its negative bit set; give what its resolve_neg() returns")
        try:
            array = np.from_dlpack(value)
        except Exception as error:  # each library has its own for what it cannot give away
            raise UsageError(
                f"{what} {spec.name!r:.80}, a {_type_of(value)}, cannot be read as an array of the CPU's: "
                f"{brief(error)}"
            ) from error
    if not takes(spec, array.shape) or str(array.dtype) != spec.dtype:
        raise UsageError(
            f"{what} {spec.name!r:.80} must be {spec.dtype}{shape_text(spec.shape)}, "
            f"not {array.dtype}{list(array.shape)}"
        )
    return array


def takes(spec: TensorSpec, shape: Sequence[int]) -> bool:
    """Return whether an array of this shape may be what is described; a size of -1 stands for any."""
    if len(shape) != len(spec.shape):
        return False
    return all(told in {-1, size} for told, size in zip(spec.shape, shape, strict=True))


def _type_of(value: Any) -> str:
    return type(value).__name__


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of a name; None where NumPy alone has none."""
    try:
        return np.dtype(name)
    except TypeError:
        return None
