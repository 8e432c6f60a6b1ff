"""The service as a process: the manager of jobs and the application in one event loop."""

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from tunery._errors import UsageError
from tunery.service.local import take_over
from tunery.service.manager import JobManager
from tunery.store import Store, StoredAccount, StoredToken, open_store
from tunery.web._service import ADMIN
from tunery.web._tokens import digest_of, new_token
from tunery.web.app import create_app

_GRACE_S = 5


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
        """Refuse to send tokens over a network in the clear.

        Raises:
            UsageError: the address is not this machine's own, and there is neither TLS nor a proxy that has it.
        """
        if bool(self.certificate) != bool(self.key):
            raise UsageError("TLS needs a certificate and its key; give --tls-certificate and --tls-key")
        if self.certificate or self.behind_proxy or is_loopback(self.host):
            return
        raise UsageError(
            f"{self.host} can be reached from other machines, and tokens would cross the network in the clear; "
            "give --tls-certificate and --tls-key, or --behind-proxy where a proxy has TLS"
        )


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_place(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`.

    Raises:
        UsageError: it is none.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise UsageError(f"{text!r:.80} is no address and port; write for example 127.0.0.1:7433")
    return host.removeprefix("[").removesuffix("]"), int(port)


def serve(
    store: str, place: Place, files: Path, strategy: str, on_ready: Callable[[str, str, list[str]], None]
) -> None:
    """Serve until SIGTERM or SIGINT; what is unfinished then stays queued, and goes on with the next start.

    `on_ready` hears the URL, the first token ("" after the first start: it is told once) and the jobs that go on.

    Raises:
        UsageError: it may not listen there, or cannot.
    """
    place.check()
    with open_store(store) as opened:
        asyncio.run(_serve(opened, place, files, strategy, on_ready))


async def _serve(
    store: Store, place: Place, files: Path, strategy: str, on_ready: Callable[[str, str, list[str]], None]
) -> None:
    files.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with JobManager(store, strategy=strategy, record=False) as manager:
        token = await manager.store.write(first_token)
        config = uvicorn.Config(
            create_app(manager, files), place.host, place.port, log_config=None, access_log=False,
            ssl_certfile=place.certificate or None, ssl_keyfile=place.key or None, lifespan="off",
            timeout_graceful_shutdown=_GRACE_S, h11_max_incomplete_event_size=1 << 16, server_header=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        try:
            listening = config.bind_socket()
        except SystemExit:
            raise UsageError(f"cannot listen at {place.host}:{place.port}; choose another address or port") from None
        port = listening.getsockname()[1]
        recovered = await manager.recover()
        async with _looking(manager):
            ready = asyncio.create_task(_when_started(server))
            ready.add_done_callback(
                lambda _: on_ready(f"http{'s' * bool(place.certificate)}://{place.host}:{port}", token, recovered)
            )
            await server.serve([listening])


async def _when_started(server: uvicorn.Server) -> None:
    while not server.started:
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _looking(manager: JobManager) -> AsyncIterator[None]:
    looking = asyncio.create_task(take_over(manager))
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


def first_token(store: Store) -> str:
    """Create the account of the first administrator with a token, and return that; "" where there are accounts."""
    if store.accounts.all():
        return ""
    text = new_token()
    store.accounts.create(StoredAccount("admin", ADMIN, priority=10))
    store.accounts.add_token(StoredToken(digest_of(text), "admin", "first start", ADMIN), None)
    logging.getLogger(__name__).info("the account admin was created")
    return text
