"""Columns beside a candidate's own features: what is computed, and on what."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery.domain import Task

Row = npt.NDArray[np.float32]

_KINDS = ("conv2d", "depthwise", "matmul", "norm", "pool", "reduce", "softmax", "elementwise", "conv1d", "gather",
          "resize", "layout")  # fmt: skip
TASK_COLUMNS = 9
DEVICE_NAMES = ("vector_bits", "L1d_log2_kib", "L2_log2_kib", "L3_log2_kib", "virtual")
DEVICE_COLUMNS = len(DEVICE_NAMES)
STORE_WIDTH = 164
"""Columns of a store: as many as tensor-program features of the field have (Ansor, OSDI 2020)."""
MOST_STORES = 6
"""Stores that a row holds one by one, behind what they are folded to; 1 candidate in 100 has more."""
_FOLDED, _PACKED = 2 * STORE_WIDTH + 1, MOST_STORES * STORE_WIDTH


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a dialect's rows are; the version is another one where a column means something else."""

    name: str
    version: int
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


STORES = Layout(
    "stores",
    1,
    (
        *(f"busiest.{i}" for i in range(STORE_WIDTH)),
        *(f"largest.{i}" for i in range(STORE_WIDTH)),
        "stores",
        *(f"store{number}.{i}" for number in range(MOST_STORES) for i in range(STORE_WIDTH)),
    ),
)
"""The rows that `unfolded` makes."""


def layout_of(width: int) -> str:
    """Return the layout of rows, or of a model for them, from before layouts had names; "" where it is not known.

    `width` is that of whole rows: with the task's columns, and perhaps the device's.
    """
    own = {width - TASK_COLUMNS, width - TASK_COLUMNS - DEVICE_COLUMNS}
    return str(STORES) if own & {_FOLDED, _FOLDED + _PACKED} else ""


def fold(stores: npt.NDArray[np.floating[Any]]) -> Row:
    """Fold `(n_stores, w)` to one row: the store with the most arithmetic, the maximum over stores, their number.

    The first 16 columns of a store count arithmetic. Without a store the row is NaN.
    """
    if stores.size == 0:
        return np.full(2 * stores.shape[1] + 1, np.nan, dtype=np.float32)
    main = stores[stores[:, :16].sum(axis=1).argmax()]
    return np.concatenate([main, stores.max(axis=0), [len(stores)]]).astype(np.float32)


def unfolded(stores: npt.NDArray[np.floating[Any]]) -> Row:
    """Return `fold`'s row with the stores themselves behind it, zeros where there are fewer.

    Of more than `MOST_STORES` those with the most arithmetic are kept, in their order. Without a store the row is NaN.
    """
    return np.concatenate([fold(stores), _packed(stores)])


def with_stores(rows: Row, stores: Sequence[npt.NDArray[np.floating[Any]]]) -> Row:
    """Return rows of which only `fold` is left of the stores as they are in a search, with the stores one by one."""
    packed = np.stack([_packed(each) for each in stores])
    return np.concatenate([rows[:, :_FOLDED], packed, rows[:, _FOLDED:]], axis=1)


def has_stores(rows: Row) -> bool:
    """Return whether rows, with the task's columns and perhaps the device's, hold their stores one by one."""
    rest = rows.shape[1] - _FOLDED - _PACKED
    return rest in {TASK_COLUMNS, TASK_COLUMNS + DEVICE_COLUMNS}


def folded(rows: Row) -> Row:
    """Return rows without the stores one by one."""
    return np.delete(rows, np.s_[_FOLDED : _FOLDED + _PACKED], axis=1) if has_stores(rows) else rows


def stores_of(rows: Row) -> tuple[Row, npt.NDArray[np.intp]]:
    """Return the stores of all rows, and which row each is of; of a row of NaN there is none.

    Behind a store's own columns are the task's, how many stores the program has, and which of them this one is.
    """
    packed = rows[:, _FOLDED : _FOLDED + _PACKED].reshape(len(rows), MOST_STORES, STORE_WIDTH)
    owner, place = np.nonzero(np.nan_to_num(packed).any(axis=2))
    task = rows[owner, _FOLDED + _PACKED :][:, :TASK_COLUMNS]
    count = rows[owner, _FOLDED - 1]
    return np.column_stack([packed[owner, place], task, count, place]).astype(np.float32), owner


def task_columns(task: Task) -> Row:
    """Return the columns that all candidates of a task share; sizes are logarithms to base 2."""
    work = task.workload
    written = max(1, sum(spec.size for spec in work.output_specs))
    read = sum(spec.size for spec in work.input_specs)
    last = work.arguments[-1].shape if work.arguments else ()
    return np.asarray(
        [
            math.log2(max(work.flop, 0.0) + 1),
            math.log2(max(read, 1)),
            math.log2(written),
            math.log2(max((spec.size for spec in work.input_specs), default=1) or 1),
            math.log2(max(work.flop, 0.0) / written + 1),
            len(work.arguments),
            _KINDS.index(work.kind) if work.kind in _KINDS else -1,
            task.target.threads,
            last[-1] if last else 1,
        ],
        np.float32,
    )


def with_task(features: npt.NDArray[np.float32], task: Task) -> npt.NDArray[np.float32]:
    """Return `(n, width)` rows of a dialect's features with the task's columns behind each; NaN rows stay all NaN."""
    if not len(features):
        return np.empty((0, features.shape[1] + TASK_COLUMNS), np.float32)
    shared = np.tile(task_columns(task), (len(features), 1))
    shared[np.isnan(features).all(axis=1)] = np.nan
    return np.concatenate([features, shared], axis=1).astype(np.float32)


def device_columns(traits: Mapping[str, float] | None) -> Row:
    """Return a device's columns from its traits (`Device.traits`); NaN for each that is not known."""
    return np.asarray([(traits or {}).get(name, math.nan) for name in DEVICE_NAMES], np.float32)


def _packed(stores: npt.NDArray[np.floating[Any]]) -> Row:
    if not len(stores):
        return np.full(_PACKED, np.nan, np.float32)
    if len(stores) > MOST_STORES:
        stores = stores[np.sort(np.argsort(-stores[:, :16].sum(axis=1), kind="stable")[:MOST_STORES])]
    packed = np.zeros(_PACKED, np.float32)
    packed[: stores.size] = stores.ravel()
    return packed
