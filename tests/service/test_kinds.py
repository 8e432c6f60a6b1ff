"""Jobs of every kind in one manager: queued, charged, answered, refused, and taken up again after a kill."""

import asyncio
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from tunery._errors import UsageError, WorkError
from tunery.cli.app import app
from tunery.domain import Budget, JobState, JobStatus
from tunery.domain.request import NO_TRIMMING, Progress, Request, ShareRequest, TuneReport
from tunery.service.codec import request_data, request_of
from tunery.service.job import Job
from tunery.service.kinds import KINDS, options_of
from tunery.service.kinds._base import JobKind, Options
from tunery.service.manager import JobManager
from tunery.service.session import tune
from tunery.service.stored_jobs import create_at_work, refuse_twin
from tunery.store import Store, StoredAccount, open_store
from tunery.tuning.job import leave
from tunery.tuning.work import Work
from tunery.web._bodies import JobIn

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]


def request(kind: str = "tune", **options: object) -> Request:
    budget = Budget.parse("8trials") if kind == "tune" else Budget()
    return Request("fake:demo?tasks=2", dialect="fake", threads=1, budget=budget, kind=kind, options=options)


def answer_of(store: Store, status: JobStatus) -> Any:
    [answer] = [event.payload for event in store.events.after(job_id=status.job_id) if event.kind == "answer"]
    return answer


