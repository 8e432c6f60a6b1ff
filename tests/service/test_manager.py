"""Several jobs in one room, on the fake dialect."""

import asyncio
import gc
import itertools
import platform
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rival_strategies  # noqa: F401 - adds them
from job_tools import PATIENCE_S, raced, records_in, request_in
from scheduler_tools import replay, validate

from tunery._errors import EngineError, NothingFoundError, StoreError, TargetError, UsageError
from tunery.domain import JobState, JobStatus, Mode, Record
from tunery.domain.request import Request, ShareRequest, Trimming
from tunery.engines.remote.registry import add_host, remove_host
from tunery.runtime.runtime import Runtime
from tunery.service import manager as room_module
from tunery.service.codec import request_data
from tunery.service.manager import JobManager
from tunery.service.queue_policy import MOST_ACTIVE
from tunery.store import Store, open_store
from tunery.store.database import lease
from tunery.tuning.account import Account
from tunery.tuning.learning import Learning

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SLOW = "build_s=0.02"
ENDLESS = "fake:endless?tasks=2&build_s=0.02&space=16x16x16"


@asynccontextmanager
async def room_in(directory: Path, **options: Any) -> AsyncIterator[tuple[JobManager, Store]]:
    with open_store(str(directory / "store.db")) as store:
        async with JobManager(store, **options) as room:
            yield room, store


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def expect_whole(room: JobManager) -> None:
    scheduler = room.dispatch.scheduler
    validate(scheduler)
    assert (scheduler.snapshot().running, scheduler.snapshot().ready, scheduler.snapshot().jobs) == (0, 0, 0)
    assert room.dispatch.waiting == room.dispatch.pinned == {}
    assert all(room.runtimes.searches(one)._open == {} for one in room.runtimes)
    validate(replay(scheduler.log))


def outcomes(status: JobStatus) -> Counter[str]:
    total = Counter[str]()
    for task in status.tasks:
        total.update(task.outcomes)
    return total


async def until_trials(room: JobManager, job_id: str, trials: int) -> None:
    async for progress in room.follow(job_id):
        if progress.trials >= trials:
            return
    raise AssertionError(f"{job_id} ended before")


def test_jobs_run_beside_one_another_and_join_while_others_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            first = await room.submit(request_in(tmp_path, f"fake:one?tasks=2&{SLOW}", "60trials"))
            await until_trials(room, first, 8)
            later = [
                await room.submit(
                    request_in(tmp_path, f"fake:{name}?tasks=2&seed={seed}&{SLOW}", "24trials"), ShareRequest(owner)
                )
                for seed, (name, owner) in enumerate([("two", "a"), ("three", "b")], 1)
            ]
            seen = [[p async for p in room.follow(job)] for job in later]
            done = [await room.wait(job) for job in (first, *later)]
            assert [status.state for status in done] == [JobState.DONE] * 3
            assert [status.spend.trials for status in done] == [60, 24, 24]
            assert all(task.best_candidate for status in done for task in status.tasks)
            assert all(p.job_id == job for job, progress in zip(later, seen, strict=True) for p in progress)
            spans = [span for span in room.dispatch.spans if span.kind == "build"]
            turns = [span.job_id for span in sorted(spans, key=lambda span: span.start_s)]
            assert turns != sorted(turns, key=turns.index), "they took turns"
            expect_whole(room)
            assert {job.job_id for job in store.jobs()} == {first, *later}

    run(main())
    assert set(raced(tmp_path).values()) == {1}


def test_jobs_with_the_same_tasks_share_their_work(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, _):
            source = f"fake:same?tasks=2&{SLOW}"
            jobs = [await room.submit(request_in(tmp_path, source, "48trials")) for _ in range(2)]
            done = [await room.wait(job) for job in jobs]
            assert [status.state for status in done] == [JobState.DONE] * 2
            # Each has what it asked for and no more, and together they have paid for little more than that.
            assert [status.spend.trials for status in done] == [48, 48]
            counted = [sum(outcomes(status).values()) - outcomes(status)["filtered"] for status in done]
            assert counted == [48, 48], "by outcome they are the same"
            assert raced(tmp_path).total() < 80
            best = [{task.name: task.best_s for task in status.tasks} for status in done]
            assert best[0] == pytest.approx(best[1], rel=0.05)
            assert len(list(room.runtimes)) == 1
            expect_whole(room)

    run(main())
    assert set(raced(tmp_path).values()) == {1}, "nothing was measured twice"
    finals = Counter(record.candidate.key for record in records_in(tmp_path, Mode.FINAL))
    assert set(finals.values()) <= {1, 2}


