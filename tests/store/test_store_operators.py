"""What is known of an operator is found by its key, whatever dialect and device it was measured with."""

from dataclasses import replace

import pytest
from store_samples import HERE, network, record, task

from tunery.domain import OperatorPattern, Provenance, Task, operator_key
from tunery.store import Store

KEY = operator_key("matmul", {"a": ((8, 4), "float32"), "b": ((4, 2), "float32")})
FUSED = f"{KEY}+relu"


def keyed(name: str, operator: str | None) -> Task:
    made = task(name)
    return replace(made, workload=replace(made.workload, operator=operator))


def names(store: Store, pattern: str) -> list[str]:
    return [one.name for one in store.operators(pattern=OperatorPattern.parse(pattern))]


@pytest.fixture
def filled(store: Store) -> Store:
    elsewhere = Provenance("other", "other-2", "device-b", HERE.settings)
    for name, operator, made in (("a", KEY, HERE), ("b", KEY, elsewhere), ("c", FUSED, HERE), ("d", None, HERE)):
        mine = keyed(name, operator)
        store.add_record(mine, record(mine, "fast", 1e-3, provenance=made))
    return store


def test_an_operator_is_found_by_its_key_and_by_parts_of_it(filled: Store) -> None:
    assert names(filled, "matmul:") == names(filled, "matmul:b=4x2") == names(filled, KEY) == ["a", "b", "c"]
    assert names(filled, FUSED) == names(filled, "matmul:a=8x4+relu") == ["c"]
    assert names(filled, "matmul:b=4x3") == names(filled, "conv2d:") == []
    found = filled.operators(pattern=OperatorPattern.parse(KEY), limit=None)
    assert {(one.provenance.dialect, one.provenance.device, one.operator) for one in found} == {
        ("fake", "device-a", KEY), ("other", "device-b", KEY), ("fake", "device-a", FUSED),
    }  # fmt: skip


def test_of_a_workload_every_dialect_with_its_operator_is_found(filled: Store) -> None:
    def found(*workloads: str) -> list[str]:
        return [one.name for one in filled.operators(workloads=workloads)]

    assert found(keyed("a", KEY).workload.key) == ["a", "b"]
    assert found(keyed("d", None).workload.key) == ["d"], "without a key it is itself alone"
    assert found() == found("unknown") == []


def test_a_workload_gains_the_key_that_is_told_later_and_keeps_it(store: Store) -> None:
    for operator, expected in ((None, None), (KEY, KEY), (None, KEY), (FUSED, FUSED)):
        mine = keyed("a", operator)
        store.save_tasks(network(), [mine], target=mine.target, compiler="fake-1")
        assert store.task(mine.key).workload.operator == expected
