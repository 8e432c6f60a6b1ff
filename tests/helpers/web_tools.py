"""A service of the fake dialect in this process, asked without a network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tunery.service.manager import JobManager
from tunery.store import StoredAccount, StoredToken, open_store
from tunery.web._tokens import digest_of, new_token
from tunery.web.app import create_app
from tunery.web.server import first_token

PATIENCE_S = 120.0


@dataclass
class Site:
    """A running service with one administrator."""

    manager: JobManager
    app: Any
    admin_token: str

    def client(self, token: str = "") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers, timeout=PATIENCE_S)

    @property
    def admin(self) -> httpx.AsyncClient:
        return self.client(self.admin_token)

    async def account(self, name: str, role: str = "user", **more: Any) -> httpx.AsyncClient:
        token = new_token()

        def create(store: Any) -> None:
            store.accounts.create(StoredAccount(name, role, **more))
            store.accounts.add_token(StoredToken(digest_of(token), name, "", role), None)

        await self.manager.store.write(create)
        return self.client(token)


@asynccontextmanager
async def site_in(directory: Path, url: str = "") -> AsyncIterator[Site]:
    (directory / "files").mkdir(exist_ok=True)
    with open_store(url or str(directory / "store.db")) as store:
        async with JobManager(store, record=False) as manager:
            token = await manager.store.write(first_token)
            yield Site(manager, create_app(manager, directory / "files"), token)


Serve = Callable[[Callable[[Site], Awaitable[None]]], None]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Runs a coroutine on a service of its own."""

    def run(work: Callable[[Site], Awaitable[None]]) -> None:
        async def main() -> None:
            async with site_in(tmp_path) as site:
                await asyncio.wait_for(work(site), PATIENCE_S)

        asyncio.run(main())

    return run