def test_a_job_counts_what_was_tried_since_it_joined(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, _):
            first = await room.submit(request_in(tmp_path, ENDLESS, "120trials"))
            await until_trials(room, first, 24)
            done = [
                await room.wait(job) for job in (await room.submit(request_in(tmp_path, ENDLESS, "12trials")), first)
            ]
            for status in done:
                outcomes = sum((Counter(task.outcomes) for task in status.tasks), Counter[str]())
                assert outcomes.total() - outcomes["filtered"] == status.spend.trials
            assert sum(task.measured for task in done[0].tasks) < 120 <= sum(task.measured for task in done[1].tasks)

    run(main())


def test_a_job_that_cannot_read_the_store_leaves_the_one_beside_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, _):
            first = await room.submit(request_in(tmp_path, ENDLESS, "80trials"))
            await until_trials(room, first, 8)
            best, read = Store.best, list[str]()

            def second_unread(self: Store, task_key: str, *more: Any, **named: Any) -> list[Record]:
                read.append(task_key)
                if len(read) == 2:  # it is the second task that the other job cannot read
                    raise StoreError("the disk does not answer")
                return best(self, task_key, *more, **named)

            with monkeypatch.context() as patch:
                patch.setattr(Store, "best", second_unread)
                second = await room.submit(request_in(tmp_path, ENDLESS, "80trials"), ShareRequest("b"))
                assert (await room.wait(second)).state is JobState.FAILED
            assert len(read) == 2
            done = await room.wait(first)
            assert (done.state, done.spend.trials) == (JobState.DONE, 80)
            expect_whole(room)

    run(main())


def test_a_job_that_ends_leaves_its_tasks_to_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            jobs = [await room.submit(request_in(tmp_path, ENDLESS, budget)) for budget in ("4000trials", "60trials")]
            await until_trials(room, jobs[1], 10)
            searches = room.runtimes.searches(*room.runtimes)
            weights = [search.state.progress.weight for search, _ in searches._open.values()]
            await room.cancel(jobs[0])
            assert store.job(jobs[0]).state is JobState.CANCELLED
            assert [2 * s.state.progress.weight for s, _ in searches._open.values()] == weights, "weights were added"
            status = await room.wait(jobs[1])
            assert (status.state, status.spend.trials) == (JobState.DONE, 60)
            expect_whole(room)

    run(main())
    assert set(raced(tmp_path).values()) == {1}


def test_a_paused_job_waits_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            job = await room.submit(request_in(tmp_path, ENDLESS, "60trials"))
            await until_trials(room, job, 10)
            await room.pause(job)
            paused = store.job(job)
            assert paused.state is JobState.PAUSED
            before = raced(tmp_path)
            other = await room.submit(request_in(tmp_path, "fake:other", "8trials"))
            assert (await room.wait(other)).state is JobState.DONE
            assert store.job(job) == paused
            await room.resume(job)
            done = await room.wait(job)
            assert (done.state, done.spend.trials) == (JobState.DONE, 60)
            counted = Counter(record.job_id for record in records_in(tmp_path, Mode.RACE))
            assert counted[job] >= 60
            assert before.total() < counted[job]
            expect_whole(room)

    run(main())
    assert set(raced(tmp_path).values()) == {1}


