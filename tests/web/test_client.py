"""The chain of the Python API at a service, and commands there beside the same commands on its store."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import typer
from dashboard_site import Served, matmul_model, served
from typer.testing import CliRunner

import tunery
from tunery.cli.app import app
from tunery.cli.console.remote import followed
from tunery.delivery.files.inspection import inspect
from tunery.domain.request import Progress, Request
from tunery.service.kinds import KINDS
from tunery.service.kinds.compile import CompileOptions
from tunery.tuning.reporting import Phase
from tunery.tuning.work import Work
from tunery.web._bodies import JobIn
from tunery.web.client import ServiceClient, submit

pytestmark = pytest.mark.jobs
NET = "fake:far?tasks=2&ops=elementwise"
HOW = ("--dialect", "fake", "--threads", "1")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNERY_CACHE", str(directory / "cache"))
        patch.setenv("TUNERY_STORE", str(directory / "store.db"))
        with served(directory) as found:
            yield found


@pytest.fixture(scope="module")
def tuned(site: Served) -> Iterator[tunery.Tuned]:
    """A network that the service has tuned."""
    with tunery.connect(site.url, site.admin_token) as client:
        yield client.load(NET).on("native", threads=1, dialect="fake").within("12trials").tune()


def command(*words: str) -> Any:
    """Return what a command prints as JSON."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_chain_at_a_service_is_the_one_of_this_machine(site: Served, tmp_path: Path) -> None:
    seen: list[Progress] = []
    with tunery.connect(site.url, site.admin_token) as client:
        placed = client.load("fake:chain?tasks=2").on("native", threads=1, dialect="fake")
        tuned = placed.within("10trials").tune(on_progress=seen.append)
        assert tuned.result.job.spend.trials == 10
        assert tuned.result.job.job_id in {one.job_id for one in seen} & {one["id"] for one in client.jobs()}
        assert tuned.result.job.job_id in tuned.report() == str(tuned)
        assert tuned.result.after_s < tuned.result.before_s
        compiled = tuned.compile(tmp_path / "net.bin")
        assert compiled.path.stat().st_size == compiled.result.size_bytes
        assert {rung for rung, _ in compiled.result.coverage.values()} <= {"exact", "zero-shot"}
        with pytest.raises(tunery.UsageError, match="store"):
            placed.tune(store=str(tmp_path / "mine.db"))
        with pytest.raises(tunery.UsageError, match="sign"):
            tuned.compile(tmp_path / "signed.bin", sign=tmp_path / "key")
        with pytest.raises(tunery.UsageError, match="trust"):
            tunery.load("fake:chain", trust=True, service=client).on(dialect="fake").tune()


def test_a_model_of_this_machine_is_sent_and_one_that_is_none_is_told(site: Served, tmp_path: Path) -> None:
    with tunery.connect(site.url, site.admin_token) as client, pytest.raises(tunery.UsageError) as refused:
        client.load(tmp_path / "missing.onnx").on(dialect="fake").tune()
    assert "missing.onnx" in str(refused.value)


