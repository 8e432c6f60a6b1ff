"""Columns beside a candidate's own features: what is computed, and on what."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery.domain import Task

Row = npt.NDArray[np.float32]

_KINDS = ("conv2d", "depthwise", "matmul", "norm", "pool", "reduce", "softmax", "elementwise", "conv1d", "gather",
          "resize", "layout")  # fmt: skip
TASK_COLUMNS = 9
DEVICE_COLUMNS = 5
_UNKNOWN = np.full(DEVICE_COLUMNS, np.nan, np.float32)


def fold(stores: npt.NDArray[np.floating[Any]]) -> Row:
    """Fold `(n_stores, w)` to one row: the store with the most arithmetic, the maximum over stores, their number.

    The first 16 columns of MetaSchedule's stores count arithmetic. Without a store the row is NaN.
    """
    if stores.size == 0:
        return np.full(2 * stores.shape[1] + 1, np.nan, dtype=np.float32)
    main = stores[stores[:, :16].sum(axis=1).argmax()]
    return np.concatenate([main, stores.max(axis=0), [len(stores)]]).astype(np.float32)


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


def device_columns(facts: Mapping[str, Any] | None) -> Row:
    """Return a device's columns from its facts: vector bits, and the sizes of its caches (log2 KiB); NaN if unknown."""
    if facts is None:
        return _UNKNOWN.copy()
    vector = [str(flag) for flag in facts.get("vector", ())]
    bits = 512 if any(f.startswith("avx512") for f in vector) else 256 if "avx2" in vector else 128
    caches = facts.get("caches", {})
    sizes = [_log_kib(str(caches[name])) if name in caches else math.nan for name in ("L1d", "L2", "L3")]
    return np.asarray([bits, *sizes, float(bool(facts.get("virtual")))], np.float32)


def _log_kib(text: str) -> float:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if not match or not int(match[1]):
        return math.nan
    return math.log2(int(match[1]) * {"": 2**-10, "K": 1, "M": 2**10, "G": 2**20}[match[2]])
