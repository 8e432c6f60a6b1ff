"""Arguments to measure and verify with, filled by ourselves: a compiler's own random fill reads out of bounds."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.dialects import Array
from tunery.domain import InputRange, TensorSpec

VERSION = 4
"""Counts changes of the values below: cached reference outputs of another version are not used."""

_INDEX_TYPES = frozenset({"int32", "int64", "uint32", "uint64"})
_LONE_INDEX_BOUND = 8
_DATA_BOUND = 64
_DRAWN = 1_048_583
"""Floats that are drawn for one array, which larger ones repeat: a prime, so rows are alike only that far apart."""


def size_bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.size * numpy_dtype(spec.dtype).itemsize for spec in specs)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    low_precision = getattr(ml_dtypes, name, None)
    return np.dtype(name if low_precision is None else low_precision)


def make_inputs(specs: Sequence[TensorSpec], seed: int, *, positive: bool = False) -> list[Array]:
    """Return one array per spec, the same in every process for the same seed. Floats are uniform in [-1, 1), or in [0,
    1) where `positive` ones are asked for (a square root of variances gives NaN otherwise). Booleans are 0 or 1, 8- and
    16-bit integers (quantised data) small numbers. Wider integers may be indices of a gather, take or embedding along
    an axis we cannot see, so they are at least 0 and less than every dimension of all arguments that are not such
    integers themselves. Floats of large arrays repeat."""
    arrays = []
    for position, spec in enumerate(specs):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([VERSION, seed, position])))
        arrays.append(np.asarray(_fill(spec, index_bound(specs, position), generator, positive)))  # 0-d ones too
    return arrays


def special_inputs(specs: Sequence[TensorSpec], seed: int, *, only_first: bool) -> list[Array]:
    """Return what `make_inputs` does with infinities and zeros at both ends of float arrays, or of the first of them.
    They are few, so that sums of the others stay finite. NaN is not among them: which of many is the largest then
    depends on the order."""
    arrays = make_inputs(specs, seed)
    floats = [array for array in arrays if array.dtype.kind == "f" and array.size]
    for array in floats[:1] if only_first else floats:
        generator, flat = np.random.Generator(np.random.PCG64(seed)), array.reshape(-1)
        places = np.flatnonzero(generator.random(max(1, flat.size // _SPECIAL_SHARE)) < _SPECIAL_DENSITY)
        flat[places] = generator.choice(np.array(_SPECIAL["sparse"]), places.size).astype(array.dtype)
        flat[-1] = generator.choice(np.array(_SPECIAL["sparse"]))
    return arrays


SETS = ("random", "zeros", "ends", "ties", "large", "infinite", "NaN")
"""Kinds of input sets of a network, by number; the last two only where an input can meet a special case."""
_ORDINARY, _MOST_ARRAYS = 5, 10_000
_SPECIAL_SHARE, _SPECIAL_DENSITY = 16, 0.2
_MASK = (0.0, 1.0)
_LONE_HIGH = 7.0
_SPECIAL = {
    "infinite": (np.inf, -np.inf, 0.0, -0.0, 1e-40, -104.0, 88.8, 3e38),
    "NaN": (np.nan, -0.0, 1e-45),
    "sparse": (np.inf, -np.inf, 0.0, -0.0),
    "large": (-104.0, -87.5, 88.5, 1e4, -1e4, 30.0, -30.0),
}


def read_sets(path: Path | str) -> list[dict[str, Array]]:
    """Return the sets of inputs, by name, in an .npz file whose arrays are called as inputs, or as `0/x`, `1/x`."""
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{str(path)!r} holds no arrays: {error}; write it with numpy.savez") from None
    sets: dict[int, dict[str, Array]] = {}
    for key, array in arrays.items():
        number, name = _set_and_name(key)
        sets.setdefault(number, {})[name] = array
    if not sets:
        raise UsageError(f"{str(path)!r} is empty; give it an array for each input of the model")
    return [sets[number] for number in sorted(sets)]


def shapes_in(path: Path | str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the first set in such a file by input; no array is read."""
    shapes = dict[str, tuple[int, ...]]()
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist()[:_MOST_ARRAYS]:
                number, name = _set_and_name(member.removesuffix(".npy"))
                with archive.open(member) as file:
                    header = np.lib.format
                    first = header.read_magic(file) == (1, 0)
                    if number == 0:
                        shapes[name] = (header.read_array_header_1_0 if first else header.read_array_header_2_0)(file)[
                            0
                        ]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{str(path)!r} holds no arrays: {error}; write it with numpy.savez") from None
    return shapes


def _set_and_name(key: str) -> tuple[int, str]:
    number, _, name = key.partition("/")
    return (int(number), name) if name and number.isdecimal() else (0, key)


def fitting(given: Mapping[str, Array], specs: Sequence[TensorSpec]) -> list[Array]:
    for spec in specs:
        shape = given[spec.name].shape if spec.name in given else None
        if shape != spec.shape:
            what = "is missing" if shape is None else f"has the shape {list(shape)}, not {list(spec.shape)}"
            raise UsageError(f"input {spec.name!r} {what} in the arrays of --inputs; write it with numpy.savez")
    return [given[spec.name].astype(numpy_dtype(spec.dtype)) for spec in specs]


