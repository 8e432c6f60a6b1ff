"""What a service shows of its work: operators, hosts, devices and usage, and the files of the dashboard."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from test_web_jobs import QUICK, ended, submitted
from web_tools import Serve, Site

from tunery.web._pages import Pages

pytestmark = pytest.mark.usefixtures("inline_workers")

MONTH = datetime.now(UTC).strftime("%Y-%m")


@pytest.mark.jobs
def test_an_account_sees_the_operators_and_the_usage_of_its_own_jobs(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        await ended(ann, (await submitted(ann))["id"])
        (operator,) = (await ann.get("/v1/operators")).json()["operators"]
        assert operator["best_s"] < operator["baseline_s"]
        assert operator["records"] >= 8
        assert (await ann.get("/v1/operators", params={"text": operator["name"].upper()})).json()["operators"]
        assert (await ann.get("/v1/operators", params={"text": "%"})).json()["operators"] == []
        for asked, count in (({"operator": "matmul:"}, 1), ({"operator": "conv2d:"}, 0), ({"workload": ["none"]}, 0),
                             ({"workload": [operator["workload"]]}, 1)):  # fmt: skip
            assert len((await ann.get("/v1/operators", params=asked)).json()["operators"]) == count
        assert (await ann.get("/v1/operators", params={"operator": "?"})).status_code == 422
        assert (await bob.get("/v1/operators")).json() == {"operators": [], "next": None}
        assert len((await site.admin.get("/v1/operators")).json()["operators"]) == 1
        (month,) = (await ann.get(f"/v1/usage/{MONTH}")).json()
        assert (month["account"], month["jobs"], month["total"]["count"]) == ("ann", 1, 8)
        assert sum(one["core_s"] for one in month["outcomes"]) == pytest.approx(month["total"]["core_s"])
        assert 0 <= month["vain_share"] <= 1
        assert (await bob.get(f"/v1/usage/{MONTH}")).json() == []
        assert [one["account"] for one in (await site.admin.get(f"/v1/usage/{MONTH}")).json()] == ["ann"]
        assert (await ann.get("/v1/usage/2026-13")).status_code == 422
        (device,) = (await ann.get("/v1/devices")).json()
        (host,) = (await ann.get("/v1/hosts")).json()
        assert (host["state"], device["fingerprint"] in host["devices"]) == ("up", True)
        assert host["busy"] == 0 < host["granted"], "nothing is done now"

    serve(main)


@pytest.mark.jobs
def test_an_operator_is_shown_with_its_candidates_and_where_else_it_is_used(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        await ended(ann, (await submitted(ann, {**QUICK, "budget": "24trials"}))["id"])
        (known,) = (await ann.get("/v1/operators")).json()["operators"]
        shown = (await ann.get(f"/v1/operators/{known['task']}")).json()
        assert shown["networks"] == ["web"]
        assert [one["best_s"] for one in shown["everywhere"]] == [known["best_s"]]
        timed = [one for one in shown["candidates"] if one["outcome"] == "ok"]
        assert known["best"] in {one["candidate"] for one in timed}
        assert all(one["latency_s"] > 0 for one in timed)
        assert shown["parameters"]
        for where, status in ((f"operators/{known['task']}", 404), ("operators/0000000000000000", 404)):
            assert (await bob.get(f"/v1/{where}")).status_code == status

    serve(main)


@pytest.mark.jobs
def test_a_job_keeps_a_note_and_tags_while_it_is_at_work_and_after(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        job = (await submitted(ann))["id"]
        said = {"note": "for the demo", "tags": ["demo", "int8"]}
        assert (await ann.put(f"/v1/jobs/{job}/note", json=said)).status_code == 200
        await ended(ann, job)
        shown = (await ann.get(f"/v1/jobs/{job}")).json()
        assert {name: shown[name] for name in said} == said
        assert (await ann.put(f"/v1/jobs/{job}/note", json={"tags": ["x"]})).json()["note"] == ""
        for client, body, status in ((bob, said, 404), (ann, {"tags": ["a,b"]}, 422), (ann, {"note": "n" * 5000}, 422)):
            assert (await client.put(f"/v1/jobs/{job}/note", json=body)).status_code == status

    serve(main)


def test_an_administrator_sees_the_uploads_of_accounts(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        digest = f"sha256:{hashlib.sha256(b'model').hexdigest()}"
        assert (await ann.put(f"/v1/blobs/{digest}", content=b"model")).status_code == 201
        for client in (site.admin, ann):
            (one,) = (await client.get("/v1/blobs", params={"account": "ann"})).json()
            assert (one["digest"], one["size_bytes"]) == (digest, 5)
        assert (await bob.get("/v1/blobs", params={"account": "ann"})).status_code == 404

    serve(main)


@pytest.mark.jobs
def test_operators_come_in_pages(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        await ended(client, (await submitted(client, {**QUICK, "model": "fake:three?tasks=3"}))["id"])
        seen, cursor = [], ""
        while cursor is not None:
            page = (await client.get("/v1/operators", params={"limit": 2, "cursor": cursor})).json()
            seen += [one["task"] for one in page["operators"]]
            cursor = page["next"]
        assert len(seen) == len(set(seen)) == 3

    serve(main)


@pytest.mark.jobs
def test_records_are_those_of_tasks_of_ones_own_jobs(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob", "reader")
        await ended(ann, (await submitted(ann))["id"])
        (operator,) = (await ann.get("/v1/operators")).json()["operators"]
        for key in (operator["task"], operator["task"][:6], operator["workload"], operator["best"]):
            assert (await bob.get("/v1/records", params={"task": key})).status_code == 404
        for asks in (ann, site.admin):
            (best,) = (await asks.get("/v1/records", params={"task": operator["task"][:6]})).json()["records"]
            assert best["task"] == operator["task"]
        counts = [(await asks.get("/v1/records/stats")).json() for asks in (ann, bob, site.admin)]
        kinds = ("records", "tasks", "workloads", "networks", "jobs")
        assert [[bool(one[kind]) for kind in kinds] for one in counts] == [[True] * 5, [False] * 5, [True] * 5]
        assert counts[0]["outcomes"] == counts[2]["outcomes"]
        assert counts[1]["devices"] == {}

    serve(main)


@pytest.mark.jobs
def test_a_tuned_job_is_compiled_by_its_account_alone(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob, reader = await site.account("ann"), await site.account("bob"), await site.account("eve", "reader")
        job = await submitted(ann)
        await ended(ann, job["id"])
        assert (await bob.post(f"/v1/jobs/{job['id']}:compile")).status_code == 404
        assert (await bob.get(f"/v1/live/jobs/{job['id']}")).status_code == 404
        for place in ("jobs", f"jobs/{job['id']}", "hosts"):
            assert (await site.client().get(f"/v1/live/{place}")).status_code == 401
        assert (await reader.post(f"/v1/jobs/{job['id']}:compile")).status_code == 403
        answer = await ann.post(f"/v1/jobs/{job['id']}:compile")
        assert answer.status_code == 201
        made = await ended(ann, answer.json()["id"])
        assert (made["kind"], made["state"]) == ("compile", "done"), made["message"]
        assert (await ann.get(f"/v1/jobs/{made['id']}/file")).content

    serve(main)


def test_a_host_that_was_added_and_never_needed_is_listed(serve: Serve) -> None:
    from tunery.engines.remote.registry import add_host

    async def main(site: Site) -> None:
        add_host("pi4", "ssh pi@192.0.2.7")
        hosts = (await site.admin.get("/v1/hosts")).json()
        assert [(host["name"], host["state"]) for host in hosts] == [("here", "up"), ("pi4", "unused")]

    serve(main)


def test_the_pages_run_no_script_but_their_own(serve: Serve) -> None:
    async def main(site: Site) -> None:
        page = await site.client().get("/")
        rules = page.headers["content-security-policy"]
        assert "default-src 'none'" in rules
        assert "unsafe" not in rules
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=|https?:", page.text)
        for name in re.findall(r'(?:src|href)="([\w.]+)"', page.text):
            answer = await site.client().get(f"/{name}")
            assert answer.status_code == 200, name
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await site.client().get("/%2e%2e/%2e%2e/app.py")).status_code == 404

    serve(main)


def test_the_pages_need_no_other_machine() -> None:
    for path in Pages().directory.iterdir():  # type: ignore[union-attr]
        text = re.sub(r"http://www\.w3\.org/\S+", "", path.read_text())
        assert not re.search(r"https?://|//[a-z]+\.", text), path.name


@pytest.mark.jobs
def test_a_months_usage_is_what_its_jobs_have_spent(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        done = [await ended(ann, (await submitted(ann, {**QUICK, "model": f"fake:n{n}?seed={n}"}))["id"]) for n in "12"]
        usage = (await ann.get("/v1/usage")).json()
        assert (usage["jobs"], usage["trials"]) == (2, sum(job["spend"]["trials"] for job in done))
        assert usage["core_s"] == pytest.approx(sum(job["spend"]["core_s"] for job in done))
        (money,) = usage["money"].values()
        assert money == pytest.approx(sum(job["spend"]["money"] for job in done))

    serve(main)


@pytest.mark.jobs
def test_a_job_that_delivers_ends_with_its_file(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        job = (await submitted(ann, {**QUICK, "deliver": True}))["id"]
        done = await ended(ann, job)
        assert (done["state"], done["spend"]["trials"]) == ("done", 8)
        answer = await ann.get(f"/v1/jobs/{job}/file")
        assert len(answer.content) == done["answer"]["compiled"]["size_bytes"] > 0
        assert str(site.app.state.service.files) not in (await ann.get(f"/v1/jobs/{job}")).text
        assert (await bob.get(f"/v1/jobs/{job}/file")).status_code == 404
        charged = await site.manager.store.read(lambda store: store.ledger(job))
        assert "compile" in {charge.stage for charge in charged}
        plain = await ended(ann, (await submitted(ann))["id"])
        assert (await ann.get(f"/v1/jobs/{plain['id']}/file")).status_code == 404

    serve(main)


@pytest.mark.jobs
def test_only_who_has_uploaded_a_network_may_ask_about_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        blob = b"a network"
        place = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        assert (await ann.put(f"/v1/blobs/{place}", content=blob)).status_code == 201
        ask, question = f"/v1/networks/{place}/answer", {"dialect": "fake", "threads": 1}
        later = await ann.post(ask, json=question, params={"wait": 0})
        assert (later.status_code, later.json()["kind"]) == (202, "query")
        assert (await ann.get(later.headers["Location"])).status_code == 200
        assert (await bob.post(ask, json=question)).status_code == 404
        assert (await ann.post(ask, json={**question, "kind": "tune"})).status_code == 422
        assert (await ann.post(ask, json=question)).json()["state"] == "failed", "the fake dialect reads no file"

    serve(main)


@pytest.mark.jobs
def test_a_latency_that_is_known_to_be_met_is_answered_without_a_trial(serve: Serve) -> None:
    async def main(site: Site) -> None:
        client = await site.account("ann")
        job = {"model": "fake:good?tasks=1&space=16x16x2", "dialect": "fake", "threads": 1, "latency_target_s": 3e-4}
        first = await ended(client, (await submitted(client, {**job, "budget": "200trials"}))["id"])
        assert 0 < first["spend"]["trials"] < 200
        again = await ended(client, (await submitted(client, {**job, "budget": "100trials"}))["id"])
        assert (again["state"], again["spend"]["trials"]) == ("done", 0)
        assert "nothing was tuned" in again["message"]

    serve(main)


@pytest.mark.jobs
def test_what_an_account_takes_with_it_names_no_network_of_another(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")
        for client, model in ((ann, "secret?tasks=1"), (ann, "secret2?tasks=2"), (bob, "mine?tasks=1")):
            await ended(client, (await submitted(client, {**QUICK, "model": f"fake:{model}"}))["id"])
        everything = (await site.admin.get("/v1/records/export")).text
        assert all(name in everything for name in ('"secret"', '"secret2"'))
        answer = await bob.get("/v1/records/export")
        assert '"mine"' in answer.text
        assert int(answer.headers["X-Records"]) > 0
        assert "secret" not in answer.text
        assert (await bob.get("/v1/records/export", params={"network": "secret"})).status_code == 404
        assert (await bob.get("/v1/records/export", params={"network": "mine"})).text == answer.text

    serve(main)


@pytest.mark.jobs
def test_what_one_account_has_paid_is_nobody_elses_forecast(serve: Serve) -> None:
    asked = {"model": "fake:next?tasks=2&size=5", "dialect": "fake", "threads": 1, "kind": "query"}

    async def main(site: Site) -> None:
        ann, bob = await site.account("ann"), await site.account("bob")

        async def expected(client: httpx.AsyncClient) -> dict[str, Any] | None:
            told: dict[str, Any] | None = (await ended(client, (await submitted(client, asked))["id"]))["answer"][
                "tuning"
            ]
            return told

        await ended(ann, (await submitted(ann))["id"])
        assert await expected(bob) is None
        assert (await expected(ann) or {})["jobs"] == 1
        for name in ("kim", "lee"):
            client = await site.account(name)
            await ended(client, (await submitted(client))["id"])
        assert (await expected(bob) or {})["jobs"] == 3, "of three accounts nobody can tell one"
        assert (await expected(ann) or {})["jobs"] == 1

    serve(main)
