import threading

import pytest

from tunery.store import Event, Store, open_store


def test_events_come_back_in_order_from_any_point(url: str) -> None:
    with open_store(url) as store:
        numbers = [store.events.append("progress", {"step": n, "x": float("inf")}, "j1") for n in range(3)]
        other = store.events.append("host-joined")
    with open_store(url) as store:
        assert [event.number for event in store.events.after()] == [*numbers, other]
        assert [event.payload["step"] for event in store.events.after(numbers[0], job_id="j1")] == [1, 2]
        (last,) = store.events.after(numbers[-1])
        assert last == Event(other, "", "host-joined", {}, last.created_at)
        assert [event.number for event in store.events.after(limit=2)] == numbers[:2]
        assert store.events.last() == other
        assert store.events.after(other) == []


def test_numbers_are_not_reused(store: Store) -> None:
    first = store.events.append("a")
    (event,) = store.events.after()
    assert store.events.forget(event.created_at) == 0
    assert store.events.forget(event.created_at + 1) == 1
    assert store.events.last() == 0
    assert store.events.append("b") > first


def test_a_reader_who_follows_many_writers_misses_nothing(url: str) -> None:
    writers, each = 4, 25
    with open_store(url) as store:
        threads = [threading.Thread(target=write, args=(url, each)) for _ in range(writers)]
        for thread in threads:
            thread.start()
        seen: list[int] = []
        while any(thread.is_alive() for thread in threads):
            seen += [event.number for event in store.events.after(seen[-1] if seen else 0)]
        seen += [event.number for event in store.events.after(seen[-1] if seen else 0)]
        assert seen == sorted(seen)
        assert seen == [event.number for event in store.events.after()]
        assert len(seen) == writers * each


def write(url: str, count: int) -> None:
    with open_store(url) as store:
        for number in range(count):
            store.events.append("step", {"n": number})


def test_a_payload_that_is_no_plain_data_is_named(store: Store) -> None:
    with pytest.raises(TypeError, match="no plain data"):
        store.events.append("a", {"x": object()})
