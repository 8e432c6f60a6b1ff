"""The local daemon: a room of jobs behind a unix socket that only its user can open."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunery._errors import StoreError, TuneryError, UsageError
from tunery._locks import open_lock
from tunery.domain.request import Request, ShareRequest
from tunery.service._wire import MOST_BYTES, line, read_as
from tunery.service.manager import JobManager
from tunery.store import Store, open_store

_log = logging.getLogger(__name__)
_LOOK_S = 10.0  # between looks for jobs that other processes left
_PATIENCE_S = 30.0  # for a client that has connected and says nothing


def serve(store: str, path: Path, strategy: str, on_ready: Callable[[list[str]], None]) -> None:
    """Run jobs until SIGTERM or SIGINT; then all work ends, no process is left, and what was unfinished stays queued.

    Jobs that an earlier daemon left, however it ended, are taken up; `on_ready` hears their ids once clients can come.

    Raises:
        UsageError: another daemon listens there, the place cannot be used, or the strategy is unknown.
    """
    with open_store(store) as opened, _only_one(path):
        asyncio.run(_serve(opened, path, strategy, on_ready))


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock beside the socket; the kernel lets go of it with the process, so a killed daemon blocks nobody."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and not path.is_socket():
            raise UsageError(f"{path} is not a socket and stays as it is; choose another place with --socket")
        lock = open_lock(path.with_name(f"{path.name}.lock"))
    except OSError as error:
        raise UsageError(f"cannot use {path} ({error.strerror}); choose another place with --socket") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"a daemon listens at {path} already; use that one, or stop it first") from None
        path.unlink(missing_ok=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    finally:
        os.close(lock)


async def _serve(store: Store, path: Path, strategy: str, on_ready: Callable[[list[str]], None]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with JobManager(store, strategy=strategy, record=False) as room:
        desk = _Desk(room)
        before = os.umask(0o177)  # nobody else can connect, not even before a chmod
        try:
            server = await asyncio.start_unix_server(desk.serve, path, limit=MOST_BYTES)
        finally:
            os.umask(before)
        on_ready(await room.recover())
        looking = asyncio.create_task(take_over(room))
        await stop.wait()
        looking.cancel()
        server.close()
        desk.close()


async def take_over(room: JobManager) -> None:
    """Take in the jobs of other daemons of the store that wait there, or were at work in one that is gone.

    A job that is announced is taken in at once; the daemon that is free first does it.
    """
    async with contextlib.aclosing(room.store.waiting_jobs(_LOOK_S)) as looks:
        async for _ in looks:
            with contextlib.suppress(StoreError):  # it may be back at the next look
                for job_id in await room.recover():
                    _log.warning("job %s goes on here: the process that had it is gone, or it waits there", job_id)


class _Desk:
    """Answers clients. One that goes away, or talks nonsense, affects neither jobs nor other clients."""

    def __init__(self, room: JobManager) -> None:
        self._room = room
        self._clients: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Part with all clients."""
        for task in self._clients:
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client."""
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with contextlib.suppress(_GoneError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(**message: Any) -> None:
            try:
                writer.write(line(message))
                await writer.drain()
            except OSError as error:
                raise _GoneError from error

        try:
            await self._do(await _read(reader), say)
        except _GoneError:
            raise
        except _TooLongError as error:
            await say(error=str(error), usage=True)
            await _rest(reader)  # else its sender is hung up on before it reads why
        except TuneryError as error:
            await say(error=str(error), usage=isinstance(error, UsageError))
        except Exception as error:  # noqa: BLE001 - a request that we did not foresee must not end the daemon
            _log.exception("a request failed")
            await say(error=f"internal error: {type(error).__name__}: {error}; please report it", usage=False)

    async def _do(self, message: dict[str, Any], say: Callable[..., Any]) -> None:
        wish, job = message.pop("do", None), str(message.pop("job", ""))
        follow = message.pop("follow", False) is True
        if wish == "submit":
            request = read_as(Request, message.pop("request", None))
            claim = read_as(ShareRequest, message.pop("claim", {}))
            _nothing_else(message)
            job = await self._room.submit(request, claim)
        elif wish in {"cancel", "pause", "resume", "follow", "hello"}:
            _nothing_else(message)
            if wish in {"cancel", "pause"}:
                await (self._room.cancel if wish == "cancel" else self._room.pause)(job)
            elif wish == "resume":
                await self._room.resume(job)
            elif wish == "hello":
                await say(store=self._room.store.url, pid=os.getpid())
                return
        else:
            raise UsageError(f"a request says what to do: submit, cancel, pause, resume, follow or hello, not {wish!r}")
        await say(job=job)
        if follow or wish == "follow":
            async for progress in self._room.follow(job):
                await say(progress=progress)
        await say(status=await self._room.store.read(lambda store: store.job(job)))


class _GoneError(Exception):
    """The client is gone: there is nobody to tell anything."""


class _TooLongError(UsageError):
    """A request is longer than anybody needs."""


async def _rest(reader: asyncio.StreamReader) -> None:
    """Read what a client still sends, for as long as we are patient with any, and forget it."""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_PATIENCE_S):
            while await reader.read(MOST_BYTES):
                pass


def _nothing_else(message: dict[str, Any]) -> None:
    if message:
        raise UsageError(f"a request has no {', '.join(sorted(message))}")


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        text = await asyncio.wait_for(reader.readuntil(b"\n"), _PATIENCE_S)
        message = json.loads(text)
        json.dumps(message, ensure_ascii=False).encode()  # half a character is no text, for a store or a terminal
    except asyncio.LimitOverrunError:
        raise _TooLongError(f"a request of more than {MOST_BYTES} bytes is refused") from None
    except (asyncio.IncompleteReadError, TimeoutError):
        raise UsageError("a request is one line of JSON") from None
    except OSError as error:
        raise _GoneError from error
    except (ValueError, RecursionError):
        raise UsageError("a request is one line of JSON; this one is none") from None
    if not isinstance(message, dict) or not isinstance(message.get("do", ""), str):
        raise UsageError("a request is a JSON object that says in a word what to do")
    return message
