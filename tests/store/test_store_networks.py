from dataclasses import replace

import pytest
from store_samples import network, task

from tunery._errors import NothingFoundError
from tunery.store import Store, open_store

CONV, DENSE = task(weight=4), task("mm", kind="dense", weight=2)
TARGET = CONV.target


def test_what_was_extracted_is_not_extracted_again(url: str) -> None:
    with open_store(url) as store:
        store.save_tasks(network(), [DENSE, CONV], target=TARGET, compiler="fake-1")
    with open_store(url) as store:
        assert store.load_tasks("net-1", TARGET.key, "fake-1") == [DENSE, CONV]
        assert store.network("net-1") == network()


def test_programs_may_be_left_out(store: Store) -> None:
    store.save_tasks(network(), [CONV], target=TARGET, compiler="fake-1")
    bare = replace(CONV, workload=replace(CONV.workload, program=""))
    assert store.load_tasks("net-1", TARGET.key, "fake-1", programs=False) == [bare] != [CONV]


def test_any_other_network_target_or_compiler_is_a_miss(store: Store) -> None:
    store.save_tasks(network(), [CONV], target=TARGET, compiler="fake-1")
    assert store.load_tasks("net-2", TARGET.key, "fake-1") is None
    assert store.load_tasks("net-1", task(threads=8).target.key, "fake-1") is None
    assert store.load_tasks("net-1", TARGET.key, "fake-2") is None


def test_nothing_to_tune_is_an_answer(store: Store) -> None:
    store.save_tasks(network(), [], target=TARGET, compiler="fake-1")
    assert store.load_tasks("net-1", TARGET.key, "fake-1") == []


def test_names_weights_and_decisions_are_the_networks_own(store: Store) -> None:
    mine = replace(CONV, weight=9, tunable=False, workload=replace(CONV.workload, name="layer7.conv"))
    store.save_tasks(network(), [CONV], target=TARGET, compiler="fake-1")
    store.save_tasks(network("net-2"), [mine], target=TARGET, compiler="fake-1")
    assert store.load_tasks("net-1", TARGET.key, "fake-1") == [CONV]
    assert store.load_tasks("net-2", TARGET.key, "fake-1") == [mine]
    assert store.stats().workloads == 1


def test_saving_again_replaces(store: Store) -> None:
    store.save_tasks(network(), [CONV], target=TARGET, compiler="fake-1")
    moved = replace(network(), path="elsewhere.onnx")
    store.save_tasks(moved, [DENSE], target=TARGET, compiler="fake-1")
    assert store.load_tasks("net-1", TARGET.key, "fake-1") == [DENSE]
    assert store.network("net-1") == moved


def test_an_unknown_network_is_named(store: Store) -> None:
    with pytest.raises(NothingFoundError, match="no network abc"):
        store.network("abc")
