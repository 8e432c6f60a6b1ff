"""Arguments to measure and verify with, filled by ourselves: a compiler's own random fill reads out of bounds."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tunery.dialects import Array
from tunery.domain import TensorSpec

VERSION = 2
"""Counts changes of the values below: cached reference outputs of another version are not used."""

_INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64"})
_LONE_INDEX_BOUND = 8
_DATA_BOUND = 64
_DRAWN = 1_048_583
"""Floats that are drawn for one array, which larger ones repeat: a prime, so rows are alike only that far apart."""


def size_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return what arrays of these specs take together, in bytes."""
    return sum(spec.size * numpy_dtype(spec.dtype).itemsize for spec in specs)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return the NumPy dtype called `name`, including the low-precision ones of ml_dtypes."""
    low_precision = getattr(ml_dtypes, name, None)
    return np.dtype(name if low_precision is None else low_precision)


def make_inputs(specs: Sequence[TensorSpec], seed: int, *, positive: bool = False) -> list[Array]:
    """Return one array per spec, the same in every process for the same seed.

    Floats are uniform in [-1, 1), or in [0, 1) where `positive` ones are asked for (a square root of variances gives
    NaN otherwise). Booleans are 0 or 1, 8- and 16-bit integers (quantised data) small numbers. Wider integers may be
    indices of a gather, take or embedding along an axis we cannot see, so they are at least 0 and less than every
    dimension of all arguments that are not such integers themselves. Floats of large arrays repeat.
    """
    arrays = []
    for position, spec in enumerate(specs):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([VERSION, seed, position])))
        arrays.append(np.asarray(_fill(spec, index_bound(specs, position), generator, positive)))  # 0-d ones too
    return arrays


def index_bound(specs: Sequence[TensorSpec], position: int) -> int:
    others = [spec for i, spec in enumerate(specs) if i != position and spec.shape]
    indexed = [spec for spec in others if spec.dtype not in _INDEX_TYPES] or others
    return max(1, min((size for spec in indexed for size in spec.shape), default=_LONE_INDEX_BOUND))


def _fill(spec: TensorSpec, bound: int, generator: np.random.Generator, positive: bool) -> Array:
    dtype = numpy_dtype(spec.dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, spec.shape, dtype=np.uint8).astype(np.bool_)
    if spec.dtype in _INDEX_TYPES:
        return generator.integers(0, bound, spec.shape, dtype=np.int64).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -_DATA_BOUND
        return generator.integers(low, _DATA_BOUND, spec.shape, dtype=np.int16).astype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    drawn: npt.NDArray[np.floating] = generator.random(min(spec.size, _DRAWN), dtype=wide)
    values = (drawn if positive else drawn * wide(2) - wide(1)).astype(dtype)
    return np.resize(values, spec.shape)
