"""Programs of our own for vectors shorter than the longest there are: as long as the target's, and right."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

from metaschedule_models import convolution_network
from test_metaschedule_concatenations import joining_network
from test_metaschedule_own_spaces import bare_network
from test_metaschedule_rows import softmax_network

from tunery.devices import open_device
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.target import _vector_width
from tunery.dialects.metaschedule.variants.program import scheduled_module, tvm_target, variants
from tunery.dialects.metaschedule.variants.variant import read_body
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.measuring.inputs import make_inputs
from tunery.measuring.verification import compare, expect

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("mcpu", "bits"), [("znver4", 0), ("skylake-avx512", 0), ("znver3", 256), ("sandybridge", 256), ("x86-64", 128)]
)
def test_tvm_is_told_where_vectors_are_shorter_than_it_thinks(mcpu: str, bits: int) -> None:
    assert _vector_width({"kind": "llvm", "mcpu": mcpu}) == bits


def test_other_processors_are_left_to_tvm() -> None:
    assert _vector_width({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}) == 0


def test_who_says_how_long_vectors_are_is_believed(dialect: Dialect) -> None:
    target = dialect.resolve_target('{"kind": "llvm", "mcpu": "x86-64-v2", "vector-width": 512}', 1)
    assert lanes_of(tvm_target(target)) == 16


@pytest.mark.parametrize(("mcpu", "lanes"), [("x86-64-v2", 4), ("x86-64-v3", 8)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("winograd4", {"channels": (32, 32)}),
        ("tiles", {"channels": (34, 34), "kernel": 1, "padding": 0}),
        ("place-sums", {}),
        ("rows", {}),
        ("concatenation", {}),
    ],
)
def test_programs_of_our_own_fill_shorter_vectors(
    mcpu: str, lanes: int, name: str, options: dict[str, object], dialect: Dialect, tmp_path: Path
) -> None:
    target = dialect.resolve_target(mcpu, 1)
    assert lanes_of(tvm_target(target)) == lanes
    network = {
        "place-sums": lambda: bare_network(tmp_path, "GlobalAveragePool", (2, 32, 12, 14)),
        "rows": lambda: softmax_network(tmp_path, (2, 5, 144)),
        "concatenation": lambda: joining_network(tmp_path, (16, 16, 16)),
    }.get(name, lambda: convolution_network(tmp_path, **options))()  # type: ignore[arg-type]
    task = next(task for task in dialect.extract(network, target) if name in variants(task).found)
    ours = next(one for one in dialect.open(task, [], None, 0).propose(16) if read_body(one.body)[0] == name)
    script = scheduled_module(task, ours).script()
    if name == "tiles":
        assert re.search(rf"packed: T\.Buffer\(\([T.int64()]*\d+\)*, [T.int64()]*34\)*, [T.int64()]*{lanes}\b", script)
    elif name == "winograd4":
        assert re.search(rf"packed: T\.Buffer\(\([T.int64()]*\d+\)*, [T.int64()]*32\)*, [T.int64()]*{lanes}\b", script)
    elif name == "rows":  # what is summed up in four vectors is then added, half by half
        assert max(map(int, re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", script))) == 4 * lanes
    else:
        assert set(re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", script)) == {str(lanes)}
    inputs = make_inputs(task.workload.input_specs, 0)
    reference, kernel = (
        dialect.load(task, dialect.build(task, one, tmp_path), open_device("cpu"))
        for one in (dialect.reference(task), ours)
    )
    for each in (reference, kernel):
        each.bind(inputs)
        each.poison()
        each.run()
    assert compare(expect(task.workload, reference.outputs()), kernel.outputs()).passed
    assert not np.isnan(kernel.outputs()[0]).any()
