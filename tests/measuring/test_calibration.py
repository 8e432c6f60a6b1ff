import math
from collections.abc import Callable

import pytest

from tunery.domain import Calibration, SharingPoint, Task
from tunery.measuring.calibration import (
    COMPUTE,
    MEMORY,
    agreement,
    bound_of,
    chosen_degree,
    degrees_to_try,
    point,
    starting_degree,
)

ALONE = {f"k{i}": 1.0 + 0.1 * i for i in range(10)}


def slowed(by: float) -> dict[str, float]:
    return {key: value * (1 + by) for key, value in ALONE.items()}


def test_powers_of_two_and_all_slots_are_tried() -> None:
    assert degrees_to_try(1) == []
    assert degrees_to_try(2) == [2]
    assert degrees_to_try(12) == [2, 4, 8, 12]
    assert degrees_to_try(16) == [2, 4, 8, 16]


def test_a_point_says_how_much_slower_and_how_alike_in_rank() -> None:
    found = point(COMPUTE, 2, slowed(0.04), ALONE, 1.9)
    assert found.deviation == pytest.approx(0.04)
    assert found.tau == pytest.approx(1.0)
    reversed_ = dict(zip(ALONE, reversed(ALONE.values()), strict=True))
    assert agreement(reversed_, ALONE) == pytest.approx(-1.0)
    assert math.isnan(agreement({"a": 1.0}, ALONE))


def curve(kind: str, **by_degree: tuple[float, float, float]) -> list[SharingPoint]:
    return [SharingPoint(kind, int(name[1:]), *values) for name, values in by_degree.items()]


def test_the_degree_is_the_largest_that_distorts_nothing_and_pays() -> None:
    good = curve(COMPUTE, d2=(0.01, 0.97, 1.9), d4=(0.03, 0.97, 3.7), d8=(0.2, 0.97, 5.0))
    assert chosen_degree(good, COMPUTE, 0.98) == 4
    assert chosen_degree(good, MEMORY, 0.98) == 1, "nothing is known of it"
    assert chosen_degree(curve(COMPUTE, d2=(0.4, 0.99, 1.3)), COMPUTE, 0.98) == 1, "two slots on one physical core"
    assert chosen_degree(curve(COMPUTE, d2=(0.01, 0.9, 1.9)), COMPUTE, 0.98) == 1, "ranks suffer"
    assert chosen_degree(curve(COMPUTE, d2=(0.01, 0.98, 1.02)), COMPUTE, 0.98) == 1, "it does not pay"
    assert chosen_degree(curve(COMPUTE, d2=(0.01, math.nan, 2.0)), COMPUTE, 0.98) == 1


def test_memory_bound_tasks_start_with_fewer_slots(task_of: Callable[..., Task]) -> None:
    calibration = Calibration("f", "d", 1, 8, (), {}, {COMPUTE: 8, MEMORY: 2}, 1e11, 1e10, 0.0)
    task = task_of()  # one operation per element: far under ten per byte
    assert bound_of(task, calibration) == MEMORY
    assert starting_degree(task, calibration) == 2
    assert starting_degree(task, None) == 1
    slow = Calibration("f", "d", 1, 8, (), {}, {COMPUTE: 8, MEMORY: 2}, 1e8, 1e10, 0.0)
    assert starting_degree(task, slow) == 8


def test_small_types_move_fewer_bytes(task_of: Callable[..., Task]) -> None:
    device = Calibration(
        "f", "d", 1, 8, (), {}, {COMPUTE: 8, MEMORY: 2}, 1e9, 5e9, 0.0
    )  # a fifth of an operation a byte
    # Two arrays, one operation an element: an eighth of an operation for each byte of float32, half of one of int8.
    assert (bound_of(task_of("float32"), device), bound_of(task_of("int8"), device)) == (MEMORY, COMPUTE)


def test_where_even_one_neighbour_disturbs_nothing_may_run_beside() -> None:
    assert Calibration("f", "d", 1, 2, (), {}, {COMPUTE: 1, MEMORY: 1}, 1.0, 1.0, 0.0).neighbours_disturb
    assert not Calibration("f", "d", 1, 2, (), {}, {COMPUTE: 2, MEMORY: 1}, 1.0, 1.0, 0.0).neighbours_disturb
    assert not Calibration("f", "d", 2, 1, (), {}, {COMPUTE: 1}, 1.0, 1.0, 0.0).neighbours_disturb
