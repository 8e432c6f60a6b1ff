"""Random graphs compute what ONNX Runtime computes: a few in the usual tests, many with `make graphs`."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.tvm


def test_a_few_random_graphs_compute_what_onnx_runtime_computes(tmp_path: Path) -> None:
    from random_graphs import faults, outputs_of, random_graph

    for seed in range(4):
        graph = random_graph(seed)
        assert dict(faults(graph, graph.model(outputs_of(graph)), tmp_path)) == {}, seed
