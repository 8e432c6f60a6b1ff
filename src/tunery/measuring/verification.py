"""Whether a candidate computes what the unscheduled program computes.

The rule, per output: shape and dtype must be equal. Integers and booleans must be equal. A float x passes against the
reference r where

    |x - r| <= t · (scale + |r|),    t = 4 · eps(dtype) · sqrt(K) + floor(dtype)

K is the length of the reduction behind one output element (estimated from the workload): reordering a sum of K rounded
terms moves it by about eps·sqrt(K) of its size, and 4 leaves room for the largest of millions of elements. `floor`
covers what no reduction explains (another exp, a fused multiply-add): 1e-5 for float32, 1e-2 for float16. `scale` is
the output's typical magnitude, its RMS or 8 times the median of its non-zero elements, whichever is less, so one huge
element (an attention mask) does not hide all others. A missing term of K shifts an element by about scale/sqrt(K): far
over the limit in float32, below it in float16, where K is some hundreds. So 16-bit floats are compared in blocks of 256
as well, in which rounding averages out and a missing term does not:

    RMS(x - r) <= t' · max(scale, RMS(r)),    t' = eps(dtype) · sqrt(K) / 2 + floor(dtype) / 2

Two sums of K terms that round each partial sum differ by some 0.28 · eps · sqrt(K) in RMS (the partial sums' average is
half of the last one, uniform rounding has eps/sqrt(12)); one without a term differs by 1/sqrt(K). Where r is NaN, x
must not be finite; where r is infinite, x must equal it; where r is finite, x must be finite, and at least one must
be. An output that is constant where the reference's is not is wrong, whatever the tolerance says.

A kernel that does not merely reorder sums (Winograd's convolution) may be given `slack`: t is that many times larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tunery.dialects import Array
from tunery.domain import Verification, Workload

METHOD = "reference"
MAX_ERROR = 1e9
"""What `max_error` says where there is no number: another shape, NaN, an unequal integer (JSON has no infinity)."""

_FLOOR = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 4e-2}
_COARSE_FLOOR = 0.25
_COARSE_EPS = 1e-4
_BLOCK, _LEAST_BLOCK = 256, 64
_PROBE = 65_536
_CONSTANT_FROM = 8
_OUTLIER = 8.0
_SMALLEST, _LARGEST = float(np.finfo(np.float32).smallest_normal), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ExpectedOutput:
    """One output of the reference with its tolerance, prepared once and compared with many candidates."""

    name: str
    values: Array
    limit: npt.NDArray[np.float32] | None
    constant: bool
    finite: float = 1.0
    blocks: npt.NDArray[np.float64] | None = None
    """The largest RMS of the deviation in each block, of 16-bit floats."""


def expect(workload: Workload, outputs: Sequence[Array]) -> list[ExpectedOutput]:
    length = reduction_length(workload)
    prepared = []
    for spec, values in zip(workload.output_specs, outputs, strict=True):
        floating = is_float(values.dtype)
        limit, blocks = _limits(values, length) if floating else (None, None)
        prepared.append(ExpectedOutput(spec.name, values, limit, _constant(values), finite_share(values), blocks))
    return prepared


def compare(
    expected: Sequence[ExpectedOutput], outputs: Sequence[Array], inputs: int = 1, *, slack: float = 1.0
) -> Verification:
    """Judge a candidate's outputs; `inputs` says how many independent inputs this verdict stands for. `slack` widens
    the tolerance, for a kernel that does not merely reorder sums; the verdict's method states it."""
    if len(expected) != len(outputs):
        return _wrong(inputs, f"{len(outputs)} outputs instead of {len(expected)}")
    worst = 0.0
    for reference, values in zip(expected, outputs, strict=True):
        error, detail = _deviation(reference, values, slack)
        if detail:
            return _wrong(inputs, f"{reference.name}: {detail}", error)
        worst = max(worst, error)
    return Verification(METHOD if slack == 1 else f"{METHOD}, tolerance x {slack:g}", inputs, worst, passed=True)


def merge(verdicts: Sequence[Verification]) -> Verification:
    inputs = sum(verdict.inputs for verdict in verdicts)
    worst = max((verdict.max_error for verdict in verdicts), default=0.0)
    failed = next((verdict for verdict in verdicts if not verdict.passed), None)
    method = verdicts[0].method if verdicts else METHOD
    return Verification(method, inputs, worst, failed is None and inputs > 0, failed.detail if failed else "")


def is_float(dtype: np.dtype[np.generic]) -> bool:
    return bool(np.issubdtype(dtype, np.floating)) or (hasattr(ml_dtypes, dtype.name) and "int" not in dtype.name)


def tolerance(dtype: np.dtype[np.generic], length: float) -> float:
    eps = _finfo(dtype, "eps")
    return float(4 * eps * np.sqrt(max(1.0, length)) + _FLOOR.get(dtype.name, _COARSE_FLOOR))


def reduction_length(workload: Workload) -> float:
    """Estimate how many terms one output element sums: from its operations, or from how much input it stands for."""
    written = max(1, sum(spec.size for spec in workload.output_specs))
    largest = max((spec.size for spec in workload.input_specs), default=1)
    return max(1.0, workload.flop / (2 * written), largest / written)


def finite_share(values: Array) -> float:
    return float(np.mean(np.isfinite(values))) if values.size and is_float(values.dtype) else 1.0


