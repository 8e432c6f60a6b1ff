"""A service whose clients are slow, cut off, strangers or many, and which ends and comes back."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from attack_tools import mounted
from web_tools import PATIENCE_S, Serve, Site, site_in

from tunery.domain import JobState
from tunery.store import Store
from tunery.web._limits import PatientConnection
from tunery.web._tokens import new_token

QUEUED = {"model": "fake:secret-net?tasks=1", "dialect": "fake", "queue_owner": "ann", "kind": "tune"}


class Impatient(PatientConnection):
    head_s, rest_s = 0.2, 0.1


@asynccontextmanager
async def port_of(site: Site) -> AsyncIterator[int]:
    """Serve on a port of this machine."""
    config = uvicorn.Config(
        site.app, "127.0.0.1", 0, http=Impatient, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server, listening = uvicorn.Server(config), config.bind_socket()
    serving = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def queued_job(site: Site) -> str:
    """Return a job that nobody works on."""
    job = await site.manager.store.write(lambda store: store.create_job(QUEUED))
    return job.job_id


async def tell(site: Site, job_id: str, count: int) -> None:
    for _ in range(count):
        await site.manager.store.write(lambda store: store.events.append("step", {}, job_id))


async def finish(site: Site, job_id: str) -> None:
    def end(store: Store) -> None:
        store.save_job(replace(store.job(job_id), state=JobState.DONE))

    await site.manager.store.write(end)


async def numbers(client: httpx.AsyncClient, job_id: str, last: int, found: list[int]) -> None:
    """Add the numbers of a job's events after `last` to `found`, until the service ends the stream."""
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)}) as stream:
        lines = [line async for line in stream.aiter_lines()]
    found += [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]


@pytest.mark.jobs
def test_events_over_twenty_restarts_are_neither_lost_nor_doubled(tmp_path: Path) -> None:
    moments = random.Random(1)

    async def main() -> None:
        job_id, seen = "", list[int]()
        for _ in range(20):
            async with site_in(tmp_path) as site:
                job_id = job_id or await queued_job(site)
                admin = site.client(token)
                following = asyncio.create_task(numbers(admin, job_id, seen[-1] if seen else 0, seen))
                await tell(site, job_id, moments.randint(0, 3))
                await asyncio.sleep(moments.uniform(0, 0.05))
                site.app.state.service.hub.close()
                await asyncio.wait_for(following, PATIENCE_S)
                await tell(site, job_id, moments.randint(0, 2))  # while nobody follows
        async with site_in(tmp_path) as site:
            await finish(site, job_id)
            await numbers(site.client(token), job_id, seen[-1], seen)
            stored = await site.manager.store.read(lambda store: store.events.after(job_id=job_id))
        assert seen == [event.number for event in stored]

    async def first() -> str:
        async with site_in(tmp_path) as site:
            return site.admin_token

    token = asyncio.run(first())
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.jobs
def test_two_hundred_followers_each_get_every_event_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.web._service._MOST_STREAMS", 200)

    async def main(site: Site) -> None:
        job_id = await queued_job(site)
        found: list[list[int]] = [[] for _ in range(200)]
        following = [asyncio.create_task(numbers(site.admin, job_id, 0, one)) for one in found]
        await tell(site, job_id, 10)
        await finish(site, job_id)
        await asyncio.gather(*following)
        stored = await site.manager.store.read(lambda store: store.events.after(job_id=job_id))
        assert found == [[event.number for event in stored]] * 200

    serve(main)


def test_twenty_uploads_at_once_are_all_whole(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        blobs = [bytes([number]) * 300_000 for number in range(20)]

        async def put(blob: bytes) -> int:
            place = f"/v1/blobs/sha256:{hashlib.sha256(blob).hexdigest()}"
            assert (await client.put(place, content=blob)).status_code == 201
            return len((await client.get(place)).content)

        assert await asyncio.gather(*map(put, blobs)) == [300_000] * 20

    serve(main)


@pytest.mark.attack
def test_a_client_that_never_says_what_it_wants_is_told_so_and_hung_up_on(serve: Serve) -> None:
    async def main(site: Site) -> None:
        async with port_of(site) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nx-slow: ")
            await writer.drain()
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.get("/healthz")).status_code == 200
            writer.close()

    serve(main)


@pytest.mark.attack
def test_a_client_whose_body_is_refused_reads_why_and_is_hung_up_on(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Impatient, "head_s", 1000.0)

    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(1 << 16)

    def upload(url: str, token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "Content-Length": str(1 << 50)}
        return httpx.put(
            f"{url}/v1/blobs/sha256:{'0' * 64}", content=endless(), headers=headers, timeout=PATIENCE_S, trust_env=False
        )

    async def main(site: Site) -> None:
        async with port_of(site) as port:
            answer = await asyncio.to_thread(upload, f"http://127.0.0.1:{port}", site.admin_token)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:tunery:problem:too-large")

    serve(main)


