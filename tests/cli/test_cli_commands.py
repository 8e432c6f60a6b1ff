"""Every command does what it says, on a compiler that needs no time; JSON shapes are those of docs/json.md."""

import json
import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import Run

from tunery import accounting
from tunery._settings import login_file
from tunery.accounting.prices import load_prices
from tunery.cli import tune
from tunery.cli.console.remote import stated
from tunery.domain import Budget, JobState, Mode, Origin, Outcome, TaskState, Verification
from tunery.domain.request import BenchReport, Latency, Progress, Request, Speed, TuneReport, Verdict
from tunery.service.codec import request_data
from tunery.store import open_store

pytestmark = pytest.mark.jobs

FAKE = ("--dialect", "fake")


def test_tune_prints_each_task_the_totals_and_how_to_use_it(run: Run) -> None:
    answer = run("tune", "fake:demo?tasks=2&frozen=1&refuse=0.3", *FAKE, "--budget", "24trials")
    assert answer.code == 0
    for word in ("matmul_0", "untuned ms", "speed-up", "nothing to tune", "build-failed", "sum of tasks", "store.db",
                 "tunery compile", "tunery.load_compiled("):  # fmt: skip
        assert word in answer.out
    assert "search" in answer.err


def test_tune_says_how_many_kernels_were_measured_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("tune", "fake:demo", *FAKE, "--budget", "24trials", "--threads", "1")
    monkeypatch.setattr("tunery.devices.cpu.device.CpuDevice.slots", lambda *_: [(0,), (1,)])
    text = run(*args).out
    assert "measured    one at a time; `tunery devices calibrate --threads 1` finds out whether up to 2" in text
    data = run(*args, "--json").data
    assert (data["slots"], data["calibrated_at"], {task["degree"] for task in data["tasks"]}) == (2, None, {1})
    monkeypatch.setattr("tunery.devices.cpu.device.CpuDevice.slots", lambda *_: [(0,)])
    assert "measured    one at a time: the device has one slot for kernels of 1 thread" in run(*args).out


def test_tune_json_has_the_documented_shape(run: Run) -> None:
    answer = run("tune", "fake:demo", *FAKE, "--budget", "24trials", "--json")
    data = answer.data
    assert {"job", "status", "spend", "tasks", "network"} <= data.keys()
    assert data["status"] == "done"
    assert data["network"].keys() >= {"before_s", "after_s"}
    assert 0 < data["network"]["after_s"] <= data["network"]["before_s"]
    assert sum(sum(task["outcomes"].values()) for task in data["tasks"]) == data["spend"]["trials"] == 24
    for task in data["tasks"]:
        assert {"name", "baseline_s", "best_s", "measured", "outcomes"} <= task.keys()
        assert task["best_s"] <= task["baseline_s"]


def test_tune_with_output_compiles_into_a_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    data = run("tune", "fake:demo", *FAKE, "--budget", "9trials", "-o", "out", "--json").data
    assert data["compiled"]["path"] == "out/demo.tunery"
    assert all(entry.keys() == {"rung", "candidate"} for entry in data["compiled"]["coverage"].values())
    assert (tmp_path / "out" / "demo.tunery").stat().st_size == data["compiled"]["size_bytes"]


def test_tuning_again_goes_on_from_what_is_known(run: Run) -> None:
    first = run("tune", "fake:demo", *FAKE, "--budget", "12trials", "--json").data
    second = run("tune", "fake:demo", *FAKE, "--budget", "12trials", "--json").data
    assert second["job"] != first["job"]
    assert second["network"]["after_s"] <= first["network"]["after_s"] * 1.05
    exported = run("records", "stats", "--json").data
    assert exported["records"] >= 24


