"""Who gets in, what a request may say, and what is kept of tokens."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from web_tools import Serve, Site

from tunery._errors import NothingFoundError, UsageError
from tunery.cli.app import app
from tunery.web._files import safe_name
from tunery.web._tokens import is_whole, new_token
from tunery.web.server import Place, parse_place, token_here

JOB = {"model": "fake:web?tasks=1", "dialect": "fake", "budget": "8trials", "threads": 1}


@given(st.text(max_size=60))
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert not is_whole(text)


def test_a_token_that_was_cut_or_mistyped_is_told_from_an_unknown_one() -> None:
    token = new_token()
    assert is_whole(token)
    for at in range(len(token)):
        wrong = "y" if token[at] == "x" else "x"
        assert not is_whole(token[:at] + wrong + token[at + 1 :])
        assert not is_whole(token[:at])


@given(st.text(max_size=300))
def test_an_uploads_name_is_a_plain_file_name(name: str) -> None:
    safe = safe_name(name)
    assert Path(safe).name == safe
    assert safe.isascii()
    assert safe.isprintable()
    assert not safe.startswith((".", "-"))
    assert len(safe) <= 90


def test_every_way_without_a_token_is_closed(serve: Serve) -> None:
    async def main(site: Site) -> None:
        schema = (await site.client().get("/v1/openapi.json")).json()
        for path, methods in schema["paths"].items():
            if path in {"/healthz", "/readyz"}:
                continue
            place = path.replace("{job_id}", "a" * 12).replace("{digest}", "sha256:" + "0" * 64)
            place = place.replace("{name}", "ann").replace("{token}", "b" * 12)
            for method in methods:
                for token in ("", "nonsense", new_token(), site.admin_token[:-1]):
                    answer = await site.client(token).request(method, place)
                    assert answer.status_code == 401, (method, path, answer.status_code)
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["detail"]

    serve(main)


def test_roles_bound_what_a_token_may_do(serve: Serve) -> None:
    async def main(site: Site) -> None:
        reader, user = await site.account("rea", "reader"), await site.account("usr")
        assert (await reader.get("/v1/jobs")).status_code == 200
        assert (await reader.post("/v1/jobs", json=JOB)).status_code == 403
        assert (await user.get("/v1/accounts")).status_code == 403
        assert (await user.post("/v1/accounts", json={"name": "x"})).status_code == 403
        assert (await user.get("/v1/metrics")).status_code == 403
        assert (await user.post("/v1/accounts/usr/tokens", json={"role": "admin"})).status_code == 403
        made = (await user.post("/v1/accounts/usr/tokens", json={"role": "reader", "label": "ci"})).json()
        limited = site.client(made["token"])
        assert (await limited.get("/v1/me")).json()["name"] == "usr"
        assert (await limited.post("/v1/jobs", json=JOB)).status_code == 403
        assert (await user.delete(f"/v1/accounts/usr/tokens/{made['id']}")).status_code == 204
        assert (await limited.get("/v1/me")).status_code == 401

    serve(main)


def test_a_token_ends_when_it_should(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr")
        made = (await user.post("/v1/accounts/usr/tokens", json={"days": 1e-6})).json()
        await asyncio.sleep(0.2)
        assert (await site.client(made["token"]).get("/v1/me")).status_code == 401

    serve(main)


def test_a_token_makes_none_that_outlives_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr")
        place = "/v1/accounts/usr/tokens"
        made = (await user.post(place, json={"days": 1})).json()
        short = site.client(made["token"])
        for days in (None, 3000):
            assert (await short.post(place, json={"days": days})).json()["expires_at"] == made["expires_at"]
        sooner = (await short.post(place, json={"days": 0.5})).json()["expires_at"]
        assert sooner < made["expires_at"]
        assert (await user.post(place, json={})).json()["expires_at"] is None

    serve(main)


def test_a_token_of_a_smaller_role_than_its_accounts_ends_only_itself(serve: Serve) -> None:
    async def main(site: Site) -> None:
        place = "/v1/accounts/admin/tokens"
        [first] = (await site.admin.get(place)).json()
        made = (await site.admin.post(place, json={"role": "reader"})).json()
        reader = site.client(made["token"])
        assert (await reader.delete(f"{place}/{first['id']}")).status_code == 403
        assert (await site.admin.get("/v1/accounts")).status_code == 200
        assert (await reader.delete(f"{place}/{made['id']}")).status_code == 204
        assert (await reader.get("/v1/me")).status_code == 401

    serve(main)


def test_a_token_ends_with_the_one_that_made_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        first = await site.account("usr")
        place = "/v1/accounts/usr/tokens"
        stolen = (await first.post(place, json={})).json()
        child = (await site.client(stolen["token"]).post(place, json={})).json()
        grandchild = (await site.client(child["token"]).post(place, json={})).json()
        assert (await site.admin.delete(f"{place}/{stolen['id']}")).status_code == 204
        for one in (stolen, child, grandchild):
            assert (await site.client(one["token"]).get("/v1/me")).status_code == 401
        assert (await first.get("/v1/me")).status_code == 200

    serve(main)


def test_a_new_token_may_end_the_old_one_that_made_it(serve: Serve) -> None:
    async def main(site: Site) -> None:
        old = await site.account("usr")
        place = "/v1/accounts/usr/tokens"
        [first] = (await old.get(place)).json()
        new = site.client((await old.post(place, json={})).json()["token"])
        assert (await new.delete(f"{place}/{first['id']}")).status_code == 204
        assert ((await old.get("/v1/me")).status_code, (await new.get("/v1/me")).status_code) == (401, 200)

    serve(main)


def test_a_token_with_an_end_ends_only_itself(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr")
        place = "/v1/accounts/usr/tokens"
        [first] = (await user.get(place)).json()
        made = (await user.post(place, json={"days": 1})).json()
        short = site.client(made["token"])
        assert (await short.delete(f"{place}/{first['id']}")).status_code == 403
        assert (await short.delete(f"{place}/{made['id']}")).status_code == 204
        assert (await user.get("/v1/me")).status_code == 200

    serve(main)


def test_the_last_administrator_stays_one(serve: Serve) -> None:
    async def main(site: Site) -> None:
        refused = await site.admin.patch("/v1/accounts/admin", json={"role": "reader"})
        assert (refused.status_code, bool(refused.json()["detail"])) == (422, True)
        assert (await site.admin.patch("/v1/accounts/admin", json={"weight": 2.0, "role": "admin"})).status_code == 200
        other = await site.account("eva", "admin")
        assert (await site.admin.patch("/v1/accounts/admin", json={"role": "reader"})).status_code == 200
        assert (await other.patch("/v1/accounts/eva", json={"role": "user"})).status_code == 422

    serve(main)


def test_who_can_write_the_store_gets_back_in(serve: Serve, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")

    async def main(site: Site) -> None:
        place = "/v1/accounts/admin/tokens"
        [first] = (await site.admin.get(place)).json()
        assert (await site.admin.delete(f"{place}/{first['id']}")).status_code == 204
        assert (await site.admin.get("/v1/accounts")).status_code == 401
        asked = ["accounts", "token", "admin", "--role", "admin", "--store", store, "--json"]
        told = await asyncio.to_thread(CliRunner().invoke, app, asked)
        token = json.loads(told.stdout)["token"]
        assert (await site.client(token).get("/v1/accounts")).status_code == 200

    serve(main)
    with pytest.raises(NothingFoundError):
        token_here(store, "nobody", {})
    with pytest.raises(UsageError):
        token_here(store, "admin", {"role": "king"})
    assert token_here(store, "admin", {"role": "user", "days": 1.0})["expires_at"]


def test_the_store_holds_no_token(serve: Serve, tmp_path: Path) -> None:
    tokens: list[str] = []

    async def main(site: Site) -> None:
        user = await site.account("usr")
        tokens.append((await user.post("/v1/accounts/usr/tokens", json={})).json()["token"])
        tokens.append(site.admin_token)
        listed = (await user.get("/v1/accounts/usr/tokens")).text
        assert tokens[0] not in listed

    serve(main)
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("store.db*"))
    assert not [token for token in tokens if token.encode() in kept]


BAD: list[dict[str, Any]] = [
    {}, {"model": 7}, {"model": "/etc/passwd"}, {"model": "../x.onnx"}, {"model": "sha256:short"}, {**JOB, "x": 1},
    {**JOB, "budget": "abc"}, {**JOB, "budget": "0s"}, {**JOB, "threads": -1}, {**JOB, "threads": True},
    {**JOB, "kind": "conquer"}, {**JOB, "shapes": {"x": [0]}}, {**JOB, "shapes": {"x": [1] * 99}},
    {**JOB, "effort": "great"}, {**JOB, "seed": 2**40}, {**JOB, "dialect": "nobody", "model": "nobody:x"},
    {**JOB, "priority": 11}, {**JOB, "kind": "bench", "against": ["nobody"]}, {**JOB, "latency_target_s": -1},
    {**JOB, "model": "fake:a\r\nX-Evil: 1"}, {**JOB, "model": f"fake:{'a' * 600}"},
]  # fmt: skip


def test_a_request_that_cannot_be_right_is_a_problem_in_a_sentence(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr")
        for body in BAD:
            answer = await user.post("/v1/jobs", json=body)
            assert answer.status_code == 422, (body, answer.status_code, answer.text)
            assert answer.json()["detail"], body
            assert answer.json()["type"].startswith("urn:tunery:problem:")
        for raw in (b"", b"{", b"[" * 10_000, b'{"model": NaN}', b"\xff\xfe", b"9" * 5000,
                    b'{"model": "fake:x", "dialect": "fake", "shapes": {"\\ud800": [1]}}'):  # fmt: skip
            answer = await user.post("/v1/jobs", content=raw, headers={"Content-Type": "application/json"})
            assert answer.status_code == 422, (raw[:20], answer.status_code)
            assert answer.json()["type"] == "urn:tunery:problem:request"
        assert (await user.get("/v1/jobs")).json()["jobs"] == []

    serve(main)


def test_an_upload_is_kept_only_whole_and_of_its_digest(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr")
        blob = bytes(100_000)
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        wrong = await user.put(f"/v1/blobs/{digest}", content=blob[:-1])
        assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:tunery:problem:digest")
        assert (await user.get(f"/v1/blobs/{digest}")).status_code == 404
        large = await user.put(f"/v1/blobs/{digest}", content=b"", headers={"Content-Length": str(1 << 50)})
        assert large.status_code == 413
        for _ in range(2):
            assert (await user.put(f"/v1/blobs/{digest}?name=../../a b.onnx", content=blob)).status_code == 201
        for asked, status in (("bytes=x", 400), ("lines=1-2", 400), ("bytes=99999999-", 416)):
            refused = await user.get(f"/v1/blobs/{digest}", headers={"Range": asked})
            assert (refused.status_code, refused.json()["status"]) == (status, status)
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert ("Content-Range" in refused.headers) == (status == 416)
        got = await user.get(f"/v1/blobs/{digest}", headers={"Range": "bytes=0-9"})
        assert (got.status_code, got.content) == (206, bytes(10))
        assert "a_b.onnx" in got.headers["content-disposition"]
        files = site.app.state.service.files
        assert not list(files.rglob(".part-*"))

    serve(main)


def test_an_account_that_has_used_its_month_is_refused(serve: Serve) -> None:
    async def main(site: Site) -> None:
        user = await site.account("usr", month_money=0.0)
        answer = await user.post("/v1/jobs", json=JOB)
        assert answer.status_code == 429
        assert answer.headers["retry-after"]
        assert (await site.admin.patch("/v1/accounts/usr", json={"month_money": 5})).json()["month_money"] == 5
        assert (await user.post("/v1/jobs", json=JOB)).status_code == 201

    serve(main)


def test_usage_of_nobody_is_not_found(serve: Serve) -> None:
    async def main(site: Site) -> None:
        assert (await site.admin.get("/v1/usage?account=nosuch")).status_code == 404
        for asked in ("/v1/usage?account=%00", "/v1/jobs?account=%00", "/v1/operators?text=a%00b"):
            assert (await site.admin.get(asked)).status_code == 422
        label = {"role": "user", "label": "a\0b"}
        assert (await site.admin.post("/v1/accounts/admin/tokens", json=label)).status_code == 422
        await site.account("usr")
        assert (await site.admin.get("/v1/usage?account=usr")).json()["jobs"] == 0

    serve(main)


def test_what_is_not_to_change_is_left_out_and_not_null(serve: Serve) -> None:
    async def main(site: Site) -> None:
        await site.account("usr", month_money=1.0)
        for change in ({"weight": None}, {"role": None}, {"priority": None, "month_money": 1}):
            answer = await site.admin.patch("/v1/accounts/usr", json=change)
            assert (answer.status_code, "leave it out" in answer.json()["detail"]) == (422, True)
        assert (await site.admin.patch("/v1/accounts/usr", json={"month_money": None})).json()["month_money"] is None

    serve(main)


def test_of_two_who_change_an_account_one_has_to_look_again(serve: Serve) -> None:
    async def main(site: Site) -> None:
        ann = await site.account("ann")
        seen = {"If-Match": (await site.admin.get("/v1/accounts/ann")).headers["ETag"]}
        answers = [await site.admin.patch("/v1/accounts/ann", json={"weight": n}, headers=seen) for n in (2.0, 3.0)]
        assert [answer.status_code for answer in answers] == [200, 412]
        fresh = {"If-Match": answers[0].headers["ETag"]}
        assert (await site.admin.patch("/v1/accounts/ann", json={"weight": 4.0}, headers=fresh)).status_code == 200
        assert (await ann.get("/v1/accounts/ann")).json()["weight"] == 4.0
        assert (await ann.get("/v1/accounts/admin")).status_code == 404

    serve(main)


def test_where_the_store_is_nobody_hears(serve: Serve) -> None:
    async def main(site: Site) -> None:
        reader = await site.account("eve", "reader")
        answer = await reader.get("/v1/records", params={"task": "dead"})
        assert answer.status_code == 404
        assert site.manager.store.place not in answer.text

    serve(main)


def test_the_description_of_the_api_is_what_it_was(serve: Serve) -> None:
    """A change of the API is a change of this file: clients that exist rely on it."""
    pinned = Path(__file__).parent / "assets" / "api.json"

    async def main(site: Site) -> None:
        schema = (await site.client().get("/v1/openapi.json")).json()
        ways = {path: sorted(methods) for path, methods in schema["paths"].items()}
        bodies = {name: sorted(one.get("properties", {})) for name, one in schema["components"]["schemas"].items()}
        assert {"ways": ways, "bodies": bodies} == json.loads(pinned.read_text())

    serve(main)


@pytest.mark.parametrize("text", ["", "7433", "host:", ":7433", "host:x", "host:70000"])
def test_a_place_is_an_address_and_a_port(text: str) -> None:
    with pytest.raises(UsageError):
        parse_place(text)


def test_tokens_do_not_cross_a_network_in_the_clear() -> None:
    for place in (Place("0.0.0.0", 1), Place("192.0.2.1", 1), Place("::", 1), Place("example.org", 1),
                  Place("0.0.0.0", 1, certificate="c")):  # fmt: skip
        with pytest.raises(UsageError):
            place.check()
    for place in (Place("127.0.0.1", 1), Place("::1", 1), Place("localhost", 1), Place("0.0.0.0", 1, behind_proxy=True),
                  Place("0.0.0.0", 1, "c", "k")):  # fmt: skip
        place.check()
