"""Jobs over HTTP, on the fake dialect: submitted once, seen by their account alone, followed without a gap."""

import asyncio
import hashlib
import json
import os
import resource
import shutil
import threading
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from clocks import Clock
from web_tools import PATIENCE_S, Serve, Site

from tunery._settings import cache_directory
from tunery.service import stored_jobs
from tunery.store import Store

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

QUICK = {"model": "fake:web?tasks=1", "dialect": "fake", "budget": "8trials", "threads": 1}
ENDLESS = {"model": "fake:endless?tasks=2&build_s=0.02&space=16x16x16", "dialect": "fake", "threads": 1,
           "budget": "5000trials"}  # fmt: skip


async def submitted(client: httpx.AsyncClient, job: dict[str, Any] = QUICK, key: str = "") -> dict[str, Any]:
    answer = await client.post("/v1/jobs", json=job, headers={"Idempotency-Key": key} if key else {})
    assert answer.status_code in {200, 201}, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def ended(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    while True:
        shown: dict[str, Any] = (await client.get(f"/v1/jobs/{job_id}", params={"wait": 30})).json()
        if shown["state"] not in {"queued", "running"}:
            return shown


async def events_of(client: httpx.AsyncClient, job_id: str, last: str = "") -> list[tuple[str, str]]:
    """Return (id, kind) of a job's events, to the end."""
    found, number = [], ""
    async with client.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last}) as stream:
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = value
            elif name == "event":
                found.append((number, value))
                number = ""
    return found


