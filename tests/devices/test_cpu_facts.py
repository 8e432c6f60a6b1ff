from dataclasses import replace
from pathlib import Path

import pytest

from tunery.devices.cpu.facts import describe_cpu

CPUINFO = """processor\t: {n}
vendor_id\t: V
model name\t: Model X
cpu MHz\t\t: {mhz}
flags\t\t: fpu avx2 avx512f {extra}

"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    cache = tmp_path / "cache" / "index0"
    cache.mkdir(parents=True)
    for name, text in (("level", "2\n"), ("type", "Unified\n"), ("size", "1024K\n")):
        (cache / name).write_text(text)
    (tmp_path / "meminfo").write_text("MemTotal: 24684096 kB\nMemFree: 1 kB\n")
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(n=0, mhz=2000, extra="hypervisor"))
    return {"cpuinfo": tmp_path / "cpuinfo", "meminfo": tmp_path / "meminfo", "caches": tmp_path / "cache"}


def test_the_facts_are_those_of_the_machine_type(machine: dict[str, Path]) -> None:
    device = describe_cpu((0, 1), **machine)
    assert (device.kind, device.name, device.cores) == ("cpu", "Model X", (0, 1))
    assert device.facts["caches"] == {"L2": "1024K"}
    assert device.facts["memory_gib"] == 24
    assert device.facts["vector"] == ["avx2", "avx512f"]
    assert device.facts["virtual"] is True


def test_the_fingerprint_ignores_the_moment_and_sees_the_processor(machine: dict[str, Path]) -> None:
    fingerprint = describe_cpu((0, 1), **machine).fingerprint
    machine["cpuinfo"].write_text(CPUINFO.format(n=0, mhz=3500, extra="hypervisor") * 2)
    machine["meminfo"].write_text("MemTotal: 24684000 kB\n")
    assert describe_cpu((2, 3), **machine).fingerprint == fingerprint
    assert describe_cpu((0,), **machine).fingerprint != fingerprint
    machine["cpuinfo"].write_text(CPUINFO.format(n=0, mhz=2000, extra="avx512_vnni hypervisor"))
    assert describe_cpu((0, 1), **machine).fingerprint != fingerprint


def test_a_machine_keeps_the_fingerprint_that_earlier_versions_gave_it(machine: dict[str, Path]) -> None:
    machine["cpuinfo"].write_text("vendor_id: V\nmodel name: X\nflags: fpu avx2 fma\n")
    facts = describe_cpu((0, 1), **machine)
    same = replace(facts, facts=dict(facts.facts) | {"arch": "x86_64"})
    assert same.fingerprint == "cb63cd5dd9c4b1f2"  # by commit ad59553: records and calibrations are found by it


def test_a_machine_that_tells_nothing_is_still_a_device(tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    device = describe_cpu((0,), nowhere, nowhere, nowhere)
    assert device.name
    assert device.fingerprint == describe_cpu((0,), nowhere, nowhere, nowhere).fingerprint


def test_an_arm_processor_is_told_by_its_part(machine: dict[str, Path]) -> None:
    machine["cpuinfo"].write_text(
        "processor : 0\nFeatures : fp asimd crc32 asimddp\nCPU implementer : 0x41\nCPU architecture: 8\n"
        "CPU variant : 0x3\nCPU part : 0xd0b\nCPU revision : 1\n"
    )
    device = describe_cpu((0, 1), **machine, machine="aarch64")
    told = {key: device.facts[key] for key in ("arch", "vendor", "model", "stepping", "vector", "virtual")}
    assert told == {
        "arch": "aarch64", "vendor": "0x41", "model": "0xd0b", "stepping": "0x3.1", "vector": ["asimd", "asimddp"],
        "virtual": False,
    }  # fmt: skip


def test_an_emulated_arm_processor_does_not_pass_for_the_one_it_runs_on(machine: dict[str, Path]) -> None:
    device = describe_cpu((0, 1), **machine, machine="aarch64")
    assert "Model X" not in device.name
    assert device.facts["virtual"] is True
    assert not device.facts["caches"]
