"""The service as a process: the manager of jobs and the application in one event loop."""

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from tunery._errors import StoreError, UsageError, misfit
from tunery._locks import open_lock
from tunery.service.budgets.months import DAY_S
from tunery.service.manager import JobManager
from tunery.store import Store, StoredAccount, StoredToken, open_store
from tunery.web._bodies import TokenIn
from tunery.web._files import adopted, check_outputs, forget, forget_files, sweep
from tunery.web._limits import PatientConnection
from tunery.web._people import make_token
from tunery.web._service import ADMIN
from tunery.web._tokens import digest_of, new_token
from tunery.web.app import create_app

_log = logging.getLogger(__name__)
_GRACE_S, _STARTING_S, _BACKLOG = 5, 0.005, 512
_ACCEPTED = 4  # new connections between looks at those that are open: however many come, these are served
_SWITCH_S = 0.0005  # for so long a long read of one account may keep the loop, and all others, from going on
_FORGET_S, _FILE_DAYS = 3600.0, 30.0
_LOOK_S = 10.0  # between looks for jobs that other processes left
_LOOK_FILE_S = 1.0  # between looks at the store's file


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service listens: an address of this machine and a port (0: any free one), with TLS if it has both files.

    Behind a proxy, which has TLS, it may listen on any address without.
    """

    host: str
    port: int
    certificate: str = ""
    key: str = ""
    behind_proxy: bool = False

    def check(self) -> None:
        """Refuse to send tokens over a network in the clear."""
        if bool(self.certificate) != bool(self.key):
            raise UsageError("TLS needs a certificate and its key; give --tls-certificate and --tls-key")
        if self.certificate or self.behind_proxy or is_loopback(self.host):
            return
        raise UsageError(
            f"{self.host} can be reached from other machines, and tokens would cross the network in the clear; "
            "give --tls-certificate and --tls-key, or --behind-proxy where a proxy has TLS"
        )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{text!r:.80} is no address and port; write for example 127.0.0.1:7433")
    return host.removeprefix("[").removesuffix("]"), int(port)


def serve(  # noqa: PLR0917 - what a command is given
    store: str,
    place: Place,
    files: Path,
    strategy: str,
    on_ready: Callable[[str, str, list[str]], None],
    keep_days: float = 0.0,
) -> None:
    """Serve accounts until SIGTERM or SIGINT; what is unfinished then stays queued, and goes on with the next start.

    `on_ready` hears the URL, the first token ("" after the first start: it is told once) and the jobs that go on.
    Events and files older than `keep_days` are deleted once an hour (0: of these, only files that nobody has used for a
    month).
    """
    place.check()
    _check_tls(place)
    tls = {"ssl_certfile": place.certificate or None, "ssl_keyfile": place.key or None}

    async def run(opened: Store) -> None:
        adopt = partial(adopted, files.resolve())
        manager_of = partial(JobManager, opened, strategy=strategy, record=False, follow_hosts=True)
        async with manager_of(adopt=adopt, refuse=partial(check_outputs, files.resolve())) as manager:
            with _listening(place) as listening:
                token = await manager.store.write(first_token)  # told once: not before it is known that it can be
                host = f"[{place.host}]" if ":" in place.host else place.host
                url = f"http{'s' * bool(place.certificate)}://{host}:{listening.getsockname()[1]}"
                app = create_app(manager, files)
                forgetting = asyncio.create_task(_forget(manager, files, keep_days))
                try:
                    await _serve(manager, app, listening, lambda jobs: on_ready(url, token, jobs), **tls)
                finally:
                    forgetting.cancel()

    files.mkdir(parents=True, exist_ok=True, mode=0o700)
    sweep(files)
    with open_store(store) as opened:
        opened.check_version()
        asyncio.run(run(opened))


def _check_tls(place: Place) -> None:
    if not place.certificate:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(place.certificate, place.key)
    except OSError as error:  # an SSLError is one
        raise UsageError(
            f"TLS cannot use the certificate {place.certificate} with the key {place.key} ({error}); check both files"
        ) from None


def serve_user(store: str, path: Path, files: Path, strategy: str, on_ready: Callable[[list[str]], None]) -> None:
    """Serve this user alone, on the socket `path`, until SIGTERM or SIGINT; else as `serve`."""

    async def run(opened: Store, listening: socket.socket) -> None:
        async with JobManager(opened, strategy=strategy, record=False, follow_hosts=True) as manager:
            await _serve(manager, create_app(manager, files, local=True), listening, on_ready)

    with open_store(store) as opened, own_socket(path) as listening:
        opened.check_version()
        asyncio.run(run(opened, listening))


async def _serve(
    manager: JobManager, app: FastAPI, listening: socket.socket, on_ready: Callable[[list[str]], None], **more: Any
) -> None:
    if why := await asyncio.to_thread(manager.obstacle):
        raise UsageError(why)
    sys.setswitchinterval(_SWITCH_S)
    config = uvicorn.Config(
        app, http=PatientConnection, ws="none", log_config=None, access_log=False, lifespan="off", server_header=False,
        backlog=_ACCEPTED, timeout_graceful_shutdown=_GRACE_S, h11_max_incomplete_event_size=1 << 16, **more,
    )  # fmt: skip
    server, hub = _Server(config), app.state.service.hub

    def stop() -> None:
        server.should_exit = True
        hub.close()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve([listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(_STARTING_S)
    if serving.done():
        await serving  # raises why it did not start
    listening.listen(_BACKLOG)
    on_ready(await manager.recover())
    beside = [asyncio.create_task(_take_over(manager)), asyncio.create_task(_watch_store(manager, stop))]
    try:
        await serving
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    await manager.store.read(lambda store: store.check_file())


class _Server(uvicorn.Server):
    """A server that leaves signals to us: its own way ends the process before the jobs have ended."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _forget(manager: JobManager, files: Path, keep_days: float) -> None:
    drop = forget if keep_days else forget_files
    days = keep_days or _FILE_DAYS
    while True:
        with contextlib.suppress(StoreError, OSError):  # it may be so at the next look
            gone = await manager.store.write(lambda store: drop(store, files.resolve(), days * DAY_S))
            if gone:
                _log.info("%d events and files older than %g days were deleted", gone, days)
        await asyncio.sleep(_FORGET_S)