def test_a_job_that_was_left_can_be_come_back_to_for_its_file(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    file = tmp_path / "my net.tunery"
    asked = {"kind": "tune", "model": "fake:left?tasks=1", "dialect": "fake", "budget": "8trials", "threads": 1}
    with tunery.connect(site.url, site.admin_token) as client:
        job = client.submit({**asked, "deliver": True})["id"]
        bare = client.submit(asked)["id"]
    following = followed(verbose=False, server=site.url, output=file)
    following.__enter__().began(job)
    with pytest.raises(typer.Exit):
        following.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    [advised] = re.findall("`tunery (.*)`", capsys.readouterr().err)
    done = CliRunner().invoke(app, shlex.split(advised))
    assert done.exit_code == 0, done.output
    assert inspect(file).file.dialect == "fake"
    other = tmp_path / "other"
    assert CliRunner().invoke(app, ["jobs", "watch", bare, "-o", str(other), "--server", site.url]).exit_code
    assert not other.exists()


def test_the_table_is_told_where_the_network_was_not_compiled(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compile_network(work: Work, options: CompileOptions) -> None:
        raise tunery.WorkError("the wand is broken")

    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    monkeypatch.setattr("tunery.service.kinds.tune.compile_network", compile_network)
    words = [
        "tune",
        "fake:wand?tasks=1",
        *HOW,
        "--budget",
        "8trials",
        "-o",
        str(tmp_path / "out"),
        "--server",
        site.url,
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "sum of tasks" in done.stdout
    assert "the wand is broken" in done.stderr
    told = CliRunner().invoke(app, [*words, "--json"])
    assert (told.exit_code, json.loads(told.stdout)["status"]) == (1, "done")
    assert "the wand is broken" in json.loads(told.stdout)["error"]


def test_what_is_no_url_and_no_job_is_refused_before_anything_is_asked(site: Served) -> None:
    with pytest.raises(tunery.UsageError, match="http://"):
        tunery.connect("127.0.0.1:7433", "token")
    for wrong in ("http://[::1", "http://x:y:z"):
        with pytest.raises(tunery.UsageError, match="URL"):
            tunery.connect(wrong, "token")
    with tunery.connect(site.url, site.admin_token) as client:
        for wrong in ("ab67", "../accounts", ""):
            with pytest.raises(tunery.NothingFoundError, match="jobs list"):
                client.job(wrong)


def test_a_kernel_file_is_refused_before_it_is_sent(site: Served, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('function = "mine"\n')
    with (
        tunery.connect(site.url, site.admin_token) as client,
        pytest.raises(tunery.UsageError, match="/v1/measurements"),
    ):
        client.load(tmp_path / "mine.toml").on().tune()


@pytest.mark.parametrize(
    "name", sorted(JobIn.model_fields.keys() - {"deliver"} - {one for kind in KINDS.values() for one in kind.asked})
)
def test_what_a_request_says_itself_is_no_option(site: Served, name: str) -> None:
    with (
        tunery.connect(site.url, site.admin_token) as client,
        pytest.raises(tunery.UsageError, match=f"no option '{name}'"),
    ):
        submit(client, Request(NET, dialect="fake", options={name: "1h"}))


def test_the_options_of_a_file_are_sent_by_command_and_from_python(
    site: Served, tuned: tunery.Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    def take(_: ServiceClient, body: dict[str, Any], key: str) -> None:
        sent.append(body)
        raise tunery.UsageError(key)

    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    monkeypatch.setattr(ServiceClient, "submit", take)
    words = ["compile", NET, *HOW, "-o", str(tmp_path / "net.bin"), "--server", site.url]
    for more in ([], ["--any-shape", "--onnxruntime", "parts"]):
        assert CliRunner().invoke(app, [*words, *more]).exit_code == 2
    for any_shape, handed_over in ((False, "auto"), (True, "parts")):
        with pytest.raises(tunery.UsageError):
            tuned.compile(tmp_path / "net.bin", any_shape=any_shape, onnxruntime=handed_over)
    assert [(body["any_shape"], body["onnxruntime"]) for body in sent] == [(False, "auto"), (True, "parts")] * 2


def test_a_jobs_report_and_file_are_shown_from_the_service(
    site: Served, tuned: tunery.Tuned, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    job, there = tuned.result.job.job_id, ("--server", site.url)
    far = command("report", job, "-o", str(tmp_path / "far.html"), *there)
    near = command("report", job, "-o", str(tmp_path / "near.html"))
    assert far["view"] == near["view"]
    assert (tmp_path / "far.html").read_text() == (tmp_path / "near.html").read_text()
    command("compile", NET, *HOW, "-o", str(tmp_path / "net.bin"), *there)
    with tunery.connect(site.url, site.admin_token) as client:
        made = next(one["id"] for one in client.jobs() if one["kind"] == "compile")
    shown, here = command("inspect", made, *there), command("inspect", str(tmp_path / "net.bin"))
    assert {name for name in shown if shown[name] != here[name]} == {"path"}
    refused = CliRunner().invoke(app, ["devices", "calibrate", *there])
    assert refused.exit_code == 2
    assert "its own machine" in refused.output


@pytest.mark.parametrize("location", ["../w.data", "/etc/hostname", "gone.data", "linked.data"])
def test_weights_that_are_not_in_the_models_directory_are_not_sent(site: Served, tmp_path: Path, location: str) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "w.data").write_bytes(bytes(16))
    (tmp_path / "net" / "linked.data").symlink_to(tmp_path / "w.data")
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2],
                              data_location=onnx.TensorProto.EXTERNAL)  # fmt: skip
    weight.external_data.add(key="location", value=location)
    value, out = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "net", [value], [out], [weight])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "net" / "net.onnx")
    with (
        tunery.connect(site.url, site.admin_token) as client,
        pytest.raises(tunery.UsageError, match=location.rpartition("/")[2]),
    ):
        client.load(tmp_path / "net" / "net.onnx").on(dialect="fake").tune()


def test_commands_at_a_service_answer_as_on_its_store(
    site: Served, tuned: tunery.Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    there, job = ("--server", site.url), tuned.result.job.job_id
    task = tuned.result.job.tasks[0].task_key
    several = ("extract", NET, "fake:two?frozen=1", *HOW)
    for words in (
        ("query", NET, *HOW), ("query", task), ("extract", NET, *HOW), several, ("jobs", "log", job),
        ("spend", job), ("spend",),
    ):  # fmt: skip
        assert command(*words, *there) == command(*words), words
    shown, mine = command("jobs", "show", job, *there), command("jobs", "show", job)
    assert {name: value for name, value in shown.items() if mine[name] != value}.keys() <= {"created_at", "updated_at"}
    counted, here = command("records", "stats", *there), command("records", "stats")
    assert counted | {"place": ""} == here | {"place": ""}
    devices, mine = command("devices", "list", *there)["devices"], command("devices", "list")["devices"]
    known = {one["fingerprint"]: one for one in mine}
    assert all(one["records"] > 0 for one in devices)
    same = ("kind", "name", "fingerprint", "records", "calibrations")
    for one, own in ((one, known[one["fingerprint"]]) for one in devices if one["fingerprint"] in known):
        assert {name: one[name] for name in same} == {name: own[name] for name in same}
    assert [(one["name"], one["state"]) for one in command("hosts", "list", *there)["hosts"]] == [("here", "up")]


def test_an_account_takes_its_records_with_it_signed(
    site: Served, tuned: tunery.Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"model": "fake:hers?tasks=1&size=3", "dialect": "fake", "budget": "8trials", "threads": 1}
    token = site.token("kim")
    done = site.ended(token, job)
    monkeypatch.setenv("TUNERY_TOKEN", token)
    file, key = tmp_path / "hers.jsonl", str(tmp_path / "key")
    command("keys", "create", key)
    written = command("records", "export", str(file), "--server", site.url, "--sign", key)["records"]
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["record"]["job_id"] for one in entries if "record" in one} == {done["id"]}
    assert written == sum("record" in one for one in entries) >= 8
    mine = ("--store", str(tmp_path / "mine.db"), "--trusted", f"{key}.pub")
    assert command("records", "import", str(file), *mine)["added"] == written
    file.write_text(file.read_text() + "\n")
    refused = CliRunner().invoke(app, ["records", "import", str(file), *mine])
    assert refused.exit_code == 2
    assert "is not what was signed" in refused.output
    there = ("--server", site.url, "--trusted", f"{key}.pub")
    assert CliRunner().invoke(app, ["records", "import", str(file), *there]).exit_code == 2
    file.write_text(file.read_text()[:-1])
    other = ["records", "import", str(file), *there]
    assert "developer" in CliRunner().invoke(app, other).output, "hints are for all accounts: a user may not give any"
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    assert command(*other) == {"added": 0, "known": written, "refused": 0, "reasons": {}}
    entries[-1]["record"]["candidate"]["body"] = "[1"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in entries))
    taken = command("records", "import", str(file), "--server", site.url)
    assert (taken["added"], taken["refused"]) == (0, 1)
    file.write_text("no records\n")
    wrong = CliRunner().invoke(app, ["records", "import", str(file), "--server", site.url])
    assert (wrong.exit_code, "Traceback" in wrong.output) == (2, False)
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    whole = command("records", "export", str(tmp_path / "all.jsonl"), "--server", site.url)["records"]
    part = command("records", "export", str(tmp_path / "far.jsonl"), "--network", "far")["records"]
    assert written < whole
    assert 0 < part < whole
    absent = CliRunner().invoke(app, ["records", "export", str(tmp_path / "no.jsonl"), "--network", "no such"])
    assert absent.exit_code == 1
    assert not (tmp_path / "no.jsonl").exists()


