"""Fake devices that each break one method of the contract, and the test of the contract that notices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tunery.devices import Load
from tunery.devices._base import Fill
from tunery.domain import DeviceDescription
from tunery.testing.fake_device import (
    FakeConstantBuffers,
    FakeDevice,
    FakeForeignLoad,
    FakeMark,
    FakeMeter,
    FakeWatch,
)


class Renamed(FakeDevice):
    kind = "abacus"


class Everywhere(FakeDevice):
    def __init__(self, cores: Sequence[int] = (), slot: Sequence[int] = ()) -> None:
        super().__init__(cores, slot)
        self.slot = (*self.cores, 7)


class Overlapping(FakeDevice):
    @classmethod
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return [tuple(cores[:threads]), tuple(cores[:threads])]


class Narrow(FakeDevice):
    @classmethod
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return super().slots(cores, 1)


class Roomless(FakeDevice):
    @classmethod
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return super().slots(cores, threads) if len(cores) > threads else []


class Undecided(FakeDevice):
    uses_host_cores = None  # type: ignore[assignment]


class Moody(FakeDevice):
    def describe(self) -> DeviceDescription:
        return replace(super().describe(), facts={"now_s": self.now_s})


class OfItsSlot(FakeDevice):
    def describe(self) -> DeviceDescription:
        return replace(super().describe(), facts={"slot": list(self.slot)})


class Tupled(FakeDevice):
    def describe(self) -> DeviceDescription:
        return replace(super().describe(), facts={"caches": (1, 2)})


class PinnedElsewhere(FakeDevice):
    def pin(self) -> None:
        self.slot = (7,)


class Astray(FakeDevice):
    def hold(self) -> bool:
        return False


class Silent(FakeDevice):
    def conditions(self) -> Mapping[str, Any]:
        return {"cores": []}


class Unspeakable(FakeDevice):
    def conditions(self) -> Mapping[str, Any]:
        return {**super().conditions(), "celsius": float("nan")}


class Stopped(FakeDevice):
    def clock(self) -> float:
        return 1.0


class FlushedOnce(FakeDevice):
    def flush_caches(self) -> None:
        super().flush_caches()
        if self.flushes > 1:
            raise ValueError("the filler is gone")


def with_buffers(change: Callable[[Any], Any]) -> type[FakeDevice]:
    class Buffers(FakeConstantBuffers):
        def take(self, shape: Sequence[int], dtype: str) -> Any:
            return change(super().take(shape, dtype))

    class Mutant(FakeDevice):
        def constant_buffers(self, fill: Fill) -> FakeConstantBuffers:
            return Buffers(fill)

    return Mutant


def beside(array: Any, by: int) -> Any:
    """Return a copy of an array at a place that is not aligned."""
    return np.concatenate([array.ravel()[:by], array.ravel()])[by:].reshape(array.shape)


class InOnePlace(FakeDevice):
    def constant_buffers(self, fill: Fill) -> FakeConstantBuffers:
        buffers = super().constant_buffers(fill)
        buffers.take = cache(buffers.take)  # type: ignore[method-assign]
        return buffers


class Unfilled(FakeDevice):
    def constant_buffers(self, fill: Fill) -> FakeConstantBuffers:
        return super().constant_buffers(np.zeros)


def with_load(change: Callable[[Load], Load]) -> type[FakeDevice]:
    class ChangedWatch(FakeWatch):
        def since(self, mark: FakeMark) -> Load:
            return change(super().since(mark))

    class Mutant(FakeDevice):
        def watch(self) -> FakeWatch:
            return ChangedWatch(self)

    return Mutant


class SinceTheStart(FakeDevice):
    def watch(self) -> FakeWatch:
        class Marks(FakeWatch):
            def mark(self, full: bool = False) -> FakeMark:
                return FakeMark(0.0, 0.0, 0)

        return Marks(self)


class Forgetful(FakeDevice):
    def watch(self) -> FakeWatch:
        class Latest(FakeWatch):
            def since(self, mark: FakeMark) -> Load:
                return super().since(self.mark())

        return Latest(self)


class Endless(FakeDevice):
    def watch(self) -> FakeWatch:
        watch = super().watch()
        watch.least_s = float("inf")  # type: ignore[misc]
        return watch


def with_meter(read: Callable[[float], float], **told: Any) -> type[FakeDevice]:
    class ChangedMeter(FakeMeter):
        def read_j(self) -> float:
            return read(super().read_j())

    class Mutant(FakeDevice):
        def meter(self) -> FakeMeter:
            meter = ChangedMeter(self)
            for name, value in told.items():
                setattr(meter, name, value)
            return meter

    return Mutant


def with_others(*taken: float) -> type[FakeDevice]:
    class Mutant(FakeDevice):
        @classmethod
        def foreign_load(cls, cores: Sequence[int]) -> FakeForeignLoad:
            return FakeForeignLoad(taken)

    return Mutant


_DESCRIBED = "test_it_describes_itself_the_same_each_time"
_PLAIN = "test_its_facts_are_plain_data"
_SLOTS = "test_slots_are_disjoint_and_wide_enough"
_CONSTANTS = "test_constants_lie_elsewhere_each_time"
_WATCH = "test_a_watch_says_what_went_on_since_a_look"
_METER = "test_its_meter_only_ever_counts_up"
_HELD = "test_it_holds_after_it_was_pinned"
_OTHERS = "test_what_others_use_of_a_host_is_seen_from_look_to_look"

MUTANTS: list[tuple[str, type[FakeDevice], str]] = [
    ("Device.kind", Renamed, "test_it_is_opened_by_its_kind"),
    ("Device.slot", Everywhere, "test_it_keeps_to_its_slot_of_its_cores"),
    ("Device.slots", Overlapping, _SLOTS),
    ("Device.slots", Narrow, _SLOTS),
    ("Device.slots", Roomless, _SLOTS),
    ("Device.uses_host_cores", Undecided, "test_it_says_whether_kernels_compute_on_the_hosts_cores"),
    ("Device.foreign_load", with_others(1.0), _OTHERS),
    ("ForeignLoad.taken", with_others(0.0, -1.0), _OTHERS),
    ("ForeignLoad.taken", with_others(0.0, float("nan")), _OTHERS),
    ("Device.describe", Moody, _DESCRIBED),
    ("Device.describe", OfItsSlot, _DESCRIBED),
    ("Device.describe", Tupled, _PLAIN),
    ("Device.pin", PinnedElsewhere, _HELD),
    ("Device.hold", Astray, _HELD),
    ("Device.conditions", Silent, _HELD),
    ("Device.conditions", Unspeakable, _PLAIN),
    ("Device.clock", Stopped, "test_its_clock_moves_while_it_works"),
    ("Device.flush_caches", FlushedOnce, "test_its_caches_can_be_flushed_at_any_time"),
    ("Device.constant_buffers", Unfilled, _CONSTANTS),
    ("ConstantBuffers.take", InOnePlace, _CONSTANTS),
    ("ConstantBuffers.take", with_buffers(lambda array: array.reshape(-1)), _CONSTANTS),
    ("ConstantBuffers.take", with_buffers(lambda array: array.astype("float64")), _CONSTANTS),
    ("ConstantBuffers.take", with_buffers(lambda array: beside(array, 1)), _CONSTANTS),
    ("Device.watch", Endless, _WATCH),
    ("Watch.mark", SinceTheStart, _WATCH),
    ("Watch.since", Forgetful, _WATCH),
    ("Watch.since", with_load(lambda load: replace(load, waited=-1.0)), _WATCH),
    ("Watch.since", with_load(lambda load: replace(load, foreign=float("nan"))), _WATCH),
    ("Watch.since", with_load(lambda load: replace(load, contaminated=("",))), _WATCH),
    ("Device.meter", with_meter(lambda joules: joules, name=""), _METER),
    ("Device.meter", with_meter(lambda joules: joules, modelled=None), _METER),
    ("EnergyMeter.read_j", with_meter(lambda joules: 100.0 - joules), _METER),
    ("EnergyMeter.read_j", with_meter(lambda joules: joules - 1.0), _METER),
]
"""Which method is broken, by which device, and what notices."""
