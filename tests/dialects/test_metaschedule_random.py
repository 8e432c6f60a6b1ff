"""Random graphs compute what ONNX Runtime computes: a few in the usual tests, many with `make random-graphs`."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from random_graphs import RandomGraph, graphs, run

from tunery.delivery.files.loading import load_compiled
from tunery.dialects import Dialect
from tunery.domain import Target
from tunery.models import prepare

pytestmark = pytest.mark.tvm
FEW = settings(
    max_examples=4, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
MANY = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


def agree(graph: RandomGraph, dialect: Dialect, target: Target) -> None:
    model = graph.model()
    with tempfile.TemporaryDirectory() as place:
        path, made = Path(place, "random.onnx"), Path(place, "random.tunery")
        onnx.save(model, path)
        network = prepare(str(path), {}, Path(place))
        dialect.compile(network, target, {}, made)
        found = load_compiled(made, 1)(*(graph.values[spec.name] for spec in network.inputs))
    wanted = run(model, graph.feed())
    for spec, ours, theirs in zip(network.outputs, found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), spec.name
        if theirs.dtype.kind == "f":
            scale = max(1e-3, float(np.abs(theirs).max()))
            np.testing.assert_allclose(ours / scale, theirs / scale, atol=2e-4, rtol=0, err_msg=spec.name)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=spec.name)


@FEW
@given(graphs())
def test_a_few_random_graphs_compute_what_onnx_runtime_computes(
    dialect: Dialect, target: Target, graph: RandomGraph
) -> None:
    agree(graph, dialect, target)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@MANY
@given(graphs())
def test_many_random_graphs_compute_what_onnx_runtime_computes(
    dialect: Dialect, target: Target, graph: RandomGraph
) -> None:
    agree(graph, dialect, target)
