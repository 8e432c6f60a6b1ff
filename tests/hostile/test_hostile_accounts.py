"""An account that takes all it can get: others are served as before, and learn nothing of it."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from web_tools import Serve, Site

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
        slow = SLOW["model"].replace("600", "3")
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