@pytest.mark.usefixtures("worker_processes")  # their own CPU time is charged
def test_a_job_that_is_taken_out_pays_for_all_it_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learning = asyncio.Event()

    async def never(*_: object) -> None:
        learning.set()
        await asyncio.sleep(PATIENCE_S)

    monkeypatch.setattr(Learning, "due", lambda self: not self._busy)
    monkeypatch.setattr(Learning, "_train", never)

    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            job = await room.submit(request_in(tmp_path, ENDLESS, "4000trials"))
            await learning.wait()
            await room.cancel(job)
            spend, charges = store.job(job).spend, store.ledger(job)
            assert {"import", "learn", "overhead", "manage", "idle"} <= {charge.stage for charge in charges}
            assert sum(charge.core_s for charge in charges) == pytest.approx(spend.core_s)
            assert sum(charge.money or 0.0 for charge in charges) == pytest.approx(spend.money, rel=0.02)

    run(main())


@pytest.mark.usefixtures("worker_processes")  # their own CPU time is charged
@pytest.mark.parametrize("fails", [False, True])
def test_an_import_in_vain_is_its_own_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    extracting = asyncio.Event()
    call = Runtime.call

    async def called(self: Runtime, worker: str, method: str, *args: Any, **options: Any) -> Any:
        answer = await call(self, worker, method, *args, **options)
        if method == "extract":
            extracting.set()
            if fails:
                raise EngineError("not now")
            await asyncio.sleep(PATIENCE_S)
        return answer

    monkeypatch.setattr(Runtime, "call", called)

    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            job = await room.submit(request_in(tmp_path, "fake:vain?extract_s=0.3&spin=1", "8trials"))
            await extracting.wait()
            await (room.wait(job) if fails else room.cancel(job))
            status, charges = store.job(job), store.ledger(job)
            assert status.state is (JobState.FAILED if fails else JobState.CANCELLED)
            spent = {charge.stage: charge.core_s for charge in charges}
            assert spent["import"] >= 0.25
            assert {"import", "overhead", "manage", "idle"} <= spent.keys()
            assert sum(spent.values()) == pytest.approx(status.spend.core_s, rel=0.1)
            assert sum(charge.money or 0.0 for charge in charges) == pytest.approx(status.spend.money, rel=0.02)

    run(main())


@pytest.mark.usefixtures("worker_processes")  # their own CPU time is charged
def test_an_import_beside_other_jobs_is_not_their_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unclaimed: list[float] = []
    save, post = Store.save_tasks, Account.post

    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            request = request_in(tmp_path, "fake:beside?extract_s=0.5&spin=1", "8trials")
            runtime = room.runtime(request)

            def saved(self: Store, *args: Any, **options: Any) -> None:
                unclaimed.append(runtime.usage.unclaimed())
                save(self, *args, **options)

            async def posted(self: Account, bills: Any) -> None:
                unclaimed.append(runtime.usage.unclaimed())
                await post(self, bills)

            monkeypatch.setattr(Store, "save_tasks", saved)
            monkeypatch.setattr(Account, "post", posted)
            job = await room.submit(request)
            await room.wait(job)
            imported_s = sum(charge.core_s for charge in store.ledger(job) if charge.stage == "import")
            during_s, after_s = unclaimed[:2]
            assert after_s - during_s > 0.5 * imported_s > 0.0

    run(main())


def test_what_is_left_goes_on_in_the_next_room_and_paused_stays_paused(tmp_path: Path) -> None:
    async def first(jobs: list[str]) -> None:
        async with room_in(tmp_path, most_active=2) as (room, _):
            for seed in range(4):
                request = request_in(tmp_path, f"{ENDLESS}&seed={seed}", "30trials")
                jobs.append(await room.submit(request, ShareRequest("me", 2.0, priority=3 - seed)))
            await until_trials(room, jobs[0], 5)
            await room.pause(jobs[3])  # it had not begun

    async def second(jobs: list[str]) -> None:
        async with room_in(tmp_path) as (room, store):
            states = [store.job(job).state for job in jobs]
            assert states == [JobState.QUEUED] * 3 + [JobState.PAUSED]
            assert sorted(await room.recover()) == sorted(jobs[:3])
            assert [(await room.wait(job)).spend.trials for job in jobs[:3]] == [30] * 3
            assert store.job(jobs[3]).state is JobState.PAUSED
            submitted = {e.job_id: e for entry in room.dispatch.scheduler.log.entries for e in entry.events
                         if type(e).__name__ == "JobSubmitted"}  # fmt: skip
            claimed = submitted[jobs[1]]
            assert (claimed.owner, claimed.weight, claimed.priority, claimed.planned) == ("me", 2.0, 2, 30)

    jobs: list[str] = []
    run(first(jobs))
    run(second(jobs))
    assert set(raced(tmp_path).values()) == {1}


