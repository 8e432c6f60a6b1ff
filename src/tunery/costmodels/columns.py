"""Columns beside a candidate's own features: what is computed, and on what."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError, UsageError
from tunery.domain import Task

Row = npt.NDArray[np.float32]

_KINDS = ("conv2d", "depthwise", "matmul", "norm", "pool", "reduce", "softmax", "elementwise", "conv1d", "gather",
          "resize", "layout")  # fmt: skip
DEVICE_NAMES = ("vector_bits", "L1d_log2_kib", "L2_log2_kib", "L3_log2_kib", "virtual")
STORE_WIDTH = 164
"""Columns of a store: as many as tensor-program features of the field have (Ansor, OSDI 2020)."""
MOST_STORES = 6
"""Stores that a row holds one by one, beside what they are folded to; 1 candidate in 100 has more."""
TASK_COLUMNS = tuple(
    f"task.{name}"
    for name in ("flop", "read", "written", "largest", "intensity", "arguments", "kind", "threads", "last_dimension")
)
"""The names of what `task_columns` returns."""
DEVICE_COLUMNS = tuple(f"device.{name}" for name in DEVICE_NAMES)
"""The names of what `device_columns` returns."""
STORE_COLUMNS = tuple(f"store{number}.{i}" for number in range(MOST_STORES) for i in range(STORE_WIDTH))
"""The names of a row's stores, one by one."""
_ONE_BY_ONE, _COUNT = frozenset(STORE_COLUMNS), "stores"
_FOLDED = (*(f"busiest.{i}" for i in range(STORE_WIDTH)), *(f"largest.{i}" for i in range(STORE_WIDTH)), _COUNT)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of rows are, in order; the version is another one where a column's name means something else.
    Layouts of one name and version may have more columns or fewer: those of one name are the same."""

    name: str
    version: int
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def __hash__(self) -> int:
        return hash((self.name, self.version, len(self.columns)))

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Layout":
        return cls(str(data["name"]), int(data["version"]), tuple(map(str, data["columns"])))

    def with_columns(self, columns: tuple[str, ...]) -> "Layout":
        return _wider(self, columns)

    def of_fold(self, store_width: int) -> "Layout":
        return replace(self, columns=self.columns[: 2 * store_width + 1])


STORES = Layout("stores", 1, (*_FOLDED, *STORE_COLUMNS))
"""The rows that `unfolded` makes."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRows:
    """Features of candidates: `values` is `(n, columns)`, and `layout` says what its columns are."""

    values: Row
    layout: Layout

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.layout.columns):
            raise DialectError(
                f"features of shape {self.values.shape} are said to be of layout {self.layout}, which has "
                f"{len(self.layout.columns)} columns"
            )

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.values)

    def __getitem__(self, rows: "slice | npt.NDArray[Any]") -> "FeatureRows":
        return replace(self, values=self.values[rows])

    @classmethod
    def read(cls, rows: Sequence[bytes], layout: Layout) -> "FeatureRows":
        return cls(np.stack([np.frombuffer(row, np.float32) for row in rows]), layout)

    @classmethod
    def joined(cls, parts: "Sequence[FeatureRows]") -> "FeatureRows":
        if any(part.layout != parts[0].layout for part in parts):
            raise ValueError("rows of several layouts cannot be put together")
        return cls(np.concatenate([part.values for part in parts]), parts[0].layout)

    @property
    def has_stores(self) -> bool:
        return _store_places(self.layout) is not None

    def pick(self, wanted: Layout, device: Sequence[float] = ()) -> Row:
        """Return `(n, columns)`, the columns of another layout by their names; the device's where the rows have none
        are `device`, or empty (NaN)."""
        places, absent = _picking(self.layout, wanted)
        if places is None:
            return self.values
        found = self.values.take(places, axis=1)
        for column, number in absent:
            found[:, column] = device[number] if device else np.nan
        return found

    def with_columns(self, columns: tuple[str, ...], values: Row) -> "FeatureRows":
        wide = np.broadcast_to(values, (len(self), len(columns)))
        return FeatureRows(
            np.concatenate([self.values, wide], axis=1).astype(np.float32, copy=False),
            self.layout.with_columns(columns),
        )

    def stores(self) -> tuple[Row, npt.NDArray[np.intp]]:
        """Return the stores of all rows, and which row each is of; of a row of NaN there is none. Behind a store's own
        columns are the task's, how many stores the program has, and which of them this one is."""
        places = _store_places(self.layout)
        assert places is not None, "rows without stores have none"
        first, task, number = places
        packed = self.values[:, first : first + len(STORE_COLUMNS)].reshape(len(self), MOST_STORES, STORE_WIDTH)
        owner, place = np.nonzero(np.nan_to_num(packed).any(axis=2))
        columns = [packed[owner, place], self.values[owner][:, task], self.values[owner, number], place]
        return np.column_stack(columns).astype(np.float32), owner


