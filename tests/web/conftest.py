import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from web_tools import PATIENCE_S, Serve, Site, site_in


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Runs a coroutine on a service of its own."""

    def run(work: Callable[[Site], Awaitable[None]]) -> None:
        async def main() -> None:
            async with site_in(tmp_path) as site:
                await asyncio.wait_for(work(site), PATIENCE_S)

        asyncio.run(main())

    return run