def test_extract(run: Run) -> None:
    data = run("extract", "fake:demo?frozen=1", *FAKE, "--json").data
    assert data["network"] == "demo"
    assert [task["tunable"] for task in data["tasks"]].count(False) == 1
    for task in data["tasks"]:
        assert {"name", "workload", "weight", "tunable"} <= task.keys()
    several = run("extract", "fake:a", "fake:b?tasks=1", *FAKE, "--json").data
    assert [one["network"] for one in several["networks"]] == ["a", "b"]
    assert "4 tasks, 3 of them tunable" in run("extract", "fake:demo?frozen=1", *FAKE).out


def test_compile_says_what_covers_each_task(tuned: Run, tmp_path: Path) -> None:
    data = tuned("compile", "fake:demo", *FAKE, "-o", "demo.tunery", "--json").data
    assert {entry["rung"] for entry in data["coverage"].values()} == {"exact"}
    assert data["size_bytes"] == (tmp_path / "demo.tunery").stat().st_size
    text = tuned("compile", "fake:demo?seed=1", *FAKE, "-o", "other.tunery").out
    assert "0 of 3 tasks use a verified record" in text
    assert 'tunery.load_compiled("other.tunery")' in text


def test_what_a_search_did_without_is_said_where_more_is_asked_for(run: Run, tmp_path: Path) -> None:
    run("tune", "fake:demo", *FAKE, "--budget", "24trials")
    with open_store(str(tmp_path / "store.db")) as store:
        record = store.records(outcomes=[Outcome.OK], limit=1)[0]
        context = {**record.measurement.context, "left_out": {"winograd4": "RuntimeError: no genes"}}
        task = store.task(record.candidate.task_key)
        store.add_record(task, replace(record, measurement=replace(record.measurement, context=context)))
        old = replace(record.provenance, compiler="an older one")
        other = replace(record.measurement, context={"left_out": {"winograd2": "long ago"}})
        store.add_record(task, replace(record, provenance=old, measurement=other))
    said = f"left out    {task.workload.name}:{task.workload.key[:8]}: winograd4 (RuntimeError: no genes)"
    for command in (("compile", "fake:demo", "-o", "demo.tunery"), ("tune", "fake:demo", "--budget", "9trials")):
        for verbose, expected in (((), []), (("-v",), [said])):
            lines = run(*command, *FAKE, *verbose).out.splitlines()
            assert [line for line in lines if line.startswith("left out")] == expected


def test_query_of_a_model_and_of_a_task(tuned: Run) -> None:
    data = tuned("query", "fake:demo", *FAKE, "--json").data
    assert len(data["tasks"]) == 3
    task = data["tasks"][0]
    assert task["rung"] == "exact"
    assert task["latency_s"] <= task["baseline_s"]
    records = tuned("query", task["task"], "--json").data["records"]
    assert [record["candidate"] for record in records] == [task["candidate"]]
    assert records[0]["verification"]["passed"] is True
    assert task["candidate"] in tuned("query", "fake:demo", *FAKE).out
    assert task["candidate"] in tuned("query", task["task"]).out


def test_query_says_whether_a_latency_is_met_and_what_tuning_a_new_network_takes(tuned: Run) -> None:
    assert "is met: nothing needs to be tuned" in tuned("query", "fake:demo", *FAKE, "--latency-target", "10s").out
    assert tuned("query", "fake:demo", *FAKE, "--latency-target", "1us", "--json").data["met"] is False
    unknown = tuned("query", "fake:new?tasks=2&space=8x8x8", *FAKE, "--threads", "1")
    assert unknown.code == 1
    assert "going by the last job" in unknown.err
    assert "run `tunery tune 'fake:new?tasks=2&space=8x8x8' --threads 1 " in unknown.err


