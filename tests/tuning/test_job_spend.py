"""What a job says it cost is what it cost."""

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_tools import os_core_s, request_in, run_in, runtimes

from tunery._errors import UsageError
from tunery.accounting.power import Power
from tunery.accounting.prices import load_prices
from tunery.devices.cpu.load import ModelledMeter
from tunery.domain import Budget, Candidate, JobState, Origin, Record, Task
from tunery.runtime import dispatch
from tunery.runtime.runtime import Runtime
from tunery.service.codec import request_of
from tunery.service.manager import JobManager
from tunery.service.session import tune
from tunery.store import Store, open_store
from tunery.tuning import calls, job
from tunery.tuning.calls import BuiltCandidate, Context
from tunery.tuning.search import task_search

pytestmark = pytest.mark.jobs

BUSY = "fake:busy?tasks=2&build_s=0.05&run_s=0.01&propose_s=0.02&spin=1&real=1&best_us=500"


def test_the_ledger_agrees_with_the_operating_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "HEARTBEAT_S", 0.2)  # at each of them, what nobody pays for becomes overhead
    before = os_core_s()
    report = run_in(tmp_path, BUSY.replace("tasks=2", "tasks=1"), "10trials")
    used_s = os_core_s() - before
    with open_store(report.store) as store:
        charges = store.ledger(report.job.job_id)
    assert sum(charge.core_s for charge in charges) == pytest.approx(used_s, rel=0.05, abs=0.2)
    assert {"import", "propose", "build", "measure", "baseline", "finals", "overhead", "manage"} <= {
        charge.stage for charge in charges
    }
    spend = report.job.spend
    assert spend.core_s == pytest.approx(sum(charge.core_s for charge in charges))
    assert spend.joules == pytest.approx(sum(charge.joules or 0.0 for charge in charges), rel=0.02)
    assert all(charge.joules is not None for charge in charges if charge.core_s)


def test_money_is_the_machine_for_the_time_it_was_kept(tmp_path: Path) -> None:
    report = run_in(tmp_path, BUSY.replace("tasks=2", "tasks=1"), "4trials")
    spend, prices = report.job.spend, load_prices()
    with open_store(report.store) as store:
        charges = store.ledger(report.job.job_id)
    assert {charge.currency for charge in charges} == {"USD"}
    assert sum(charge.money or 0.0 for charge in charges) == pytest.approx(spend.money, rel=0.02)
    assert spend.money is not None
    cores = spend.money / prices.of_machine(spend.wall_s)
    assert cores == pytest.approx(round(cores), rel=0.01)
    assert "idle" in {charge.stage for charge in charges}


def test_only_the_cores_that_were_granted_are_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "granted_cores", lambda: 1)
    job = run_in(tmp_path, "fake:granted?tasks=1&space=64x64x64", "16trials").job
    prices = load_prices()
    assert job.spend.money == pytest.approx(
        prices.of_machine(job.spend.wall_s) + prices.of_energy(job.spend.joules), rel=0.01
    )
    with open_store(str(tmp_path / "store.db")) as store:
        charged = sum(charge.money or 0.0 for charge in store.ledger(job.job_id))
    assert charged == pytest.approx(job.spend.money, rel=0.02)
    for more in job.outlook:
        assert more.money == pytest.approx(prices.of_machine(more.seconds) + prices.of_energy(more.joules), rel=0.01)


