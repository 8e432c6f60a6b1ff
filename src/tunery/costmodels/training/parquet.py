"""A dataset as a Parquet file, with its data card inside and beside it."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tunery._errors import DialectError, UsageError
from tunery._extras import pip_install
from tunery._outputs import DATASET, DATASET_CARD, check_output, whole_file
from tunery.costmodels.columns import FeatureRows, Layout, earlier_layout
from tunery.costmodels.dataset import Group, Rows, Table, columns_of, without_devices

_CARD = b"tunery"
_FORMAT = 1


def write_parquet(
    table: Table, path: Path, card: Mapping[str, Any], *, inputs: Iterable[Path] = (), force: bool = False
) -> Path:
    """Write a dataset, one row a candidate, and beside it the card as JSON. `inputs` must not be replaced; with
    `force`, files of another kind may be."""
    pa, pq = _pyarrow()
    beside = check_dataset_output(path, inputs=inputs, force=force)
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for group in table:
        count = len(group.keys)
        for name in ("task_key", "workload_key", "name", "kind", "device", "compiler"):
            columns[name] += [getattr(group, name)] * count
        columns["networks"] += [list(group.networks)] * count
        columns["candidate_key"] += group.keys
        columns["latency_s"] += group.latencies.tolist()
        columns["build_s"] += group.build_s.tolist()
        columns["features"] += list(group.rows.values)
        columns["device_columns"] += [columns_of(group)] * count
        stores = group.stores if group.stores is not None else [None] * count
        columns["stores"] += [None if store is None else store.ravel() for store in stores]
        columns["store_width"] += [0 if store is None else store.shape[1] for store in stores]
    schema = pa.schema([(name, getattr(pa, kind)() if isinstance(kind, str) else pa.list_(getattr(pa, kind[0])()))
                        for name, kind in _COLUMNS.items()])  # fmt: skip
    full = {"tunery": "dataset", **card} | {"format": _FORMAT, "dialect": table.dialect, "compiler": table.compiler,
                         "target": table.target, "left_out": table.left_out, "columns": _MEANING,
                         "layout": asdict(table.layout) if table.layout else None}  # fmt: skip
    text = json.dumps(full, indent=1)
    made = pa.table(columns, schema=schema).replace_schema_metadata({_CARD: text.encode()})
    with whole_file(path, DATASET, inputs=inputs, force=force) as file:
        pq.write_table(made, file, compression="zstd")
    with whole_file(beside, DATASET_CARD, inputs=inputs, force=force) as file:
        file.write(text.encode())
    return beside


def check_dataset_output(path: Path, *, inputs: Iterable[Path] = (), force: bool = False) -> Path:
    beside = path.with_name(f"{path.stem}.card.json")
    for each, kind in ((path, DATASET), (beside, DATASET_CARD)):
        check_output(each, kind, inputs=inputs, force=force)
    return beside


def read_parquet(path: Path) -> Table:
    pa, pq = _pyarrow()
    try:
        made = pq.read_table(path)
        card = json.loads(made.schema.metadata[_CARD])
        if card["format"] > _FORMAT:
            raise UsageError(f"{path} was written by a newer tunery; update tunery, or export it anew")
        # As Python's own numbers, features and stores take eight times the memory.
        arrays = [*_ARRAYS, *(name for name in _LATER if name in made.column_names)]
        columns = made.drop_columns(arrays).to_pydict() | {name: _arrays(made[name]) for name in arrays}
        layout = _layout(card, columns["features"])
        groups = [_group(part, layout) for part in _parts(columns)]
        return Table(
            without_devices(groups), card["dialect"], card["compiler"], str(card["target"]), card["left_out"]
        )  # fmt: skip
    except FileNotFoundError:
        again = f"`tunery records export --parquet {shlex.quote(str(path))}`"
        raise UsageError(f"there is no file {path}; write one with {again}") from None
    except (OSError, pa.ArrowException, DialectError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no dataset of tunery ({str(error)[:100]}); export it anew") from error


_COLUMNS: dict[str, str | tuple[str]] = {
    "task_key": "string", "workload_key": "string", "name": "string", "kind": "string", "device": "string",
    "compiler": "string",
    "networks": ("string",), "candidate_key": "string", "latency_s": "float64", "build_s": "float64",
    "features": ("float32",), "stores": ("float32",), "store_width": "int32", "device_columns": ("float32",),
}  # fmt: skip
_ARRAYS = ("features", "stores")
_LATER = ("device_columns",)  # files of earlier versions lack them
_MEANING = {
    "latency_s": "seconds for one execution, median of one race's samples or, if collected so, of all; inf: wrong",
    "build_s": "wall seconds of its build",
    "features": "one row: the dialect's features, 9 task columns, 5 device columns (NaN with several devices)",
    "device_columns": "those of the device, whatever the rows have; NaN where its facts are not known",
    "stores": "the dialect's features of each store, row by row, `store_width` wide",
    "networks": "all networks of the store that hold the workload: hold them out together",
    "device": "fingerprint of the device it ran on",
}


def _parts(columns: Mapping[str, list[Any]]) -> list[dict[str, list[Any]]]:
    places: dict[tuple[str, str, str], list[int]] = {}
    for index, place in enumerate(zip(columns["task_key"], columns["device"], columns["compiler"], strict=True)):
        places.setdefault(place, []).append(index)
    return [{name: [values[i] for i in rows] for name, values in columns.items()} for rows in places.values()]


def _arrays(column: Any) -> list[Rows | None]:
    found: list[Rows | None] = []
    for chunk in column.chunks:
        values, ends = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        known = chunk.is_valid().to_numpy(zero_copy_only=False)
        found += [values[ends[i] : ends[i + 1]] if known[i] else None for i in range(len(chunk))]
    return found


def _layout(card: Mapping[str, Any], rows: Sequence[Rows]) -> Layout:
    """Return the layout of a file's rows; files from before it was named in full are told by their width."""
    if isinstance(named := card.get("layout"), dict):
        return Layout.read(named)
    layout = earlier_layout(len(rows[0]) if rows else 0)
    if layout is None or (named and named != str(layout)):
        raise ValueError("it does not name the columns of its rows: an earlier tunery wrote it")
    return layout


def _group(part: Mapping[str, list[Any]], layout: Layout) -> Group:
    stores = None
    if part["stores"][0] is not None:
        pairs = zip(part["stores"], part["store_width"], strict=True)
        stores = tuple(each.reshape(-1, width) for each, width in pairs)
    return Group(
        part["task_key"][0], part["workload_key"][0], part["name"][0], part["kind"][0], part["device"][0],
        part["compiler"][0],
        tuple(part["networks"][0]), tuple(part["candidate_key"]),
        FeatureRows(np.stack(part["features"]), layout),
        np.asarray(part["latency_s"]), np.asarray(part["build_s"]), stores, part.get("device_columns", [None])[0],
    )  # fmt: skip


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(f"a dataset file needs pyarrow; install it with: {pip_install('train')}") from None
    return pyarrow, pyarrow.parquet