def test_a_task_may_be_named_by_the_start_of_its_key_as_tables_show_it(tuned: Run, tmp_path: Path) -> None:
    tasks = tuned("query", "fake:demo", *FAKE, "--json").data["tasks"]
    task = tasks[0]["task"]
    assert tuned("query", task[:6], "--json").data == tuned("query", task, "--json").data
    assert f" {task[:6]}" in tuned("spend").out
    [job] = [status["job"] for status in tuned("jobs", "list", "--json").data["jobs"]]
    for command in (("query", "fake:demo", *FAKE), ("extract", "fake:demo", *FAKE), ("jobs", "show", job)):
        rows = [line.split() for line in tuned(*command).out.splitlines()]
        assert {row[1] for row in rows if row and row[0].startswith(("matmul", "elementwise", "gather"))} == {
            one["task"][:6] for one in tasks
        }
    rows = [line.split() for line in tuned("compile", "fake:demo", *FAKE, "-o", str(tmp_path)).out.splitlines()]
    shown = [row[1] for row in rows if row and row[0] == tasks[0]["name"]]
    assert [tuned("query", key, "--json").data for key in shown] == [tuned("query", task, "--json").data]
    assert "knows no task 012345" in tuned("query", "012345").err


def test_query_of_an_operator_and_of_all_that_is_known_of_a_model(tuned: Run) -> None:
    tasks = {one["task"]: one for one in tuned("extract", "fake:demo", *FAKE, "--json").data["tasks"]}
    best = {one["task"]: one["candidate"] for one in tuned("query", "fake:demo", *FAKE, "--json").data["tasks"]}
    known = tuned("query", "fake:demo", *FAKE, "--all", "--json").data["operators"]
    assert {one["task"]: one["best"] for one in known} == best
    assert all(one["operator"] == tasks[one["task"]]["operator"] for one in known)
    keys = {one["operator"] for one in known} - {None}
    for key in keys:
        expected = [one for one in known if one["operator"] == key]
        assert tuned("query", key, "--json").data["operators"] == expected
        assert {one["dialect"] for one in expected} == {"fake"}
    assert tuned("query", "matmul:", "--json").data["operators"]
    assert "matmul:" in tuned("query", "matmul:").out
    assert all(one["name"] in tuned("query", "fake:demo", *FAKE, "--all").out for one in known if not one["operator"])
    nothing = tuned("query", "conv2d:groups=3")
    assert (nothing.code, nothing.out) == (1, "")
    assert tuned("query", "matmul:a=0x?=").code == 2


def test_query_shows_the_untuned_latency_of_the_last_finals_as_the_job_does(run: Run, tmp_path: Path) -> None:
    [state] = run("tune", "fake:demo?tasks=1", *FAKE, "--budget", "9trials", "--json").data["tasks"]
    with open_store(str(tmp_path / "store.db")) as store:
        *_, last = [r for r in store.records(modes=[Mode.FINAL]) if r.candidate.origin is Origin.BASELINE]
        begun = Verification("reference", 1, 0.0, passed=True)  # it lost, so that nobody verified it to the end
        samples_s = tuple(6 * one for one in last.measurement.samples_s)
        slower = replace(last.measurement, samples_s=samples_s, verification=begun)
        store.add_record(store.task(state["task"]), replace(last, measurement=slower))
    [task] = run("query", "fake:demo?tasks=1", *FAKE, "--json").data["tasks"]
    assert state["baseline_s"] == last.measurement.latency_s
    assert task["baseline_s"] == slower.latency_s == pytest.approx(6 * state["baseline_s"])


def test_a_list_of_jobs_and_their_reports_sum_the_same_tasks(run: Run, tmp_path: Path) -> None:
    ok = {"measured": 4, "outcomes": {"ok": 4}, "best_candidate": "c"}
    tasks = (
        TaskState("a", "a", "a", "dense", 2, tunable=True, baseline_s=0.5, best_s=0.01, **ok),
        TaskState("b", "b", "b", "layout", 1, tunable=False, baseline_s=0.002, best_s=0.002),
        TaskState("m", "m", "missed", "dense", 1, tunable=True, baseline_s=0.3, best_s=0.3, untried=True),
    )
    with open_store(str(tmp_path / "store.db")) as store:
        job = store.create_job({"name": "n"})
        store.save_job(replace(job, tasks=tasks))
    [whole] = [line.split() for line in run("jobs", "show", job.job_id).out.splitlines() if "sum of" in line]
    listed = run("jobs", "list").out
    [row] = [line.split() for line in listed.splitlines() if line.startswith(job.job_id)]
    assert whole[:4] + whole[5:8] == ["sum", "of", "tasks", "reached", "1002", "22.0", "45.55x"]
    assert set(whole[5:8]) <= set(row)
    assert "sums of the tasks that a job reached" in listed
    [said] = stated(replace(job, tasks=tasks)).lines
    assert "sum of tasks reached 22.0 ms (untuned 1002)" in said


