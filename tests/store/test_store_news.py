"""Jobs that wait are told to whoever listens."""

import asyncio
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from tunery.store import AsyncStore, Store, open_store

PATIENCE_S = 60.0


def test_a_job_that_waits_is_told_to_another_session_at_once(postgres_database: str) -> None:
    async def main() -> None:
        with (
            open_store(postgres_database) as here,
            open_store(postgres_database) as there,
            AsyncStore(here) as calls,
            AsyncStore(there) as others,
        ):
            async with aclosing(others.waiting_jobs(look_s=3600.0)) as news:
                await asyncio.wait_for(anext(news), PATIENCE_S)
                for number in range(3):
                    await calls.write(partial(announce, number=number))
                    await asyncio.wait_for(anext(news), PATIENCE_S)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(news), 0.2)

    asyncio.run(main())


def test_news_go_on_when_the_server_ends_the_session(postgres_database: str) -> None:
    async def main() -> None:
        with open_store(postgres_database) as store, AsyncStore(store) as calls:
            async with aclosing(calls.waiting_jobs(look_s=0.05)) as news:
                await asyncio.wait_for(anext(news), PATIENCE_S)
                await calls.write(end_listeners)
                for _ in range(3):
                    await asyncio.wait_for(anext(news), PATIENCE_S)
                async with asyncio.timeout(PATIENCE_S):
                    while not await calls.read(listeners):
                        await anext(news)

    asyncio.run(main())


def announce(store: Store, number: int) -> None:
    store.announce_job(f"job-{number}")


def listeners(store: Store) -> int:
    """Count the sessions that wait for news of jobs."""
    found = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN tunery_jobs'"
    return int(store.read(lambda connection: connection.exec_driver_sql(found).scalar_one()))


def end_listeners(store: Store) -> None:
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN tunery_jobs'"
    assert store.write(lambda connection: connection.exec_driver_sql(ended).all())


def test_a_file_is_looked_at_now_and_then(tmp_path: Path) -> None:
    async def main() -> None:
        with open_store(str(tmp_path / "store.db")) as store, AsyncStore(store) as calls:
            await calls.write(lambda opened: opened.announce_job("job"))
            async with aclosing(calls.waiting_jobs(look_s=0.01)) as news:
                for _ in range(3):
                    await asyncio.wait_for(anext(news), PATIENCE_S)

    asyncio.run(main())
