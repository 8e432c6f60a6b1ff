from pathlib import Path

import pytest

from tunery._errors import NothingFoundError
from tunery.devices.cpu.facts import describe_cpu
from tunery.domain import DeviceDescription
from tunery.store import Store, open_store

FACTS = {"model": "EPYC", "caches": [32768, 1 << 20], "nan": float("nan"), "$odd": None}


def test_a_device_comes_back_with_its_facts_and_when_it_was_seen(url: str) -> None:
    with open_store(url) as store:
        store.devices.save("d1", FACTS, "host-a")
        (first,) = store.devices.find()
    with open_store(url) as store:
        store.devices.save("d1", FACTS, "host-a")
        (again,) = store.devices.find("d1")
        assert repr(again.facts) == repr(FACTS)
        assert (again.fingerprint, again.host, again.first_seen) == ("d1", "host-a", first.first_seen)
        assert again.first_seen <= first.last_seen <= again.last_seen


def test_machines_of_one_type_are_told_apart_by_host_and_the_last_seen_comes_first(store: Store) -> None:
    store.devices.save("d1", {"n": 1}, "host-a")
    store.devices.save("d2", {"n": 2}, "host-a")
    store.devices.save("d1", {"n": 3}, "host-b")
    assert [(device.fingerprint, device.host) for device in store.devices.find()] == [
        ("d1", "host-b"),
        ("d2", "host-a"),
        ("d1", "host-a"),
    ]
    assert store.devices.facts("d1") == {"n": 3}
    store.devices.save("d1", {"n": 4}, "host-a")
    assert store.devices.facts("d1") == {"n": 4}


def test_processors_of_one_name_with_other_instructions_are_not_of_one_type(store: Store, tmp_path: Path) -> None:
    def described(flags: str, cores: int) -> DeviceDescription:
        (tmp_path / "cpuinfo").write_text(f"model name : AMD EPYC\nflags : fpu {flags} hypervisor\n")
        return describe_cpu(range(cores), tmp_path / "cpuinfo", machine="x86_64")

    mine = described("avx2 avx512f avx512_vnni fma", 8)
    larger = described("avx2 avx512f avx512_vnni fma", 64)
    others = (described("avx2 avx512f fma", 8), described("avx2 avx512f avx512_vnni avx512_bf16 fma", 8))
    for one in (mine, larger, *others):
        store.devices.save(one.fingerprint, one.as_facts(), "host-a")
    found = store.devices.compatible(mine.fingerprint, mine.as_facts())
    assert [one.fingerprint for one in found] == [larger.fingerprint]


def test_an_unknown_device_is_named(store: Store) -> None:
    with pytest.raises(NothingFoundError, match="no device d9"):
        store.devices.facts("d9")
    assert store.devices.find("d9") == []