def test_the_list_of_jobs_says_why_one_waits_that_no_service_takes(run: Run, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        waiting, other = (store.create_job({"name": name}).job_id for name in "nm")
        store.explain_job(waiting, "its model is on no host")
    [line] = [line for line in run("jobs", "list").out.splitlines() if "its model is on no host" in line]
    assert waiting in line
    assert other not in line
    assert "its model is on no host" in run("jobs", "show", waiting).out


@pytest.mark.attack
def test_the_list_of_jobs_says_which_ones_had_stored_records_and_measured_nothing(run: Run, tmp_path: Path) -> None:
    task = TaskState("a", "a", "a", "dense", 1, tunable=True, baseline_s=0.5, best_s=0.1, best_candidate="c")
    with open_store(str(tmp_path / "store.db")) as store:
        job = store.create_job({"name": "n"})
        store.save_job(replace(job, state=JobState.DONE, tasks=(task,)))
        other = store.create_job({"name": "m"}).job_id
    listed = run("jobs", "list").out
    [row] = [line for line in listed.splitlines() if line.startswith(job.job_id) and "n" in line.split()]
    assert "5.00x" in row
    [said] = [line for line in listed.splitlines() if "from stored records" in line]
    assert job.job_id in said
    assert other not in said


@pytest.mark.attack
def test_a_service_that_was_logged_in_to_is_named_where_none_of_ones_own_runs(run: Run) -> None:
    login_file().parent.mkdir(parents=True, exist_ok=True)
    login_file().write_text(json.dumps([{"urls": ["http://tuning.example:1"], "token": "t"}]))
    answer = run("jobs", "submit", "fake:demo", *FAKE)
    assert answer.code == 2
    assert "--server http://tuning.example:1" in answer.err


def test_records_of_an_equal_host_are_shown_with_its_name(run: Run, tmp_path: Path) -> None:
    args = ("fake:demo?tasks=1", *FAKE, "--threads", "1")
    run("tune", *args, "--budget", "8trials")
    [job] = run("jobs", "list", "--json").data["jobs"]
    assert "same fingerprint" not in run("jobs", "show", job["job"]).out
    with open_store(str(tmp_path / "store.db")) as store:
        status = store.job(job["job"])
        store.save_job(replace(status, tasks=tuple(replace(task, best_host="twin") for task in status.tasks)))
        for record in store.records():
            faster = replace(record.measurement, samples_s=tuple(0.5 * one for one in record.measurement.samples_s))
            store.add_record(store.task(record.candidate.task_key), replace(record, measurement=faster, host="twin"))
    for command in (("query", *args), ("compile", *args, "-o", str(tmp_path / "net")), ("jobs", "show", job["job"])):
        text = run(*command).out
        assert "1 measured on host twin" in text
        assert command[0] == "jobs" or "exact, host twin" in text


def test_query_without_records_says_what_to_do(first_run: Run) -> None:
    answer = first_run("query", "fake:demo", *FAKE)
    assert answer.code == 1
    assert "tunery tune fake:demo" in answer.err
    assert first_run("query", "0123456789abcdef").code == 1


def test_jobs_are_listed_shown_and_not_resumed_when_done(tuned: Run) -> None:
    [job] = tuned("jobs", "list", "--json").data["jobs"]
    assert job["status"] == "done"
    shown = tuned("jobs", "show", job["job"], "--json").data
    assert shown["request"]["model"] == "fake:demo"
    assert len(shown["tasks"]) == 3
    assert job["job"] in tuned("jobs", "list").out
    assert {"remaining", "outlook"} <= shown.keys()
    assert "$" not in tuned("jobs", "show", job["job"]).out, "nobody asked for money"
    text = tuned("jobs", "show", job["job"], "-v").out
    assert "matmul_0" in text
    assert all(said in text for said in ("spent  ", " J (modelled)" * shown["spend"]["modelled"], "$"))
    assert "not used" not in text, "all trials were"
    again = tuned("jobs", "resume", job["job"])
    assert again.code == 2
    assert "is done" in again.err
    assert tuned("jobs", "show", "nonsense").code == 1


def test_an_operator_has_the_figures_that_its_network_tells(tuned: Run) -> None:
    tasks = tuned("query", "fake:demo", *FAKE, "--json").data["tasks"]
    for task in tasks:
        [record] = tuned("query", task["task"], "--json").data["records"][:1]
        assert (record["candidate"], record["latency_s"]) == (task["candidate"], task["latency_s"])
    known = {row["task"]: row for row in tuned("query", "fake:demo", *FAKE, "--all", "--json").data["operators"]}
    assert {key: (row["best_s"], row["baseline_s"]) for key, row in known.items()} == {
        task["task"]: (task["latency_s"], task["baseline_s"]) for task in tasks if task["task"] in known
    }


def test_a_job_whose_files_directory_is_gone_goes_on_with_another_file(run: Run, tmp_path: Path) -> None:
    request = Request(
        "fake:demo?tasks=1", dialect="fake", threads=1, budget=Budget.parse("4trials"),
        options={"output": str(tmp_path / "gone" / "a.tunery")},
    )  # fmt: skip
    place = str(tmp_path / "resumed.db")
    with open_store(place) as store:
        job_id = store.create_job(request_data(request)).job_id
    refused = run("jobs", "resume", job_id, "--store", place)
    assert refused.code == 2
    assert "gone" in refused.err
    resumed = run("jobs", "resume", job_id, "--store", place, "-o", str(tmp_path / "b.tunery"), "--json")
    assert (resumed.code, resumed.data["job"], resumed.data["status"]) == (0, job_id, "done")
    assert (tmp_path / "b.tunery").exists()


def test_spend_adds_up_the_same_by_stage_and_by_task(tuned: Run) -> None:
    data = tuned("spend", "--json").data
    assert {row["name"] for row in data["stages"]} >= {"propose", "build", "measure"}
    assert data["hosts"][0]["name"] == platform.node()
    for view in ("stages", "tasks", "outcomes", "hosts"):
        for field in ("worker_s", "core_s", "device_s", *(["count"] if view != "outcomes" else [])):
            assert sum(row[field] for row in data[view]) == pytest.approx(data["total"][field])
    shared = "of no single candidate"
    tried = [row["count"] for row in data["outcomes"] if row["name"] not in {shared, "filtered"}]
    assert sum(tried) == 30, "by outcome, candidates are counted once, though they were built and raced"
    assert f"{shared}: import" in tuned("spend").out
    assert "by stage" in tuned("spend").out
    assert tuned("spend", "nonsense").code == 1


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_the_same_prices_give_the_same_sum(tuned: Run, tmp_path: Path, times: float) -> None:
    """The job's measurements held several cores, and for a while nothing held any."""
    shipped = Path(accounting.__file__).with_name("prices.toml").read_text(encoding="utf-8")
    sheet, hour = tmp_path / "ours.toml", times * load_prices().machine_hour
    sheet.write_text(re.sub(r"(?m)^machine_hour = \S+", f"machine_hour = {hour}", shipped), encoding="utf-8")
    charged, priced = (tuned("spend", "--json", *more).data for more in ([], ["--prices", str(sheet)]))
    assert priced["total"]["money"]["USD"] == pytest.approx(times * charged["total"]["money"]["USD"], rel=0.01)
    for view in ("stages", "tasks", "outcomes", "hosts"):
        paid = sum(row["money"].get("USD", 0.0) for row in priced[view])
        assert paid == pytest.approx(priced["total"]["money"]["USD"])


def test_spend_is_drawn_and_the_shares_that_did_not_help_add_up(tuned: Run, tuned_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "spend.png"
    vain = {row.pop("stage"): row for row in tuned("spend", "--json", "--chart", str(file)).data["did_not_help"]}
    assert file.read_bytes().startswith(b"\x89PNG\r\n")
    assert vain.keys() == {"propose", "build", "measure", "all"}
    assert all(0 < share < 1 for row in vain.values() for share in row.values())
    with open_store(str(tuned_store)) as store:
        charges = [charge for charge in store.ledger() if charge.outcome or charge.stage == "propose"]
    for share, amount in (("count_share", "count"), ("worker_share", "wall_s"), ("core_share", "core_s")):
        whole: Counter[str] = Counter()
        wasted: Counter[str] = Counter()
        for charge in charges:
            if charge.stage in {"propose", "build", "measure"}:
                whole[charge.stage] += getattr(charge, amount)
                wasted[charge.stage] += 0 if charge.helped else getattr(charge, amount)
        for stage in ("build", "measure"):
            assert vain[stage][share] == pytest.approx(wasted[stage] / whole[stage])
        parts = sum(vain[stage][share] * whole[stage] for stage in whole)
        assert vain["all"][share] == pytest.approx(parts / whole.total())
    assert "on candidates that did not help" in tuned("spend").out


def test_spend_of_an_empty_store(first_run: Run) -> None:
    assert first_run("spend").out == "nothing was spent yet\n"
    assert first_run("spend", "--json").data["total"] is None


def test_records_travel_from_store_to_store(tuned: Run, tmp_path: Path) -> None:
    count = tuned("records", "stats", "--json").data["records"]
    assert tuned("records", "export", "all.jsonl", "--json").data == {"records": count, "path": "all.jsonl"}
    other = ("--store", str(tmp_path / "other.db"))
    assert tuned("records", "import", "all.jsonl", *other, "--json").data == {
        "added": count,
        "known": 0,
        "refused": 0,
        "reasons": {},
    }
    assert f"0 records added, {count} were known" in tuned("records", "import", "all.jsonl", *other).out
    removed = tuned("records", "prune", "--keep", "1", *other, "--json").data["removed"]
    assert 0 < removed < count
    assert tuned("records", "stats", *other, "--json").data["records"] == count - removed
    assert "ok" in tuned("records", "stats", *other).out
    assert tuned("records", "prune", "--keep", "1", "--task", "0" * 16, *other).code == 1


def test_zoo_devices_and_version(first_run: Run) -> None:
    networks = first_run("zoo", "list", "--json").data["networks"]
    assert {"name", "kind", "parameters"} == networks[0].keys()
    assert "mobilenet_v2" in first_run("zoo", "list").out
    devices, said = first_run("devices", "list", "--json").data["devices"], first_run("devices", "list").out
    assert devices[0]["kind"] == "cpu"
    assert all(device["fingerprint"] in said for device in devices)
    assert {device["records"] for device in devices} == {0}
    assert first_run("version", "--json").data["apache-tvm"] == "0.27.0.post1"
    assert "tunery " in first_run("version").out
    assert first_run("--version") == first_run("version")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, tuple[str, ...], float]]:
    """Stands in for the measuring of whole networks, which needs an ONNX model."""
    asked = []

    def bench(
        session: object,
        request: Request,
        against: tuple[str, ...],
        seconds: float,
        compiled: Path | None,
        on_progress: Callable[[Progress], None],
        *,
        others: Mapping[str, Path],
    ) -> BenchReport:
        assert not others
        asked.append((request, tuple(against), seconds))
        on_progress(Progress("", "comparing", 2.0, 9.0, 0, None, None, None, f"{compiled}, turn 1 of 7"))
        rivals = {"untuned": Latency(1.6, 1.5, 1.7, 3), "onnxruntime": Latency(0.012, 0.011, 0.013, 50)}
        chosen = {name: rivals[name] for name in against}
        verdict = Verdict(0.0, Speed(1.5, 1.4, 1.6, 7))
        ours = {"tunery": Latency(0.008, 0.007, 0.009, 70)}
        return BenchReport("demo", 2, {**ours, **chosen}, float("inf"), verdict=verdict)

    monkeypatch.setattr("tunery.service.session.Session.bench", bench)
    return asked


