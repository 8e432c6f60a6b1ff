"""Dot products of 8-bit integers: packed weights, tiles, and exact sums."""

import numpy as np
import pytest

from tunery.dialects.metaschedule.loading.transforms import DOTS, transformed, transformed_shape

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("shape", [(8, 32), (3, 3, 5, 40), (50, 1000)])
def test_weights_are_packed_by_lanes_and_fours(shape: tuple[int, ...]) -> None:
    weights = np.arange(np.prod(shape)).reshape(shape).astype(np.int8)
    [packed] = transformed([weights], {0: DOTS})
    assert packed.shape == transformed_shape(shape, DOTS)
    *outer, depth, channels = (index // 2 for index in shape)
    assert packed[(channels // 16, *outer, depth // 4, channels % 16, depth % 4)] == weights[(*outer, depth, channels)]
    assert packed.astype(np.int64).sum() == weights.astype(np.int64).sum()