@pytest.mark.attack
def test_an_upload_that_is_cut_leaves_nothing(serve: Serve) -> None:
    async def main(site: Site) -> None:
        await site.account("ann")
        digest = f"sha256:{hashlib.sha256(bytes(1000)).hexdigest()}"
        async with port_of(site) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"PUT /v1/blobs/{digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.admin_token}\r\n"
            writer.write(f"{head}Content-Length: 1000\r\n\r\n".encode() + bytes(500))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
                headers = {"Authorization": f"Bearer {site.admin_token}"}
                assert (await client.get(f"/v1/blobs/{digest}", headers=headers)).status_code == 404
        files = site.app.state.service.files
        while list(files.rglob(".part-*")):
            await asyncio.sleep(0.01)
        assert not [path for path in files.rglob("*") if path.is_file()]

    serve(main)


TRAVERSALS = (
    "..",
    "../../etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%5c..%5cx",
    "a\x00b",
    "/etc/passwd",
    "~root",
)


def test_a_disk_that_is_full_is_one_sentence_of_any_call(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, dev = await site.account("ann", upload_bytes=1 << 30), await site.account("dev", "developer")
        blob, files = bytes(300_000), site.app.state.service.files
        place = f"/v1/blobs/sha256:{hashlib.sha256(blob).hexdigest()}"
        job = {"model": "fake:x?tasks=1", "dialect": "fake", "threads": 1, "kind": "compile"}

        async def sent(kernel: str) -> dict[str, httpx.Response]:
            return {
                "upload": await ann.put(place, content=blob),
                "job": await ann.post("/v1/jobs", json=job),
                "export": await ann.get("/v1/records/export"),
                "kernel": await dev.post("/v1/measurements", json={"kernel": {"description": kernel}}),
            }

        with mounted(files, "size=64k,nr_inodes=99"):
            assert (await sent("one"))["upload"].status_code == 507, "no room"
            with suppress(OSError):
                for number in range(100):
                    (files / str(number)).touch()
            for what, answer in (await sent("two")).items():
                assert answer.status_code == 507, (what, answer.text)
                assert str(files) not in answer.text
                assert "No space left" in answer.json()["detail"]
            assert not list(files.rglob(".*"))
        assert {answer.status_code for answer in (await sent("three")).values()} == {200, 201}

    serve(main)


def test_no_name_leads_out_of_the_service(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        places = ("/v1/blobs/{}", "/v1/jobs/{}", "/v1/jobs/{}/file", "/v1/jobs/{}/events", "/v1/accounts/{}/tokens")
        for name in TRAVERSALS:
            for place in places:
                answer = await client.get(place.format(quote(name, safe="%")))
                assert answer.status_code in {404, 405, 422}, (place, name, answer.status_code)
                assert "root:" not in answer.text
            job = {"model": name, "dialect": "fake", "threads": 1}
            assert (await client.post("/v1/jobs", json=job)).status_code == 422
            local = {**job, "local": {"options": {"output": name}}}
            assert (await client.post("/v1/jobs", json=local)).status_code == 422

    serve(main)


@pytest.mark.attack
@pytest.mark.jobs
def test_in_a_thousand_calls_an_account_sees_nothing_of_another(serve: Serve) -> None:
    chance = random.Random(7)

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        blob = b"secret weights"
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert (await ann.put(f"/v1/blobs/{digest}?name=secret-net.onnx", content=blob)).status_code == 201
        job_id = await queued_job(site)
        token = (await ann.post("/v1/accounts/ann/tokens", json={"label": "secret-label"})).json()["id"]
        ways = (await bob.get("/v1/openapi.json")).json()["paths"]
        known = {"{job_id}": job_id, "{digest}": digest, "{name}": "ann", "{token}": token, "{month}": "2026-11"}
        queries = ({}, {"account": "ann"}, {"job": job_id}, {"state": "queued"}, {"limit": "500"}, {"task": "abcd"})
        secrets = (job_id, digest, "secret", token)
        for _ in range(1000):
            way = chance.choice(sorted(ways))
            method = chance.choice(sorted(ways[way]))
            if method in {"post", "put"} and "{" not in way:
                continue  # what bob makes is bob's
            place, foreign = way, False
            for part, value in known.items():
                foreign |= part in place and part != "{month}"
                place = place.replace(part, value)
            body: dict[str, Any] = {} if method == "get" else {"json": {"model": digest, "priority": 1}}
            answer = await bob.request(method, place, params=chance.choice(queries), **body)
            assert answer.status_code < 500, (method, place, answer.text)
            if foreign and not (way.startswith("/v1/blobs") and method == "put"):
                assert answer.status_code in {403, 404, 422}, (method, place, answer.text)
            if answer.is_success:
                assert not [one for one in secrets if one in answer.text], (method, place)

    serve(main)


@pytest.mark.parametrize("change", [lambda token: token[:-1], lambda _: new_token(), lambda token: token.upper()])
def test_a_token_that_is_cut_foreign_or_changed_opens_nothing(serve: Serve, change: Any) -> None:
    async def main(site: Site) -> None:
        client = site.client(change(site.admin_token))
        for place in ("/v1/me", "/v1/jobs", "/v1/records/stats", "/v1/spend", "/v1/hosts"):
            answer = await client.get(place)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")

    serve(main)