def test_bench_leads_with_onnx_runtime(run: Run, measured: list[tuple[Request, tuple[str, ...], float]]) -> None:
    answer = run("bench", "fake:demo", *FAKE, "--against", "untuned, onnxruntime", "--seconds", "2")
    assert measured == [(measured[0][0], ("untuned", "onnxruntime"), 2.0)]
    rows = [line for line in answer.out.splitlines() if " to " in line]
    assert [row.split()[0] for row in rows[2:]] == ["ONNX", "tunery", "untuned"], "after the headline and the heading"
    assert "1.50x faster" in rows[2]
    assert answer.out.splitlines()[:2] == [
        "demo, whole network, 2 threads",
        Verdict(0.0, Speed(1.5, 1.4, 1.6, 7)).headline,
    ]
    first = answer.err.splitlines()[0]
    assert first.startswith("comparing what is compiled from the best records with untuned code and ONNX Runtime: ")
    assert first.endswith(": compiling first, then about 12s")
    assert "comparing None, turn 1 of 7" in answer.err
    data = run("bench", "fake:demo", *FAKE, "--json").data
    assert data["latency_s"]["onnxruntime"] == {"median": 0.012, "p10": 0.011, "p90": 0.013, "samples": 50}
    assert (data["network"], data["threads"], data["max_abs_error"]) == ("demo", 2, None)


