"""A service of the fake dialect that listens on a port of this machine, in a thread of the test's process."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from conftest import PATIENCE_S, Site, site_in
from tunery.store import StoredAccount, StoredToken
from tunery.web._tokens import digest_of, new_token


class Served:
    """A running service; its methods may be called from the test's thread."""

    def __init__(self, site: Site, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._site, self.url, self._loop = site, url, loop
        self.admin_token = site.admin_token

    def write(self, work: Callable[[Any], Any]) -> Any:
        """Write into the store."""
        return asyncio.run_coroutine_threadsafe(self._site.manager.store.write(work), self._loop).result(PATIENCE_S)

    def token(self, name: str, role: str = "user") -> str:
        """Make an account, and return its token."""
        text = new_token()

        def create(store: Any) -> None:
            store.accounts.create(StoredAccount(name, role))
            store.accounts.add_token(StoredToken(digest_of(text), name, "", role), None)

        self.write(create)
        return text

    def client(self, token: str) -> httpx.Client:
        """Return a client of the API."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)

    def ended(self, token: str, job: dict[str, Any]) -> dict[str, Any]:
        """Submit a job, and return it when it has ended."""
        with self.client(token) as client:
            answer = client.post("/v1/jobs", json=job)
            assert answer.status_code == 201, answer.text
            shown: dict[str, Any] = answer.json()
            while shown["state"] in {"queued", "running"}:
                shown = client.get(f"/v1/jobs/{shown['id']}", params={"wait": 30}).json()
        return shown


@contextmanager
def served(directory: Path) -> Iterator[Served]:
    """Serve in the block."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found: list[Served] = []
    server: list[uvicorn.Server] = []

    async def main() -> None:
        async with site_in(directory) as site:
            config = uvicorn.Config(
                site.app, "127.0.0.1", 0, log_config=None, lifespan="off", timeout_graceful_shutdown=1
            )
            server.append(uvicorn.Server(config))
            listening = config.bind_socket()
            found.append(Served(site, f"http://127.0.0.1:{listening.getsockname()[1]}", loop))
            ready.set()
            await server[0].serve([listening])

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0]
    finally:
        server[0].should_exit = True
        thread.join(PATIENCE_S)
        loop.close()
