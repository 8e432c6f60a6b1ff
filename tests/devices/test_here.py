"""Which devices a machine is said to have."""

import subprocess
import sys

import pytest

from tunery.devices import here, open_device
from tunery.devices.fake import FakeDevice


def test_the_processor_comes_first_and_what_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "accelerators", lambda: ["fake", "nothing"])
    assert here.devices_here() == [open_device("cpu").describe(), FakeDevice().describe()]


def test_an_accelerator_that_is_here_is_found_with_the_fingerprint_that_its_records_have() -> None:
    code = "from tunery.devices import open_device; print(open_device('opencl').describe().fingerprint)"
    opened = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    found = [device.fingerprint for device in here.devices_here() if device.kind == "opencl"]
    assert found == opened.stdout.split()
