"""Output channels that fill no whole vectors, rows that cannot be tiled: computed with more, stored as they are."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from metaschedule_models import convolution_network, write_network
from onnx import helper

from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.codegen.splitting import split_prepack
from tunery.dialects.metaschedule.loading.transforms import transformed
from tunery.dialects.metaschedule.variants.padded import NAME, padded_channels
from tunery.dialects.metaschedule.variants.program import scheduled_module, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body
from tunery.domain import Network, Target, Task
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm


def product_network(directory: Path, rows: int = 12, columns: int = 100) -> Network:
    """A matrix product with bias and activation."""
    rng = np.random.default_rng(4)
    arrays = {"w": rng.standard_normal((64, columns)) / 8, "b": rng.standard_normal(columns)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return write_network(directory, "product", nodes, {"x": (rows, 64)}, arrays)


def network_of(case: str, directory: Path) -> Network:
    products = {"product": {}, "rows": {"rows": 38, "columns": 64}, "both": {"rows": 38}}
    if case in products:
        return product_network(directory, **products[case])
    if case == "activations":
        return write_network(directory, case, [helper.make_node("MatMul", ["x", "w"], ["y"])],
                             {"x": (38, 64), "w": (64, 64)}, {})  # fmt: skip
    options = {
        "plain": {"channels": (48, 100), "kernel": 1, "padding": 0},
        "strided": {"channels": (20, 36), "stride": 2, "size": 9},
        "copied": {"channels": (36, 36), "constant": False},
        "residual": {"channels": (36, 36), "residual": True, "activation": "swish", "batch": 2},
    }[case]
    return convolution_network(directory, **options)  # type: ignore[arg-type]


def heavy(dialect: Dialect, network: Network, target: Target) -> Task:
    return max(dialect.extract(network, target), key=lambda task: task.workload.flop)


@pytest.mark.parametrize(
    "case",
    ["plain", "strided", "residual", "product", "both", "activations",
     *(pytest.param(one, marks=pytest.mark.slow) for one in ("copied", "rows"))],
)  # fmt: skip
def test_a_network_of_wider_products_computes_the_same(
    case: str, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    network = network_of(case, tmp_path)
    task = heavy(dialect, network, target)
    proposed = dialect.open(task, [], None, 0).propose(16)
    chosen = [one for one in proposed if read_body(one.body)[0] == NAME][:4]
    assert len(chosen) == 4
    inputs = make_inputs(task.workload.input_specs, 0)
    reference = dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), open_device("cpu"))
    reference.bind(inputs)
    reference.run()
    for candidate in chosen:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        assert compare(expect(task.workload, reference.outputs()), kernel.outputs()).passed
        assert (kernel.traits["expression"], kernel.slack) == (NAME, 1)
    part, key = dialect.build_part(task, chosen[0], tmp_path), task.workload.key
    assert part is not None
    dialect.compile(network, target, {key: chosen[0]}, tmp_path / "plain")
    dialect.compile(network, target, {key: chosen[0]}, tmp_path / "linked", {key: part})
    arrays = make_inputs(network.inputs, 3)
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    [theirs] = session.run(None, {spec.name: array for spec, array in zip(network.inputs, arrays, strict=True)})
    outputs = [dialect.load_network(tmp_path / name)(*arrays)[0] for name in ("plain", "linked")]
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(outputs[0], theirs, rtol=1e-4, atol=1e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize(("case", "packed"), [("rows", True), ("copied", False), ("activations", False)])
def test_only_what_is_constant_is_packed(
    case: str, packed: bool, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    """A measurement packs once beforehand, which a network could do of constants only."""
    task = heavy(dialect, network_of(case, tmp_path), target)
    ours = [one for one in dialect.open(task, [], None, 0).propose(16) if read_body(one.body)[0] == NAME]
    splits = [split_prepack(scheduled_module(task, one), task, "entry") for one in ours]
    assert splits
    assert any(split.packed for split in splits) == packed


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"channels": (8, 12)}, "too few"),
        ({"channels": (36, 36), "groups": 36}, "not the last axis|product of two|elsewhere"),
    ],
)
def test_what_it_cannot_handle_stays_generic_and_says_why(
    options: dict[str, object], reason: str, dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    found = variants(heavy(dialect, convolution_network(tmp_path, **options), target))  # type: ignore[arg-type]
    assert NAME not in found.found
    assert GENERIC in found.found
    assert re.search(reason, found.left_out[NAME])


def test_where_channels_fill_whole_vectors_nothing_is_padded_and_nothing_left_out(
    dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    found = variants(heavy(dialect, convolution_network(tmp_path, channels=(32, 64)), target))
    assert NAME not in {*found.found, *found.left_out}


def test_weights_get_columns_of_zeros() -> None:
    weights = np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
    [wide] = transformed([weights], {0: "padded16"})
    assert wide.shape == (2, 3, 16)
    np.testing.assert_array_equal(wide[..., :5], weights)
    assert not wide[..., 5:].any()
    [same] = transformed([weights], {0: "padded16"})
    np.testing.assert_array_equal(same, wide)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_channels_are_whole_vectors_and_hardly_more_of_them_than_needed(lanes: int) -> None:
    for channels in range(1, 1500):
        wide, least = padded_channels(channels, lanes), -(-channels // lanes) * lanes
        assert wide % lanes == 0
        assert least <= wide <= 1.07 * least