async def _watch_store(manager: JobManager, stop: Callable[[], None]) -> None:
    while not manager.store.moved():
        await asyncio.sleep(_LOOK_FILE_S)
    stop()


async def _take_over(manager: JobManager) -> None:
    """Take in the jobs of other services of the store that wait there, or were at work in one that is gone.

    A job that is announced is taken in at once; the service that is free first does it.
    """
    async with contextlib.aclosing(manager.store.waiting_jobs(_LOOK_S)) as looks:
        async for _ in looks:
            with contextlib.suppress(StoreError):  # it may be back at the next look
                for job_id in await manager.recover():
                    _log.warning("job %s goes on here: the process that had it is gone, or it waits there", job_id,
                                 extra={"job": job_id})  # fmt: skip


@contextmanager
def _listening(place: Place) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        listening = socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {place.host}:{place.port} ({error.strerror}); choose another address or port"
        ) from None
    with listening:
        yield listening


@contextmanager
def own_socket(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that nobody else can open.

    The lock beside it is held meanwhile: the kernel lets go of it with the process, so a killed service blocks nobody.
    """
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists() and not path.is_socket():
                raise UsageError(f"{path} is not a socket and stays as it is; choose another place with --socket")
            lock = open_lock(path.with_name(f"{path.name}.lock"))
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            before = os.umask(0o177)  # nobody else can connect, not even before a chmod
            try:
                listening.bind(str(path))
            finally:
                os.umask(before)
            listening.listen(_BACKLOG)
        except BlockingIOError:
            raise UsageError(f"a service listens at {path} already; use that one, or stop it first") from None
        except OSError as error:
            raise UsageError(f"cannot use {path} ({error.strerror}); choose another place with --socket") from error
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)


def token_here(store: str, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Make a token of an account for whoever can write the store, with no service and no login; else as `TokenIn`."""
    try:
        token = TokenIn.model_validate(wanted)
    except ValidationError as error:
        raise UsageError(f"the token's {misfit(error.errors())}") from None
    with open_store(store, create=False) as opened:
        return make_token(opened, name, token).model_dump(mode="json")


def first_token(store: Store) -> str:
    if store.accounts.all():
        return ""
    text = new_token()
    store.accounts.create(StoredAccount("admin", ADMIN, priority=10))
    store.accounts.add_token(StoredToken(digest_of(text), "admin", "first start", ADMIN), None)
    _log.info("the account admin was created")
    return text
