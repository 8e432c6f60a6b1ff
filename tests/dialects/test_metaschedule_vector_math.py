"""exp and erf without the C library: float32's accuracy everywhere, NaN and infinities included."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytestmark = pytest.mark.tvm

Array = npt.NDArray[Any]
_THREADS = """
import os
from tunery.dialects.metaschedule._tvm import tvm
wanted = len(os.sched_getaffinity(0))
tvm.get_global_func("runtime.config_threadpool")(1, wanted)
print(tvm.get_global_func("runtime.NumThreads")() == wanted)
"""


def _run(operator: str, values: Array, *, vectorised: bool) -> tuple[Array, str]:
    """Return an elementwise operator's results and the assembly of its kernel."""
    from tunery.dialects.metaschedule._tvm import open_target, tvm
    from tunery.dialects.metaschedule.codegen import vector_math  # noqa: F401 - registers its rules
    from tunery.dialects.metaschedule.target import resolve

    te, count = tvm.te, len(values)
    given = te.placeholder((count,), dtype=str(values.dtype), name="given")
    made = te.compute((count,), lambda i: getattr(tvm.tirx, operator)(given[i]), name="made")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([given, made]))
    if vectorised:
        _, lane = schedule.split(schedule.get_loops(schedule.get_sblock("made"))[0], [None, 16])
        schedule.vectorize(lane)
    target = open_target(resolve("metaschedule", "native", 1).config)
    library = tvm.tirx.build(schedule.mod, target=target)
    result = tvm.runtime.empty((count,), str(values.dtype))
    library["main"](tvm.runtime.tensor(values), result)
    return result.numpy(), str(library.inspect_source("asm"))


def _units(got: Array, right: Array) -> float:
    """Return the largest error in units in the last place."""
    return float((np.abs(got - right) / np.spacing(np.abs(right).astype(np.float32))).max())


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x])


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize(
    ("operator", "low", "high", "right", "units"),
    [("exp", -86.9, 88.72, np.exp, 2.0), ("erf", -6.0, 6.0, _erf, 8.0)],
)
def test_it_is_accurate_and_calls_no_library(
    operator: str, low: float, high: float, right: Callable[[Array], Array], units: float, vectorised: bool
) -> None:
    values = np.linspace(low, high, 1 << 15).astype(np.float32)
    got, assembly = _run(operator, values, vectorised=vectorised)
    assert _units(got, right(values.astype(np.float64))) <= units
    assert f"{operator}f" not in assembly


def test_small_arguments_keep_their_relative_accuracy() -> None:
    values = (10.0 ** -np.arange(16)).astype(np.float32)
    got, _ = _run("erf", np.concatenate([values, -values]), vectorised=False)
    right = _erf(values.astype(np.float64))
    assert _units(got, np.concatenate([right, -right])) <= 8


@pytest.mark.parametrize("vectorised", [True, False])
def test_what_is_no_ordinary_number(vectorised: bool) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, -3e38] * 2, np.float32)
    exp, _ = _run("exp", values, vectorised=vectorised)
    np.testing.assert_array_equal(exp[:8], np.array([np.nan, np.inf, 0, 1, 1, np.inf, 0, 0], np.float32))
    erf, _ = _run("erf", values, vectorised=vectorised)
    np.testing.assert_allclose(erf[:8], np.array([np.nan, 1, -1, 0, 0, 1, -1, -1], np.float32), rtol=1e-7)


@pytest.mark.parametrize("operator", ["exp", "erf"])
def test_other_types_are_left_to_the_library(operator: str) -> None:
    values = np.linspace(-2, 2, 64)
    right = np.exp(values) if operator == "exp" else _erf(values)
    got, _ = _run(operator, values, vectorised=False)
    np.testing.assert_allclose(got, right, rtol=1e-14)


def test_a_process_that_sets_nothing_gets_the_threads_it_asks_for() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", _THREADS], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
