import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery._errors import UsageError
from tunery.domain import TensorSpec
from tunery.measuring.inputs import fitting, index_bound, make_inputs, numpy_dtype, read_sets, shapes_in

_SCRIPT = """
import hashlib
from tunery.domain import TensorSpec
from tunery.measuring.inputs import make_inputs
arrays = make_inputs([TensorSpec("a", (5, 7), "float32"), TensorSpec("i", (9,), "int64")], 3)
print(hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest())
"""


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_floats_are_spread_over_both_signs(dtype: str) -> None:
    (values,) = make_inputs([TensorSpec("x", (1000,), dtype)], 0)
    wide = values.astype(np.float64)
    assert values.dtype == numpy_dtype(dtype)
    assert -1 <= wide.min() < -0.9
    assert 0.9 < wide.max() <= 1
    assert abs(wide.mean()) < 0.1


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "int8", "bfloat16"])
def test_a_scalar_is_an_array_without_dimensions(dtype: str) -> None:
    (value,) = make_inputs([TensorSpec("x", (), dtype)], 0)
    assert isinstance(value, np.ndarray)
    assert value.shape == ()
    assert value.dtype == numpy_dtype(dtype)


def test_positive_floats_can_be_asked_for() -> None:
    (values,) = make_inputs([TensorSpec("x", (1000,), "float32")], 0, positive=True)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() < 1


def test_another_seed_and_another_position_give_other_values() -> None:
    specs = [TensorSpec("a", (64,), "float32"), TensorSpec("b", (64,), "float32")]
    first, second = make_inputs(specs, 0)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, make_inputs(specs, 1)[0])


def test_the_same_seed_gives_the_same_values_in_another_process() -> None:
    arrays = make_inputs([TensorSpec("a", (5, 7), "float32"), TensorSpec("i", (9,), "int64")], 3)
    here = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    there = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 50), st.sampled_from(["int32", "int64"]))
def test_an_index_is_in_bounds_along_any_axis_of_the_data(shape: list[int], seed: int, dtype: str) -> None:
    data, index = make_inputs([TensorSpec("t", tuple(shape), "float32"), TensorSpec("i", (2, 50), dtype)], seed)
    for axis in range(data.ndim):
        np.take(data, index.astype(np.int64), axis=axis, mode="raise")
    assert int(index.min()) >= 0


def test_index_arguments_do_not_bound_each_other_unless_there_is_nothing_else() -> None:
    table, ids, kinds = (
        TensorSpec("t", (100, 64), "float32"),
        TensorSpec("i", (1, 8), "int64"),
        TensorSpec("k", (1, 8), "int64"),
    )
    assert index_bound([table, ids, kinds], 1) == 64
    assert index_bound([TensorSpec("t", (100,), "int64"), ids], 1) == 100
    assert index_bound([ids], 0) > 1
    assert index_bound([TensorSpec("s", (), "float32"), ids], 1) > 1


def test_quantised_data_and_booleans_have_their_whole_range() -> None:
    specs = [TensorSpec("q", (500,), "int8"), TensorSpec("u", (500,), "uint8"), TensorSpec("m", (500,), "bool")]
    signed, unsigned, mask = make_inputs(specs, 0)
    assert signed.min() < 0 < signed.max()
    assert 0 <= unsigned.min() < unsigned.max()
    assert set(np.unique(mask)) == {False, True}


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(TypeError):
        make_inputs([TensorSpec("x", (1,), "float7")], 0)


def test_large_arrays_repeat_what_was_drawn_but_no_two_of_their_rows_are_alike() -> None:
    (table,) = make_inputs([TensorSpec("t", (3000, 1024), "float32")], 5)
    assert len(np.unique(table[:, :4], axis=0)) == 3000
    assert len(np.unique(table)) < table.size / 2


def test_a_users_arrays_are_sets_that_have_to_fit(tmp_path: Path) -> None:
    specs = [TensorSpec("x", (2, 3), "float32"), TensorSpec("n", (), "int64")]
    np.savez(tmp_path / "two.npz", **{f"{k}/{n}": v for k in (0, 1) for n, v in (("x", np.full((2, 3), k)), ("n", k))})
    np.savez(tmp_path / "other.npz", x=np.zeros((2, 4)))
    (tmp_path / "text.npz").write_text("no arrays")
    sets = [fitting(one, specs) for one in read_sets(tmp_path / "two.npz")]
    assert [(x.dtype, float(x[0, 0]), int(n)) for x, n in sets] == [(np.float32, 0.0, 0), (np.float32, 1.0, 1)]
    with pytest.raises(UsageError, match=r"'x' has the shape \[2, 4\], not \[2, 3\]"):
        fitting(read_sets(tmp_path / "other.npz")[0], specs)
    assert shapes_in(tmp_path / "two.npz") == {"x": (2, 3), "n": ()}
    for read in (read_sets, shapes_in):
        with pytest.raises(UsageError, match="no arrays"):
            read(tmp_path / "text.npz")