def test_a_waiting_job_says_how_many_of_its_owners_begin_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path, most_active=1) as (room, _):
            first = await room.submit(request_in(tmp_path, ENDLESS, "4000trials"), ShareRequest("ann"))
            waiting = [
                await room.submit(request_in(tmp_path, f"{ENDLESS}&seed={seed}", "30trials"), ShareRequest(owner))
                for seed, owner in enumerate(["ann", "ann", "bob"], 1)
            ]
            await until_trials(room, first, 5)
            shown = [room.progress(job) for job in waiting]
            assert [(one.phase, one.job_id) for one in shown if one] == [("queued", job) for job in waiting]
            assert [one.current for one in shown if one] == ["", "(1 before it)", ""]
            await room.cancel(waiting[0])
            second = room.progress(waiting[1])
            assert second is not None
            assert second.current == ""
            await room.cancel(first)

    run(main())


def test_a_small_machine_runs_few_long_jobs_at_once_and_answers_others_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            places = 4 * room.dispatch.core_count()
            if places >= MOST_ACTIVE:
                pytest.skip("this machine is not small")
            jobs = [
                await room.submit(request_in(tmp_path, f"{ENDLESS}&seed={n}", "4000trials"), ShareRequest("ann"))
                for n in range(places + 2)
            ]
            other = await room.submit(request_in(tmp_path, f"{ENDLESS}&seed=99", "20trials"), ShareRequest("bob"))
            quick = await room.submit(
                replace(request_in(tmp_path, "fake:quick?tasks=1", "5trials"), kind="extract"), ShareRequest("ann")
            )
            assert [(await room.wait(job)).state for job in (other, quick)] == [JobState.DONE] * 2
            states = Counter(store.job(job).state for job in jobs)
            assert states == {JobState.RUNNING: places, JobState.QUEUED: 2}
            room.dispatch.add({"far/core": 1})
            await room.recover()
            assert all((shown := room.progress(job)) is None or shown.phase != "queued" for job in jobs)
            for job in jobs:
                await room.cancel(job)
            expect_whole(room)

    run(main())


def test_a_job_that_another_coordinator_has_taken_waits_here_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path, most_active=1) as (one, store), room_in(tmp_path, most_active=1) as (two, _):
            first = await one.submit(request_in(tmp_path, ENDLESS, "4000trials"))
            taken = await one.submit(request_in(tmp_path, f"{ENDLESS}&seed=1", "4000trials"))
            await until_trials(one, first, 5)
            await two.recover()
            await until_trials(two, taken, 5)
            await one.recover()
            assert one.progress(taken) is None
            assert store.job(taken).state is JobState.RUNNING
            await two.cancel(taken)
            await one.cancel(first)

    run(main())


@pytest.mark.slow  # whoever works on it learns of it by the next heartbeat
def test_any_coordinator_cancels_and_pauses_what_another_works_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (one, store), room_in(tmp_path) as (two, _):
            given_up = await one.submit(request_in(tmp_path, ENDLESS, "4000trials"))
            moved = await one.submit(request_in(tmp_path, f"{ENDLESS}&seed=1", "4000trials"))
            await until_trials(one, given_up, 5)
            await until_trials(one, moved, 5)
            await two.cancel(given_up)
            await two.pause(moved)
            for job, state in ((given_up, JobState.CANCELLED), (moved, JobState.PAUSED)):
                assert store.job(job).state is state
                assert (await one.wait(job)).state is state
            with pytest.raises(UsageError, match="cancelled already"):
                await two.cancel(given_up)
            await two.resume(moved)
            await until_trials(two, moved, 5)
            await one.cancel(moved)
            assert (await two.wait(moved)).state is JobState.CANCELLED

    run(main())


