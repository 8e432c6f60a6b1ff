"""What a dialect's compiler has made, loaded into this process: kernels and networks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.devices import ConstantBuffers
from tunery.domain import TensorSpec

Array = npt.NDArray[np.generic]


class Kernel(ABC):
    """A loaded candidate with its own argument buffers.

    `slack` is how many times the usual tolerance its rounding may need, for an algorithm that does not merely reorder
    sums; `traits` are facts about the implementation that its records should state.
    """

    slack: float = 1.0
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

    `left_out` says, by workload, what the search that found a candidate did without, and why; `elsewhere`, by node of
    the network, why ONNX Runtime runs it.
    """

    path: str
    coverage: Mapping[str, str | None]
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)


_MOST_THREADS = 4096


def thread_count(asked: int | None, told: Any) -> int:
    """Return how many threads a compiled network takes: those asked for, else those that its file tells.

    Raises:
        ValueError: that is no number that any machine has.
    """
    threads = int(told) if asked is None else asked
    if not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"it takes {threads} threads, not 1 to {_MOST_THREADS}")
    return threads


class CompiledNetwork(ABC):
    """A compiled network loaded into this process."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int

    def __repr__(self) -> str:
        """Return what it takes and gives."""
        sides = (
            ", ".join(f"{one.name}: {one.dtype}{list(one.shape)}" for one in of) for of in (self.inputs, self.outputs)
        )
        return f"<compiled network: {' -> '.join(sides)}; threads={self.threads}>"

    @abstractmethod
    def __call__(self, *arrays: Array) -> list[Array]:
        """Run once on NumPy arrays, one per input in order; return the outputs.

        Raises:
            UsageError: wrong number, shape or dtype of inputs.
        """

    @abstractmethod
    def time(self, arrays: Sequence[Array], calls: int) -> float:
        """Return the seconds `calls` back-to-back executions took."""

    def profile(self, arrays: Sequence[Array], calls: int) -> Mapping[str, float]:  # noqa: ARG002 - see below
        """Return the median seconds that kernels take in one execution, summed over their calls.

        By the key of the workload that a kernel computes; by its name where it is none's, as a copy. Time between
        kernels is not in it. Empty where the compiler cannot tell.
        """
        return {}

    def checked(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return `arrays` if they fit the inputs.

        Raises:
            UsageError: they do not; the message names the first that does not.
        """
        if len(arrays) != len(self.inputs):
            raise UsageError(f"the network takes {len(self.inputs)} inputs, not {len(arrays)}")
        for spec, array in zip(self.inputs, arrays, strict=True):
            if not isinstance(array, np.ndarray | np.generic):
                raise UsageError(f"input {spec.name!r} must be a NumPy array, not {type(array).__name__}")
            if tuple(array.shape) != spec.shape or str(array.dtype) != spec.dtype:
                raise UsageError(
                    f"input {spec.name!r} must be {spec.dtype}{list(spec.shape)}, not {array.dtype}{list(array.shape)}"
                )
        return arrays
