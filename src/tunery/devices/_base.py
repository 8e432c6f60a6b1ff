"""The contract of a device: what runs kernels, as the worker sees it that measures there.

`tunery.testing.device_contract` is its test-suite, `tunery.testing.fake_device` the smallest example. The rules of
measuring know a device by this contract only. An object is made in the process that measures, and nothing of it
crosses a process border but its description.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tunery.domain import DeviceDescription

M = TypeVar("M")
Fill = Callable[[int, str], npt.NDArray[np.generic]]
"""Gives so many numbers of a dtype, in host memory."""


@dataclass(frozen=True, slots=True)
class Load:
    """What else went on between two looks at a device, as shares of the wall time; None where it is not known.

    `waited` is how long our work was ready but did not run, `foreign` how much of the device others used, `throttles`
    how often it was slowed down for its heat. `contaminated` names the limits that were passed: a sample taken then is
    not to be used. A device may say more in a subclass; all of it is kept with the measurement.
    """

    wall_s: float
    waited: float | None = None
    foreign: float | None = None
    throttles: int | None = None
    contaminated: tuple[str, ...] = ()


class Watch(ABC, Generic[M]):
    """Looks at a device before and after a piece of work; a mark is whatever a look needs to be compared later.

    `least_s` is over how long a full look must go at least to say much.
    """

    least_s: ClassVar[float]

    @abstractmethod
    def mark(self, full: bool = False) -> M:
        """Look now, cheaply (some µs), or with `full` at all there is to see (some ms)."""

    @abstractmethod
    def since(self, mark: M) -> Load:
        """Return what happened since `mark`, as fully as the mark was taken."""


class ForeignLoad(ABC):
    """Sees what others do with the cores of a host while we work there.

    `least_s` is how far two looks must lie apart at least for the second one to say much.
    """

    least_s: ClassVar[float]

    @abstractmethod
    def taken(self) -> float:
        """Return how many of the watched cores others have used since the last look, 0 at the first one.

        What this process and its descendants use is ours. 0 where nothing is known.
        """


TRAITS = ("vector_bits", "L1d_log2_kib", "L2_log2_kib", "L3_log2_kib", "virtual")
"""What `Device.traits` may tell: the width of vectors, sizes of caches, whether the machine is virtual (1 or 0)."""


class EnergyMeter(ABC):
    """Counts joules from any start; differences between two readings are what matters.

    `modelled` says that nothing was measured: busy time was multiplied by a rated power. It may become true later.
    """

    modelled: bool
    name: str

    @abstractmethod
    def read_j(self) -> float:
        """Return the joules so far; this never fails."""


class ConstantBuffers(ABC):
    """Buffers in the device's memory that are in no cache: a network's weights, where they exceed the caches."""

    @abstractmethod
    def take(self, shape: Sequence[int], dtype: str) -> object:
        """Return a buffer that speaks DLPack, holds numbers and lies at another place each time.

        It is aligned to 64 bytes. By the time that a place comes again, the caches have forgotten it.
        """


class Device(ABC):
    """A thing that runs kernels, opened by the process that measures on it.

    `cores` are the host's cores that belong to the device (a CPU's own) or that may launch its kernels; `slot` are
    those that this process keeps to, one of `slots`. Empty means all that this process may use, and all of `cores`.
    """

    kind: ClassVar[str]
    uses_host_cores: ClassVar[bool] = True
    """Whether its kernels compute on the host's cores. Where not, one core launches them, and others may build."""

    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        self.cores, self.slot = tuple(cores), tuple(slot) or tuple(cores)

    @classmethod
    @abstractmethod
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        """Return the sets of a host's cores on which kernels of `threads` threads may be measured at the same time.

        They are disjoint, and those come first that disturb one another least; at least one where there are `threads`
        cores. A host asks before any worker is started.
        """

    @classmethod
    @abstractmethod
    def foreign_load(cls, cores: Sequence[int]) -> ForeignLoad:
        """Return what sees others' use of a host's cores; a host asks, in the process whose descendants are ours."""

    @classmethod
    def traits(cls, facts: Mapping[str, Any]) -> Mapping[str, float]:  # noqa: ARG003 - for those that know any
        """Return numbers that a cost model may know a device by, from the facts that a store has of one of this kind.

        Their names are in `TRAITS`; what is not known is left out.
        """
        return {}

    @abstractmethod
    def describe(self) -> DeviceDescription:
        """Return what of the device makes two timings comparable: the same each time, also after a restart."""

    def look(self) -> DeviceDescription:
        """Describe it without taking anything of it, so that who works on it now is not disturbed."""
        return self.describe()

    @abstractmethod
    def pin(self) -> None:
        """Keep this process to its slot; called before a compiler's runtime is loaded."""

    @abstractmethod
    def hold(self) -> bool:
        """Return whether this process has kept to its slot since the last call, and bring it back if it has not."""

    @abstractmethod
    def conditions(self) -> Mapping[str, Any]:
        """Return what a measurement taken now should state: the slot, clocks, temperature, as far as they are known."""

    @abstractmethod
    def clock(self) -> float:
        """Return the seconds from any start that pass while kernels run, by the device's best clock."""

    @abstractmethod
    def flush_caches(self) -> None:
        """Empty the caches of what kernels may have left there."""

    @abstractmethod
    def constant_buffers(self, fill: Fill) -> ConstantBuffers:
        """Return new cold buffers that hold what `fill` gives, over and over."""

    @abstractmethod
    def watch(self) -> Watch[Any]:
        """Return a watch for foreign load and throttling."""

    @abstractmethod
    def meter(self) -> EnergyMeter:
        """Return a meter for the energy of the whole device."""
