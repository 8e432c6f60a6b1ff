from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tunery.measuring.constant_buffers import ConstantBuffers
from tunery.measuring.settings import Settings

MIB = 2**20


@pytest.mark.parametrize("shape", [(3, 3, 40, 7), (512, 512), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_places_are_aligned_and_hold_numbers(shape: tuple[int, ...], dtype: str) -> None:
    slab = ConstantBuffers(0)
    for _ in range(3):
        array = slab.take(shape, dtype)
        assert (array.shape, str(array.dtype)) == (shape, dtype)
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    if array.size > 1:
        assert len(np.unique(array.astype(np.float32))) > 50


def test_a_place_comes_again_when_the_caches_have_forgotten_it() -> None:
    slab = ConstantBuffers(16 * MIB)
    given, last = 0, dict[int, int]()
    between = []
    for _ in range(200):
        array = slab.take((3, 3, 128, 130), "float32")
        between += [given - last[array.ctypes.data]] if array.ctypes.data in last else []
        given += array.nbytes
        last[array.ctypes.data] = given
    assert between, "the slab has no end"
    assert min(between) >= 2 * 16 * MIB


def test_weights_larger_than_the_caches_rotate_too() -> None:
    slab = ConstantBuffers(16 * MIB)
    first = slab.take((40, MIB), "int8")
    second = slab.take((40, MIB), "int8")
    assert not np.shares_memory(first, second)


def test_finals_find_weights_elsewhere_and_races_do_not(bench: Callable[..., Any]) -> None:
    for cache, rotates in (("network", True), ("warm", False), ("cold", False)):
        machine = bench(settings=Settings(cache=cache))
        assert machine.race().context["cache"] == cache
        assert machine.dialect.kernels["c"].place is None
        machine.finals(a={})
        assert (machine.dialect.kernels["a"].place is not None) == rotates
