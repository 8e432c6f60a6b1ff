"""Workers as threads of the tests' process, where processes are not the subject: starting those takes most of a job."""

import pytest

from tunery.devices.cpu.device import CpuDevice


def run_workers_here(patch: pytest.MonkeyPatch) -> None:
    """Use the inline engine, and let no measurement pin this process, whose other threads need all cores."""
    patch.setenv("TUNERY_ENGINE", "inline")
    patch.setattr(CpuDevice, "pin", lambda _: None)
    patch.setattr(CpuDevice, "hold", lambda _: True)
