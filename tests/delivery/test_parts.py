"""Which parts of a network are handed to ONNX Runtime, by what nodes take in both."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery.delivery import placing
from tunery.delivery.comparing.compare import Expected
from tunery.delivery.judging import Judged
from tunery.delivery.placing import parts_to_hand_over
from tunery.dialects import GraphNode, Value
from tunery.domain import SEGMENT, Target, Task, TensorSpec, Workload

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


class Linker:
    """Links a chain of three convolutions, the last of which shows what it takes only once the first is handed over."""

    def __init__(self) -> None:
        self.graph, self.elsewhere = chain(["Conv", "Conv", "Conv"]), dict[str, str]()
        self.judged: list[Judged] = []

    @property
    def work(self) -> "Linker":
        return self

    async def model(self) -> SimpleNamespace:
        tasks = [task(node) for node in self.graph if node.label not in self.elsewhere]
        return SimpleNamespace(network=None, elsewhere=self.elsewhere, tasks=tasks)

    async def nodes(self, _: object) -> list[GraphNode]:
        return self.graph

    async def placed(self, _: object, elsewhere: Mapping[str, str]) -> SimpleNamespace:
        self.elsewhere = dict(elsewhere)
        return await self.model()

    async def compile(self, model: SimpleNamespace) -> tuple[str, ...]:
        return tuple(model.elsewhere)

    async def judge(self, *_: object) -> Judged:
        ours = {"Conv n0": 9e-3, "Conv n1": 1e-3, "Conv n2": 1e-3 + (2e-3 if self.elsewhere else 0)}
        there = {node.label: 1e-3 for node in self.graph}
        kernels = {name: seconds for name, seconds in ours.items() if name not in self.elsewhere}
        kernels |= {f"{SEGMENT}0": 1e-3} if self.elsewhere else {}
        taken_s = sum(there[name] if name in self.elsewhere else ours[name] for name in there)
        found = Judged(0.0, [(taken_s, 3e-3)] * 3, 1, slower=taken_s > 3.1e-3, kernels=kernels, nodes=there)
        self.judged.append(found)
        return found


def test_where_parts_of_one_round_leave_the_file_slower_another_round_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    linker = Linker()
    monkeypatch.setattr(placing, "judge", linker.judge)
    first = asyncio.run(linker.judge())
    made, last = asyncio.run(placing.divided(cast("Any", linker), cast("Any", ()), first, Expected()))
    assert made == ("Conv n2", "Conv n0")
    assert [one.slower for one in linker.judged] == [True, True, False]
    assert last is linker.judged[-1]