def test_several_clients_that_take_a_job_out_at_once_leave_nothing_of_it(tmp_path: Path) -> None:
    async def later(act: Callable[[str], Coroutine[Any, Any, None]], job: str, after_s: float) -> str:
        await asyncio.sleep(after_s)
        try:
            await act(job)
        except UsageError as error:
            return str(error)
        return ""

    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            for seed in range(3):
                job = await room.submit(request_in(tmp_path, f"{ENDLESS}&seed={seed}", "4000trials"))
                await until_trials(room, job, 5)
                acts = [(room.pause, 0.0), (room.cancel, 0.0), (room.cancel, 0.002), (room.pause, 0.004)]
                said = await asyncio.gather(*(later(act, job, after_s) for act, after_s in acts))
                assert said[0] == ""
                assert sorted(said[1:3]) == ["", f"job {job} is cancelled already"], "one of two cancellations"
                # A pause may come when the job has left and the cancellation still waits: it is taken, and that holds.
                assert said[3] in {"", f"job {job} is cancelled already"}
                assert store.job(job).state is JobState.CANCELLED, "what was cancelled is not paused afterwards"
                expect_whole(room)

    run(main())


def test_a_job_that_is_just_being_paused_cannot_be_resumed_unheard(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            job = await room.submit(request_in(tmp_path, ENDLESS, "4000trials"))
            await until_trials(room, job, 5)
            pausing = asyncio.create_task(room.pause(job))
            await asyncio.sleep(0)
            with pytest.raises(UsageError, match="in a moment"):
                await room.resume(job)
            await pausing
            assert store.job(job).state is JobState.PAUSED
            await room.resume(job)
            await until_trials(room, job, 10)
            await room.cancel(job)
            expect_whole(room)

    run(main())


def test_two_rooms_of_one_store_do_each_job_once_and_respect_a_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path, most_active=1) as (one, store), room_in(tmp_path, most_active=1) as (two, _):
            sources = [f"fake:both?tasks=1&build_s=0.02&seed={seed}" for seed in range(3)]
            jobs = [await one.submit(request_in(tmp_path, source, "16trials")) for source in sources]
            assert (await two.recover())[-2:] == jobs[1:], "the first may be at work already"
            await one.pause(jobs[2])
            await asyncio.gather(*(room.wait(job) for room in (one, two) for job in jobs))
            while any(store.job(job).state is JobState.RUNNING for job in jobs):
                await asyncio.sleep(0.02)
            assert [store.job(job).state for job in jobs] == [JobState.DONE, JobState.DONE, JobState.PAUSED]
            assert two._entries == {}

    failures: list[Any] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        await main()
        gc.collect()

    run(watched())
    assert failures == [], "nobody's error went unheard"
    assert set(raced(tmp_path).values()) == {1}


def test_a_job_whose_file_or_host_is_not_here_is_left_to_others_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model = tmp_path / "net.onnx"

    async def main() -> None:
        async with room_in(tmp_path, most_active=0) as (one, store), room_in(tmp_path, most_active=0) as (two, _):
            add_host("far", "true")
            model.touch()
            plain = request_in(tmp_path, "fake:plain?tasks=1", "8trials")
            jobs = [await one.submit(request) for request in (
                replace(plain, model=str(model), dialect="metaschedule"), replace(plain, on="far"), plain,
            )]  # fmt: skip
            remove_host("far")
            model.unlink()
            assert await two.recover() == jobs[2:]
            said = [two.shown(store.job(job)).message for job in jobs]
            assert [word in why for word, why in zip(("net.onnx", "'far'"), said, strict=False)] == [True, True]
            assert not any(platform.node() in why for why in said)
            assert said[2] == ""
            assert [(store.job(job).state, store.job(job).message) for job in jobs] == [(JobState.QUEUED, "")] * 3
            await two.recover()
            assert [store.job(job).message for job in jobs] == said, "whoever reads the store is told as well"
            assert one.shown(store.job(jobs[0])).message == "", "it waits for its turn there"
            with pytest.raises(UsageError, match=r"net\.onnx"):
                await two.resume(jobs[0])
            await two.cancel(jobs[0])
            assert store.job(jobs[0]).message == ""
            add_host("far", "true")
            assert await two.recover() == jobs[1:2]
            assert two.shown(store.job(jobs[1])).message == ""

    run(main())


