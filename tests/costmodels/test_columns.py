import math
from dataclasses import replace

import numpy as np
import pytest

from tunery._errors import UsageError
from tunery.costmodels.columns import (
    DEVICE_COLUMNS,
    DEVICE_NAMES,
    MOST_STORES,
    STORE_WIDTH,
    STORES,
    TASK_COLUMNS,
    FeatureRows,
    Layout,
    device_columns,
    earlier_layout,
    fold,
    unfolded,
    with_stores,
    with_task,
    without_stores,
)
from tunery.devices import traits_of
from tunery.devices._base import TRAITS
from tunery.domain import Target, Task, TensorSpec, Workload


def task(kind: str = "conv2d", flop: float = 2.0**20) -> Task:
    arguments = (TensorSpec("a", (1, 8, 8, 16), "float32"), TensorSpec("b", (1, 8, 8, 32), "float32"))
    return Task(Workload("k", "n", kind, "", arguments, 1, flop), Target("fake", {}, 2))


OWN = Layout("made-up", 1, tuple("abc"))


def test_rows_carry_their_task() -> None:
    rows = FeatureRows(np.arange(6, dtype=np.float32).reshape(2, 3), OWN)
    wide = with_task(rows, task())
    assert wide.layout == OWN.with_columns(TASK_COLUMNS)
    assert np.array_equal(wide.pick(OWN), rows.values)
    assert np.isfinite(wide.values).all()
    own = Layout("made-up", 1, TASK_COLUMNS)
    assert np.array_equal(*wide.pick(own))
    assert not np.array_equal(wide.pick(own), with_task(rows, task("matmul")).pick(own))


def test_a_row_that_could_not_be_computed_stays_recognisable() -> None:
    assert np.isnan(with_task(FeatureRows(np.full((1, 3), np.nan, np.float32), OWN), task()).values).all()
    none = with_task(FeatureRows(np.empty((0, 3), np.float32), OWN), task())
    assert none.values.shape == (0, 3 + len(TASK_COLUMNS))


def test_a_task_without_arithmetic_has_columns() -> None:
    rows = FeatureRows(np.zeros((1, 3), np.float32), OWN)
    assert np.isfinite(with_task(rows, task("unheard-of", 0.0)).values).all()


def test_columns_are_picked_by_name_and_those_of_the_device_filled_in() -> None:
    rows = FeatureRows(np.arange(6, dtype=np.float32).reshape(2, 3), OWN)
    wanted = Layout("made-up", 1, ("c", DEVICE_COLUMNS[1], "a"))
    assert rows.pick(wanted, (7, 8, 9, 10, 11)).tolist() == [[2, 8, 0], [5, 8, 3]]
    assert np.isnan(rows.pick(wanted)[:, 1]).all()
    for other in (replace(wanted, version=2), replace(wanted, name="others"), replace(wanted, columns=("d",))):
        with pytest.raises(UsageError, match="train one anew"):
            rows.pick(other)


def test_rows_of_two_layouts_are_not_put_together() -> None:
    rows = FeatureRows(np.zeros((2, 3), np.float32), OWN)
    assert len(FeatureRows.joined([rows, rows])) == 4
    with pytest.raises(ValueError, match="several layouts"):
        FeatureRows.joined([rows, replace(rows, layout=replace(OWN, version=2))])


def test_devices() -> None:
    facts = {"vector": ["avx2", "avx512f"], "caches": {"L1d": "32K", "L2": "1M", "L3": "odd"}, "virtual": True}
    columns = device_columns(traits_of(facts))
    assert columns[:3].tolist() == [512, 5, 10]
    assert math.isnan(columns[3])
    assert np.isnan(device_columns(None)).all()
    assert len(columns) == len(device_columns({})) == len(DEVICE_COLUMNS)
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


def folded_rows() -> FeatureRows:
    rows = FeatureRows(np.stack([fold(each) for each in programs()]), STORES.of_fold(STORE_WIDTH))
    return with_task(rows, task())


def test_a_row_holds_stores_one_by_one() -> None:
    two, none, many = programs()
    rows = with_task(FeatureRows(np.stack([unfolded(each) for each in (two, none, many)]), STORES), task())
    assert rows.has_stores
    stores, owner = rows.stores()
    assert owner.tolist() == [0, 0, *[2] * MOST_STORES], "a program without stores has none"
    assert np.array_equal(stores[:2, :STORE_WIDTH], two)
    assert np.array_equal(stores[2:, :STORE_WIDTH], many[1:]), "the one with the least arithmetic is left out"
    assert np.array_equal(stores[0, STORE_WIDTH:-2], rows.values[0, -len(TASK_COLUMNS) :])
    assert stores[:2, -2:].tolist() == [[2, 0], [2, 1]], "how many there are, and which it is"
    narrow = folded_rows()
    assert without_stores(rows.layout) == without_stores(narrow.layout) == narrow.layout
    assert np.array_equal(rows.pick(narrow.layout), narrow.values, equal_nan=True)
    assert not narrow.has_stores


def test_a_datasets_rows_get_their_stores_back() -> None:
    narrow = folded_rows().with_columns(DEVICE_COLUMNS, np.ones(len(DEVICE_COLUMNS), np.float32))
    rows = with_stores(narrow, programs())
    assert np.array_equal(rows.pick(without_stores(rows.layout)), narrow.values, equal_nan=True)
    assert np.array_equal(rows.stores()[0][:2, :STORE_WIDTH], programs()[0])


def test_rows_from_before_layouts_had_names_are_known_by_their_width() -> None:
    for layout in (folded_rows().layout, STORES.with_columns(TASK_COLUMNS).with_columns(DEVICE_COLUMNS)):
        assert earlier_layout(len(layout.columns)) == layout
    assert earlier_layout(12) is None
