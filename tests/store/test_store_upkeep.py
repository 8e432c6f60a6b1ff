from dataclasses import replace
from pathlib import Path

import pytest
from store_samples import HALF_CHECKED, HERE, network, record, task

from tunery._errors import UsageError
from tunery.domain import Mode, Origin, Outcome
from tunery.store import Store, open_store

CONV, GPU = task(), task(target="gpu")
OTHER = replace(HERE, compiler="fake-2")


def fill(store: Store) -> None:
    for number in (3, 1, 2):
        store.add_record(CONV, record(CONV, f"c{number}", number * 1e-3))
        store.add_record(CONV, record(CONV, f"old{number}", number * 1e-3, provenance=OTHER))
        store.add_record(GPU, record(GPU, f"g{number}", number * 1e-3))
    store.add_record(CONV, record(CONV, "c2", 1e-4, mode=Mode.FINAL))
    store.add_record(CONV, record(CONV, "untuned", 9.0, origin=Origin.BASELINE))
    store.add_record(CONV, record(CONV, "quick", 1e-9, verification=HALF_CHECKED))
    store.add_record(CONV, record(CONV, "hung", None, outcome=Outcome.TIMEOUT, verification=None))


def keys(store: Store) -> list[str]:
    return sorted(r.candidate.key for r in store.records())


def test_stats_count_what_is_there(store: Store) -> None:
    fill(store)
    store.create_job({"model": "m"})
    store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
    stats = store.stats()
    assert (stats.records, stats.tasks, stats.workloads, stats.networks, stats.jobs) == (13, 2, 1, 1, 1)
    assert stats.outcomes == {"ok": 12, "timeout": 1}
    assert stats.devices == {"device-a": 13}
    assert stats.compilers == {"fake-1": 10, "fake-2": 3}
    assert stats.size_bytes > 1000
    assert stats.place == store.url


def test_rewinding_forgets_what_was_recorded_after_a_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, latency_s in ((100.0, 3e-3), (200.0, 1e-3), (300.0, 2e-3)):
        monkeypatch.setattr("time.time", lambda at=at: at)
        store.add_record(CONV, record(CONV, f"c{at:.0f}", latency_s))
    assert store.best(CONV.key, HERE)[0].candidate.key == "c200"
    assert store.rewind(200.0) == 1
    assert keys(store) == ["c100", "c200"]
    assert store.rewind(150.0) == 1
    assert store.best(CONV.key, HERE)[0].candidate.key == "c100"


def test_pruning_keeps_the_fastest_of_each_task_and_provenance_and_the_baselines(store: Store) -> None:
    fill(store)
    before = store.best(CONV.key, HERE, limit=1)
    assert store.prune(keep=1) == 13 - 5
    assert keys(store) == ["c2", "c2", "g1", "old1", "untuned"]
    assert store.best(CONV.key, HERE, limit=1) == before
    assert store.prune(keep=1) == 0


def test_pruning_one_task_leaves_the_others(store: Store) -> None:
    fill(store)
    store.prune(GPU.key, keep=0)
    assert [key for key in keys(store) if key.startswith("g")] == []
    assert len(keys(store)) == 10


def test_a_negative_number_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="cannot keep -1"):
        store.prune(keep=-1)


def test_pruning_gives_the_space_back(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        for number in range(200):
            store.add_record(CONV, record(CONV, f"c{number}", context={"padding": [number] * 500}))
        before = store.stats().size_bytes
        store.prune(keep=1)
        assert store.stats().size_bytes < before / 2
        assert len(store.records()) == 1
