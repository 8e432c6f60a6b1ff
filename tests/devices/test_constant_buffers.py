import numpy as np
import pytest

from tunery.devices.cpu.device import CpuConstantBuffers
from tunery.dialects import Array
from tunery.domain import TensorSpec
from tunery.measuring.inputs import make_inputs

MIB = 2**20


def numbers(count: int, dtype: str) -> Array:
    return make_inputs([TensorSpec("", (count,), dtype)], 0)[0]


@pytest.mark.parametrize("shape", [(3, 3, 40, 7), (512, 512), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_places_are_aligned_and_hold_numbers(shape: tuple[int, ...], dtype: str) -> None:
    buffers = CpuConstantBuffers(0, numbers)
    for _ in range(3):
        array = buffers.take(shape, dtype)
        assert (array.shape, str(array.dtype)) == (shape, dtype)
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
    if array.size > 1:
        assert len(np.unique(array.astype(np.float32))) > 50


def test_a_place_comes_again_when_the_caches_have_forgotten_it() -> None:
    buffers = CpuConstantBuffers(16 * MIB, numbers)
    given, last = 0, dict[int, int]()
    between = []
    for _ in range(200):
        array = buffers.take((3, 3, 128, 130), "float32")
        between += [given - last[array.ctypes.data]] if array.ctypes.data in last else []
        given += array.nbytes
        last[array.ctypes.data] = given
    assert between, "the buffers has no end"
    assert min(between) >= 2 * 16 * MIB


def test_weights_larger_than_the_caches_rotate_too() -> None:
    buffers = CpuConstantBuffers(16 * MIB, numbers)
    first = buffers.take((40, MIB), "int8")
    second = buffers.take((40, MIB), "int8")
    assert not np.shares_memory(first, second)