def _limits(reference: Array, length: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64] | None]:
    """Return the largest allowed deviation of each element, and its largest RMS in each block of 16-bit floats. None
    for the blocks of other floats, and of few elements."""
    magnitude = np.asarray(np.abs(reference.astype(np.float64)))  # of a lone value NumPy returns no array
    magnitude[~np.isfinite(magnitude)] = 0.0
    probe = magnitude.ravel()[:: max(1, magnitude.size // _PROBE)]
    probe = probe[probe > 0]
    scale = 0.0
    if probe.size:
        rms = float(np.sqrt(np.mean((magnitude / magnitude.max()) ** 2)) * magnitude.max())
        scale = min(rms, _OUTLIER * float(np.median(probe)))
    smallest = max(_SMALLEST, _finfo(reference.dtype, "smallest_normal"))
    blocks, eps = None, _finfo(reference.dtype, "eps")
    if eps > _COARSE_EPS and reference.size >= _LEAST_BLOCK:
        share = 0.5 * (eps * np.sqrt(max(1.0, length)) + _FLOOR.get(reference.dtype.name, _COARSE_FLOOR))
        blocks = share * np.maximum(scale, _rms_of_blocks(magnitude)) + smallest
    with np.errstate(over="ignore", under="ignore"):
        share = tolerance(reference.dtype, length)
        return np.minimum(share * (scale + magnitude) + smallest, _LARGEST).astype(np.float32), blocks


def _rms_of_blocks(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    starts = np.arange(max(1, values.size // _BLOCK)) * _BLOCK
    sums = np.add.reduceat(np.square(values.ravel(), dtype=np.float64), starts)
    return np.asarray(np.sqrt(sums / np.diff(starts, append=values.size)))


def _deviation(reference: ExpectedOutput, values: Array, slack: float) -> tuple[float, str]:
    if values.shape != reference.values.shape:
        return MAX_ERROR, f"shape {values.shape} instead of {reference.values.shape}"
    if values.dtype != reference.values.dtype:
        return MAX_ERROR, f"dtype {values.dtype} instead of {reference.values.dtype}"
    if not reference.finite:
        return MAX_ERROR, "the reference itself is nowhere finite, so nothing can be compared"
    if not reference.constant and values.size >= _CONSTANT_FROM and _constant(values):
        return MAX_ERROR, "constant, and the reference is not"
    if reference.limit is None:
        unequal = values != reference.values
        count = int(np.count_nonzero(unequal))
        first = _first(reference.values, values, unequal) if count else ""
        return (MAX_ERROR, f"{count} of {values.size} elements are unequal{first}") if count else (0.0, "")
    limit = reference.limit if slack == 1 else reference.limit * np.float32(slack)
    error, detail = _float_deviation(reference.values, values, limit)
    blocks = None if detail else reference.blocks
    return (error, detail) if blocks is None else _block_deviation(reference.values, values, slack * blocks, error)


def _block_deviation(
    reference: Array, values: Array, limits: npt.NDArray[np.float64], error: float
) -> tuple[float, str]:
    with np.errstate(invalid="ignore"):
        difference = values.astype(np.float64) - reference.astype(np.float64)
    difference[~np.isfinite(difference)] = 0.0  # where they should be
    shares = _rms_of_blocks(difference) / limits
    worst = max(error, float(shares.max()))
    if worst > 1:
        return worst, f"{np.count_nonzero(shares > 1)} of {shares.size} blocks deviate, up to {worst:.3g} x tolerance"
    return worst, ""


def _float_deviation(reference: Array, values: Array, limit: npt.NDArray[np.float32]) -> tuple[float, str]:
    wide = np.float64 if reference.dtype == np.float64 else np.float32
    left: npt.NDArray[np.floating] = values.astype(wide, copy=False)
    right: npt.NDArray[np.floating] = reference.astype(wide, copy=False)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        share = np.abs(left - right)
        share /= limit
    worst = float(share.max(initial=0.0))
    if not np.isfinite(worst):
        finite = np.isfinite(right)
        bad = np.isfinite(left) != finite
        bad |= np.isinf(right) & (left != right)
        if bad.any():
            said = f"{np.count_nonzero(bad)} of {values.size} elements are NaN or infinite, or should be"
            return MAX_ERROR, said + _first(reference, values, bad)
        worst = float(share[finite].max(initial=0.0))
    worst = min(worst, MAX_ERROR)
    if worst > 1:
        said = f"{np.count_nonzero(share > 1)} of {values.size} elements deviate, up to {worst:.3g} x tolerance"
        return worst, said + _first(reference, values, share > 1)
    return worst, ""


def _first(reference: Array, values: Array, wrong: npt.NDArray[np.bool_]) -> str:
    place = tuple(int(number) for number in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return f", the first at {list(place)}: {values[place]!s:.24} instead of {reference[place]!s:.24}"


def _finfo(dtype: np.dtype[np.generic], field: str) -> float:
    return float(getattr(ml_dtypes.finfo(dtype), field))  # type: ignore[no-untyped-call]


def _constant(values: Array) -> bool:
    flat = values.ravel()
    return flat.size == 0 or not bool(np.any(flat != flat[0]))


def _wrong(inputs: int, detail: str, error: float = MAX_ERROR) -> Verification:
    return Verification(METHOD, inputs, error, passed=False, detail=detail)