def test_a_token_is_listed_and_ended(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_SERVER", site.url)
    for name, token in (("lea", site.token("lea")), ("max", site.token("max"))):
        monkeypatch.setenv("TUNERY_TOKEN", token)
        assert command("accounts", "tokens")["account"] == name
    refused = CliRunner().invoke(app, ["accounts", "tokens", "lea"])
    assert (refused.exit_code, "lea" in refused.output) == (1, True), "another account's are not there"
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    made = command("accounts", "token", "lea", "--label", "laptop", "--days", "3", "--role", "reader")
    assert made["id"] in CliRunner().invoke(app, ["accounts", "tokens", "lea"]).output
    [laptop] = [one for one in command("accounts", "tokens", "lea")["tokens"] if one["label"] == "laptop"]
    assert made["token"] not in str(laptop)
    with site.client(made["token"]) as client:
        assert client.get("/v1/me").status_code == 200
        assert command("accounts", "end-token", "lea", laptop["id"])["ended"] == laptop["id"]
        assert client.get("/v1/me").status_code == 401
    for wrong in (laptop["id"], "../../x", "?"):
        again = CliRunner().invoke(app, ["accounts", "end-token", "lea", wrong])
        assert again.exit_code in {1, 2}
        assert "Traceback" not in again.output


def test_what_is_advised_after_tuning_at_a_service_names_it(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    words = ["tune", "fake:advised?tasks=1", *HOW, "--budget", "8trials", "--server", site.url]
    shown = CliRunner().invoke(app, words).output
    [advised] = [line for line in shown.splitlines() if "tunery compile" in line]
    assert advised.endswith(f"--server {site.url}")


@pytest.mark.attack
def test_the_log_of_a_job_has_a_line_for_each_candidate_that_failed(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"model": "fake:bad?tasks=1&one_off=0.7", "dialect": "fake", "budget": "8trials", "threads": 1}
    done = site.ended(site.admin_token, job)
    failed = done["tasks"][0]["outcomes"]["wrong-result"]
    assert failed > 0
    with site.client(site.admin_token) as client, client.stream("GET", f"/v1/live/jobs/{done['id']}") as stream:
        parts = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: "))
        log = next(part["data"] for part in parts if part["name"] == "log")
    assert sum("ended as wrong-result" in line["text"] for line in log) == failed
    assert sum(line["text"].startswith("done") for line in log) == 1
    assert [line["text"] for line in log if line["text"] in {*Phase}][:2] == ["baseline", "search"], "whoever looks on"
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    there = command("jobs", "log", done["id"], "--server", site.url)
    assert there == command("jobs", "log", done["id"])
    assert [one["outcome"] for one in there["failures"]] == ["wrong-result"] * failed
    assert all(one["name"] == done["tasks"][0]["name"] and one["detail"] for one in there["failures"])
    shown = CliRunner().invoke(app, ["jobs", "log", done["id"], "--server", site.url]).output
    assert shown.count("ended as wrong-result") == failed


@pytest.mark.tvm
@pytest.mark.slow
def test_a_model_with_weights_in_other_files_is_sent_whole_and_once(site: Served, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((32, 32), dtype=np.float32) for _ in range(2)]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w0"], ["h"]), onnx.helper.make_node("MatMul", ["h", "w1"], ["y"])],
        "net",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [16, 32])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [16, 32])],
        [onnx.numpy_helper.from_array(value, f"w{number}") for number, value in enumerate(weights)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    with tunery.connect(site.url, site.admin_token) as client:
        tuned = client.load(path).on("native", threads=1).within("6trials").tune()
        compiled = tuned.compile(tmp_path / "net.tunery")
        compiled.benchmark(["onnxruntime"], seconds=0.2)
    local = tunery.load(path).on("native", threads=1).within("1trials").tune()
    assert local.result.job.request["network"] == tuned.result.job.request["network"]
    x = rng.standard_normal((16, 32), dtype=np.float32)
    (ours,) = tunery.InferenceSession(compiled.path).run(None, {"x": x})
    np.testing.assert_allclose(ours, x @ weights[0] @ weights[1], rtol=1e-3, atol=1e-4)


@pytest.mark.tvm
@pytest.mark.slow
def test_a_model_sent_is_tuned_fetched_and_compared_at_the_service(site: Served, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(matmul_model("tiny"))
    with tunery.connect(site.url, site.admin_token) as client:
        asked = client.answer(client.upload(tmp_path / "tiny.onnx"), {"threads": 1, "latency_target_s": 1.0})
        assert (asked["state"], asked["answer"]["met"], len(asked["answer"]["tasks"])) == ("done", False, 1)
        tuned = client.load(tmp_path / "tiny.onnx").on("native", threads=1).within("6trials").tune()
        compiled = tuned.compile(tmp_path / "tiny.tunery")
        compared = compiled.benchmark(["onnxruntime"], seconds=0.2)
    assert compared.result.latency_s.keys() == {"onnxruntime", "tunery"}
    assert "ONNX Runtime" in str(compared)
    x = np.random.default_rng(0).standard_normal((16, 32), dtype=np.float32)
    (ours,) = tunery.InferenceSession(compiled.path).run(None, {"x": x})
    (theirs,) = onnxruntime.InferenceSession(tmp_path / "tiny.onnx").run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [("bench", "model"), ("bench", "shape"), ("query", "target"), ("tune", "shape"), ("extract", "model")],
)
def test_a_wrong_use_ends_at_a_service_as_it_does_here(
    site: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, wrong: str
) -> None:
    monkeypatch.setenv("TUNERY_TOKEN", site.admin_token)
    model = tmp_path / "net.onnx"
    model.write_bytes(matmul_model("net")[: 20 if wrong == "model" else None])
    given = {"model": (), "shape": ("--shape", "none=1x2"), "target": ("--target", "nothing")}[wrong]
    words = [verb, str(model), "--threads", "1", *given]
    here, there = (CliRunner().invoke(app, [*words, *more]) for more in ((), ("--server", site.url)))
    assert (here.exit_code, there.exit_code) == (2, 2), (here.output, there.output)
    said = [found.output.strip().splitlines()[-1] for found in (here, there)]
    assert said[1] == said[0].replace(f"{tmp_path}/", "")
