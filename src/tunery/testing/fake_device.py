"""A device with scripted interference, heat and sharing, in virtual time: measuring is tested on it.

Nothing here waits: a kernel's run moves the device's clock. The same seed gives the same samples.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery.devices._base import ConstantBuffers, Device, EnergyMeter, Fill, ForeignLoad, Load, Watch
from tunery.domain import DeviceDescription

Spells = Sequence[tuple[float, float, float]]
"""From when to when (seconds of the device's clock) everything takes how many times as long."""

_WAITED = 0.02  # of the time, from where on a sample counts as contaminated
_WATTS = 10.0
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class FakeMark:
    """The device's counters at one moment."""

    now_s: float
    waited_s: float
    throttles: int


class FakeDevice(Device):
    """A clock, a random generator, and spells in which kernels run slower.

    In a spell of `interference` our work waits for others'; in one that is `throttled` nobody waits, but a counter
    sees every run. `sharing` maps how many slots measure at once (`busy`) to the factor by which each of them is
    slower; no counter sees that. `strays` says, call after call, where `hold` finds the process outside its slot.
    """

    kind = "fake"

    def __init__(
        self,
        cores: Sequence[int] = (0,),
        slot: Sequence[int] = (),
        *,
        seed: int = 0,
        interference: Spells = (),
        throttled: Spells = (),
        sharing: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__(tuple(cores) or (0,), slot)
        self.interference, self.throttled, self.sharing = interference, throttled, dict(sharing or {})
        self.generator = np.random.default_rng(seed)
        self.busy = 1
        self.now_s = self.waited_s = self.busy_s = 0.0
        self.throttles = self.flushes = 0
        self.strays: Iterator[bool] = iter(())

    @classmethod
    @override
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        width = max(1, threads)
        return [tuple(cores[i : i + width]) for i in range(0, len(cores) - width + 1, width)]

    @classmethod
    @override
    def foreign_load(cls, cores: Sequence[int]) -> "FakeForeignLoad":
        return FakeForeignLoad()

    def run_for(self, seconds: float) -> float:
        """Let a kernel run that takes `seconds` undisturbed, and return how long it took."""
        waiting, hot = self._factor(self.interference), self._factor(self.throttled)
        seconds *= hot * self.sharing.get(self.busy, 1.0)
        self.waited_s += seconds * (waiting - 1)
        self.throttles += hot > 1
        self.busy_s += seconds
        self.now_s += seconds * waiting
        return seconds * waiting

    def _factor(self, spells: Spells) -> float:
        return max((factor for start, end, factor in spells if start <= self.now_s < end), default=1.0)

    @override
    def describe(self) -> DeviceDescription:
        return DeviceDescription("fake", "a device in virtual time", self.cores, {"virtual": True})

    @override
    def pin(self) -> None:
        """Do nothing: kernels run nowhere."""

    @override
    def hold(self) -> bool:
        return not next(self.strays, False)

    @override
    def conditions(self) -> Mapping[str, Any]:
        return {"cores": list(self.slot)}

    @override
    def clock(self) -> float:
        return self.now_s

    @override
    def flush_caches(self) -> None:
        self.flushes += 1

    @override
    def constant_buffers(self, fill: Fill) -> "FakeConstantBuffers":
        return FakeConstantBuffers(fill)

    @override
    def watch(self) -> "FakeWatch":
        return FakeWatch(self)

    @override
    def meter(self) -> "FakeMeter":
        return FakeMeter(self)


class FakeWatch(Watch[FakeMark]):
    """Sees interference as time that our work waited, and counts runs in the heat."""

    least_s = 0.25

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    @override
    def mark(self, full: bool = False) -> FakeMark:
        return FakeMark(self._device.now_s, self._device.waited_s, self._device.throttles)

    @override
    def since(self, mark: FakeMark) -> Load:
        now = self.mark()
        wall_s = max(now.now_s - mark.now_s, 1e-9)
        waited, throttles = (now.waited_s - mark.waited_s) / wall_s, now.throttles - mark.throttles
        flags = ("throttled",) * bool(throttles) + ("waited",) * (waited > _WAITED)
        return Load(wall_s, waited=waited, throttles=throttles, contaminated=flags)


class FakeForeignLoad(ForeignLoad):
    """Others take what `script` says, look after look, and nothing once it has ended."""

    least_s = 0.0

    def __init__(self, script: Iterable[float] = ()) -> None:
        self._script = iter(script)

    @override
    def taken(self) -> float:
        return next(self._script, 0.0)


class FakeMeter(EnergyMeter):
    """Ten watts while a kernel runs."""

    modelled = True
    name = "fake"

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    @override
    def read_j(self) -> float:
        return self._device.busy_s * _WATTS


class FakeConstantBuffers(ConstantBuffers):
    """A new array each time: its place cannot come again while it is held."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._held: list[npt.NDArray[np.generic]] = []

    @override
    def take(self, shape: Sequence[int], dtype: str) -> npt.NDArray[np.generic]:
        size = int(np.prod(shape, dtype=np.int64))
        numbers = self._fill(size, dtype)
        room = np.empty(numbers.nbytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        array = room[start : start + numbers.nbytes].view(numbers.dtype)
        array[:] = numbers
        self._held = [*self._held[-1:], array]
        return array.reshape(shape)
