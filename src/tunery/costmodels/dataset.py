"""What cost models are trained on: feature rows with latencies, in groups of one task on one device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tunery.costmodels.columns import DEVICE_COLUMNS, STORE_WIDTH, FeatureRows, Layout, device_columns, with_stores
from tunery.domain import digest

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


class Dataset:
    """Rows of a layout with latencies, grouped by task. A failed candidate has an infinite latency (label 0)."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._groups: dict[str, dict[str, tuple[npt.NDArray[np.float32], float]]] = {}

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

    def add(self, task_key: str, candidate_key: str, row: npt.NDArray[np.float32], latency_s: float) -> None:
        if not np.isnan(row).all():
            self._groups.setdefault(task_key, {})[candidate_key] = (row, latency_s)

    def groups(self) -> dict[str, tuple[FeatureRows, npt.NDArray[np.float64]]]:
        found = {}
        for task_key, group in self._groups.items():
            latencies = np.asarray([latency for _, latency in group.values()])
            if np.isfinite(latencies).any():
                rows = FeatureRows(np.stack([row for row, _ in group.values()]), self._layout)
                found[task_key] = (rows, gains(latencies))
        return found


def gains(latencies: Floats) -> Floats:
    """Return the best latency over each, in [0, 1]; 0 for a failed one, whose latency is infinite."""
    best = float(np.min(latencies))
    return np.asarray(best / latencies) if np.isfinite(best) else np.zeros(len(latencies))


@dataclass(frozen=True)
class Group:
    """One task's candidates on one device, made by one compiler. `latencies` are inf for a candidate that failed;
    `stores`, where a dialect has them, are the per-store features that `rows` were folded from; `networks` are all that
    hold the task; `device_columns` are the device's where `rows` have none."""

    task_key: str
    workload_key: str
    name: str
    kind: str
    device: str
    compiler: str
    networks: tuple[str, ...]
    keys: tuple[str, ...]
    rows: FeatureRows
    latencies: Floats
    build_s: Floats
    stores: tuple[Rows, ...] | None = None
    device_columns: Rows | None = None

    @property
    def gains(self) -> Floats:
        return gains(self.latencies)

    @property
    def inputs(self) -> FeatureRows:
        if self.stores is None or any(store.shape[1] != STORE_WIDTH for store in self.stores):
            return self.rows
        return with_stores(self.rows, self.stores)

    @property
    def usable(self) -> bool:
        finite = self.latencies[np.isfinite(self.latencies)]
        return len(finite) > 1 and float(np.ptp(finite)) > 0


@dataclass(frozen=True)
class Table:
    """Groups of one dialect, compiler and family of targets, with rows of one layout. `left_out` says, by reason, what
    else the store holds."""

    groups: tuple[Group, ...]
    dialect: str
    compiler: str
    target: str
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(group.latencies) for group in self.groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    @property
    def layout(self) -> Layout | None:
        return self.groups[0].rows.layout if self.groups else None

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted({group.device for group in self.groups}))

    @property
    def digest(self) -> str:
        parts: list[str | bytes] = [self.dialect, self.compiler]
        for group in sorted(self.groups, key=lambda g: (g.task_key, g.device, g.compiler)):
            parts += [group.task_key, group.device, group.compiler, *group.keys, group.latencies.tobytes()]
        return digest(*parts)

    def only(self, groups: Iterable[Group]) -> "Table":
        return replace(self, groups=tuple(groups))


def without_devices(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups, with the device's columns empty (NaN) where they are of several devices: what two or three
    devices differ in says which of them it is, and with that how its candidates were chosen and sampled: trees would
    learn that. Where the facts of one are not known, they would learn what it means that the columns are there."""
    if len({group.device for group in groups}) < 2:
        return tuple(groups)
    emptied = []
    for group in groups:
        values = group.rows.values.copy()
        values[:, _device_places(group.rows.layout)] = np.nan
        emptied.append(replace(group, rows=replace(group.rows, values=values), device_columns=columns_of(group)))
    return tuple(emptied)


def columns_of(group: Group) -> Rows:
    if group.device_columns is not None:
        return group.device_columns
    places = _device_places(group.rows.layout)
    return group.rows.values[0, places] if places else device_columns(None)


def _device_places(layout: Layout) -> list[int]:
    return [layout.columns.index(name) for name in DEVICE_COLUMNS if name in layout.columns]
