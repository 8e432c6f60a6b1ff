"""An account that takes all it can get: others are served as before, and learn nothing of it."""

import asyncio
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from web_tools import Serve, Site, site_in

from postgres_server import PostgresServer, binaries
from tunery.domain.request import ShareRequest
from tunery.service.codec import request_of
from tunery.store import AsyncStore
from tunery.store.database.connection import Database
from tunery.web._bodies import without_places
from tunery.web._files import check_outputs, forget_files, sweep
from tunery.web._limits import Line, RequestTurn
from tunery.web._tokens import new_token

pytestmark = [pytest.mark.hostile, pytest.mark.jobs]
QUICK = {"model": "fake:web?tasks=1", "dialect": "fake", "budget": "8trials", "threads": 1}
SLOW: dict[str, Any] = {"model": "fake:slow?tasks=1&extract_s=600", "dialect": "fake", "threads": 1}


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    while (found := (await client.get(f"/v1/jobs/{job_id}", params={"wait": 30})).json())["state"] in {
        "queued",
        "running",
    }:
        pass
    return dict(found)


async def submitted(client: httpx.AsyncClient, job: dict[str, Any]) -> str:
    answer = await client.post("/v1/jobs", json=job)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("kind", ["extract", "tune"])
def test_many_slow_jobs_of_one_account_keep_no_other_waiting(serve: Serve, kind: str) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        slow = SLOW["model"] if kind == "extract" else SLOW["model"].replace("600", "3")
        anns = [await submitted(ann, {**SLOW, "kind": kind, "model": f"{slow}&seed={n}"}) for n in range(40)]
        bobs = [await submitted(bob, {**QUICK, **more}) for more in ({}, {"kind": "extract"})]
        assert [(await ended(bob, job))["state"] for job in bobs] == ["done", "done"]
        states = Counter([(await ann.get(f"/v1/jobs/{job}")).json()["state"] for job in anns])
        assert states["queued"] + states["running"] > 20
        for job in anns:
            await ann.post(f"/v1/jobs/{job}:cancel")
            assert (await ann.get(f"/v1/jobs/{job}")).json()["state"] in {"cancelled", "done"}

    serve(main)


def test_an_account_has_so_many_waiting_jobs_and_streams_and_no_more(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.service.manager._MOST_WAITING_EACH", 4)

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        codes, last = list[int](), httpx.Response(200)
        while not codes or codes[-1] == 201:
            last = await ann.post("/v1/jobs", json={**SLOW, "kind": "extract"})
            codes.append(last.status_code)
        assert codes[-1] == 429
        assert len(codes) < 20
        assert last.json()["type"] == "urn:tunery:problem:quota"
        assert last.headers["retry-after"]
        job = await submitted(bob, {**SLOW, "kind": "extract"})

        waits = [asyncio.create_task(bob.get(f"/v1/jobs/{job}", params={"wait": 60})) for _ in range(40)]
        while sum(task.done() for task in waits) < 8:
            await asyncio.sleep(0)
        refused = [task.result() for task in waits if task.done()]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.json()["type"] for answer in refused} == {"urn:tunery:problem:streams"}
        for path in ("/v1/live/jobs", f"/v1/live/jobs/{job}", f"/v1/jobs/{job}/events"):
            assert (await bob.get(path)).status_code == 429, path
        assert (await ann.get("/v1/me")).status_code == 200
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert (await bob.get(f"/v1/jobs/{job}", params={"wait": 0.01})).status_code == 200

    serve(main)


def test_many_open_pages_are_read_from_the_store_once(serve: Serve) -> None:
    """However many watch: what is read for them does not grow."""

    async def main(site: Site) -> None:
        service = site.app.state.service
        looks, parts = 0, list[str]()

        async def look() -> dict[str, int]:
            nonlocal looks
            looks += 1
            return {"looks": looks}

        async def watcher() -> None:
            with service.hub.page("page", look) as page:
                while not page.parts:
                    await page.changed(60)
                parts.append(page.parts["looks"])

        await asyncio.gather(*(watcher() for _ in range(300)))
        assert len(parts) == 300
        assert looks <= 2

    serve(main)


