import numpy as np
import pytest
from pydantic import TypeAdapter

from tunery.dialects import Array
from tunery.domain import TensorSpec, Verification, Workload
from tunery.measuring.inputs import numpy_dtype
from tunery.measuring.verification import compare, expect, merge, reduction_length, tolerance


def workload(dtype: str = "float32", shape: tuple[int, ...] = (32, 32), length: int = 1) -> Workload:
    specs = (TensorSpec("x", shape, dtype), TensorSpec("y", shape, dtype))
    return Workload("w", "w", "dense", "", specs, 1, 2.0 * length * specs[1].size)


def judge(reference: Array, values: Array, length: int = 1) -> Verification:
    expected = expect(workload(reference.dtype.name, reference.shape, length), [reference])
    return compare(expected, [values])


def normal(dtype: str = "float32", shape: tuple[int, ...] = (32, 32), scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(0).standard_normal(shape)).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("length", [64, 4608])
def test_a_reordered_sum_passes_and_a_missing_term_does_not(length: int, scale: float) -> None:
    generator = np.random.default_rng(1)
    left, right = (generator.uniform(-1, 1, (16, length)).astype(np.float32) for _ in range(2))
    terms = (left * right * np.float32(scale)).astype(np.float32)
    reference = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    backwards = np.cumsum(terms[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    assert judge(reference, backwards, length).passed
    assert not judge(reference, (reference - terms[:, -1]).astype(np.float32), length).passed


def rounded_sums(terms: Array) -> Array:
    """Sum along the last axis, and round each partial sum."""
    total = np.zeros(terms.shape[:-1], terms.dtype)
    for k in range(terms.shape[-1]):
        total = (total + terms[..., k]).astype(terms.dtype)
    return total


@pytest.mark.parametrize(
    ("dtype", "length"), [("float16", 64), ("float16", 576), ("float16", 1024), ("bfloat16", 16), ("bfloat16", 64)]
)
@pytest.mark.parametrize("wide", [False, True])
def test_a_missing_term_shows_in_16_bits_and_the_order_of_rounded_sums_does_not(
    dtype: str, length: int, *, wide: bool
) -> None:
    """Also of one row alone, and where the reference sums in 32 bits and the other kernel does not."""
    generator, kind = np.random.default_rng(2), numpy_dtype(dtype)
    left, right = (generator.uniform(-1, 1, shape).astype(kind) for shape in ((8, 1, length), (1, 256, length)))
    terms = (left.astype(np.float32) * right.astype(np.float32)).astype(np.float32 if wide else kind)
    reference = rounded_sums(terms).astype(kind)
    backwards = rounded_sums(terms[..., ::-1].astype(kind))
    assert judge(reference, backwards, length).passed
    missing = rounded_sums(terms[..., 1:]).astype(kind)
    assert not judge(reference, missing, length).passed
    assert not judge(reference, np.where(np.arange(8)[:, None] == 3, missing, reference), length).passed
    assert judge(reference, np.where(np.arange(8)[:, None] == 3, backwards, reference), length).passed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_tolerance_follows_the_dtype_and_max_error_is_its_share(dtype: str) -> None:
    reference = normal(dtype)
    same = judge(reference, reference.copy())
    assert same.passed
    assert same.max_error == 0
    wrong = reference.astype(np.float64)
    wrong[3, 3] += 4 * tolerance(reference.dtype, 1) * (2 + abs(wrong[3, 3]))
    verdict = judge(reference, wrong.astype(reference.dtype))
    assert not verdict.passed
    assert verdict.max_error > 1
    near = (reference.astype(np.float64) * (1 + 0.2 * tolerance(reference.dtype, 1))).astype(reference.dtype)
    assert judge(reference, near).passed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_not_finite_is_wrong(bad: float) -> None:
    values = normal()
    values[5, 5] = bad
    verdict = judge(normal(), values)
    assert not verdict.passed
    assert "NaN" in verdict.detail


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_where_the_reference_is_not_finite_only_the_kind_is_compared(dtype: str) -> None:
    reference = normal(dtype)
    reference[0, :3] = [np.nan, np.inf, -np.inf]
    assert judge(reference, reference.copy()).passed
    for position, value in ((0, 1.0), (1, 1.0), (1, -np.inf), (2, np.nan)):
        values = reference.copy()
        values[0, position] = value
        assert not judge(reference, values).passed
    other = reference.copy()
    other[1, 1] += 1
    assert not judge(reference, other).passed


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_constant_output_is_wrong_even_within_tolerance(dtype: str) -> None:
    reference = (1 + 1e-4 * np.arange(1024).reshape(32, 32) / 1024).astype(dtype)
    reference[0, 0] = np.nextafter(reference[0, 0], numpy_dtype(dtype).type(2))
    verdict = judge(reference, np.full_like(reference, reference.mean()))
    assert not verdict.passed
    assert judge(np.ones((32, 32), dtype), np.ones((32, 32), dtype)).passed


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32", "bool"])
def test_one_value_without_dimensions_compares(dtype: str) -> None:
    """It is what the largest of a whole tensor gives."""
    one, other = (np.asarray(value, numpy_dtype(dtype)) for value in (1, 0))
    assert judge(one, one).passed
    assert not judge(one, other).passed


def test_another_shape_dtype_or_number_of_outputs_is_wrong() -> None:
    reference = normal()
    assert not judge(reference, reference.reshape(16, 64)).passed
    assert not judge(reference, reference.astype(np.float64)).passed
    assert not compare(expect(workload(), [reference]), []).passed


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "bool"])
def test_integers_and_booleans_must_be_equal(dtype: str) -> None:
    reference = np.arange(1024).reshape(32, 32).astype(dtype)
    values = reference.copy()
    assert judge(reference, values).passed
    values[7, 7] = not values[7, 7]
    assert not judge(reference, values).passed


