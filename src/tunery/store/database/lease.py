"""Who works on a job and whether they still live, and news of jobs that wait."""

import asyncio
import os
import platform
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

# An owner on another host cannot be looked at; it counts as gone when it has been silent for this long.
LEASE_S = 120.0
# Process start times are derived from the boot time, which moves a little when the clock is corrected.
_START_TOLERANCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Owner:
    """A process on a host; `token` tells apart several openers of the store within one process. `lease` grows with
    every acquisition of a job, whoever acquires: it tells an owner's lease from an earlier one."""

    host: str
    pid: int
    started: float
    token: str
    version: str
    lease: int = 0

    def same(self, other: "Owner | None") -> bool:
        return other is not None and (self.token, self.lease) == (other.token, other.lease)


def this_process() -> Owner:
    return Owner(_host(), os.getpid(), psutil.Process().create_time(), uuid.uuid4().hex, version("tunery"))


def lives(owner: Owner, heartbeat_at: float, now: Callable[[], float] = time.time) -> bool:
    """Return whether the owner may still be working. On this host the process table decides, however long the owner was
    silent: a suspended or busy process is never robbed. Elsewhere, and where a process number seems to have been used
    anew, the heartbeat does."""
    if owner.host != _host():
        return now() - heartbeat_at < LEASE_S
    try:
        process = psutil.Process(owner.pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return False
        # After a large clock correction the same process seems to have started at another time: then it still beats.
        return abs(process.create_time() - owner.started) < _START_TOLERANCE_S or now() - heartbeat_at < LEASE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return now() - heartbeat_at < LEASE_S


@cache
def _host() -> str:
    """Identify the process table: host, boot and, on Linux, the namespace that process numbers are counted in."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return "/".join(parts)


_CHANNEL = "tunery_jobs"


def announce(connection: Connection, job_id: str) -> None:
    """Tell all who listen that a job waits, when this transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, job_id)))


async def waiting_jobs(url: URL, look_s: float) -> AsyncGenerator[None, None]:
    """Yield whenever a job that waits was announced, and at the latest after `look_s`; a server that has gone away is
    dialled again."""
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
