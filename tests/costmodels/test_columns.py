import math

import numpy as np

from tunery.costmodels.columns import (
    DEVICE_COLUMNS,
    DEVICE_NAMES,
    MOST_STORES,
    STORE_WIDTH,
    TASK_COLUMNS,
    device_columns,
    fold,
    folded,
    has_stores,
    stores_of,
    unfolded,
    with_stores,
    with_task,
)
from tunery.devices import traits_of
from tunery.devices._base import TRAITS
from tunery.domain import Target, Task, TensorSpec, Workload


def task(kind: str = "conv2d", flop: float = 2.0**20) -> Task:
    arguments = (TensorSpec("a", (1, 8, 8, 16), "float32"), TensorSpec("b", (1, 8, 8, 32), "float32"))
    return Task(Workload("k", "n", kind, "", arguments, 1, flop), Target("fake", {}, 2))


def test_rows_carry_their_task() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    wide = with_task(rows, task())
    assert wide.shape == (2, 3 + TASK_COLUMNS)
    assert np.array_equal(wide[:, :3], rows)
    assert np.isfinite(wide).all()
    assert np.array_equal(wide[0, 3:], wide[1, 3:])
    assert not np.array_equal(wide[0, 3:], with_task(rows, task("matmul"))[0, 3:])


def test_a_row_that_could_not_be_computed_stays_recognisable() -> None:
    rows = np.full((1, 3), np.nan, np.float32)
    assert np.isnan(with_task(rows, task())).all()
    assert with_task(np.empty((0, 3), np.float32), task()).shape == (0, 3 + TASK_COLUMNS)


def test_a_task_without_arithmetic_has_columns() -> None:
    assert np.isfinite(with_task(np.zeros((1, 3), np.float32), task("unheard-of", 0.0))).all()


def test_devices() -> None:
    facts = {"vector": ["avx2", "avx512f"], "caches": {"L1d": "32K", "L2": "1M", "L3": "odd"}, "virtual": True}
    columns = device_columns(traits_of(facts))
    assert columns[:3].tolist() == [512, 5, 10]
    assert math.isnan(columns[3])
    assert np.isnan(device_columns(None)).all()
    assert len(columns) == len(device_columns({})) == DEVICE_COLUMNS
    assert DEVICE_NAMES == TRAITS, "a device tells what a model knows"


def test_stores_are_folded_to_the_busiest_the_largest_and_their_number() -> None:
    stores = np.zeros((2, 20), np.float32)
    stores[0, 0], stores[1, 19] = 5, 7
    row = fold(stores)
    assert row.shape == (41,)
    assert (row[0], row[19], row[39], row[40]) == (5, 0, 7, 2)
    assert np.isnan(fold(np.empty((0, 20), np.float32))).all()


def programs() -> list[np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    """Stores of three programs: of two, of none, and of more than a row holds, the first with the least arithmetic."""
    rng = np.random.default_rng(0)
    many = rng.random((MOST_STORES + 1, STORE_WIDTH)).astype(np.float32)
    many[0, :16] = 0
    return [many[:2] + 1, many[:0], many]


def test_a_row_holds_stores_one_by_one() -> None:
    two, none, many = programs()
    rows = with_task(np.stack([unfolded(each) for each in (two, none, many)]), task())
    assert has_stores(rows)
    stores, owner = stores_of(rows)
    assert owner.tolist() == [0, 0, *[2] * MOST_STORES], "a program without stores has none"
    assert np.array_equal(stores[:2, :STORE_WIDTH], two)
    assert np.array_equal(stores[2:, :STORE_WIDTH], many[1:]), "the one with the least arithmetic is left out"
    assert np.array_equal(stores[0, STORE_WIDTH:-2], rows[0, -TASK_COLUMNS:])
    assert stores[:2, -2:].tolist() == [[2, 0], [2, 1]], "how many there are, and which it is"
    narrow = with_task(np.stack([fold(each) for each in (two, none, many)]), task())
    assert np.array_equal(folded(rows), narrow, equal_nan=True)
    assert np.array_equal(folded(narrow), narrow, equal_nan=True)
    assert not has_stores(narrow)


def test_a_datasets_rows_get_their_stores_back() -> None:
    two, none, many = programs()
    narrow = with_task(np.stack([fold(each) for each in (two, none, many)]), task())
    narrow = np.concatenate([narrow, np.ones((3, DEVICE_COLUMNS), np.float32)], axis=1)
    rows = with_stores(narrow, (two, none, many))
    assert np.array_equal(folded(rows), narrow, equal_nan=True)
    assert np.array_equal(stores_of(rows)[0][:2, :STORE_WIDTH], two)