def earlier_layout(width: int) -> Layout | None:
    """Return the layout of whole rows, or of a model for them, from before layouts had names: only their width
    tells."""
    found = [Layout("stores", 1, _FOLDED).with_columns(TASK_COLUMNS), STORES.with_columns(TASK_COLUMNS)]
    found += [each.with_columns(DEVICE_COLUMNS) for each in found]
    return next((each for each in found if len(each.columns) == width), None)


@lru_cache(maxsize=32)
def _wider(layout: Layout, columns: tuple[str, ...]) -> Layout:
    return replace(layout, columns=(*layout.columns, *columns))


@lru_cache(maxsize=32)
def without_stores(layout: Layout) -> Layout:
    return replace(layout, columns=tuple(name for name in layout.columns if name not in _ONE_BY_ONE))


@lru_cache(maxsize=32)
def _picking(layout: Layout, wanted: Layout) -> tuple[npt.NDArray[np.intp] | None, tuple[tuple[int, int], ...]]:
    advice = "they are of another dialect or of another version of tunery; train one anew with `tunery costmodel train`"
    if (layout.name, layout.version) != (wanted.name, wanted.version):
        raise UsageError(f"the cost model knows rows of layout {wanted} and the candidates' are of {layout}: {advice}")
    if layout.columns == wanted.columns:
        return None, ()
    at = {name: place for place, name in enumerate(layout.columns)}
    absent = [(column, name) for column, name in enumerate(wanted.columns) if name not in at]
    if lacking := [name for _, name in absent if name not in DEVICE_COLUMNS]:
        raise UsageError(f"the cost model knows the column {lacking[0]} and the candidates have none: {advice}")
    places = np.array([at.get(name, 0) for name in wanted.columns], np.intp)
    return places, tuple((column, DEVICE_COLUMNS.index(name)) for column, name in absent)


@lru_cache(maxsize=32)
def _store_places(layout: Layout) -> tuple[int, npt.NDArray[np.intp], int] | None:
    at = {name: place for place, name in enumerate(layout.columns)}
    first = at.get(STORE_COLUMNS[0])
    if first is None or any(name not in at for name in (*TASK_COLUMNS, _COUNT)):
        return None
    if layout.columns[first : first + len(STORE_COLUMNS)] != STORE_COLUMNS:
        return None
    return first, np.array([at[name] for name in TASK_COLUMNS], np.intp), at[_COUNT]


def fold(stores: npt.NDArray[np.floating[Any]]) -> Row:
    """Fold `(n_stores, w)` to one row: the store with the most arithmetic, the maximum over stores, their number. The
    first 16 columns of a store count arithmetic. Without a store the row is NaN."""
    if stores.size == 0:
        return np.full(2 * stores.shape[1] + 1, np.nan, dtype=np.float32)
    main = stores[stores[:, :16].sum(axis=1).argmax()]
    return np.concatenate([main, stores.max(axis=0), [len(stores)]]).astype(np.float32)


def unfolded(stores: npt.NDArray[np.floating[Any]]) -> Row:
    """Return `fold`'s row with the stores themselves behind it, zeros where there are fewer; of more than `MOST_STORES`
    those with the most arithmetic are kept, in their order. Without a store the row is NaN."""
    return np.concatenate([fold(stores), _packed(stores)])


def with_stores(rows: FeatureRows, stores: Sequence[npt.NDArray[np.floating[Any]]]) -> FeatureRows:
    return rows.with_columns(STORE_COLUMNS, np.stack([_packed(store) for store in stores]))


def task_columns(task: Task) -> Row:
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


def with_task(features: FeatureRows, task: Task) -> FeatureRows:
    shared = np.tile(task_columns(task), (len(features), 1))
    shared[np.isnan(features.values).all(axis=1)] = np.nan
    return features.with_columns(TASK_COLUMNS, shared)


def device_columns(traits: Mapping[str, float] | None) -> Row:
    return np.asarray([(traits or {}).get(name, math.nan) for name in DEVICE_NAMES], np.float32)


def _packed(stores: npt.NDArray[np.floating[Any]]) -> Row:
    if not len(stores):
        return np.full(len(STORE_COLUMNS), np.nan, np.float32)
    if len(stores) > MOST_STORES:
        stores = stores[np.sort(np.argsort(-stores[:, :16].sum(axis=1), kind="stable")[:MOST_STORES])]
    packed = np.zeros(len(STORE_COLUMNS), np.float32)
    packed[: stores.size] = stores.ravel()
    return packed
