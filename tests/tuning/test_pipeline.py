"""Candidates are built on all builders and raced in turn; whoever asked hears of each as it happens."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from search_tools import context_of, fake_tasks, runtime_in

from tunery._errors import StoreError, WorkError
from tunery.domain import Candidate, Measurement, Outcome, Task
from tunery.engines import Role
from tunery.runtime.services import Proposal
from tunery.store import open_store
from tunery.tuning.account import PricedCharge
from tunery.tuning.calls import Builds, BuiltCandidate, Context, build_all, build_reference, race_in_turn

SOME_FAIL = "fake:some?tasks=1&space=8x8x4&seed=3&refuse=0.3&noise=0"


def in_job(directory: Path, source: str, work: Callable[[Context, Task], Awaitable[None]]) -> None:
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch, open_store(str(directory / "store.db")) as store:
            async with runtime_in(directory, patch) as runtime:
                await work(context_of(runtime, store), fake_tasks(source)[0])

    asyncio.run(main())


async def ignore(*_: object) -> None:
    pass


async def proposed(context: Context, task: Task, count: int) -> list[Candidate]:
    worker = context.runtime.workers(Role.PROPOSER)[0]
    await context.runtime.call(worker, "open", task, [], None, 0, deadline_s=60.0)
    proposal: Proposal = await context.runtime.call(worker, "propose", task.key, count, [], deadline_s=60.0)
    return list(proposal.candidates)


def test_each_candidate_is_built_or_heard_of_with_what_it_took(tmp_path: Path) -> None:
    async def work(context: Context, task: Task) -> None:
        candidates, failed, heard = await proposed(context, task, 12), dict[str, Measurement](), list[BuiltCandidate]()

        async def hear(candidate: Candidate, measurement: Measurement, bills: Sequence[PricedCharge]) -> None:
            assert [bill.charge.wall_s for bill in bills] == [measurement.build_s]
            failed[candidate.key] = measurement

        built = await build_all(context, task, candidates, hear, heard.append, Builds(chunk=5))
        keys = {one.candidate.key for one in built}
        assert keys
        assert {one.outcome for one in failed.values()} == {Outcome.BUILD_FAILED}
        assert keys | failed.keys() == {one.key for one in candidates}
        assert not keys & failed.keys()
        assert heard == built
        assert all(one.build_s > 0 for one in failed.values())
        assert all(one.build.wall_s > 0 for one in built)

    in_job(tmp_path, SOME_FAIL, work)


def test_a_small_batch_is_shared_out_to_all_builders(tmp_path: Path) -> None:
    async def work(context: Context, task: Task) -> None:
        builders = context.runtime.workers(Role.BUILDER)
        candidates = await proposed(context, task, len(builders))
        built = await build_all(context, task, candidates, ignore, how=Builds(chunk=len(builders)))
        assert {one.build.worker for one in built} == set(builders)

    in_job(tmp_path, "fake:small?tasks=1&build_s=0.2", work)


def test_of_builds_that_are_cut_short_those_before_were_heard_of(tmp_path: Path) -> None:
    async def work(context: Context, task: Task) -> None:
        candidates, heard = await proposed(context, task, 12), list[BuiltCandidate]()

        async def full(*_: object) -> None:
            raise StoreError("the disk is full")

        with pytest.raises(StoreError, match="full"):
            await build_all(context, task, candidates, full, heard.append, Builds(chunk=12))
        assert 0 < len(heard) < 12

    in_job(tmp_path, SOME_FAIL, work)


def test_candidates_are_raced_against_the_best_before_them_and_told_one_by_one(tmp_path: Path) -> None:
    async def work(context: Context, task: Task) -> None:
        reference = await build_reference(context, task)
        built = await build_all(context, task, await proposed(context, task, 12), ignore)
        told = list[tuple[str, Outcome]]()

        async def tell(one: Candidate, measured: Measurement, bills: Sequence[PricedCharge]) -> None:
            assert [bill.charge.stage for bill in bills] == ["measure", "build"]
            told.append((one.key, measured.outcome))

        found = await race_in_turn(context, task, built, reference, tell)
        assert told == [(one.candidate.key, m.outcome) for one, m in zip(built, found, strict=True)]
        best_s = float("inf")
        for one, measured in zip(built, found, strict=True):
            assert measured.build_s == one.build.wall_s
            assert measured.latency_s is not None
            if measured.outcome is Outcome.OK:
                best_s = min(best_s, measured.latency_s)
            else:
                assert measured.outcome is Outcome.ABANDONED
                assert measured.latency_s > best_s
        assert found[0].outcome is Outcome.OK
        assert Outcome.ABANDONED in {one.outcome for one in found}
        again = await race_in_turn(context, task, built[:1], reference, ignore, best_s=best_s / 10)
        assert again[0].outcome is Outcome.ABANDONED

    in_job(tmp_path, SOME_FAIL, work)


def test_a_task_whose_unscheduled_program_does_not_build_is_refused(tmp_path: Path) -> None:
    async def work(context: Context, task: Task) -> None:
        def refused(*_: object, **__: object) -> object:
            return _answer(Measurement(Outcome.BUILD_FAILED, detail="no such header"))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tunery.tuning.calls.call_build", refused)
            with pytest.raises(WorkError, match="no such header"):
                await build_reference(context, task)

    in_job(tmp_path, SOME_FAIL, work)


async def _answer(measurement: Measurement) -> Measurement:
    return measurement