def test_one_manager_tunes_queries_compiles_and_extracts(tmp_path: Path) -> None:
    output = tmp_path / "demo.tunery"

    async def run(store: Store) -> None:
        async with JobManager(store) as manager:
            tuned = await manager.wait(await manager.submit(request()))
            assert tuned.state is JobState.DONE
            both = [
                await manager.submit(request("query")),
                await manager.submit(request("compile", output=str(output))),
            ]
            queried, compiled = [await manager.wait(job) for job in both]
            extracted = await manager.wait(await manager.submit(request("extract")))
            assert {one.state for one in (queried, compiled, extracted)} == {JobState.DONE}
            tasks = {task.task_key for task in tuned.tasks}
            assert {task["task"] for task in answer_of(store, queried)["tasks"]} == tasks
            assert {task["task"] for task in answer_of(store, extracted)["tasks"]} == tasks
            coverage = answer_of(store, compiled)["coverage"]
            assert all(one["rung"] == "exact" for one in coverage.values())
            assert output.exists()
            assert compiled.spend.core_s > 0
            stages = {charge.stage for charge in store.ledger(compiled.job_id)}
            assert {"compile", "import"} <= stages

    with open_store(str(tmp_path / "store.db")) as store:
        asyncio.run(run(store))


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("paint", {}, "paint"),
        ("compile", {}, "output"),
        ("compile", {"output": "/nowhere/x.tunery"}, "/nowhere"),
        ("compile", {"output": "x", "colour": 1}, "colour"),
        ("bench", {"against": ["nobody"]}, "nobody"),
        ("bench", {"seconds": "long"}, "seconds"),
        ("bench", {"seconds": -1.0}, "-1"),
        ("query", {"few": 1}, "few"),
        ("tune", {"outputs": "x"}, "outputs"),
    ],
)
def test_what_a_kind_of_job_does_not_take_is_refused_before_it_is_queued(
    kind: str, options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    async def run(store: Store) -> None:
        async with JobManager(store) as manager:
            with pytest.raises(UsageError, match=named):
                await manager.submit(request(kind, **options))

    with open_store(str(tmp_path / "store.db")) as store:
        asyncio.run(run(store))
        assert store.jobs() == []


def test_no_job_is_queued_that_would_replace_the_store(tmp_path: Path) -> None:
    async def run(store: Store) -> None:
        async with JobManager(store) as manager:
            with pytest.raises(UsageError, match="works on"):
                await manager.submit(request("compile", output=str(tmp_path / "store.db"), force=True))

    with open_store(str(tmp_path / "store.db")) as store:
        asyncio.run(run(store))
        assert store.jobs() == []


def test_a_job_that_cannot_answer_fails_with_the_reason_and_pays_for_what_it_used(tmp_path: Path) -> None:
    async def run(store: Store) -> JobStatus:
        async with JobManager(store) as manager:
            asked = replace(request("query"), model="fake:x?unsupported=1")
            return await manager.wait(await manager.submit(asked))

    with open_store(str(tmp_path / "store.db")) as store:
        status = asyncio.run(run(store))
    assert status.state is JobState.FAILED
    assert "Scripted" in status.message
    assert status.spend.wall_s > 0


def test_networks_are_compared_for_one_shape_at_a_time() -> None:
    asked = Request("net.onnx", {"batch": (1,)}, kind="bench", more_shapes=({"batch": (4,)},))
    with pytest.raises(UsageError, match="one value for each --shape"):
        options_of(asked)


def test_what_is_not_known_is_said_with_what_tuning_it_would_take(tmp_path: Path) -> None:
    other = replace(request("query"), model="fake:other?tasks=3", latency_target_s=1e-9)

    async def run(store: Store) -> None:
        async with JobManager(store) as manager:

            async def asked(one: Request) -> Any:
                return answer_of(store, await manager.wait(await manager.submit(one)))

            before = await asked(other)
            assert "no verified record" in before["nothing"]
            assert (before["tuning"], before["latency_s"], before["unknown"], before["met"]) == (None, None, 3, False)
            tuned = await manager.wait(await manager.submit(request()))
            known = await asked(replace(request("query"), latency_target_s=1.0))
            assert known["latency_s"] == sum(task.weight * (task.best_s or 0.0) for task in tuned.tasks)
            assert (known["met"], known["tuning"], known["nothing"]) == (True, None, "")
            after = (await asked(other))["tuning"]
            assert (after["trials"], after["jobs"]) == (64 * after["tasks"], 1)
            assert 0 < after["tasks"] <= 3
            assert after["wall_s"] == pytest.approx(after["trials"] * tuned.spend.wall_s / tuned.spend.trials)
            assert after["speedup"] > 1.0

    with open_store(str(tmp_path / "store.db")) as store:
        asyncio.run(run(store))


def test_a_queued_job_of_another_kind_is_done_by_the_next_manager(tmp_path: Path) -> None:
    async def leave(store: Store) -> str:
        async with JobManager(store, most_active=0) as manager:
            return await manager.submit(request("extract"))

    async def take_up(store: Store, job_id: str) -> JobStatus:
        async with JobManager(store) as manager:
            assert await manager.recover() == [job_id]
            return await manager.wait(job_id)

    with open_store(str(tmp_path / "store.db")) as store:
        job_id = asyncio.run(leave(store))
        status = asyncio.run(take_up(store, job_id))
        assert status.state is JobState.DONE
        assert len(answer_of(store, status)["tasks"]) == 2


def test_a_service_knows_every_kind_of_job_and_has_a_field_for_what_accounts_may_give() -> None:
    fields = JobIn.model_fields.keys()
    for name, kind in KINDS.items():
        assert JobIn(kind=name, model="zoo:resnet18").kind == name
        assert set(kind.asked) - {"output"} <= fields
        assert not (kind.asked and kind.refused)


# -- a further resumable kind -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions(Options):
    to: int = 6
    each_costs: float = 0.0


async def _count(job: Job, options: CountOptions) -> JobStatus:
    """Count on from what the job has stored."""
    store, job_id = job.store, job.job_id
    read = partial(store.read, lambda store: counted(store, job_id))
    cost = 0.0
    if job.month is not None:
        job.month.meter(lambda: cost)

    async def count(_: Work) -> None:
        nonlocal cost
        for number in range(len(await read()) + 1, options.to + 1):
            if job.stop.is_set():
                return
            await asyncio.sleep(0.02)
            cost += options.each_costs
            await store.write(partial(_append, job_id=job_id, number=number))
            job.tell(Progress(job_id, "counting", 0.0, None, number, options.to, None, None))

    await job.work_on(replace(job.work, account=job.account(job.work)), count)
    stored = await store.read(lambda store: store.job(job_id))
    state = JobState.STOPPED if job.stop.is_set() else JobState.DONE
    status = replace(stored, state=state, message=f"counted to {len(await read())}")
    await store.write(partial(leave, status=status))
    return status


def _append(store: Store, job_id: str, number: int) -> None:
    store.events.append("counted", {"number": number}, job_id)


def counted(store: Store, job_id: str) -> list[int]:
    return [event.payload["number"] for event in store.events.after(job_id=job_id) if event.kind == "counted"]


@pytest.fixture
def count_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    count = JobKind(name="count", options=CountOptions, go_on=_count, has_budget=True, identity=("to",))
    monkeypatch.setitem(cast("dict[str, JobKind[Any]]", KINDS), count.name, count)


async def at_number(manager: JobManager, job_id: str, number: int) -> None:
    async for progress in manager.follow(job_id):
        if progress.trials >= number:
            return


@pytest.mark.usefixtures("count_kind")
def test_a_further_resumable_kind_is_paused_resumed_and_taken_up_by_the_next_manager(tmp_path: Path) -> None:
    async def leave_half_done(store: Store) -> str:
        async with JobManager(store) as manager:
            job_id = await manager.submit(request("count", to=60))
            await at_number(manager, job_id, 2)
            await manager.pause(job_id)
            assert store.job(job_id).state is JobState.PAUSED
            paused_at = len(counted(store, job_id))
            await manager.resume(job_id)
            await at_number(manager, job_id, paused_at + 2)
            return job_id

    async def take_up(store: Store, job_id: str) -> JobStatus:
        async with JobManager(store) as manager:
            assert await manager.recover() == [job_id]
            return await manager.wait(job_id)

    path = tmp_path / "store.db"
    with open_store(str(path)) as store:
        job_id = asyncio.run(leave_half_done(store))
        assert (store.job(job_id).state, len(counted(store, job_id)) < 60) == (JobState.QUEUED, True)
        status = asyncio.run(take_up(store, job_id))
        assert counted(store, job_id) == [*range(1, 61)]
    assert (status.kind, status.state) == ("count", JobState.DONE)
    assert status.spend.wall_s > 0
    shown = CliRunner().invoke(app, ["jobs", "show", job_id, "--store", str(path)])
    assert f"job {job_id}: done  counted to 60" in shown.output
    assert "kind=count" in shown.output


@pytest.mark.usefixtures("count_kind")
def test_a_further_resumable_kind_goes_on_in_the_command_that_resumes_it(tmp_path: Path) -> None:
    stop, path = threading.Event(), tmp_path / "store.db"

    def watch(progress: Progress) -> None:
        if progress.phase == "counting":
            stop.set()

    stopped = tune(replace(request("count"), store=str(path)), watch, stop).job
    assert (stopped.state, stopped.message) == (JobState.STOPPED, "counted to 1")
    resumed = CliRunner().invoke(app, ["jobs", "resume", stopped.job_id, "--store", str(path)])
    assert resumed.exit_code == 0, resumed.output
    with open_store(str(path)) as store:
        assert store.job(stopped.job_id).message == "counted to 6"
        assert counted(store, stopped.job_id) == [*range(1, 7)]


@pytest.mark.usefixtures("count_kind")
def test_an_unfinished_job_is_taken_over_by_one_that_does_the_same_whatever_that_may_cost(tmp_path: Path) -> None:
    stop, path = threading.Event(), str(tmp_path / "store.db")

    def counted_to(stop: threading.Event | None = None, **options: object) -> TuneReport:
        return tune(replace(request("count", **options), store=path), lambda _: stop and stop.set(), stop)

    begun = counted_to(stop, to=8).job
    assert begun.state is JobState.STOPPED
    other = counted_to()
    assert (other.resumed, other.job.message) == (False, "counted to 6")
    same = counted_to(to=8, each_costs=0.5)
    assert (same.resumed, same.job.job_id, same.job.message) == (True, begun.job_id, "counted to 8")


@pytest.mark.usefixtures("count_kind")
def test_jobs_that_do_different_things_work_beside_one_another_and_twins_do_not(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        create_at_work(store, request_data(request("count", to=60)))
        refuse_twin(store, request_data(request("count", to=8)))
        with pytest.raises(WorkError):
            refuse_twin(store, request_data(request("count", to=60, each_costs=0.5)))
        create_at_work(store, request_data(request("count")))
        with pytest.raises(WorkError):
            refuse_twin(store, request_data(request("count", to=CountOptions().to)))


@pytest.mark.usefixtures("count_kind")
def test_a_further_resumable_kind_pays_for_its_model_and_ends_with_its_accounts_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunery.service.budgets.months.HEARTBEAT_S", 0.2)

    async def run(store: Store) -> JobStatus:
        store.accounts.create(StoredAccount("ann", "user", month_money=4.0))
        async with JobManager(store) as manager:
            asked = replace(request("count", to=10_000, each_costs=1.0), model="fake:far?extract_s=0.1")
            return await asyncio.wait_for(manager.wait(await manager.submit(asked, ShareRequest("ann", 1.0, 0))), 60)

    with open_store(str(tmp_path / "store.db")) as store:
        status = asyncio.run(run(store))
        assert (status.state, status.problem) == (JobState.FAILED, "urn:tunery:problem:budget")
        assert "ann" in status.message
        assert 4 <= len(counted(store, status.job_id)) < 10_000
        assert [charge.stage for charge in store.ledger(status.job_id)].count("import") == 1


def test_a_kind_that_answers_is_not_tuned_and_no_stored_job_of_it_is_touched(tmp_path: Path) -> None:
    async def queue(store: Store) -> str:
        async with JobManager(store, most_active=0) as manager:
            return await manager.submit(request("extract"))

    path = str(tmp_path / "store.db")
    with open_store(path) as store:
        job_id = asyncio.run(queue(store))
    with pytest.raises(UsageError, match="answers"):
        tune(replace(request("extract"), store=path))
    with open_store(path) as store:
        assert store.job(job_id).state is JobState.QUEUED


def test_a_job_goes_on_with_the_trimming_that_it_began_with(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        every = request(), replace(request(), trimming=NO_TRIMMING)
        jobs = [store.create_job(request_data(asked)) for asked in every]
        assert [request_of(job, "").trimming for job in jobs] == [asked.trimming for asked in every]
        found = [store.resumable(request_data(asked)) for asked in every]
        assert [job and job.job_id for job in found] == [job.job_id for job in jobs]