def test_one_huge_element_does_not_hide_the_others() -> None:
    reference = normal()
    reference[0, 0] = -3e38
    values = reference.copy()
    values[1:] = -values[1:]
    assert not judge(reference, values).passed
    assert judge(reference, reference.copy()).passed


def test_a_reference_that_is_nowhere_finite_verifies_nothing() -> None:
    nowhere = np.full((32, 32), np.nan, np.float32)
    assert not judge(nowhere, nowhere.copy()).passed


def test_zeros_and_empty_outputs_compare() -> None:
    zeros = np.zeros((32, 32), np.float32)
    assert judge(zeros, zeros.copy()).passed
    assert judge(zeros.astype(np.float64), zeros.astype(np.float64)).passed
    assert not judge(zeros, zeros + np.float32(1e-30)).passed
    assert judge(np.zeros((0,), np.float32), np.zeros((0,), np.float32)).passed


def test_the_reduction_is_taken_from_operations_or_sizes() -> None:
    assert reduction_length(workload(length=576)) == 576
    mean = Workload(
        "m", "m", "pool", "", (TensorSpec("x", (1000,), "float32"), TensorSpec("y", (1,), "float32")), 1, 0.0
    )
    assert reduction_length(mean) == 1000


def test_verdicts_join_to_a_deliverable_one_only_if_all_inputs_passed() -> None:
    good, bad = judge(normal(), normal()), judge(normal(), -normal())
    assert merge([good] * Verification.FULL).deliverable
    assert not merge([good] * (Verification.FULL - 1)).deliverable
    joined = merge([good, bad, good])
    assert not joined.passed
    assert joined.detail == bad.detail
    assert not merge([]).passed


def test_a_verdict_survives_json() -> None:
    adapter = TypeAdapter(Verification)
    verdict = judge(normal(), np.full((32, 32), np.nan, np.float32))
    assert adapter.validate_json(adapter.dump_json(verdict)) == verdict
