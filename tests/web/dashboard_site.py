"""A service of the fake dialect on a port of this machine, in a thread of the test's process, and a browser for it."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from onnx import TensorProto, helper, numpy_helper
from web_tools import PATIENCE_S, Site, site_in

from tunery.store import StoredAccount, StoredToken
from tunery.web._tokens import digest_of, new_token

_ARGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


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
            listening.listen()  # before anybody is told where: else a first call may be refused
            found.append(Served(site, f"http://127.0.0.1:{listening.getsockname()[1]}", asyncio.get_running_loop()))
            ready.set()
            await server[0].serve([listening])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0]
    finally:
        server[0].should_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a browser for the block, or skip the test."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium (Debian, Ubuntu: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=_ARGS)
        yield browser
        browser.close()


def log_in(page: Any, site: Served, token: str, place: str = "jobs") -> None:
    """Open one of the pages as the holder of a token."""
    page.set_default_timeout(PATIENCE_S * 1e3)
    page.goto(f"{site.url}/#/{place}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("navigation").wait_for()


def drop(page: Any, name: str, content: bytes) -> None:
    """Drop a file on the page for new jobs."""
    made = """([name, bytes]) => {
      const dropped = new DataTransfer();
      dropped.items.add(new File([new Uint8Array(bytes)], name));
      return dropped;
    }"""
    page.dispatch_event(".drop", "drop", {"dataTransfer": page.evaluate_handle(made, [name, list(content)])})


def fetch_file(page: Any, directory: Path) -> Path:
    """On the page of a job: save its compiled network once there is one."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    path = directory / download.value.suggested_filename
    download.value.save_as(path)
    return path


def matmul_model(name: str) -> bytes:
    """Return a small network in ONNX, of a product and a Relu: `x` to `z`, both of 16 x 32."""
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((32, 32), dtype=np.float32), "w")
    x, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 32]) for name in "xz")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name=name), helper.make_node("Relu", ["y"], ["z"])]
    model = helper.make_model(helper.make_graph(nodes, name, [x], [z], [weights]),
                              opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    model.ir_version = 10
    content: bytes = model.SerializeToString()
    return content
