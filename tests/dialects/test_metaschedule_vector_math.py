"""exp, erf, tanh and sigmoid without the C library: accurate everywhere, at infinities and denormals too."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.special

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
    """Return the largest error in units in the last place; below normal numbers in units of the smallest number."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = right.astype(np.float32)
        units = np.abs(got.astype(np.float64) - right) / np.spacing(np.abs(rounded)).astype(np.float64)
    return float(np.where(got == rounded, 0, units).max())


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "erf": scipy.special.erf, "tanh": np.tanh, "sigmoid": scipy.special.expit
}  # fmt: skip
SIZES = 10.0 ** np.linspace(-44, 38.5, 1 << 14)
SPANS = [np.linspace(-110, 95, 1 << 15), np.linspace(-12, 12, 1 << 15), np.linspace(-2, 2, 1 << 15), SIZES, -SIZES]
ARGUMENTS = np.concatenate([*SPANS, np.resize([0.0, -0.0, math.inf, -math.inf], 16)]).astype(np.float32)


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("operator", FUNCTIONS)
def test_it_is_accurate_at_all_sizes_and_calls_no_library(operator: str, vectorised: bool) -> None:
    got, assembly = _run(operator, ARGUMENTS, vectorised=vectorised)
    with np.errstate(over="ignore"):
        right = FUNCTIONS[operator](ARGUMENTS.astype(np.float64))
    assert _units(got, right) <= 2
    assert (np.signbit(got) == np.signbit(right)).all()
    assert f"{operator}f" not in assembly


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_nan_stays_nan(operator: str) -> None:
    got, _ = _run(operator, np.full(32, math.nan, np.float32), vectorised=True)
    assert np.isnan(got).all()


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_other_types_keep_their_accuracy(operator: str) -> None:
    values = np.linspace(-2, 2, 64)
    got, _ = _run(operator, values, vectorised=False)
    np.testing.assert_allclose(got, FUNCTIONS[operator](values), rtol=1e-14)


def test_a_process_that_sets_nothing_gets_the_threads_it_asks_for() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", _THREADS], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