def test_a_job_of_a_coordinator_that_is_gone_waits_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = False

    def adopt(request: Request) -> Request:
        if not here:
            raise UsageError("its file is elsewhere")
        return request

    async def main() -> None:
        nonlocal here
        async with room_in(tmp_path, most_active=0) as (room, _):
            job = await room.submit(request_in(tmp_path, "fake:one?tasks=1", "8trials"))
        with monkeypatch.context() as there:
            there.setattr(lease, "_host", lambda: "there")
            with open_store(str(tmp_path / "store.db")) as theirs:
                assert theirs.acquire_job(job)
        monkeypatch.setattr(lease, "LEASE_S", -1.0)  # its last heartbeat is too old
        async with room_in(tmp_path, adopt=adopt) as (room, store):
            assert store.job(job).state is JobState.STOPPED
            assert await room.recover() == []
            waiting = store.job(job)
            assert (waiting.state, waiting.message) == (JobState.QUEUED, room.shown(waiting).message)
            assert "its file is elsewhere" in waiting.message
            here = True
            assert await room.recover() == [job]
            done = await room.wait(job)
            assert (done.state, done.spend.trials) == (JobState.DONE, 8)
            assert "elsewhere" not in done.message

    run(main())


@pytest.mark.parametrize(("part", "word"), [("network", "model has changed"), ("target_key", "target means another")])
def test_a_job_that_means_something_else_here_is_left_to_others_and_says_so(
    tmp_path: Path, part: str, word: str
) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            data = request_data(request_in(tmp_path, "fake:one?tasks=1", "8trials"), claim=ShareRequest())
            job = store.create_job({**data, part: "0" * 16}).job_id
            assert await room.recover() == [job]
            left = await room.wait(job)
            assert left.state is JobState.QUEUED
            assert word in left.message == room.shown(left).message
            assert await room.recover() == []
            await room.resume(job)
            assert (await room.wait(job)).state is JobState.FAILED, "who asks for it here hears that it cannot be"

    run(main())


def test_a_job_at_work_elsewhere_is_not_begun_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (one, store), room_in(tmp_path) as (two, _):
            job = await one.submit(request_in(tmp_path, ENDLESS, "4000trials"), ShareRequest("ann", 2.0, 1))
            await until_trials(one, job, 5)
            before = store.job(job).request
            with pytest.raises(UsageError, match="another process"):
                await two.resume(job)
            assert store.job(job).request == before
            await one.cancel(job)

    run(main())


def test_a_store_that_is_full_for_a_while_leaves_no_job_that_nobody_can_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "_STORE_AGAIN_S", 0.05)
    full = False
    write = Store.write

    def written(self: Store, *given: Any, **more: Any) -> Any:
        if full:
            raise StoreError("the disk is full")
        return write(self, *given, **more)

    monkeypatch.setattr(Store, "write", written)

    async def main() -> None:
        nonlocal full
        async with room_in(tmp_path) as (room, store):
            jobs = [  # each of an owner: of one owner's jobs the shortest goes first, and the others wait for long
                await room.submit(request_in(tmp_path, f"{ENDLESS}&seed={n}", "4000trials"), ShareRequest(f"owner {n}"))
                for n in range(3)
            ]
            for job in jobs:
                await until_trials(room, job, 5)
            full = True
            with pytest.raises(StoreError, match="full"):
                await room.cancel(jobs[0])
            while room.dispatch.scheduler.snapshot().jobs:
                await asyncio.sleep(0.05)
            full = False
            await room.cancel(jobs[0])
            assert [(await room.wait(job)).state for job in jobs] == [JobState.CANCELLED] + [JobState.FAILED] * 2
            assert "full" in store.job(jobs[1]).message
            await room.resume(jobs[1])
            await until_trials(room, jobs[1], 40)
            await room.cancel(jobs[1])
            expect_whole(room)

    run(main())


