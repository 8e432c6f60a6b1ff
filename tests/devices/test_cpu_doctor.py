"""Whether a CPU can be measured on is told with what to do about it."""

import os

from tunery.devices.cpu import doctor
from tunery.domain import CheckState


def test_a_quota_and_a_single_core_are_told() -> None:
    assert "--threads 1" in doctor.cores(4, 1.5).advice
    assert doctor.cores(4, None).state is CheckState.OK
    assert doctor.cores(1, None).state is CheckState.WARN


def test_a_busy_machine_is_told() -> None:
    assert doctor.load(1e3 * (os.cpu_count() or 1)).state is CheckState.WARN
    assert doctor.load(0.0).state is CheckState.OK
