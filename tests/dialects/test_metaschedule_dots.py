"""Dot products of 8-bit integers: packed weights, tiles, and exact sums."""

from pathlib import Path

import numpy as np
import pytest
from byte_products import data, expected, with_dots, write_product

from tunery._errors import TargetError
from tunery.delivery.files.loading import load_compiled
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.loading.preparing import transformed, transformed_shape
from tunery.models import prepare

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(("name", "deep"), [("dots", 4), ("dots2", 2)])
@pytest.mark.parametrize("shape", [(8, 32), (3, 3, 5, 40), (50, 1000)])
def test_weights_are_packed_by_lanes_and_depth(shape: tuple[int, ...], name: str, deep: int) -> None:
    weights = np.arange(np.prod(shape)).reshape(shape).astype(np.int8)
    [packed] = transformed([weights], {0: name})
    assert packed.shape == transformed_shape(shape, name)
    *outer, depth, channels = (index // 2 for index in shape)
    at = (channels // 16, *outer, depth // deep, channels % 16, depth % deep)
    assert packed[at] == weights[(*outer, depth, channels)]
    assert packed.astype(np.int64).sum() == weights.astype(np.int64).sum()


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("processor", ["znver4", "alderlake", "skylake-avx512", "core-avx2"])
def test_sums_are_exact_at_the_ends_of_their_range(processor: str, kind: str, tmp_path: Path) -> None:
    dialect = MetaScheduleDialect()
    try:
        target = dialect.resolve_target(processor, 1)
    except TargetError as error:
        pytest.skip(str(error))
    network = prepare(str(write_product(tmp_path / "n.onnx", kind)), {}, tmp_path)
    chosen = with_dots(dialect, network, target)
    assert chosen
    dialect.compile(network, target, chosen, tmp_path / "n.tunery")
    x = data(kind)
    [found] = load_compiled(tmp_path / "n.tunery", 1)(x)
    np.testing.assert_array_equal(found, expected(x))
