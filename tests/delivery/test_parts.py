"""Which parts of a network are handed to ONNX Runtime, by what nodes take in both."""

from collections.abc import Mapping, Sequence

import pytest

from tunery.delivery.placing import parts_to_hand_over
from tunery.dialects import GraphNode, Value
from tunery.domain import Target, Task, TensorSpec, Workload

_FOUR = ["Conv", "MatMul", "Conv", "Conv"]
TARGET = Target("fake", {"kind": "fake"}, 1)


def value(name: str, elements: int, *, constant: bool = False) -> Value:
    return Value(name, elements, 4 * elements, constant)


def chain(operators: Sequence[str], elements: int = 1000) -> list[GraphNode]:
    """Nodes one after the other; the weight of each product or convolution has a size of its own."""
    nodes = []
    for at, operator in enumerate(operators):
        reads = [value(f"v{at}", elements)]
        if operator in {"Conv", "MatMul"}:
            reads.append(value(f"w{at}", 10 + at, constant=True))
        nodes.append(GraphNode(f"{operator} n{at}", operator, tuple(reads), (value(f"v{at + 1}", elements),)))
    return nodes


def task(node: GraphNode) -> Task:
    kind = {"Conv": "conv2d", "MatMul": "matmul"}[node.operator]
    sizes = [one.elements for one in (*node.reads, *node.makes)]
    arguments = tuple(TensorSpec(f"a{i}", (size,), "float32") for i, size in enumerate(sizes))
    return Task(Workload(node.label, kind, kind, "", arguments, 1, 1e6), TARGET, 1, True)


def handed_over(
    operators: Sequence[str], ours: Mapping[int, float], theirs: Sequence[float], elements: int = 1000
) -> list[int]:
    nodes = chain(operators, elements)
    tasks = [task(nodes[at]) for at in ours]
    kernels = {nodes[at].label: seconds for at, seconds in ours.items()}
    found = parts_to_hand_over(nodes, tasks, kernels, {n.label: s for n, s in zip(nodes, theirs, strict=True)})
    return [at for at, node in enumerate(nodes) if node.label in found]


@pytest.mark.parametrize(
    ("operators", "ours", "theirs", "expected"),
    [
        (["Conv", "Conv", "Conv"], {0: 1e-3, 1: 5e-3, 2: 1e-3}, [2e-3, 1e-3, 2e-3], [1]),
        (["Conv", "Conv", "Relu", "Conv"], {0: 1e-3, 1: 5e-3, 3: 1e-3}, [2e-3, 1e-3, 0.0, 2e-3], [1, 2]),
        (_FOUR, {0: 1e-3, 1: 5e-3, 2: 1e-3, 3: 5e-3}, [3e-3, 1e-3, 1.01e-3, 1e-3], [1, 2, 3]),
        (_FOUR, {0: 1e-3, 1: 5e-3, 2: 1e-3, 3: 5e-3}, [3e-3, 1e-3, 9e-3, 1e-3], [1, 3]),
        (["Conv", "Conv"], {0: 5e-3, 1: 5e-3}, [1e-3, 1e-3], []),  # all of it: no part
        (["Conv", "Conv"], {0: 1e-3, 1: 1e-3}, [1e-3, 1e-3], []),
        (["Conv", "Conv"], {0: 1e-3, 1: 3.0e-5}, [1e-3, 1.5e-5], []),  # not worth the call
    ],
)  # fmt: skip
def test_stretches_that_lose_more_than_their_borders_take_are_handed_over(
    operators: Sequence[str], ours: Mapping[int, float], theirs: Sequence[float], expected: list[int]
) -> None:
    assert handed_over(operators, ours, theirs) == expected


def test_large_values_at_a_border_keep_a_part_at_home() -> None:
    operators, ours, theirs = ["Conv", "Conv", "Conv"], {0: 1e-3, 1: 2e-3, 2: 1e-3}, [2e-3, 1e-3, 2e-3]
    assert handed_over(operators, ours, theirs) == [1]
    assert handed_over(operators, ours, theirs, elements=10_000_000) == []


def test_what_no_kernel_is_known_of_is_not_thought_to_lose() -> None:
    """Activations are fused to what is before them: they take no time of their own."""
    assert handed_over(["Conv", "Exp", "Conv"], {0: 1e-3, 2: 1e-3}, [1e-3, 1e-3, 1e-3]) == []
