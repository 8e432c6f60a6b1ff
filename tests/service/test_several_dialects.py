"""One job over several dialects: its budget is split, and one that cannot take part costs a sentence."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tunery._errors import UsageError
from tunery.delivery.files.loading import load_compiled
from tunery.domain import Budget, JobState, JobStatus, Prospect, Spend, TaskState
from tunery.domain.request import CompileOptions, Request
from tunery.service.budgets.turns import BudgetSplit
from tunery.service.manager import JobManager
from tunery.service.session import Session
from tunery.store import Store, open_store

pytestmark = pytest.mark.usefixtures("inline_workers")

MINUTE = Budget(seconds=60.0)


def standing(spent_s: float, trials: int = 0, **best_s: float) -> JobStatus:
    """Return a job that has spent so much and whose dialects have reached these latencies."""
    tasks = tuple(
        TaskState(name, name, name, "conv2d", 1, tunable=True, best_s=best, measured=1, dialect=name)
        for name, best in best_s.items()
    )
    return JobStatus("job", JobState.RUNNING, {}, Spend(wall_s=spent_s, trials=trials), tasks)


def prospect(seconds: float, median_s: float) -> Prospect:
    return Prospect(10, seconds, None, 0.0, "USD", median_s, median_s, median_s)


def test_every_dialect_has_a_first_share_and_the_rest_goes_to_the_faster_network() -> None:
    split = BudgetSplit(MINUTE, "standard", {"a": 4, "b": 4}, standing(0.0))
    first = split.next(standing(0.0))
    assert first is not None
    assert (first.dialect, first.budget.seconds) == ("a", 15.0)
    split.took(first, standing(15.0, a=2.0), tried=True)
    second = split.next(standing(15.0, a=2.0))
    assert second is not None
    assert (second.dialect, second.budget.seconds) == ("b", 30.0)
    split.took(second, standing(30.0, a=2.0, b=1.0), tried=True)
    third = split.next(standing(30.0, a=2.0, b=1.0))
    assert third is not None
    assert third.dialect == "b"
    assert third.budget.seconds is not None
    assert 40.0 <= third.budget.seconds < 60.0
    split.took(third, standing(45.0, a=2.0, b=0.9), tried=True)
    last = split.next(standing(45.0, a=2.0, b=0.9))
    assert last is not None
    assert (last.dialect, last.budget) == ("b", MINUTE)
    split.took(last, standing(59.9, a=2.0, b=0.8), tried=True)
    assert split.next(standing(59.9, a=2.0, b=0.8)) is None


def test_what_counts_is_what_a_network_will_probably_take_not_what_it_takes() -> None:
    split = BudgetSplit(MINUTE, "standard", {"a": 4, "b": 4}, standing(0.0))
    for name, at_s, gain_s in (("a", 15.0, 1.9), ("b", 30.0, 1.0)):
        share = split.next(standing(at_s - 15.0, a=2.0, b=2.2))
        assert share is not None
        assert share.dialect == name
        split.took(share, replace(standing(at_s, a=2.0, b=2.2), outlook=(prospect(5.0, gain_s),)), tried=True)
    third = split.next(standing(30.0, a=2.0, b=2.2))
    assert third is not None
    assert third.dialect == "b"


def test_a_share_that_was_too_short_is_given_again_and_who_has_nothing_to_try_gets_no_more() -> None:
    split = BudgetSplit(MINUTE, "standard", {"a": 4, "b": 4}, standing(0.0))
    first = split.next(standing(0.0))
    assert first is not None
    split.took(first, standing(15.0), tried=False)
    second = split.next(standing(15.0))
    assert second is not None
    assert second.dialect == "b"
    split.took(second, standing(16.0, b=1.0), tried=False)
    third = split.next(standing(16.0, b=1.0))
    assert third is not None
    assert (third.dialect, third.budget) == ("a", MINUTE), "all that is left is for the only one"


def test_a_job_that_goes_on_knows_who_has_had_a_first_share_and_trials_are_split_without_a_budget() -> None:
    split = BudgetSplit(Budget(), "quick", {"a": 2, "b": 2}, standing(9.0, 16, a=1.0))
    assert split.whole == Budget(trials=64)
    share = split.next(standing(9.0, 16, a=1.0))
    assert share is not None
    assert (share.dialect, share.budget.trials) == ("b", 32)


def test_every_share_of_few_trials_has_one_at_least() -> None:
    split = BudgetSplit(Budget(trials=2), "standard", {"a": 1, "b": 1, "c": 1}, standing(0.0))
    first = split.next(standing(0.0))
    assert first is not None
    split.took(first, standing(1.0, 1, a=1.0), tried=True)
    second = split.next(standing(1.0, 1, a=1.0))
    assert second is not None
    assert (second.dialect, second.budget.trials) == ("b", 2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Request("fake:demo", dialect="fake,nosuch"), "nosuch"),
        (Request("fake:demo", dialect="fake,fake"), "each of them once"),
        (Request("fake:demo", dialect="fake,"), "each of them once"),
        (Request("fake:demo", dialect="fake,iree", on="board"), "on this machine"),
        (Request("fake:demo", dialect="fake,iree", kind="query"), "one dialect"),
    ],
)
def test_what_cannot_be_right_is_told_before_anything_is_done(tmp_path: Path, asked: Request, said: str) -> None:
    async def submit() -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            async with JobManager(store) as manager:
                await manager.submit(replace(asked, threads=1))

    with pytest.raises(UsageError, match=said):
        asyncio.run(submit())


@pytest.mark.jobs
def test_a_dialect_that_does_not_exist_is_no_missing_one(tmp_path: Path) -> None:
    with Session(str(tmp_path / "store.db")) as session, pytest.raises(UsageError, match="unknown dialect 'nosuch'"):
        session.tune(Request("fake:demo", dialect="fake,nosuch", threads=1, budget=Budget.parse("4trials")))


@pytest.mark.jobs
def test_a_dialect_that_is_missing_costs_a_sentence_and_the_other_goes_on(tmp_path: Path) -> None:
    request = Request("fake:demo?tasks=2", dialect="fake,iree", threads=1, budget=Budget.parse("8trials"))
    with Session(str(tmp_path / "store.db")) as session:
        tuned = session.tune(request)
        report, _ = session.compile(request, tmp_path / "demo.tunery", CompileOptions(predict=True))
        with pytest.raises(UsageError, match="one dialect"):
            session.query(request)
    assert tuned.job.state is JobState.DONE
    assert tuned.job.spend.trials == 8
    assert "iree" in tuned.job.message
    assert tuned.after_s is not None
    assert report.dialect == "fake"
    assert {one.dialect: bool(one.refused) for one in report.dialects} == {
        "fake": False,
        "iree": True,
    }
    assert load_compiled(tmp_path / "demo.tunery").inputs


@pytest.mark.jobs
def test_a_queued_job_over_several_dialects_delivers(tmp_path: Path) -> None:
    output = tmp_path / "demo.tunery"
    request = Request(
        "fake:demo?tasks=2", dialect="fake,onnxruntime", threads=1, budget=Budget.parse("8trials"),
        options={"output": str(output)},
    )  # fmt: skip

    async def done() -> JobStatus:
        async with JobManager(store) as manager:
            return await manager.wait(await manager.submit(request))

    with open_store(str(tmp_path / "store.db")) as store:
        status = asyncio.run(done())
        events = store.events.latest(status.job_id, "compiled")
    assert status.state is JobState.DONE, status.message
    assert "onnxruntime" in status.message
    assert output.exists()
    assert events is not None
    assert events.payload["dialect"] == "fake"


@pytest.mark.jobs
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_job_that_is_cut_short_while_it_compiles_lives_until_then_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    request = Request(
        "fake:demo?tasks=2", dialect="fake,onnxruntime", threads=1, budget=Budget.parse("8trials"),
        options={"output": str(tmp_path / "demo.tunery")},
    )  # fmt: skip
    beats, heartbeat = list[str](), Store.heartbeat

    def beat(store: Store, job_id: str) -> bool:
        beats.append(job_id)
        return heartbeat(store, job_id)

    async def broken(*_: object) -> None:
        beats.clear()
        async with asyncio.timeout(60.0):
            while not beats:
                await asyncio.sleep(0.01)
        if not cancelled:
            raise RuntimeError("the linker is broken")
        session.cancel()
        await asyncio.Event().wait()

    monkeypatch.setattr(Store, "heartbeat", beat)
    monkeypatch.setattr("tunery.service.job.HEARTBEAT_S", 0.05)
    with Session(str(tmp_path / "store.db")) as session:
        with monkeypatch.context() as patch:
            patch.setattr("tunery.service.kinds.tune.compile_network", broken)
            with pytest.raises(KeyboardInterrupt if cancelled else RuntimeError):
                session.tune(request)
        with open_store(str(tmp_path / "store.db")) as store:
            [left] = store.jobs()
        assert left.state is (JobState.STOPPED if cancelled else JobState.FAILED)
        assert ("linker" in left.message) is not cancelled
        done = session.tune(request)
    assert (done.job.job_id, done.job.state) == (left.job_id, JobState.DONE)
    assert done.compiled is not None


@pytest.mark.jobs
def test_a_model_that_no_dialect_takes_is_refused_with_the_first_ones_reason(tmp_path: Path) -> None:
    with Session(str(tmp_path / "store.db")) as session, pytest.raises(UsageError, match="cannot import"):
        session.tune(Request("fake:demo?unsupported=1", dialect="fake,iree", threads=1))