def test_only_candidates_that_were_the_best_have_helped(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:helped?tasks=1&noise=0.001", "40trials")
    with open_store(report.store) as store:
        charges = store.ledger(report.job.job_id)
        records = store.records(report.tasks[0].key)
    best, improved = float("inf"), 0
    for record in records:
        if record.measurement.mode == "race" and record.candidate.origin == "search" and record.measurement.latency_s:
            improved += record.measurement.outcome == "ok" and record.measurement.latency_s < best
            best = min(best, record.measurement.latency_s)
    for stage in ("build", "measure"):
        assert sum(charge.count for charge in charges if charge.stage == stage and charge.helped) == improved
    assert 0 < improved < 40


def test_a_result_says_what_more_would_probably_buy(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:more?tasks=2&space=64x64x64", "40trials")
    assert report.job.remaining == {"trials": 0.0}
    curve = report.job.outlook
    assert [p.trials for p in curve] == sorted(p.trials for p in curve)
    assert [p.median_s for p in curve] == sorted((p.median_s for p in curve), reverse=True)
    assert all(p.low_s <= p.median_s <= p.high_s for p in curve)
    assert report.after_s is not None
    assert curve[0].high_s <= report.after_s * 1.0001, "it begins at what the finals gave, not at a lucky race"
    with open_store(report.store) as store:
        assert store.job(report.job.job_id).outlook == curve


def test_a_stored_job_keeps_its_budget(tmp_path: Path) -> None:
    report = run_in(tmp_path, "fake:kept", "5trials,$3,60kJ,9min")
    assert request_of(report.job, "").budget == Budget(540.0, 5, 3.0, "USD", 6e4)


def test_a_budget_in_the_wrong_money_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="2USD"):
        tune(request_in(tmp_path, "fake:wrong", "€2"))
    assert not (tmp_path / "store.db").exists()


def test_a_job_that_was_stopped_within_a_batch_has_paid_for_each_of_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, original = threading.Event(), Store.add_records

    def add(self: Store, task: Task, records: Sequence[Record], *more: Any) -> int:
        number = original(self, task, records, *more)
        if any(record.candidate.origin is not Origin.BASELINE for record in records):
            stop.set()  # the first race of its batch: the others are cut short
        return number

    source = "fake:cut?tasks=1&run_s=0.03&build_s=0.01"
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_records", add)
        first = run_in(tmp_path, source, "24trials", stop=stop).job
    assert (first.state, first.spend.trials > 0) == (JobState.STOPPED, True)
    assert built(tmp_path, first.job_id) == first.spend.trials
    done = run_in(tmp_path, source, "24trials").job
    assert (done.job_id, done.spend.trials) == (first.job_id, 24)
    assert built(tmp_path, done.job_id) == 24


def test_a_build_that_waits_for_its_race_is_no_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_DEPTH", 1)
    original, unclaimed = calls.build_all, list[float]()

    async def build(payer: Context, task: Task, candidates: Sequence[Candidate], *more: Any) -> list[BuiltCandidate]:
        runtime = payer.runtime
        before_s = runtime.usage.unclaimed()
        made = await original(payer, task, candidates, *more)
        unclaimed.append((runtime.usage.unclaimed() - before_s) / sum(one.build.core_s for one in made))
        return made

    monkeypatch.setattr(task_search, "build_all", build)
    assert run_in(tmp_path, "fake:waits?tasks=1&build_s=0.05&spin=1", "12trials").job.spend.trials == 12
    assert min(unclaimed) < 0.5  # in the first, workers start


def built(directory: Path, job_id: str) -> int:
    """How many candidates a job has paid the build of."""
    with open_store(str(directory / "store.db")) as store:
        return sum(charge.count for charge in store.ledger(job_id) if charge.stage == "build" and charge.outcome)


def test_what_a_killed_run_paid_for_the_machine_is_charged_by_the_next(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    first = run_in(tmp_path, "fake:killed?tasks=1", "24trials", stop=stop).job
    with open_store(
        str(tmp_path / "store.db")
    ) as store:  # as a heartbeat leaves it: all of the machine, and not what was charged since
        spend = replace(first.spend, money=(first.spend.money or 0.0) + 0.5, joules=1e-3, core_s=1e-3)
        store.save_job(replace(first, spend=spend))
    again = run_in(tmp_path, "fake:killed?tasks=1", "24trials").job
    with open_store(str(tmp_path / "store.db")) as store:
        charges = store.ledger(again.job_id)
    assert (again.job_id, again.state) == (first.job_id, JobState.DONE)
    assert again.spend.money is not None
    assert again.spend.money > 0.5
    for what in ("money", "joules", "core_s"):
        charged = sum(getattr(charge, what) or 0.0 for charge in charges)
        assert charged == pytest.approx(getattr(again.spend, what)), what


def test_a_job_goes_on_in_the_money_it_was_paid_in(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    run_in(tmp_path, "fake:money?tasks=1", "24trials", stop=stop)
    sheet = tmp_path / "ours.toml"
    sheet.write_text('machine = "ours"\ncurrency = "EUR"\nmachine_hour = 1.0\ncores = 4\nkwh = 0.3\n'
                     'source = "the bill"\ndate = 2026-01-31\n')  # fmt: skip
    request = replace(request_in(tmp_path, "fake:money?tasks=1", "24trials"), prices=str(sheet))
    with pytest.raises(UsageError, match=r"paid in USD.*EUR"):
        tune(request)
    assert run_in(tmp_path, "fake:money?tasks=1", "24trials").job.state is JobState.DONE


def test_what_a_daemon_did_while_it_had_no_job_is_nobodys_bill(tmp_path: Path) -> None:
    async def main() -> tuple[float, float]:
        with open_store(str(tmp_path / "store.db")) as store:
            async with JobManager(store) as room:
                await room.wait(await room.submit(request_in(tmp_path, "fake:first?tasks=1", "8trials")))
                idle_s = time.process_time()
                while time.process_time() - idle_s < 3.0:
                    pass
                second = await room.submit(request_in(tmp_path, "fake:second?tasks=1", "8trials"))
                status, ledger = await room.wait(second), store.ledger(second)
                assert status.spend.trials == 8
                return sum(c.core_s for c in ledger if c.stage == "manage"), status.spend.core_s

    managed_s, all_s = asyncio.run(main())
    assert 0.0 < managed_s < 3.0
    assert all_s < 3.0 + managed_s


def test_energy_is_measured_from_before_the_import(tmp_path: Path) -> None:
    class Counter(ModelledMeter):
        modelled, name = False, "rapl"
        busy_s = 0.0

        def busy_core_s(self) -> float:
            self.busy_s = time.process_time()
            return self.busy_s

        def read_j(self) -> float:
            return 20.0 * self.busy_s  # of the same instant

    def metered(runtime: Runtime) -> None:
        counter = Counter()
        seconds = itertools.count(step=2)  # each look at the clock is a window of its own, however fast the job is
        runtime.power = Power(counter, counter.busy_core_s, lambda: float(next(seconds)))

    with runtimes(metered):
        job = run_in(tmp_path, "fake:metered?tasks=1", "8trials").job
    with open_store(str(tmp_path / "store.db")) as store:
        charges = [charge for charge in store.ledger(job.job_id) if charge.core_s]
    assert "import" in {charge.stage for charge in charges}
    assert not any(charge.modelled for charge in charges)
    assert sum(c.joules or 0.0 for c in charges) == pytest.approx(20.0 * sum(c.core_s for c in charges), rel=1e-3)