def test_jobs_of_another_account_are_refused_and_states_are_chosen_before_paging(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        done = await submitted(ann, QUICK)
        await ended(ann, done)
        for _ in range(3):
            job = await submitted(ann, {**SLOW, "kind": "extract"})
            await ann.post(f"/v1/jobs/{job}:cancel")
        page = (await ann.get("/v1/jobs", params={"state": "done", "limit": 1})).json()
        assert [job["id"] for job in page["jobs"]] == [done]
        assert page["next"] is None
        for who in ("ann", "nobody"):
            assert (await bob.get("/v1/jobs", params={"account": who})).status_code == 403
        assert (await bob.get("/v1/jobs", params={"account": "bob"})).status_code == 200

    serve(main)


def test_many_calls_of_one_account_wait_for_one_another_and_no_other_account_for_them(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        for client in (ann, bob, site.client(new_token())):
            await client.get("/v1/me")  # its token is known from now on, or known to be none
        for client, path, code in ((ann, "/v1/jobs?limit=500", 200), (site.client(new_token()), "/v1/me", 401)):
            calls = [asyncio.create_task(client.get(path)) for _ in range(100)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            before = sum(call.done() for call in calls)
            assert (await bob.get("/v1/me")).status_code == 200
            assert sum(call.done() for call in calls) - before < 20
            assert {answer.status_code for answer in await asyncio.gather(*calls)} == {code}

    serve(main)


def test_a_call_that_takes_long_lets_the_next_begin_and_too_many_of_them_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.web._limits._LONG_S", 0.0)

    async def main() -> None:
        line = Line()
        turns = [RequestTurn(line) for _ in range(5)]
        for turn in turns[:3]:
            await turn.begin()
        monkeypatch.setattr("tunery.web._limits._WAIT_S", 0.01)
        with pytest.raises(TimeoutError):
            await turns[3].begin()
        turns[0].end()
        await turns[4].begin()

    asyncio.run(main())


def test_a_cancel_costs_the_same_beside_many_jobs(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        jobs, costs = list[str](), list[int]()
        for more in (20, 200):
            jobs += [await submitted(ann, {**SLOW, "kind": "extract", "seed": len(jobs) + n}) for n in range(more)]
            await asyncio.gather(*site.app.state.service.notes)
            begun.clear()
            assert (await ann.post(f"/v1/jobs/{jobs.pop()}:cancel")).json()["state"] == "cancelled"
            await asyncio.gather(*site.app.state.service.notes)
            costs.append(len(begun))
        assert costs == [2, 2], "the job's state, and the note of who did it"

    begun, write = list[object](), Database.write

    def counted(self: Database, work: Any) -> Any:
        begun.append(work)
        return write(self, work)

    monkeypatch.setattr(Database, "write", counted)
    serve(main)


# -- uploads -----------------------------------------------------------------------------------------------------------


def digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def test_uploads_have_a_quota_are_deleted_by_their_owner_and_expire(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann", upload_bytes=1000), await site.account("bob", upload_bytes=1000)
        files = site.app.state.service.files
        first, shared, large = b"a" * 400, b"b" * 500, b"c" * 601
        assert (await ann.put(f"/v1/blobs/{digest(first)}", content=first)).status_code == 201
        for content in (large, chunks(large)):  # of a size that is said before, and of one that is not
            refused = await ann.put(f"/v1/blobs/{digest(large)}", content=content)
            assert (refused.status_code, refused.json()["type"]) == (413, "urn:tunery:problem:quota")
        both = await asyncio.gather(
            *(ann.put(f"/v1/blobs/{digest(x * 400)}", content=chunks(x * 400)) for x in (b"x", b"y"))
        )
        assert sorted(answer.status_code for answer in both) == [201, 413], "what is under way counts"
        for name in (b"x", b"y"):
            await ann.delete(f"/v1/blobs/{digest(name * 400)}")

        async def slowly(name: bytes, go: asyncio.Event) -> AsyncIterator[bytes]:
            yield name
            under_way.release()
            await go.wait()
            yield name * 399

        ways, under_way = {name: asyncio.Event() for name in (b"x", b"y")}, asyncio.Semaphore(0)
        puts = [
            asyncio.create_task(ann.put(f"/v1/blobs/{digest(name * 400)}", content=slowly(name, go)))
            for name, go in ways.items()
        ]
        for _ in puts:
            await under_way.acquire()
        for go, put, code in zip(ways.values(), puts, (201, 413), strict=True):
            go.set()
            assert (await put).status_code == code, "what has ended meanwhile counts"
        await ann.delete(f"/v1/blobs/{digest(b'x' * 400)}")
        for who in (ann, bob):
            assert (await who.put(f"/v1/blobs/{digest(shared)}", content=shared)).status_code == 201

        assert (await bob.delete(f"/v1/blobs/{digest(first)}")).status_code == 404
        assert (await bob.delete(f"/v1/blobs/{digest(shared)}")).status_code == 204
        assert (await ann.get(f"/v1/blobs/{digest(shared)}")).content == shared
        assert (await ann.delete(f"/v1/blobs/{digest(shared)}")).status_code == 204
        assert [one["digest"] for one in (await ann.get("/v1/blobs")).json()] == [digest(first)]
        assert [path.read_bytes() for path in files.glob("blobs/*/*")] == [first]

        await site.manager.store.write(lambda store: forget_files(store, files, -60.0))
        assert (await ann.get("/v1/blobs")).json() == []
        assert not list(files.glob("blobs/*/*"))

    serve(main)


def test_compiled_files_count_are_deleted_by_their_owner_and_expire(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann", upload_bytes=10), await site.account("bob", upload_bytes=10)
        files, manager = site.app.state.service.files, site.manager
        manager._refuse = partial(check_outputs, files)
        done = await submitted(ann, {**QUICK, "deliver": True})
        assert (await ended(ann, done))["state"] == "done"
        refused = await ann.post("/v1/jobs", json={**QUICK, "deliver": True})
        assert (refused.status_code, refused.json()["type"]) == (413, "urn:tunery:problem:quota")
        assert (await ann.put(f"/v1/blobs/{digest(b'x')}", content=b"x")).status_code == 413
        stored = await manager.store.read(lambda store: store.job(done))
        late = await manager.submit(request_of(stored, manager.store.url), ShareRequest("ann"))
        left = await manager.wait(late)
        assert (left.state.value, left.problem) == ("failed", "urn:tunery:problem:quota"), "it filled up meanwhile"
        await submitted(bob, {**QUICK, "deliver": True})

        assert (await bob.delete(f"/v1/jobs/{done}/file")).status_code == 404
        assert (await ann.get(f"/v1/jobs/{done}/file")).status_code == 200
        assert (await ann.delete(f"/v1/jobs/{done}/file")).status_code == 204
        assert (await ann.get(f"/v1/jobs/{done}/file")).status_code == 404
        again = await submitted(ann, {**QUICK, "deliver": True})
        assert (await ended(ann, again))["state"] == "done"
        await manager.store.write(lambda store: forget_files(store, files, -60.0))
        assert not list(files.glob("compiled/ann/*/*"))

    serve(main)


async def chunks(blob: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(blob), 100):
        await asyncio.sleep(0)
        yield blob[start : start + 100]


def test_slow_uploads_of_one_account_are_few(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        blob, go_on = b"x" * 1000, asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield blob[:1]
            await go_on.wait()
            yield blob[1:]

        uploads = [asyncio.create_task(ann.put(f"/v1/blobs/{digest(blob)}", content=slow())) for _ in range(60)]
        while sum(task.done() for task in uploads) < 28:
            await asyncio.sleep(0.01)
        refused = [task.result().json()["type"] for task in uploads if task.done()]
        assert set(refused) == {"urn:tunery:problem:streams"}
        assert (await bob.put(f"/v1/blobs/{digest(blob)}", content=blob)).status_code == 201
        go_on.set()
        codes = Counter(answer.status_code for answer in await asyncio.gather(*uploads))
        assert codes == {201: 32, 429: 28}
        assert (await ann.put(f"/v1/blobs/{digest(blob)}", content=blob)).status_code == 201

    serve(main)


def test_more_uploads_at_once_than_may_wait_are_refused_before_anything_is_done_for_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.web._limits._MOST_WAITING", 20)

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        for client in (ann, bob):
            await client.get("/v1/me")
        asked.clear()
        uploads = [asyncio.create_task(ann.put(f"/v1/blobs/{digest(b'x')}", content=b"x")) for _ in range(200)]
        await asyncio.wait(uploads, return_when=asyncio.FIRST_COMPLETED)
        assert (await bob.get("/v1/me")).status_code == 200
        answers = await asyncio.gather(*uploads)
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.json()["type"] for answer in refused} == {"urn:tunery:problem:turns"}
        assert all(answer.headers["retry-after"] for answer in refused)
        assert len(refused) >= 150
        assert len(asked) <= 50, "the store is not asked for each that is refused"

    asked, check_answers = list[float](), AsyncStore.check_answers

    async def counted(self: AsyncStore, within_s: float) -> None:
        asked.append(within_s)
        await check_answers(self, within_s)

    monkeypatch.setattr(AsyncStore, "check_answers", counted)
    serve(main)


def test_what_cut_uploads_left_goes_with_the_next_start(tmp_path: Path) -> None:
    for name in ("blobs/aa/.part-x", "models/.part-y/net.onnx", ".export-z/records.jsonl", "blobs/aa/aaaa"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["aaaa"]


# -- accounts ----------------------------------------------------------------------------------------------------------


def test_a_disabled_account_is_out_until_it_is_enabled_and_a_deleted_one_for_good(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        blob = b"model"
        assert (await ann.put(f"/v1/blobs/{digest(blob)}", content=blob)).status_code == 201
        jobs = [await submitted(ann, {**SLOW, "kind": kind}) for kind in ("extract", "tune", "tune")]
        assert (await bob.patch("/v1/accounts/ann", json={"state": "disabled"})).status_code == 403
        assert (await bob.delete("/v1/accounts/ann")).status_code == 403
        assert (await bob.get("/v1/audit")).status_code == 403

        assert (await site.admin.patch("/v1/accounts/ann", json={"state": "disabled"})).json()["state"] == "disabled"
        assert (await ann.get("/v1/me")).status_code == 401
        assert {(await site.admin.get(f"/v1/jobs/{job}")).json()["state"] for job in jobs} == {"paused"}
        await site.admin.patch("/v1/accounts/ann", json={"state": "active"})
        assert (await ann.get("/v1/me")).status_code == 200

        assert (await site.admin.delete("/v1/accounts/ann")).status_code == 204
        assert (await ann.get("/v1/me")).status_code == 401
        assert {(await site.admin.get(f"/v1/jobs/{job}")).json()["state"] for job in jobs} == {"cancelled"}
        assert not list(site.app.state.service.files.glob("blobs/*/*"))
        assert (await site.admin.post("/v1/accounts", json={"name": "ann"})).status_code == 422, "nobody gets its name"
        assert "ann" not in {one["name"] for one in (await site.admin.get("/v1/accounts")).json()}
        for last in ({"state": "disabled"}, {"role": "user"}):
            assert (await site.admin.patch("/v1/accounts/admin", json=last)).status_code == 422
        assert (await site.admin.delete("/v1/accounts/admin")).status_code == 422

    serve(main)


def test_what_accounts_do_is_noted_without_their_tokens(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        await ann.get("/v1/me")
        made = (await ann.post("/v1/accounts/ann/tokens", json={"label": "ci"})).json()
        await ann.post("/v1/accounts", json={"name": "eve"})
        await ann.post("/v1/jobs", json={"model": "nonsense"})
        await site.client("nonsense").post("/v1/accounts", json={"name": "eve"})
        await site.admin.patch("/v1/accounts/ann", json={"month_money": 5})
        log = (await site.admin.get("/v1/audit")).json()
        assert [(one["account"], one["action"], one["status"]) for one in log] == [
            ("admin", "PATCH /v1/accounts/ann", 200), ("ann", "POST /v1/accounts", 403),
            ("ann", "POST /v1/accounts/ann/tokens", 201),
        ]  # fmt: skip
        assert made["token"] not in json.dumps(log)
        assert all(one["source"] and one["at"] for one in log)
        assert (await site.admin.get("/v1/audit", params={"limit": 1, "before": log[0]["id"]})).json() == log[1:2]
        assert (await site.admin.delete("/v1/audit")).status_code == 405

    serve(main)


# -- what leaves the machine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "shown"), [
    ("postgresql://tunery:secret@db.example.org:5432/x does not answer (connection to server at \"10.0.0.7\", "
     "port 5432 failed: refused)", "the store does not answer (connection to a server failed: refused)"),
    ("the store sqlite:////srv/tunery/store.db is damaged", "the store is damaged"),
    ("cannot read /home/ann/models/net.onnx: gone", "cannot read net.onnx: gone"),
    ("ssh pi@10.0.0.7: no route to 192.0.2.7:22", "ssh a server: no route to a server"),
    ("/usr/bin/ld: cannot find /tmp/run-1/x.o", "ld: cannot find x.o"),
    ("node /layer1/conv1/Conv has no input; see https://onnx.ai/onnx/operators", None),
    ("LLVM 20.1.0 of TVM 0.27.0.post1 took 1.5 s/task", None),
])  # fmt: skip
def test_no_message_names_places_servers_or_users(tmp_path: Path, said: str, shown: str | None) -> None:
    assert without_places(said, tmp_path) == (said if shown is None else shown)
    assert json.loads(without_places(json.dumps({"message": said}), tmp_path))["message"] == (shown or said)
    assert without_places(said, None) == said, "its own user sees all"


def test_a_store_that_is_away_is_an_answer_within_seconds_and_no_job_fails_for_it(tmp_path: Path) -> None:
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL's programs (Debian, Ubuntu: apt-get install postgresql)")
    server = PostgresServer(programs)

    async def main(url: str) -> None:
        async with site_in(tmp_path, url) as site:
            ann = await site.account("ann")
            job = await submitted(ann, {**QUICK, "model": "fake:web?tasks=2&build_s=0.1", "budget": "60trials"})
            while (await ann.get(f"/v1/jobs/{job}")).json()["state"] == "queued":
                await asyncio.sleep(0.05)
            await asyncio.to_thread(server.stop)
            calls = [ann.get("/readyz"), ann.get("/v1/me"), ann.get("/v1/jobs"), ann.get(f"/v1/jobs/{job}"),
                     ann.post("/v1/jobs", json=QUICK), ann.get("/v1/usage")]  # fmt: skip
            for answer in await asyncio.wait_for(asyncio.gather(*calls), 30):
                assert (answer.status_code, answer.json()["type"]) == (503, "urn:tunery:problem:store-away"), (
                    answer.text
                )
                assert int(answer.headers["retry-after"]) > 0
                assert str(server.port) not in answer.text
            server.start()  # in the main thread: it ends with the thread that has started it
            assert (await ended(ann, job))["state"] == "done"

    try:
        server.start()
        with server.database() as url:
            asyncio.run(main(url))
    finally:
        server.close()


def test_a_file_that_is_locked_is_an_answer_within_seconds_and_no_job_fails_for_it(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.store.database.file.BUSY_S", 0.1)  # a job waits for longer than any one attempt
    monkeypatch.setattr("tunery.web._service._PATIENCE_S", 0.5)

    async def main(site: Site) -> None:
        ann = await site.account("ann")
        job = await submitted(ann, {**QUICK, "model": "fake:web?tasks=2&build_s=0.1", "budget": "60trials"})
        while (await ann.get(f"/v1/jobs/{job}")).json()["state"] == "queued":
            await asyncio.sleep(0.05)
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                refused = await ann.post("/v1/jobs", json=QUICK)
                assert (refused.status_code, refused.json()["type"]) == (503, "urn:tunery:problem:store-away")
                assert refused.headers["retry-after"]
                for path in ("/readyz", "/v1/me", "/v1/jobs"):
                    assert (await ann.get(path)).status_code == 200, "readers never wait"
        assert (await ended(ann, job))["state"] == "done"
        assert await submitted(ann, QUICK)

    serve(main)


def test_a_cache_that_everybody_can_write_is_refused_at_the_start(tmp_path: Path, serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        assert (await ann.get("/readyz")).status_code == 200
        cache.chmod(0o777)
        answer = await ann.get("/readyz")
        assert answer.status_code == 503
        assert "everybody can write" in answer.json()["detail"]
        assert str(cache) not in answer.text

    cache = tmp_path / "cache"
    serve(main)
    environment = {**os.environ, "TUNERY_CACHE": str(cache), "TUNERY_STORE": str(tmp_path / "s.db")}
    command = [sys.executable, "-m", "tunery", "serve", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "everybody can write" in done.stderr
