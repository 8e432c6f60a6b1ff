"""News of jobs that wait for somebody: PostgreSQL tells them at once; everywhere they are looked for now and then."""

import asyncio
from collections.abc import AsyncGenerator

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

_CHANNEL = "tunery_jobs"


def announce(connection: Connection, job_id: str) -> None:
    """Tell all who listen that a job waits, when this transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, job_id)))


async def waiting_jobs(url: URL, look_s: float) -> AsyncGenerator[None, None]:
    """Yield whenever it is time to look for jobs that wait: when one was announced, and at the latest after `look_s`.

    A server that has gone away is dialled again at each look.
    """
    if url.get_backend_name() != "postgresql":
        while True:
            await asyncio.sleep(look_s)
            yield
    import psycopg

    where = url.set(drivername="postgresql").render_as_string(hide_password=False)
    while True:
        try:
            dialled = await psycopg.AsyncConnection.connect(
                where, autocommit=True, application_name="tunery", client_encoding="utf8"
            )
            async with dialled as connection:
                await connection.execute(f"LISTEN {_CHANNEL}")
                while True:
                    yield  # at first as well: what was announced before this listened was not heard
                    async for _ in connection.notifies(timeout=look_s, stop_after=1):
                        pass
        except psycopg.OperationalError:
            await asyncio.sleep(look_s)
            yield
