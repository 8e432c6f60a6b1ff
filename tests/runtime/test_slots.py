"""Several measurements on one device at once: who shares it, who does not, and that nothing is left behind."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from job_tools import expect_nothing_held, os_core_s, run_in, runtimes

from tunery._locks import DeviceLock
from tunery.devices import open_device
from tunery.devices.cpu.facts import usable_cores
from tunery.domain import (
    Budget,
    Calibration,
    Candidate,
    JobState,
    Measurement,
    Mode,
    Origin,
    Outcome,
    Provenance,
    Record,
)
from tunery.domain.request import Progress, Request, TuneReport
from tunery.runtime.dispatch import Span
from tunery.runtime.runtime import Runtime
from tunery.service.manager import JobManager
from tunery.service.session import tune
from tunery.store import Store, open_store
from tunery.tuning.calls import together
from tunery.tuning.search.state import tried

SLOW = "fake:slots?tasks=1&real=1&best_us=2000"
two_cores = pytest.mark.skipif(len(usable_cores()) < 2, reason="two slots need two cores")


def calibrated(directory: Path, dialect: str = "fake", threads: int = 1) -> str:
    """Return a store that says that two measurements at once are fine here."""
    place = str(directory / "store.db")
    degrees = {"compute": 2, "memory": 2}
    with open_store(place) as store:
        fingerprint = open_device("cpu").describe().fingerprint
        store.save_calibration(Calibration(fingerprint, dialect, threads, 2, (), {}, degrees, 1.0, 1.0, 0.0))
    return place


def overlapping(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    return [(a, b) for i, a in enumerate(spans) for b in spans[i + 1 :] if a.start_s < b.end_s and b.start_s < a.end_s]


def expect_alone(runtime: Runtime) -> None:
    """No measurement ran beside the finals."""
    on_device = [span for span in runtime.dispatch.spans if span.kind in {"measure", "finals"}]
    assert any(span.kind == "finals" for span in on_device)
    assert not [pair for pair in overlapping(on_device) if "finals" in {span.kind for span in pair}]


@pytest.fixture
def made() -> Iterator[list[Runtime]]:
    with runtimes() as found:
        yield found


@pytest.mark.jobs
@two_cores
def test_a_calibrated_device_measures_on_several_slots_and_re_times_some_alone(
    tmp_path: Path, made: list[Runtime]
) -> None:
    place = calibrated(tmp_path)
    before = os_core_s()
    report = tune(Request(SLOW, dialect="fake", threads=1, budget=Budget(None, 32), store=place))
    used_s = os_core_s() - before
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == 32, "what was timed again alone is no new trial"
    with open_store(place) as store:
        records, charges = store.records(), store.ledger(report.job.job_id)
    assert (report.slots, report.calibrated_at) == (len(usable_cores()), 0.0)
    assert {task.degree for task in report.job.tasks} <= {1, 2}
    shared = [r for r in records if r.measurement.mode is Mode.SHARED]
    assert {r.measurement.context["degree"] for r in shared} == {2}
    assert len({tuple(r.measurement.context["cores"]) for r in shared}) == 2, "on two disjoint core sets"
    audits = [r for r in records if r.measurement.context.get("audit")]
    assert audits
    assert all(r.measurement.mode is Mode.RACE for r in audits)
    assert {r.candidate.key for r in audits} <= {r.candidate.key for r in shared}
    assert all(r.measurement.context["isolated"] for r in records if r.measurement.mode is Mode.FINAL)
    spans = [span for span in made[0].dispatch.spans if span.kind == "measure"]
    assert {frozenset((a.worker, b.worker)) for a, b in overlapping(spans)} == {frozenset(s.worker for s in spans)}
    expect_alone(made[0])
    # The ledger: every audit is in it, and the device was never held for longer than the job took.
    assert sum(charge.count for charge in charges if charge.stage == "audit") == len(audits)
    assert sum(charge.count for charge in charges if charge.stage == "build" and charge.outcome) == 32
    assert sum(charge.count for charge in charges if charge.stage == "measure") >= 32, "some of them raced again"
    # Opening the store and the runtime is no job's: a tenth of a second, whatever the job takes.
    assert sum(charge.core_s for charge in charges) == pytest.approx(used_s, rel=0.05, abs=0.2)
    held_s = sum(span.end_s - span.start_s for span in spans if span.kind == "measure")
    device_s = sum(charge.device_s for charge in charges if charge.stage == "measure")
    assert 0 < device_s < 0.8 * held_s, "two that share the device hold half of it each"


@pytest.mark.jobs
def test_a_stored_job_says_with_which_calibration_it_was_done(tmp_path: Path) -> None:
    async def done(store: Store) -> str:
        async with JobManager(store) as manager:
            request = Request("fake:slots?tasks=1", dialect="fake", threads=1, budget=Budget(None, 4))
            return (await manager.wait(await manager.submit(request))).job_id

    with open_store(calibrated(tmp_path)) as store:
        began = store.events.latest(asyncio.run(done(store)), "began")
    assert began is not None
    assert began.payload["calibrated_at"] == 0.0


@pytest.mark.jobs
@two_cores
def test_a_target_that_uses_all_cores_has_one_slot(tmp_path: Path, made: list[Runtime]) -> None:
    cores = len(usable_cores())
    place = calibrated(tmp_path, threads=cores)
    tune(Request(SLOW, dialect="fake", threads=cores, budget=Budget(None, 8), store=place))
    assert len(made[0].pools.slots) == 1
    with open_store(place) as store:
        assert not store.records(modes=[Mode.SHARED])


@pytest.mark.jobs
@two_cores
def test_a_device_that_was_never_calibrated_measures_one_at_a_time(tmp_path: Path, made: list[Runtime]) -> None:
    run_in(tmp_path, SLOW, "16trials")
    assert len(made[0].pools.slots) == 1
    assert not overlapping([span for span in made[0].dispatch.spans if span.kind == "measure"])


@pytest.mark.jobs
@two_cores
def test_a_job_that_is_stopped_between_two_slots_leaves_nothing_behind_and_goes_on(
    tmp_path: Path, made: list[Runtime]
) -> None:
    place = calibrated(tmp_path)
    request = Request(SLOW, dialect="fake", threads=1, budget=Budget(None, 32), store=place)
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.trials >= 5:
            stop.set()

    assert tune(request, watch, stop).job.state is JobState.STOPPED
    expect_nothing_held(made[0])
    assert made[0]._turn._holders == 0
    report: TuneReport = tune(request)
    assert (report.job.state, report.job.spend.trials) == (JobState.DONE, 32)
    with open_store(place) as store:
        found = [r for r in store.records() if r.measurement.mode is not Mode.FINAL]
    searched = [r for r in found if r.candidate.origin is not Origin.BASELINE]
    # Where sharing proves to disturb, what was measured beside others is measured once more, alone.
    ways = [(r.candidate.key, r.measurement.mode) for r in searched if not r.measurement.context.get("audit")]
    assert len(ways) == len(set(ways))
    assert len({key for key, _ in ways}) == 32


@pytest.mark.jobs
@two_cores
def test_a_candidate_that_crashes_its_slot_costs_only_itself(tmp_path: Path) -> None:
    place = calibrated(tmp_path)
    source = "fake:crash?tasks=1&space=4x3x2&real=1&best_us=500&segfault=0.2"
    report = tune(Request(source, dialect="fake", threads=1, budget=Budget(None, 24), store=place))
    assert report.job.state is JobState.DONE
    assert report.job.spend.trials == 24
    (task,) = report.job.tasks
    assert task.outcomes["crashed"] > 0
    assert task.best_s


@two_cores
@pytest.mark.tvm
def test_real_kernels_share_the_device_in_races_and_are_alone_in_the_finals(
    tmp_path: Path, made: list[Runtime]
) -> None:
    import onnx
    from onnx import TensorProto, helper

    shapes = {"a": (128, 128), "b": (128, 128), "c": (128, 128)}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "mm", [values["a"], values["b"]], [values["c"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "mm.onnx"))
    place = calibrated(tmp_path, "metaschedule")
    report = tune(Request(str(tmp_path / "mm.onnx"), threads=1, budget=Budget(None, 24), store=place))
    assert report.job.state is JobState.DONE
    with open_store(place) as store:
        records = store.records()
    shared = [r for r in records if r.measurement.mode is Mode.SHARED]
    assert len({tuple(r.measurement.context["cores"]) for r in shared}) == 2
    assert all(r.measurement.context["affinity_held"] for r in shared if r.measurement.samples_s)
    assert overlapping([span for span in made[0].dispatch.spans if span.kind == "measure"])
    expect_alone(made[0])


def test_slots_share_the_right_to_measure_and_nobody_joins_while_another_process_waits(tmp_path: Path) -> None:
    async def all_of_it() -> list[str]:
        one, other = DeviceLock(tmp_path / "lock"), DeviceLock(tmp_path / "lock")
        seen: list[str] = []
        ends = [asyncio.Event() for _ in range(4)]

        async def hold(lock: DeviceLock, name: str, end: asyncio.Event) -> None:
            async with lock.held():
                seen.append(name)
                await end.wait()

        async def start(lock: DeviceLock, name: str, end: asyncio.Event) -> asyncio.Task[None]:
            task = asyncio.create_task(hold(lock, name, end))
            await asyncio.sleep(0.1)
            return task

        tasks = [await start(one, "first", ends[0]), await start(one, "beside it", ends[1])]
        tasks.append(await start(other, "another process", ends[2]))
        given_up = await start(one, "never", ends[3])
        tasks.append(await start(one, "after that", ends[3]))
        assert seen == ["first", "beside it"]
        given_up.cancel()
        for end in ends:
            end.set()
            await asyncio.sleep(0.1)
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(all_of_it()) == ["first", "beside it", "another process", "after that"]


def test_where_one_part_fails_the_others_are_over_before_its_error_goes_on() -> None:
    over: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            over.append("other")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(together([work(), fail()]))
    assert over == ["other"]


def test_what_was_measured_again_is_one_trial_and_its_last_outcome_counts() -> None:
    def record(
        key: str, outcome: Outcome, mode: Mode = Mode.RACE, job: str = "mine", origin: Origin = Origin.SEARCH
    ) -> Record:
        candidate = Candidate(key, "task", "", origin)
        return Record(candidate, Measurement(outcome, mode=mode), Provenance("", "", "", ""), job)

    records = [
        record("a", Outcome.TIMEOUT, Mode.SHARED),
        record("a", Outcome.OK),
        record("b", Outcome.ABANDONED),
        record("b", Outcome.OK, Mode.FINAL),
        record("c", Outcome.OK, job="another's"),
        record("d", Outcome.OK, origin=Origin.BASELINE),
    ]
    assert tried(records, "mine") == {"a": Outcome.OK, "b": Outcome.ABANDONED}
