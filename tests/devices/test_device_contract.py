"""Our devices keep the contract, and it notices one that does not."""

import os
import resource
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from device_mutants import MUTANTS

from tunery._errors import UsageError
from tunery.devices import (
    ConstantBuffers,
    Device,
    EnergyMeter,
    ForeignLoad,
    Watch,
    device_class,
    open_device,
)
from tunery.devices.cpu import device as cpu_device
from tunery.devices.cpu.device import CpuDevice
from tunery.testing.device_contract import DeviceContract
from tunery.testing.fake_device import FakeDevice


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
    with pytest.raises(UsageError, match="cpu, cuda, fake"):
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


EACH: dict[str, list[tuple[Any, ...]]] = {
    "test_slots_are_disjoint_and_wide_enough": [(1,), (2,), (3,)],
    "test_constants_lie_elsewhere_each_time": [((3, 5, 7), "float32"), ((64,), "int8")],
    "test_a_watch_says_what_went_on_since_a_look": [(False,), (True,)],
}
"""What the contract's tests are parametrised with."""


def test_the_contract_notices_whatever_a_device_gets_wrong() -> None:
    """Each method of the contract is broken by some mutant, and each mutant fails."""
    contract = (Device, Watch, EnergyMeter, ConstantBuffers, ForeignLoad)
    methods = {f"{one.__name__}.{name}" for one in contract for name in one.__abstractmethods__}
    assert {broken for broken, _, _ in MUTANTS} >= methods


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "mutant", "noticed"), MUTANTS)
def test_a_mutant_fails(broken: str, mutant: type[FakeDevice], noticed: str) -> None:
    suite, arguments = TestFakeDevice(), EACH.get(noticed, [()])

    def check(device: type[FakeDevice]) -> None:
        for given in arguments:
            getattr(suite, noticed)(device((0, 1), (1,)), *given)

    check(FakeDevice)
    with pytest.raises((AssertionError, TypeError, ValueError)):
        check(mutant)