def test_a_job_is_submitted_followed_and_done(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = await submitted(client)
        kinds = [kind for _, kind in await events_of(client, job["id"])]
        assert kinds[-1] == "end"
        done = await ended(client, job["id"])
        assert (done["state"], done["account"], done["spend"]["trials"]) == ("done", "ann", 8)
        assert done["tasks"][0]["best_s"] < done["tasks"][0]["baseline_s"]

    serve(main)


def test_the_same_key_is_one_job_also_at_once(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client, other = await site.account("ann"), await site.account("bob")
        sent = [client.post("/v1/jobs", json=QUICK, headers={"Idempotency-Key": "k"}) for _ in range(12)]
        answers = await asyncio.gather(*sent)
        assert sorted(answer.status_code for answer in answers) == [200] * 11 + [201]
        first = [answer.json() for answer in answers]
        assert len({job["id"] for job in first}) == 1
        await ended(client, first[0]["id"])
        assert (await submitted(client, key="k"))["id"] == first[0]["id"]
        assert (await submitted(other, key="k"))["id"] != first[0]["id"]
        changed = await client.post("/v1/jobs", json={**QUICK, "budget": "9trials"}, headers={"Idempotency-Key": "k"})
        assert changed.status_code == 422
        assert first[0]["id"] in changed.json()["detail"]
        assert len((await client.get("/v1/jobs")).json()["jobs"]) == 1

    serve(main)


def test_the_same_post_is_one_job_whatever_was_changed_of_it_since(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann", priority=3)
        job = {**ENDLESS, "priority": 3}
        first = await submitted(ann, job, key="k")
        for change in ({"budget": "4000trials"}, {"priority": 1}, {"budget": "1h"}):
            assert (await ann.patch(f"/v1/jobs/{first['id']}", json=change)).status_code == 200
            assert (await submitted(ann, job, key="k"))["id"] == first["id"]
        await site.admin.patch("/v1/accounts/ann", json={"priority": 0, "weight": 2.0})
        assert (await submitted(ann, job, key="k"))["id"] == first["id"]
        other = await ann.post("/v1/jobs", json={**job, "budget": "1h"}, headers={"Idempotency-Key": "k"})
        assert other.status_code == 422
        await ann.post(f"/v1/jobs/{first['id']}:cancel")
        assert (await submitted(ann, job, key="k"))["id"] == first["id"]

    serve(main)


def test_the_same_post_is_one_job_whichever_version_stored_it_and_however_it_names_the_defaults(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, job = await site.account("ann"), {**QUICK, "kind": "compile", "budget": ""}
        first = await ended(ann, (await submitted(ann, job, key="k"))["id"])
        explicit = {"predict": True, "few_shot": 0, "few_shot_seconds": None, "any_shape": False}
        options = str((await site.manager.store.read(lambda store: store.job(first["id"]))).request["options"])
        filled = {"predict": True, "few_shot": 0, "few_shot_seconds": None}
        earlier = json.dumps({"output": json.loads(options)["output"], **filled})
        assert json.loads(options).keys() == {"output"}, "earlier versions know no others"
        for stored in (options, earlier):
            await site.manager.store.write(lambda store, now=stored: store.specify_job(first["id"], {"options": now}))
            for same in ({}, {"predict": None}, explicit):
                assert (await submitted(ann, {**job, **same}, key="k"))["id"] == first["id"]
            for other in ({"predict": False}, {"few_shot": 1}, {"any_shape": True}):
                answer = await ann.post("/v1/jobs", json={**job, **other}, headers={"Idempotency-Key": "k"})
                assert answer.status_code == 422, other
        tuning = await submitted(ann, key="tune")
        assert (await submitted(ann, {**QUICK, "deliver": False}, key="tune"))["id"] == tuning["id"]
        delivered = await ann.post("/v1/jobs", json={**QUICK, "deliver": True}, headers={"Idempotency-Key": "tune"})
        assert delivered.status_code == 422

    serve(main)


def test_inputs_of_an_account_are_an_uploaded_file_that_binds_shapes(serve: Serve, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 7), np.float32))
    data = (tmp_path / "data.npz").read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        assert (await ann.put(f"/v1/blobs/{digest}?name=data.npz", content=data)).status_code == 201
        job = {**QUICK, "deliver": True, "inputs": digest}
        first = await submitted(ann, job, key="k")
        stored = (await site.manager.store.read(lambda store: store.job(first["id"]))).request
        assert json.loads(str(stored["shapes"])) == {"x": [4, 7]}
        assert Path(json.loads(str(stored["options"]))["inputs"]).read_bytes() == data
        assert (await submitted(ann, job, key="k"))["id"] == first["id"]
        assert str(tmp_path) not in (await ann.get(f"/v1/jobs/{first['id']}")).text
        for client, inputs in ((ann, "/etc/passwd"), (ann, f"sha256:{'0' * 64}"), (bob, digest)):
            assert (await client.post("/v1/jobs", json={**job, "inputs": inputs})).status_code in {404, 422}

    serve(main)


def test_a_key_that_another_coordinator_takes_meanwhile_is_refused_and_its_job_is_the_one_that_is_done(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raced(store: Store, request: dict[str, Any], job_id: str) -> bool:
        real(store, {**request, "budget_trials": 9}, job_id)
        return real(store, request, job_id)

    real = stored_jobs.submit
    monkeypatch.setattr(stored_jobs, "submit", raced)

    async def main(site: Site) -> None:
        ann = await site.account("ann")
        refused = await ann.post("/v1/jobs", json=QUICK, headers={"Idempotency-Key": "k"})
        assert refused.status_code == 422
        [job] = await site.manager.recover()
        assert job in refused.json()["detail"]
        same = await ann.post("/v1/jobs", json={**QUICK, "budget": "9trials"}, headers={"Idempotency-Key": "l"})
        assert (same.status_code, "location" in same.headers) == (200, False), "the other coordinator has answered 201"
        assert await site.manager.recover() == [same.json()["id"]]
        for one in (job, same.json()["id"]):
            assert (await ended(ann, one))["spend"]["trials"] == 9

    serve(main)


def test_a_post_whose_write_hangs_holds_up_none_of_another_key(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hanging(store: Store, request: dict[str, Any], job_id: str) -> bool:
        hangs.set()
        assert goes_on.wait(PATIENCE_S)
        return real(store, request, job_id)

    real = stored_jobs.submit

    async def main(site: Site) -> None:
        ann = await site.account("ann")
        first = await ended(ann, (await submitted(ann, key="a"))["id"])
        monkeypatch.setattr(stored_jobs, "submit", hanging)
        second = asyncio.create_task(submitted(ann, key="b"))
        try:
            assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
            assert (await asyncio.wait_for(submitted(ann, key="a"), PATIENCE_S / 4))["id"] == first["id"]
        finally:
            goes_on.set()
        await ended(ann, (await second)["id"])
        assert not site.app.state.service.keyed, "the keys are forgotten"

    serve(main)


def test_a_failed_job_has_the_type_of_its_error(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        wrong = [{"model": "fake:web?nonsense=1"}, {"target": "no-such-target"}]
        failed = [await ended(ann, (await submitted(ann, {**QUICK, **one}))["id"]) for one in wrong]
        assert {one["state"] for one in failed} == {"failed"}
        assert [one["problem"] for one in failed] == ["urn:tunery:problem:model", "urn:tunery:problem:target"]
        await ann.post(f"/v1/jobs/{failed[0]['id']}:resume")
        assert (await ended(ann, failed[0]["id"]))["problem"] == failed[0]["problem"]
        assert (await ended(ann, (await submitted(ann))["id"]))["problem"] == ""

    serve(main)


def test_a_model_has_the_name_that_its_job_gives_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, model = await site.account("ann"), b"a model"
        digest = f"sha256:{hashlib.sha256(model).hexdigest()}"
        assert (await ann.put(f"/v1/blobs/{digest}?name=first.onnx", content=model)).status_code == 201
        job = {**QUICK, "kind": "extract", "model": digest}
        for sent, shown in (("", "first.onnx"), ("second.onnx", "second.onnx"), ("../a b", "a_b.onnx")):
            assert (await submitted(ann, {**job, "name": sent}))["model"] == shown

    serve(main)


def test_a_stream_ends_with_its_token(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, token = await site.account("ann"), "/v1/accounts/ann/tokens"
        job_id = (await submitted(ann, ENDLESS))["id"]
        ends, stays = [(await ann.post(token, json={"role": "reader"})).json() for _ in range(2)]
        places = [f"/v1/jobs/{job_id}/events", "/v1/live/jobs", f"/v1/live/jobs/{job_id}"]
        streams = [await opened(site, place, ends["token"]) for place in places]
        others = [await opened(site, place, stays["token"]) for place in places]
        waiting = asyncio.create_task(site.client(ends["token"]).get(f"/v1/jobs/{job_id}?wait=60"))
        assert (await ann.delete(f"{token}/{ends['id']}")).status_code == 204
        await asyncio.gather(*streams)
        assert (await waiting).status_code == 401
        assert (await ann.get(f"/v1/jobs/{job_id}")).json()["state"] == "running"
        assert not any(other.done() for other in others)
        for other in others:
            other.cancel()
        await ann.post(f"/v1/jobs/{job_id}:cancel")

    serve(main)


async def opened(site: Site, place: str, token: str) -> "asyncio.Task[None]":
    """Open a stream, and return what ends with it: httpx would wait for its end."""
    began, never = asyncio.Event(), asyncio.Event()
    scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": place, "root_path": "",
             "raw_path": place.encode(), "query_string": b"", "server": ("test", 80), "client": ("test", 1),
             "headers": [(b"host", b"test"), (b"authorization", f"Bearer {token}".encode())]}  # fmt: skip
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in asked:
            return message
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            began.set()

    stream = asyncio.create_task(site.app(scope, receive, send))
    await began.wait()
    return stream


def test_nobody_sees_anything_of_another_account(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        blob = b"anything"
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert (await ann.put(f"/v1/blobs/{digest}", content=blob)).status_code == 201
        job = await submitted(ann)
        places = [("GET", f"/v1/jobs/{job['id']}{more}") for more in ("", "/events", "/file")]
        places += [("POST", f"/v1/jobs/{job['id']}:{verb}") for verb in ("cancel", "pause", "resume")]
        places += [("GET", f"/v1/blobs/{digest}"), ("GET", "/v1/accounts/ann/tokens"), ("GET", "/v1/usage?account=ann"),
                   ("POST", "/v1/accounts/ann/tokens")]  # fmt: skip
        for method, place in places:
            answer = await bob.request(method, place, json={} if method == "POST" else None)
            assert answer.status_code == 404, (method, place, answer.text)
        assert (await bob.get("/v1/jobs", params={"account": "ann"})).status_code == 403
        stolen = await bob.post("/v1/jobs", json={**QUICK, "model": digest})
        assert stolen.status_code == 404
        assert (await site.admin.get(f"/v1/jobs/{job['id']}")).status_code == 200
        assert (await ended(ann, job["id"]))["state"] == "done"

    serve(main)


def test_a_follower_who_comes_back_misses_nothing_and_gets_nothing_twice(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = await submitted(client, {**QUICK, "kind": "extract"})
        await ended(client, job["id"])
        for name in "abcde":
            await site.manager.store.write(lambda store, name=name: store.events.append(name, {}, job["id"]))
        whole = [event for event in await events_of(client, job["id"]) if event[0]]
        assert [kind for _, kind in whole if kind not in {"state", "stages"}] == ["answer", *"abcde"]
        for at, (number, _) in enumerate(whole):
            assert [event for event in await events_of(client, job["id"], number) if event[0]] == whole[at + 1 :]

    serve(main)


def test_the_stages_of_a_job_come_before_its_end(serve: Serve) -> None:
    async def main(site: Site) -> None:
        job_id = (await submitted(site.admin))["id"]
        await ended(site.admin, job_id)
        at_end = await site.manager.store.read(lambda store: store.job(job_id))
        events = await site.manager.store.read(lambda store: store.events.after(0, job_id=job_id))
        [stages] = [event for event in events if event.kind == "stages"]
        assert stages.created_at <= at_end.updated_at

    serve(main)


@pytest.mark.parametrize("model", ["fake:endless?tasks=2&build_s=0.02&space=16x16x16", "fake:web?tasks=1"])
def test_a_job_costs_no_more_than_is_left_of_the_month(serve: Serve, model: str) -> None:
    async def main(site: Site) -> None:
        limit = 5e-5 * max(os.cpu_count() or 1, 2)
        user = await site.account("usr", month_money=limit)
        job = {"model": model, "dialect": "fake", "threads": 1, "budget": "100000trials,$1000"}
        first, second = await submitted(user, job), await submitted(user, {**job, "seed": 1})
        done = await ended(user, first["id"])
        assert done["state"] == "done"
        if "endless" in model:
            assert all(told in done["message"] for told in ("account usr", f"{limit:.6g}", "UTC"))
            assert "--budget" not in done["message"]
        assert done["message"] in [json.loads(data)["message"] for data in await ends_of(user, first["id"])]
        assert done["request"]["budget_money"] == 1000
        assert done["spend"]["trials"] < 50_000
        await ended(user, second["id"])
        assert (await site.admin.patch("/v1/accounts/usr", json={"month_money": 0.0})).status_code == 200
        refused = await user.post("/v1/jobs", json={**job, "seed": 2})
        assert refused.status_code == 429
        assert all(told in refused.json()["detail"] for told in ("account usr", "UTC"))
        again = await user.post(f"/v1/jobs/{second['id']}:resume")
        assert again.status_code in {422, 429}

    serve(main)


async def ends_of(client: httpx.AsyncClient, job_id: str) -> list[str]:
    async with client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        lines = [line async for line in stream.aiter_lines()]
    return [line.removeprefix("data: ") for before, line in pairwise(lines) if before == "event: end"]


def test_a_months_limit_does_not_hold_in_the_next(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, datetime(2026, 11, 30, 23, 50, tzinfo=UTC))

    async def main(site: Site) -> None:
        user = await site.account("usr", month_money=5e-5 * max(os.cpu_count() or 1, 2))
        job = {**ENDLESS, "budget": "100000trials"}
        november = await ended(user, (await submitted(user, job))["id"])
        assert "2026-12-01" in november["message"]
        await site.admin.patch("/v1/accounts/usr", json={"month_money": november["spend"]["money"] / 2})
        refused = await user.post("/v1/jobs", json={**job, "seed": 1})
        assert refused.status_code == 429
        assert "2026-12-01" in refused.json()["detail"]
        clock.go_on(600.0)
        await site.admin.patch("/v1/accounts/usr", json={"month_money": 1000.0})
        december = await ended(user, (await submitted(user, QUICK))["id"])
        assert (december["state"], december["message"]) == ("done", "")
        for month, job in ((11, november), (12, december)):
            [used] = (await user.get(f"/v1/usage/2026-{month}")).json()
            assert used["total"]["money"] == {"USD": pytest.approx(job["spend"]["money"])}

    serve(main)


def test_jobs_at_once_share_what_is_left_of_the_month(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sheet = tmp_path / "prices.toml"
    sheet.write_text(
        'machine = "m"\ncurrency = "USD"\nmachine_hour = 3600\ncores = 2\nkwh = 0\nsource = "s"\ndate = 2026-01-01\n'
    )
    monkeypatch.setenv("TUNERY_PRICES", str(sheet))

    async def main(site: Site) -> None:
        user = await site.account("usr", month_money=6.0)
        job = {"model": "fake:endless?tasks=2&build_s=0.02&space=16x16x16", "dialect": "fake", "threads": 1}
        job |= {"budget": "100000trials,$1000"}
        jobs = [await submitted(user, {**job, "seed": seed}) for seed in range(4)]
        ends = [await ended(user, one["id"]) for one in jobs]
        assert sum(one["spend"]["money"] or 0.0 for one in ends) < 4 * 6.0
        assert "done" in {one["state"] for one in ends} <= {"done", "failed"}

    serve(main)


def test_weights_lie_beside_their_model_and_nowhere_else(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        digests = []
        for client, blob in ((ann, b"a model"), (ann, b"weights"), (bob, b"bob's")):
            digests.append(f"sha256:{hashlib.sha256(blob).hexdigest()}")
            assert (await client.put(f"/v1/blobs/{digests[-1]}?name=net.onnx", content=blob)).status_code == 201
        model, weights, foreign = digests
        job = {**QUICK, "kind": "extract", "model": model}
        for name in (
            "../w",
            "/etc/w",
            "a/../w",
            "a\\w",
            "",
            ".",
            "..",
            "a//w",
            "w/",
            "net.onnx",
            "net.onnx/w",
            "a\0w",
            "\n",
        ):
            answer = await ann.post("/v1/jobs", json={**job, "weights": {name: weights}})
            assert answer.status_code == 422, name
        assert (await ann.post("/v1/jobs", json={**job, "weights": {"w": weights, "w/w": weights}})).status_code == 422
        assert (await ann.post("/v1/jobs", json={**job, "weights": {"w": foreign}})).status_code == 404
        assert (await ann.post("/v1/jobs", json={**QUICK, "weights": {"w": weights}})).status_code == 422
        for name in ("net.onnx.data", "parts/a b.0", "onnx__MatMul_12", "é.bin"):
            done = await submitted(ann, {**job, "weights": {name: weights}})
            assert "/" not in done["request"]["model"]
            await ended(ann, done["id"])

    serve(main)


def test_jobs_come_in_pages_without_a_gap(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        made = [(await submitted(client, {**QUICK, "kind": "extract"}))["id"] for _ in range(7)]
        seen, cursor = [], ""
        while cursor is not None:
            page = (await client.get("/v1/jobs", params={"limit": 3, "cursor": cursor})).json()
            seen += [job["id"] for job in page["jobs"]]
            cursor = page["next"]
        assert seen == made[::-1]
        assert (await client.get("/v1/jobs", params={"cursor": "1.2.3-" + "a" * 12})).status_code == 422

    serve(main)


def test_a_job_is_paused_resumed_and_cancelled(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = (await submitted(client, ENDLESS))["id"]
        states = []
        for verb in ("pause", "resume", "cancel"):
            answer = await client.post(f"/v1/jobs/{job}:{verb}")
            assert answer.status_code == 200, answer.text
            states.append(answer.json()["state"])
        assert states[0] == "paused"
        assert states[2] == "cancelled"
        assert (await client.post(f"/v1/jobs/{job}:resume")).status_code == 422

    serve(main)


def test_a_compiled_network_is_downloaded_whole_and_in_part(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        await ended(client, (await submitted(client))["id"])
        job = await submitted(client, {**QUICK, "budget": "", "kind": "compile", "predict": False})
        done = await ended(client, job["id"])
        assert done["state"] == "done", done["message"]
        assert "path" not in done["answer"]
        whole = (await client.get(f"/v1/jobs/{job['id']}/file")).content
        part = await client.get(f"/v1/jobs/{job['id']}/file", headers={"Range": "bytes=2-9"})
        assert (part.status_code, part.content) == (206, whole[2:10])
        assert str(site.app.state.service.files) not in json.dumps(done)

    serve(main)


def test_an_unchanged_job_is_not_sent_again(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = (await submitted(client))["id"]
        await ended(client, job)
        first = await client.get(f"/v1/jobs/{job}")
        again = await client.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

    serve(main)


def test_figures_are_counted_for_those_who_watch_the_service(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        await ended(client, (await submitted(client))["id"])
        for place in ("/metrics", "/v1/metrics"):
            lines = (await site.admin.get(place)).text.splitlines()
            assert 'tunery_jobs{state="done"} 1' in lines
            assert any(line.startswith('tunery_core_seconds_total{stage="measure"') for line in lines)
            assert (await client.get(place)).status_code == 403

    serve(main)


def test_the_log_of_a_job_has_its_states(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = await submitted(client, {**QUICK, "kind": "extract"})
        await ended(client, job["id"])
        answer = await client.get(f"/v1/jobs/{job['id']}/events", headers={"Accept": "application/jsonl"})
        told = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["state"] for one in told if one["kind"] == "state"] == ["queued", "running", "done"]
        assert [one["id"] for one in told] == sorted({one["id"] for one in told})

    serve(main)


def test_a_job_that_answers_takes_no_other_budget(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        place = f"/v1/jobs/{(await submitted(client, {**QUICK, 'kind': 'extract'}))['id']}"
        assert (await client.patch(place, json={"budget": "9trials"})).status_code == 422

    serve(main)


def test_of_two_who_change_a_job_one_has_to_look_again(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, other = await site.account("ann", priority=3), await site.account("bob")
        place = f"/v1/jobs/{(await submitted(ann, ENDLESS))['id']}"
        seen = (await ann.get(place)).headers["ETag"]
        both = [client.patch(place, json={"budget": budget}, headers={"If-Match": seen})
                for client, budget in ((ann, "6000trials"), (site.admin, "7000trials"))]  # fmt: skip
        answers = await asyncio.gather(*both)
        assert sorted(answer.status_code for answer in answers) == [200, 412]
        shown = await ann.get(place)
        assert shown.json()["state"] in {"queued", "running"}
        assert shown.json()["request"]["budget_trials"] in {6000, 7000}
        again = await ann.patch(place, json={"priority": 9}, headers={"If-Match": shown.headers["ETag"]})
        assert (again.status_code, again.json()["request"]["queue_priority"]) == (200, 3)
        assert again.json()["request"]["budget_trials"] == shown.json()["request"]["budget_trials"]
        assert (await other.patch(place, json={"priority": 1})).status_code == 404
        assert (await ann.patch(place, json={"budget": "soon"})).status_code == 422
        states = [
            one for one in await site.manager.store.read(lambda store: store.events.after()) if one.kind == "state"
        ]
        for nothing in ({}, {"priority": 3}):
            assert (await ann.patch(place, json=nothing)).status_code == 200
        after = [
            one for one in await site.manager.store.read(lambda store: store.events.after()) if one.kind == "state"
        ]
        assert "paused" not in {one.payload["state"] for one in after[len(states) :]}, (
            "what changes nothing stops nothing"
        )
        assert (await ann.post(f"{place}:cancel")).status_code == 200
        assert (await ann.patch(place, json={"priority": 1})).status_code == 422

    serve(main)


@pytest.mark.parametrize("fault", ["gone", "no directory"])
def test_a_service_that_cannot_keep_files_is_not_ready(serve: Serve, tmp_path: Path, fault: str) -> None:
    async def main(site: Site) -> None:
        assert (await site.client().get("/readyz")).status_code == 200
        files = tmp_path / "files"
        assert not [*files.iterdir()]
        files.rmdir()
        if fault != "gone":
            files.write_bytes(b"")
        answer = await site.client().get("/readyz")
        assert answer.status_code == 503
        assert "kept" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text

    serve(main)


@pytest.mark.usefixtures("worker_processes")
def test_a_service_whose_workers_cannot_keep_what_they_build_is_not_ready(serve: Serve) -> None:
    async def main(site: Site) -> None:
        job = await submitted(site.admin)
        await ended(site.admin, job["id"])
        assert (await site.client().get("/readyz")).status_code == 200
        shutil.rmtree(cache_directory() / "blobs")
        answer = await site.client().get("/readyz")
        assert answer.status_code == 503
        assert str(cache_directory()) not in answer.text

    serve(main)


def test_a_service_that_may_write_no_more_is_not_ready(serve: Serve) -> None:
    async def main(site: Site) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
        try:
            answer = await site.client().get("/readyz")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert answer.status_code == 503

    serve(main)


@pytest.mark.usefixtures("worker_processes")
def test_a_service_whose_workers_cannot_be_started_is_not_ready(serve: Serve) -> None:
    async def main(site: Site) -> None:
        job = await submitted(site.admin)
        await ended(site.admin, job["id"])
        assert (await site.client().get("/readyz")).status_code == 200
        starters = [process for process in psutil.Process().children() if process.children()]
        for process in starters:
            process.suspend()
        try:
            while any(process.status() != psutil.STATUS_STOPPED for process in starters):
                await asyncio.sleep(0.01)
            answer = await site.client().get("/readyz")
            assert answer.status_code == 503
            assert "is stopped" in answer.json()["detail"]
        finally:
            for process in starters:
                process.resume()

    serve(main)