def set_label(number: int) -> str:
    return SETS[number] if number < len(SETS) else f"given {number - len(SETS)}"


def set_numbers(specs: Sequence[TensorSpec], ranges: Mapping[str, InputRange]) -> range:
    """Return the numbers of the input sets that suit a network; those that users give have further ones."""
    special = any(ranges.get(spec.name, InputRange()).special for spec in specs)
    return range(len(SETS) if special else _ORDINARY)


def network_inputs(
    specs: Sequence[TensorSpec], ranges: Mapping[str, InputRange], seed: int, number: int
) -> list[Array]:
    """Return the inputs of one set of `SETS`: floats of set 0 as `make_inputs`, integers within their ranges. What a
    network compares with 0 and 1 is a mask: it hides the end of a row, all, the first row, nothing, or anything."""
    arrays = make_inputs(specs, seed)
    for position, spec in enumerate(specs):
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([VERSION, seed, position, number])))
        taken, dtype, label = ranges.get(spec.name, InputRange()), numpy_dtype(spec.dtype), SETS[number]
        masks = (taken.low, taken.high) == _MASK and (number < _ORDINARY - 1 or np.issubdtype(dtype, np.integer))
        if dtype == np.bool_ or masks:
            arrays[position] = _mask(spec.shape, label, generator).astype(dtype)
        elif np.issubdtype(dtype, np.integer) or taken.low is not None or taken.high is not None:
            arrays[position] = _within(spec, taken, label, generator)
        elif number:
            arrays[position] = _floats(arrays[position], taken, label, generator)
    return arrays


def _mask(shape: tuple[int, ...], label: str, generator: np.random.Generator) -> Array:
    shown: Array = np.ones(shape, np.int8)
    if label == "zeros":
        shown[...] = 0
    elif label == "random" and shape:
        shown[..., shape[-1] - shape[-1] // 4 :] = 0
    elif label == "ends" and shape:
        shown[_first_row(shape) or -1] = 0
    elif label not in {"random", "ends", "ties"}:
        shown = np.asarray(generator.integers(0, 2, shape, np.int8))
    return shown


def _first_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (0,) * (len(shape) - 1)


def _within(spec: TensorSpec, taken: InputRange, label: str, generator: np.random.Generator) -> Array:
    dtype = numpy_dtype(spec.dtype)
    integer = bool(np.issubdtype(dtype, np.integer))
    least, most = (int(np.iinfo(spec.dtype).min), int(np.iinfo(spec.dtype).max)) if integer else (-np.inf, np.inf)
    low = max(least, taken.low if taken.low is not None else min(0.0, (taken.high or 0.0) - _LONE_HIGH))
    high = min(most, taken.high if taken.high is not None else max(low, 0.0) + _LONE_HIGH)
    if taken.low is None and taken.high is None and dtype.itemsize <= 2:
        low, high = max(least, -_DATA_BOUND), min(most, _DATA_BOUND - 1)
    if label == "zeros":
        return np.full(spec.shape, low).astype(dtype)
    if label == "ends":
        free = integer and taken.low is None and taken.high is None
        widest = 2**63 if taken.wide else 2**31 - 1
        ends = np.array([max(least, -widest), min(most, widest), 0, 1] if free else [low, high]).astype(dtype)
        chosen = np.asarray(generator.choice(ends, spec.shape))
        chosen.reshape(-1)[-1:] = ends[1]
        return chosen
    if label == "ties":
        high = min(high, low + 1)
    if not integer:
        return np.asarray(generator.uniform(low, high, spec.shape).astype(dtype))
    return np.asarray(generator.integers(int(low), int(high), spec.shape, dtype=np.int64, endpoint=True).astype(dtype))


def _floats(drawn: Array, taken: InputRange, label: str, generator: np.random.Generator) -> Array:
    """Return floats of a kind instead of those drawn from [-1, 1)."""
    if label == "zeros":
        return np.where(generator.random(drawn.shape) < 0.5, 0.0, -0.0).astype(drawn.dtype)
    if label == "ties":
        return np.asarray(np.round(2 * drawn.astype(np.float32)) / 2).astype(drawn.dtype)
    values = drawn.astype(np.float64)
    if label == "ends":  # of magnitudes: to the least
        values *= 10.0 ** generator.integers(-42, 1, drawn.shape)
    elif label == "large":
        values *= 8 if drawn.dtype.itemsize == 2 else 100
    if taken.special and label in _SPECIAL and (taken.nan or label != "NaN"):
        chosen = generator.choice(np.array(_SPECIAL[label]), drawn.shape)
        values = np.where(generator.random(drawn.shape) < 0.2, chosen, values)
        if label == "infinite" and drawn.ndim > 1:
            values[_first_row(drawn.shape)] = -np.inf  # a row that a mask hides
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(drawn.dtype))


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
