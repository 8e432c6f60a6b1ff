"""How a store on PostgreSQL answers and takes records when it holds many.

    python benchmarks/store_scale.py postgresql://USER@HOST/DATABASE [--records 10000000] [--tasks 400] [--seconds 10]

Fills an empty database (the server makes the rows; it is not emptied afterwards), then prints how long it takes to find
the best record and the default of each task of a network of 40 operators, and how many records a second four processes
store, each with its charge: one at a time, and with 4 and 32 that wait in each, as where measurements of several jobs
end at once. The bound is for those: who waits for each commit before the next sees how long a commit takes.
"""

import argparse
import asyncio
import random
import statistics
import time
from functools import partial
from multiprocessing import get_context

import sqlalchemy as sa

from tunery.domain import (
    Candidate,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Provenance,
    Record,
    Target,
    Task,
    TensorSpec,
    Verification,
    Workload,
)
from tunery.store import AsyncStore, Charge, Store, open_store
from tunery.store.database.schema import records as table

BEST_MS, INSERTS_PER_S = 50.0, 1000.0
_NETWORK, _WRITERS, _WAITING, _ASKED = 40, 4, (4, 32), 15
_HERE = Provenance("fake", "fake-1", "device-a", "settings-a")


def main() -> None:
    """Fill, ask, insert, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to insert")
    arguments = parser.parse_args()
    tasks = [_task(number) for number in range(arguments.tasks)]
    with open_store(arguments.store) as store:
        began = time.monotonic()
        count = _fill(store, tasks, arguments.records)
        print(f"{count:,} records of {len(tasks)} tasks, made in {time.monotonic() - began:.0f} s", flush=True)
        best_ms = 1e3 * statistics.median(_ask(store, tasks[:_NETWORK]) for _ in range(_ASKED))
        _say(f"best of each of {_NETWORK} tasks: {best_ms:.1f} ms", best_ms <= BEST_MS)
    for waiting in (1, *_WAITING):
        with get_context("spawn").Pool(_WRITERS) as pool:
            work = [(arguments.store, number, waiting, arguments.seconds) for number in range(_WRITERS)]
            rate = sum(pool.starmap(_insert, work))
        said = f"{_WRITERS} processes, {waiting} waiting in each: {rate:,.0f} records/s"
        if waiting in _WAITING:
            _say(said, rate >= INSERTS_PER_S)
        else:
            print(f"{said}, {1e3 * _WRITERS / rate:.1f} ms for one", flush=True)


def _say(what: str, met: bool) -> None:
    print(f"{what}: {'met' if met else 'MISSED'}", flush=True)


def _task(number: int) -> Task:
    specs = (TensorSpec("x", (1, 64, 56, 56), "float32"), TensorSpec("y", (1, 64, 56, 56), "float32"))
    workload = Workload(f"workload-{number}", f"conv{number}", "conv2d", "a program " * 50, specs, 1, 2.31e8)
    return Task(workload, Target("fake", {"kind": "cpu"}, 2), 1)


def _record(task: Task, key: str, latency_s: float = 1e-3) -> Record:
    measurement = Measurement(
        Outcome.OK,
        (latency_s,) * 5,
        Mode.RACE,
        "",
        {},
        Verification("reference", Verification.FULL, 0.25, True),
        0.1,
        0.02,
    )
    return Record(Candidate(key, task.key, "the body of a candidate " * 40, Origin.SEARCH), measurement, _HERE, "")


def _fill(store: Store, tasks: list[Task], records: int) -> int:
    """Store one record of each task, have the server copy them under other keys and latencies; return the count."""
    for task in tasks:
        store.add_record(task, _record(task, "first"))
    made = {
        "candidate_key": sa.text("md5(random()::text)"),
        "digest": sa.text("md5(random()::text)"),
        "latency_s": sa.text("0.001 + random()"),
        "rank_s": sa.text("0.001 + random()"),
    }
    names = [column.name for column in table.columns if column.name != "id"]
    for index in table.indexes:  # made of all rows at once, an index costs a small part of what it costs row by row
        store.write(partial(index.drop, checkfirst=True))
    for _ in range(10):  # so that a commit is not too large

        def copy(connection: sa.Connection) -> None:
            series = sa.func.generate_series(1, records // len(tasks) // 10).table_valued("number")
            chosen = sa.select(*(made.get(name, table.c[name]) for name in names)).select_from(
                table.join(series, sa.true())
            )
            connection.execute(table.insert().from_select(names, chosen.where(table.c.candidate_key == "first")))

        store.write(copy)
    for index in table.indexes:
        store.write(partial(_make, index=index))
    store.write(lambda connection: connection.execute(sa.text("ANALYZE records")))
    return store.read(lambda connection: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _make(connection: sa.Connection, index: sa.Index) -> None:
    connection.execute(sa.text("SET LOCAL maintenance_work_mem = '1GB'"))
    index.create(connection)


def _ask(store: Store, tasks: list[Task]) -> float:
    began = time.monotonic()
    known = store.standings([task.key for task in tasks], _HERE)
    assert all(one.best for one in known.values())
    return time.monotonic() - began


def _insert(url: str, number: int, waiting: int, seconds: float) -> float:
    """Return how many records a second one process has stored, of which so many wait at a time."""
    return asyncio.run(_insert_all(url, number, waiting, seconds))


async def _insert_all(url: str, number: int, waiting: int, seconds: float) -> float:
    task = _task(number)
    with open_store(url) as store, AsyncStore(store) as calls:
        job = await calls.write(lambda opened: opened.create_job({"model": f"scale-{number}"}))
        began = time.monotonic()

        async def insert(lane: int) -> int:
            stored = 0
            while time.monotonic() - began < seconds:
                key = f"{number}/{lane}/{began}/{stored}"
                charge = Charge(job.job_id, task.key, "measure", "ok", 0.1, 0.1, 0.1)
                await calls.add_records(task, [_record(task, key, 1e-3 + random.random())], [charge])
                stored += 1
            return stored

        stored = sum(await asyncio.gather(*map(insert, range(waiting))))
        return stored / (time.monotonic() - began)


if __name__ == "__main__":
    main()
