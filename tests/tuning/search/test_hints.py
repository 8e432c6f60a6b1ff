"""What imported records say is tried first, measured here, and believed in nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from job_tools import records_in, run_in

from tunery.domain import Candidate, Measurement, Mode, Outcome, Provenance, Record, Task, Verification
from tunery.runtime.record_checks import import_records
from tunery.store import open_store
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.testing.fake_dialect._space import FakeSpace

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SOURCE = "fake:hinted?tasks=1"
ABSURD_S = 1e-12
CHECKED = Verification("reference", Verification.FULL, 0.0, True)
WRONG = Verification("reference", Verification.FULL, 9.0, False)


@pytest.fixture
def task() -> Task:
    dialect = FakeDialect()
    [found] = dialect.extract(fake_network(SOURCE), dialect.resolve_target("native", 1))
    return found


def import_into(directory: Path, task: Task, *told: tuple[Candidate, Outcome, Mode]) -> None:
    """Import records that claim to be of this device, and verified."""
    run_in(directory / "before", SOURCE, "2trials")  # for the conditions that records are made under here
    [here] = {record.provenance for record in records_in(directory / "before")}
    assert isinstance(here, Provenance)
    with open_store(str(directory / "theirs.db")) as store:
        for candidate, outcome, mode in told:
            samples = () if outcome is Outcome.CRASHED else (ABSURD_S,) * 3
            verification = WRONG if outcome is Outcome.WRONG_RESULT else CHECKED
            measurement = Measurement(outcome, samples, mode, verification=verification)
            store.add_record(task, Record(candidate, measurement, here, "theirs"))
        store.export_records(directory / "theirs.jsonl")
    summary = import_records(str(directory / "store.db"), directory / "theirs.jsonl")
    assert summary.added == len(told)


def test_a_hint_is_tried_first_and_timed_here(tmp_path: Path, task: Task) -> None:
    space, dialect = FakeSpace(task), FakeDialect()
    best = space.candidate(next(space.healthy()))
    baseline = dialect.baseline(task)
    (tmp_path / "before").mkdir()
    import_into(
        tmp_path,
        task,
        (best, Outcome.OK, Mode.RACE),
        (best, Outcome.OK, Mode.FINAL),
        (baseline, Outcome.OK, Mode.RACE),
        (baseline, Outcome.OK, Mode.FINAL),
    )
    report = run_in(tmp_path, SOURCE, "6trials")
    [state] = report.job.tasks
    assert state.baseline_s == pytest.approx(dialect.latency_s(task, baseline), rel=0.1), "the import's was believed"
    assert state.best_candidate == best.key
    assert state.best_s == pytest.approx(dialect.latency_s(task, best), rel=0.1), "the import's was believed"
    assert report.job.spend.trials == 6
    raced = [record for record in records_in(tmp_path, Mode.RACE) if record.candidate.key != baseline.key]
    assert raced[0].candidate.key == best.key


def test_an_import_cannot_speak_for_a_candidate(tmp_path: Path, task: Task) -> None:
    """Its keys are computed here: what it says under another's key, and that another is wrong, has no effect."""
    space, dialect = FakeSpace(task), FakeDialect()
    order = list(space.healthy())
    best, slow = space.candidate(order[0]), space.candidate(order[-1])
    (tmp_path / "before").mkdir()
    import_into(
        tmp_path,
        task,
        (replace(slow, key=best.key), Outcome.OK, Mode.RACE),
        (best, Outcome.WRONG_RESULT, Mode.RACE),
        (best, Outcome.CRASHED, Mode.FINAL),
        (replace(best, key="f" * 16), Outcome.OK, Mode.RACE),
    )
    report = run_in(tmp_path, SOURCE, "6trials")
    [state] = report.job.tasks
    assert state.best_candidate == best.key
    for record in records_in(tmp_path):
        assert record.candidate.key == dialect.identify(task, record.candidate.body).key
    with open_store(report.store) as store:
        [first, *_] = store.best(task.key, records_in(tmp_path)[0].provenance, limit=None)
    assert first.candidate.key == best.key
