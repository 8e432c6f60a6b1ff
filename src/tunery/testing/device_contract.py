"""What every device must keep, as a pytest suite that a plug-in's author runs on their own device.

    import pytest
    from tunery.testing.device_contract import DeviceContract

    class TestMyDevice(DeviceContract):
        @pytest.fixture
        @classmethod
        def device(cls): return MyDevice(cores=(0, 1), slot=(0,))

        def work(self, device): ...  # keep the device busy for a moment

The device is opened in the process that runs the tests, and pinned: run them in one that may be.
"""

import json
import math

import numpy as np
import pytest

from tunery.devices._base import TRAITS, Device, Load
from tunery.domain import DeviceDescription, canonical_json

_ALIGNMENT = 64


def _numbers(count: int, dtype: str) -> "np.ndarray[tuple[int], np.dtype[np.generic]]":
    return (np.arange(count) % 7 + 1).astype(dtype)


class DeviceContract:
    """Inherit in a class named `Test...`, give the fixture `device` and the method `work`, and run pytest."""

    def work(self, device: Device) -> None:
        """Keep the device busy for a moment, as a kernel would."""
        raise NotImplementedError

    def test_it_is_opened_by_its_kind(self, device: Device) -> None:
        """The class that workers open by the name of its kind describes the same device."""
        again = type(device)(device.cores, device.slot)
        assert again.kind == device.kind == again.describe().kind
        assert (again.cores, again.slot) == (device.cores, device.slot)

    def test_it_keeps_to_its_slot_of_its_cores(self, device: Device) -> None:
        """A slot is some of the cores; one that is not named is all of them."""
        assert set(device.slot) <= set(device.cores)
        assert type(device)(device.cores).slot == device.cores

    def test_its_traits_are_numbers_by_known_names(self, device: Device) -> None:
        """Read from facts as a store has them, those that an earlier version wrote included."""
        for facts in (device.describe().as_facts(), {}):
            traits = type(device).traits(facts)
            assert set(traits) <= set(TRAITS), f"unknown traits: {sorted(set(traits) - set(TRAITS))}"
            assert all(map(math.isfinite, traits.values())), "a trait that is not known is left out"

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_slots_are_disjoint_and_wide_enough(self, device: Device, threads: int) -> None:
        """Measurements on two slots share no core of the host; whoever has the cores has a slot."""
        cores = tuple(range(5))
        slots = type(device).slots(cores, threads)
        used = [core for slot in slots for core in slot]
        assert slots, "five cores are no slot"
        assert len(used) == len(set(used)), "two slots share a core"
        assert set(used) <= set(cores), "a slot has a core that nobody offered"
        assert {len(slot) for slot in slots} == {max(len(slots[0]), threads)}, "slots are not alike, or too narrow"
        assert type(device).slots(cores[:threads], threads), "whoever has the cores has no slot"

    def test_it_says_whether_kernels_compute_on_the_hosts_cores(self, device: Device) -> None:
        """Asked of the class, before any worker is started; one core is always enough to launch them."""
        assert type(device).uses_host_cores in {True, False}
        assert type(device).slots((0,), 1) == [(0,)]

    def test_what_others_use_of_a_host_is_seen_from_look_to_look(self, device: Device) -> None:
        """The first look only begins the time that the next one is about."""
        load = type(device).foreign_load(device.cores)
        assert 0 <= load.least_s < math.inf
        assert load.taken() == 0, "there is nothing yet that the first look could be compared with"
        self.work(device)
        assert 0 <= load.taken() < math.inf

    def test_it_describes_itself_the_same_each_time(self, device: Device) -> None:
        """The fingerprint names the kind of machine: neither the moment, nor which of its cores are used."""
        first = device.describe()
        assert isinstance(first, DeviceDescription)
        self.work(device)
        assert device.describe() == first == device.look(), "to look at it tells something else"
        again = type(device)(device.cores, device.cores[:1]).describe()
        assert again == first
        assert again.fingerprint == first.fingerprint
        assert len(first.cores) == len(device.cores)

    def test_its_facts_are_plain_data(self, device: Device) -> None:
        """They cross processes, and are kept in a store, without a change."""
        facts = dict(device.describe().facts)
        assert json.loads(canonical_json(facts)) == facts
        json.dumps(dict(device.conditions()), allow_nan=False)

    def test_it_holds_after_it_was_pinned(self, device: Device) -> None:
        """Nothing strays by itself, and a measurement states on which cores it ran."""
        device.pin()
        assert set(device.slot) <= set(device.cores), "it is pinned to cores that are not its own"
        device.hold()
        self.work(device)
        assert device.hold(), "the process has left its slot"
        assert list(device.conditions()["cores"]) == list(device.slot)

    def test_its_clock_moves_while_it_works(self, device: Device) -> None:
        """Time passes for a kernel, and never goes back."""
        before = device.clock()
        self.work(device)
        after = device.clock()
        assert math.isfinite(before)
        assert before < after <= device.clock()

    def test_its_caches_can_be_flushed_at_any_time(self, device: Device) -> None:
        """It may be done before each call of a kernel."""
        device.flush_caches()
        self.work(device)
        device.flush_caches()

    @pytest.mark.parametrize("dtype", ["float32", "int8"])
    @pytest.mark.parametrize("shape", [(3, 5, 7), (64,), (1,)])
    def test_constants_lie_elsewhere_each_time(self, device: Device, shape: tuple[int, ...], dtype: str) -> None:
        """They hold the numbers that were given, at an aligned place that is not the last one."""
        buffers = device.constant_buffers(_numbers)
        places = []
        for _ in range(3):
            array = self.host_view(buffers.take(shape, dtype))
            assert (array.shape, str(array.dtype)) == (shape, dtype)
            assert 0 < array.min() <= array.max() <= 7, "they hold other numbers than were given"
            places.append(array.ctypes.data)
        assert not any(place % _ALIGNMENT for place in places)
        assert places[0] != places[1] != places[2], "the same place again"

    def host_view(self, buffer: object) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
        """Return a buffer as an array of the host's; a device with memory of its own copies it."""
        return np.from_dlpack(buffer)  # type: ignore[arg-type]  # whatever speaks DLPack

    @pytest.mark.parametrize("full", [False, True])
    def test_a_watch_says_what_went_on_since_a_look(self, device: Device, full: bool) -> None:
        """Each look is compared with its own mark, and shares are shares."""
        watch = device.watch()
        assert 0 <= watch.least_s < math.inf
        early = watch.mark(full=full)
        self.work(device)
        late = watch.mark(full=full)
        short = watch.since(late)  # first: what goes by between the two looks is in the longer one
        long = watch.since(early)
        assert isinstance(long, Load)
        assert long.wall_s > short.wall_s >= 0
        for share in (long.waited, long.foreign):
            assert share is None or 0 <= share < math.inf
        assert all(isinstance(flag, str) and flag for flag in long.contaminated)

    def test_its_meter_only_ever_counts_up(self, device: Device) -> None:
        """Joules never go back, and it is said whether they are measured."""
        meter = device.meter()
        before = meter.read_j()
        self.work(device)
        after = meter.read_j()
        assert 0 <= before <= after < math.inf
        assert isinstance(meter.name, str)
        assert meter.name
        assert isinstance(meter.modelled, bool)
