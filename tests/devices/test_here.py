"""Which devices a machine is said to have."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tunery.devices import here, open_device
from tunery.testing.fake_device import FakeDevice

DRIVERS = """
import os, sys, time
from tunery.testing.fake_device import FakeDevice

class Crashes(FakeDevice):
    def describe(self):
        os.abort()

class Hangs(FakeDevice):
    def describe(self):
        time.sleep(600)

class Talks(FakeDevice):
    def describe(self):
        os.write(1, b"a driver \\xff greets")
        os.write(2, b"\\xff")
        print("a second line")
        return super().describe()

class TalksLast(FakeDevice):
    def describe(self):
        import atexit
        atexit.register(print, "goodbye")
        return super().describe()

class Leaves(FakeDevice):
    def describe(self):
        os._exit(0)

class Refuses(FakeDevice):
    def describe(self):
        raise RuntimeError("out of order")
"""
KINDS = ("Crashes", "Hangs", "Talks", "TalksLast", "Leaves", "Refuses")


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drivers.py").write_text(DRIVERS)
    installed = tmp_path / "drivers-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: drivers\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        "[tunery.devices]\n" + "".join(f"{kind} = drivers:{kind}\n" for kind in KINDS)
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))


def looking_at(monkeypatch: pytest.MonkeyPatch, kinds: Sequence[str]) -> None:
    monkeypatch.setattr(here, "accelerators", lambda: kinds)


def test_the_processor_comes_first_and_of_what_is_not_there_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_at(monkeypatch, ["fake", "nothing"])
    found, unusable = here.devices_here()
    assert found == [open_device("cpu").describe(), FakeDevice().describe()]
    assert unusable.keys() == {"nothing"}
    assert "unknown kind of device" in unusable["nothing"]


@pytest.mark.usefixtures("drivers")
def test_a_driver_that_crashes_is_silent_or_refuses_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_at(monkeypatch, ["Crashes", "fake", "Leaves", "Refuses"])
    found, unusable = here.devices_here()
    assert found[1:] == [FakeDevice().describe()]
    assert "SIGABRT" in unusable["Crashes"]
    assert "exit code 0" in unusable["Leaves"]
    assert unusable["Refuses"] == "out of order"


@pytest.mark.usefixtures("drivers")
def test_what_a_driver_prints_is_not_taken_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_at(monkeypatch, ["Talks", "TalksLast"])
    assert here.devices_here() == ([open_device("cpu").describe(), *[FakeDevice().describe()] * 2], {})


@pytest.mark.usefixtures("drivers")
def test_a_driver_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "_LOOK_S", 6.0)
    looking_at(monkeypatch, ["Hangs", "fake"])
    found, unusable = here.devices_here()
    assert found[1:] == [FakeDevice().describe()]
    assert unusable.keys() == {"Hangs"}
    assert "not answered" in unusable["Hangs"]


def test_where_no_process_can_be_started_only_the_processor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    looking_at(monkeypatch, ["fake"])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found, unusable = here.devices_here()
    assert len(found) == 1
    assert "/nowhere/python" in unusable["fake"]


def test_an_accelerator_that_is_here_is_found_with_the_fingerprint_that_its_records_have() -> None:
    code = "from tunery.devices import open_device; print(open_device('opencl').describe().fingerprint)"
    opened = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = [device.fingerprint for device in here.devices_here()[0] if device.kind == "opencl"]
    assert found == opened.stdout.split()