def test_tune_against_rivals_ends_with_the_comparison(
    run: Run, measured: list[tuple[Request, tuple[str, ...], float]]
) -> None:
    args = ("tune", "fake:demo", *FAKE, "--budget", "6trials", "--against", "onnxruntime")
    assert run(*args, "--json").data["bench"]["latency_s"].keys() == {"tunery", "onnxruntime"}
    answer = run(*args, "-o", "demo.tunery")
    assert answer.out.index("as ONNX Runtime") < answer.out.index("sum of tasks") < answer.out.index("to use it")
    [headline] = [line for line in answer.out.splitlines() if "runs: " in line]  # the file's own is the only one
    latest = run("jobs", "list", "--json").data["jobs"][0]["job"]
    assert headline in run("jobs", "show", latest).out.splitlines()
    assert run("jobs", "show", latest, "--json").data["headline"] == headline
    assert "with ONNX Runtime: about 24s" in answer.err
    assert "comparing demo.tunery, turn" in answer.err, "what was compiled already is not compiled again"


def test_what_onnx_runtime_runs_is_not_compared_with_it_but_the_kernels_are(
    run: Run, measured: list[tuple[Request, tuple[str, ...], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def handed_over(*given: Any, **how: Any) -> tuple[TuneReport, int | None]:
        report, code = watched(*given, **how)
        assert report.compiled is not None
        return replace(report, compiled=replace(report.compiled, coverage={}, elsewhere={"Gemm g": "faster"})), code

    watched = tune.watched
    monkeypatch.setattr(tune, "watched", handed_over)
    args = ("tune", "fake:demo", *FAKE, "--budget", "6trials", "--against", "onnxruntime", "-o", "demo.tunery")
    answer = run(*args, "--json")
    assert "comparing None, turn" in answer.err
    assert answer.data["bench"]["verdict"] == answer.data["compiled"]["verdict"]
    assert answer.data["compiled"]["verdict"]["onnxruntime_share"] == 1.0
