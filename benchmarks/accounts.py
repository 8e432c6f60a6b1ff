"""How much one account can slow another: its calls alone, and beside each thing that the other does too much of.

    python benchmarks/accounts.py -o out/accounts.json
    python benchmarks/accounts.py --attacks readers,streams --calls 100

The service runs in a process of its own with 500 stored jobs of either account; a second process attacks as the account
`ann` while this one calls as `bob`, one call after the other. Prints a table of the median and the 99th percentile of
each call in milliseconds, and writes it as JSON with `-o`.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from service import at, serve
from tunery.domain import JobState, Spend, TaskState
from tunery.reports.format import as_text, new_table
from tunery.store import open_store
from tunery.web._tokens import new_token

CALLS = ("/v1/me", "/v1/jobs?limit=20", "/v1/operators")
MOST_S = 10.0
SLOW = {"model": "fake:slow?tasks=1&extract_s=600", "dialect": "fake", "threads": 1, "kind": "extract"}
QUICK = {"model": "fake:web?tasks=1", "dialect": "fake", "budget": "8trials", "threads": 1}
STRANGER = new_token()
HELLO = b"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "


class Attacker:
    """An account that calls as fast as it is answered, over so many connections."""

    def __init__(self, url: str, token: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self.url, self._token = url, token.encode()
        self.calls = 0

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    def head(self, call: str, more: str = "") -> bytes:
        method, _, path = call.rpartition(" ")
        return f"{method or 'GET'} {path} ".encode() + HELLO + self._token + f"\r\n{more}\r\n".encode()

    async def answer(self, reader: asyncio.StreamReader) -> int:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
        await reader.readexactly(int(length or 0))
        self.calls += 1
        return int(head.split()[1])

    async def again(self, *calls: str) -> None:
        reader, writer = await self.open()
        for call in itertools.cycle(calls):
            writer.write(self.head(call))
            if await self.answer(reader) == 429:
                await asyncio.sleep(0.05)

    async def listen(self, path: str) -> None:
        reader, writer = await self.open()
        writer.write(self.head(path))
        while await reader.read(1 << 16):
            self.calls += 1

    async def upload(self, *, cut: bool = False) -> None:
        blob = os.urandom(1 << 20)
        name = hashlib.sha256(blob).hexdigest()
        while True:
            reader, writer = await self.open()
            writer.write(self.head(f"PUT /v1/blobs/sha256:{name}", f"Content-Length: {len(blob)}\r\n"))
            writer.write(blob[: len(blob) // 2] if cut else blob)
            await (writer.drain() if cut else self.answer(reader))
            self.calls += 1
            writer.close()

    async def cut(self) -> None:
        for length in itertools.cycle((10, 60, 10_000)):
            _, writer = await self.open()
            writer.write(self.head("/v1/jobs?limit=500")[:length])
            await writer.drain()
            self.calls += 1
            writer.close()

    async def submit(self) -> None:
        reader, writer = await self.open()
        for number in itertools.count():
            body = json.dumps({**SLOW, "seed": number})
            writer.write(self.head("POST /v1/jobs", f"Content-Length: {len(body)}\r\n") + body.encode())
            if await self.answer(reader) == 429:
                await asyncio.sleep(0.05)


ATTACKS: dict[str, tuple[int, Callable[[Attacker], Awaitable[None]]]] = {
    "readers": (16, lambda ann: ann.again("/v1/me", "/v1/jobs")),
    "large pages": (16, lambda ann: ann.again("/v1/jobs?limit=500")),
    "wide queries": (16, lambda ann: ann.again("/v1/records/stats", "/v1/records/export", "/v1/operators?limit=500")),
    "waits": (40, lambda ann: ann.again("/v1/jobs/{job}?wait=60")),
    "streams": (40, lambda ann: ann.listen("/v1/live/jobs")),
    "uploads": (40, lambda ann: ann.upload()),
    "cut uploads": (40, lambda ann: ann.upload(cut=True)),
    "cut connections": (16, lambda ann: ann.cut()),
    "descriptions": (16, lambda ann: ann.again("/v1/openapi.json")),
    "strangers": (16, lambda ann: Attacker(ann.url, STRANGER).again("/v1/jobs")),
    "jobs": (4, lambda ann: ann.submit()),
}


async def attack(url: str, token: str, name: str, job: str) -> None:
    """Attack until this process is ended; say so on the standard output when it has begun."""
    ann = Attacker(url, token)
    count, act = ATTACKS[name]

    async def for_ever() -> None:
        while True:
            try:
                await act(ann)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    head, ann.head = ann.head, lambda call, more="": head(call.replace("{job}", job), more)  # type: ignore[method-assign]
    tasks = [asyncio.create_task(for_ever()) for _ in range(count)]
    await asyncio.sleep(1.0)
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(ann.calls, flush=True)
    for task in tasks:
        task.cancel()


def medians(found: dict[str, list[float]]) -> str:
    """Return the medians and 99th percentiles in milliseconds."""
    return ", ".join(f"{1e3 * at(times, 50):.1f}/{1e3 * at(times, 99):.1f}" for times in found.values())


def client(url: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def measure(bob: httpx.Client, calls: int) -> dict[str, list[float]]:
    """Return how many seconds each of the calls took, in ascending order."""
    taken: dict[str, list[float]] = {call: [] for call in CALLS}
    until_s = time.perf_counter() + MOST_S
    for call in [call for _ in range(calls) for call in CALLS]:
        if time.perf_counter() > until_s and taken[call]:
            break
        began = time.perf_counter()
        bob.get(call).raise_for_status()
        taken[call].append(time.perf_counter() - began)
        time.sleep(0.005)
    return {call: sorted(times) for call, times in taken.items()}


def fill(path: str) -> None:
    """Store 500 jobs of each account that are done, of 30 tasks each."""
    tasks = tuple(
        TaskState(f"{n:016x}", f"{n:016x}", f"conv2d_{n}", "conv2d", 1, True, 1e-3, 5e-4, "c", measured=20,
                  outcomes={"ok": 18, "build-failed": 2}) for n in range(30)
    )  # fmt: skip
    with open_store(path) as store:
        for number, owner in itertools.product(range(500), ("ann", "bob")):
            request = {"model": f"zoo:net{number % 50}", "name": "net", "kind": "tune", "queue_owner": owner}
            status = store.create_job(request)
            store.save_job(replace(status, state=JobState.DONE, tasks=tasks, spend=Spend(wall_s=60.0, trials=600)))


def run(directory: str, names: list[str], calls: int) -> dict[str, Any]:
    fill(f"{directory}/store.db")
    environment = os.environ | {
        "TUNERY_STORE": f"{directory}/store.db", "TUNERY_CACHE": f"{directory}/cache", "TUNERY_TEST_DIALECTS": "on",
        "TUNERY_LOAD_WATCH": "off",
    }  # fmt: skip
    server, told = serve(environment)
    found: dict[str, Any] = {}
    try:
        with client(told["url"], told["token"]) as admin:
            tokens = {}
            for name in ("ann", "bob"):
                admin.post("/v1/accounts", json={"name": name}).raise_for_status()
                tokens[name] = admin.post(f"/v1/accounts/{name}/tokens", json={}).json()["token"]
        with client(told["url"], tokens["ann"]) as ann, client(told["url"], tokens["bob"]) as bob:
            for _ in range(10):
                done = ann.post("/v1/jobs", json=QUICK).json()["id"]
                while ann.get(f"/v1/jobs/{done}", params={"wait": 30}).json()["state"] in {"queued", "running"}:
                    pass
            slow = ann.post("/v1/jobs", json=SLOW).json()["id"]
            measure(bob, 20)
            for name in ["alone", *names]:
                if name == "alone":
                    found[name] = measure(bob, calls)
                    print(f"alone: {medians(found[name])}", file=sys.stderr)
                    continue
                command = [sys.executable, __file__, "--attacker", told["url"], tokens["ann"], name, slow]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
                    assert attacker.stdout is not None
                    assert attacker.stdin is not None
                    attacker.stdout.readline()
                    began = time.perf_counter()
                    found[name] = measure(bob, calls)
                    passed_s = time.perf_counter() - began
                    attacker.stdin.write("\n")
                    attacker.stdin.flush()
                    rate = int(attacker.stdout.readline() or 0) / passed_s
                    print(
                        f"{name}: {rate:.0f} calls a second, {passed_s:.1f} s, {medians(found[name])}", file=sys.stderr
                    )
            while (answer := ann.get("/v1/jobs", params={"state": "queued", "limit": 500})).status_code == 429:
                time.sleep(0.1)  # what is left of the last attack is refused before
            queued = answer.json()["jobs"]
            waiting = [job["id"] for job in queued]
            times = []
            for job in waiting[:100]:
                began = time.perf_counter()
                ann.post(f"/v1/jobs/{job}:cancel").raise_for_status()
                times.append(time.perf_counter() - began)
            if times:
                found["cancel"] = {f"cancel beside {len(waiting)} waiting": sorted(times)}
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--attacker", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attacker:
        asyncio.run(attack(*asked.attacker))
        return
    with tempfile.TemporaryDirectory() as directory:
        found = run(directory, asked.attacks.split(","), asked.calls)
    table = new_table("beside", *(f"#{call} {what}" for call in CALLS for what in ("p50", "p99")))
    for name, times in found.items():
        if name != "cancel":
            table.add_row(name, *(f"{1e3 * at(times[call], p):.1f}" for call in CALLS for p in (50, 99)))
    print(as_text(table, None))
    for call, times in found.get("cancel", {}).items():
        print(f"{call}: {1e3 * at(times, 50):.1f} ms, {1e3 * at(times, 99):.1f} ms")
    if asked.output:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