BAD: list[tuple[dict[str, Any], ShareRequest, str]] = [
    ({"threads": 4096}, ShareRequest(), "4096 threads on"),
    ({}, ShareRequest(priority=-1), "priority -1"),
    ({}, ShareRequest(weight=0.0), "weight 0.0"),
    ({}, ShareRequest(weight=1e9), "weight 1000000000.0 is not between 0.01 and 100"),
    ({}, ShareRequest(weight=float("nan")), "weight nan"),
    ({"effort": "heroic"}, ShareRequest(), "effort"),
    ({"dialect": "klingon"}, ShareRequest(), "unknown dialect"),
    ({"model": "nowhere.onnx"}, ShareRequest(), "no file 'nowhere.onnx'"),
]


def test_what_nobody_can_run_is_refused_and_others_go_on(tmp_path: Path) -> None:
    good = request_in(tmp_path, "fake:good", "8trials")

    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            job = await room.submit(good)
            for changes, claim, reason in BAD:
                values = {name: getattr(good, name) for name in Request.__dataclass_fields__} | changes
                with pytest.raises(UsageError, match=reason):
                    await room.submit(Request(**values), claim)
            with pytest.raises(TargetError, match="unknown target"):
                await room.submit(request_in(tmp_path, "fake:lost", "8trials", target="no such device"))
            assert (await room.wait(job)).state is JobState.DONE
            assert len(store.jobs()) == 1, "what was refused is not stored"
            for act in (room.pause, room.cancel):
                with pytest.raises(UsageError, match="done"):
                    await act(job)
                with pytest.raises(NothingFoundError):
                    await act("nobody")
            with pytest.raises(UsageError, match="done"):
                await room.resume(job)
            expect_whole(room)

    run(main())
    with pytest.raises(UsageError, match="unknown strategy"):
        JobManager(open_store(str(tmp_path / "store.db")), strategy="lucky")


@pytest.mark.parametrize("strategy", ["sequential", "synchronous", "greedy", "fair", "predictive"])
def test_every_strategy_runs_real_jobs_to_their_end(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        at_once = {"most_active": 1} if strategy == "sequential" else {}
        async with room_in(tmp_path, strategy=strategy, **at_once) as (room, _):
            jobs = [
                await room.submit(request_in(tmp_path, f"fake:n{seed}?seed={seed % 2}", "16trials"))
                for seed in range(3)
            ]
            assert [(await room.wait(job)).state for job in jobs] == [JobState.DONE] * 3
            spans = [span.job_id for span in sorted(room.dispatch.spans, key=lambda span: span.start_s)]
            spans = [job for job in spans if job in jobs]
            if strategy == "sequential":
                assert spans == sorted(spans, key=jobs.index), "one after the other"
            expect_whole(room)

    run(main())


def test_jobs_of_other_thread_counts_share_the_cores(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, _):
            jobs = [
                await room.submit(request_in(tmp_path, "fake:threads?build_s=0.01", "24trials", threads=threads))
                for threads in (1, len(room.dispatch.cores))
            ]
            assert [(await room.wait(job)).state for job in jobs] == [JobState.DONE] * 2
            measured = sorted((s.start_s, s.end_s) for s in room.dispatch.spans if s.kind in {"measure", "finals"})
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(measured))
            expect_whole(room)

    run(main())


def test_targets_share_workers_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, store):
            native, fast = (
                request_in(tmp_path, "fake:one?tasks=1", "8trials", target=t) for t in ("native", "fake-fast")
            )
            assert room.runtime(native) is room.runtime(fast)
            done = [await room.wait(await room.submit(request)) for request in (native, fast)]
            slower, faster = (status.tasks[0] for status in done)
            assert slower.task_key != faster.task_key
            assert slower.baseline_s is not None
            assert faster.baseline_s == pytest.approx(slower.baseline_s / 4, rel=0.1)
            assert {r.candidate.task_key for r in store.records()} == {slower.task_key, faster.task_key}

    run(main())


def test_another_way_of_measuring_has_measurers_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with room_in(tmp_path) as (room, _):
            brief = request_in(tmp_path, "fake:one?tasks=1&seed=3", "12trials")
            full = replace(brief, trimming=Trimming(abandon=False))
            assert room.runtime(brief) is not room.runtime(full)
            done = [await room.wait(await room.submit(request)) for request in (brief, full)]
            assert done[1].tasks[0].outcomes.get("abandoned", 0) == 0 < done[0].tasks[0].outcomes["abandoned"]

    run(main())
