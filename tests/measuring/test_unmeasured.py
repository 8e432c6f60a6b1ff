"""Verification without a measurement asks for what a measured candidate is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunery.dialects import Built
from tunery.domain import Task
from tunery.measuring.references import Unmeasured
from tunery.measuring.verification import tolerance
from tunery.testing.fake_device import FakeDevice
from tunery.testing.fake_measuring import FakeKernel


@pytest.mark.parametrize(("slack", "passes"), [(1.0, False), (2.0, True)])
def test_a_kernel_that_does_not_merely_reorder_sums_is_given_its_own_tolerance(
    slack: float, passes: bool, bench: Callable[..., Any], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = bench().dialect

    def off(inputs: Any) -> Any:
        right = inputs[0] * 2
        return [right + 0.85 * tolerance(right.dtype, 1) * abs(right).max()]

    dialect.scripts["mine"] = {"compute": off}
    monkeypatch.setattr(FakeKernel, "slack", slack)
    verdict = Unmeasured(dialect, FakeDevice()).verify(
        task, Built("mine", Path("mine.so")), Built("reference", Path("r.so"))
    )
    assert verdict.passed == passes, verdict.detail
