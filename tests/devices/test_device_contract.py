"""Our devices keep the contract, and it notices one that does not."""

import os
import resource
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from tunery._errors import UsageError
from tunery.devices import Device, Load, device_class, open_device
from tunery.devices._base import Fill
from tunery.devices.contract import DeviceContract
from tunery.devices.cpu import device as cpu_device
from tunery.devices.cpu.device import CpuDevice
from tunery.devices.fake import FakeConstantBuffers, FakeDevice, FakeMark, FakeMeter, FakeWatch
from tunery.domain import DeviceDescription


@pytest.fixture
def unpinned() -> Iterator[tuple[int, ...]]:
    """The cores of this process, which it has again afterwards."""
    cores = os.sched_getaffinity(0)
    yield tuple(sorted(cores))
    os.sched_setaffinity(0, cores)


class TestCpuDevice(DeviceContract):
    @pytest.fixture
    @classmethod
    def device(cls, unpinned: tuple[int, ...]) -> Device:
        return CpuDevice(unpinned, unpinned[:1])

    def work(self, device: Device) -> None:
        end = time.perf_counter() + 2e-3
        while time.perf_counter() < end:
            pass


class TestFakeDevice(DeviceContract):
    @pytest.fixture
    @classmethod
    def device(cls) -> Device:
        return FakeDevice((0, 1), (1,), seed=3)

    def work(self, device: Device) -> None:
        assert isinstance(device, FakeDevice)
        device.run_for(1e-3)


def test_devices_are_found_by_their_kind() -> None:
    assert device_class("cpu") is CpuDevice
    assert open_device("fake", (0, 1), (1,)).slot == (1,)
    with pytest.raises(UsageError, match="cpu, fake"):
        device_class("abacus")


def test_a_process_that_left_its_slot_is_brought_back(unpinned: tuple[int, ...]) -> None:
    if len(unpinned) < 2:
        pytest.skip("there is no other core to stray to")
    device = CpuDevice(unpinned, unpinned[:1])
    device.pin()
    assert os.sched_getaffinity(0) == set(unpinned[:1])
    os.sched_setaffinity(0, unpinned[1:])
    assert not device.hold()
    assert os.sched_getaffinity(0) == set(unpinned[:1])
    assert device.hold()


def test_flushing_writes_more_than_the_caches_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_device, "cache_bytes", lambda: 40 * 2**20)
    device, faults = CpuDevice(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tracemalloc.start()
    try:
        device.flush_caches()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held >= 70 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt > faults, "what is not written is in no cache"


class Stopped(FakeDevice):
    def clock(self) -> float:
        return 1.0


class Overlapping(FakeDevice):
    @classmethod
    def slots(cls, cores: Sequence[int], threads: int) -> list[tuple[int, ...]]:
        return [tuple(cores[:threads]), tuple(cores[:threads])]


class Moody(FakeDevice):
    def describe(self) -> DeviceDescription:
        return replace(super().describe(), facts={"now_s": self.now_s})


class Cold(FakeDevice):
    def meter(self) -> FakeMeter:
        class Cooling(FakeMeter):
            def read_j(self) -> float:
                return 100.0 - super().read_j()

        return Cooling(self)


class InOnePlace(FakeDevice):
    def constant_buffers(self, fill: Fill) -> FakeConstantBuffers:
        class Same(FakeConstantBuffers):
            @lru_cache  # noqa: B019 - of one test
            def take(self, shape: Sequence[int], dtype: str) -> Any:
                return super().take(shape, dtype)

        return Same(fill)


class Astray(FakeDevice):
    def hold(self) -> bool:
        return False


class Forgetful(FakeDevice):
    def watch(self) -> FakeWatch:
        class Latest(FakeWatch):
            def since(self, mark: FakeMark) -> Load:
                return super().since(self.mark())

        return Latest(self)


@pytest.mark.parametrize(
    ("mutant", "noticed", "arguments"),
    [
        (Stopped, "test_its_clock_moves_while_it_works", ()),
        (Overlapping, "test_slots_are_disjoint_and_wide_enough", (1,)),
        (Moody, "test_it_describes_itself_the_same_each_time", ()),
        (Cold, "test_its_meter_only_ever_counts_up", ()),
        (InOnePlace, "test_constants_lie_elsewhere_each_time", ((64,), "float32")),
        (Astray, "test_it_holds_after_it_was_pinned", ()),
        (Forgetful, "test_a_watch_says_what_went_on_since_a_look", (True,)),
    ],
)
def test_the_contract_notices(mutant: type[FakeDevice], noticed: str, arguments: tuple[Any, ...]) -> None:
    suite = TestFakeDevice()
    getattr(suite, noticed)(FakeDevice((0, 1), (1,)), *arguments)
    with pytest.raises(AssertionError):
        getattr(suite, noticed)(mutant((0, 1), (1,)), *arguments)
