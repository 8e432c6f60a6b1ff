"""A record and its cost are one commit: whatever ends the process between two commits, neither is there alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from job_tools import run_in
from sqlalchemy.engine import Connection

from tunery._errors import StoreError
from tunery.domain import JobState
from tunery.store import Store, open_store
from tunery.store.database import schema
from tunery.store.records import records as stored_records

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("inline_workers")]

SOURCE = "fake:commit?tasks=2&space=8x8x4&seed=3&refuse=0.2&noise=0.01"
_TIMED = ("measure", "baseline", "finals", "audit")
_NOT_TIMED = ("filtered", "build-failed")


def uncharged(connection: Connection) -> tuple[int, int]:
    """Return how many records of timings, and of failed builds, have no charge; fewer than 0: charges of none."""
    records, ledger = schema.records, schema.ledger
    outcome, counted = records.c.outcome, sa.func.coalesce(sa.func.sum(ledger.c.count), 0)

    def rows(condition: sa.ColumnElement[bool]) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(records).where(condition)).scalar_one())

    def paid(*conditions: sa.ColumnElement[bool]) -> int:
        return int(connection.execute(sa.select(counted).where(*conditions)).scalar_one())

    failed = paid(ledger.c.stage == "build", ledger.c.outcome == "build-failed")
    return (
        rows(outcome.not_in(_NOT_TIMED)) - paid(ledger.c.stage.in_(_TIMED)),
        rows(outcome == "build-failed") - failed,
    )


def test_after_each_commit_every_record_has_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, seen = Store.write, list[tuple[int, int]]()

    def write(self: Store, work: Callable[[Connection], Any]) -> Any:
        result = original(self, work)
        seen.append(self.read(uncharged))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        report = run_in(tmp_path, SOURCE, "40trials")
    assert report.job.state is JobState.DONE
    with open_store(report.store) as store:
        outcomes = {record.measurement.outcome.value for record in store.records()}
    assert {"ok", "build-failed"} <= outcomes
    assert set(seen) == {(0, 0)}


def test_a_charge_that_cannot_be_stored_takes_its_record_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, left = stored_records.insert_charges, [6]

    def full(connection: Connection, charges: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoreError("the disk is full")
        original(connection, charges)

    with monkeypatch.context() as patch:
        patch.setattr(stored_records, "insert_charges", full)
        with pytest.raises(StoreError, match="full"):
            run_in(tmp_path, SOURCE, "40trials")
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.records()
        assert store.read(uncharged) == (0, 0)
    assert run_in(tmp_path, SOURCE, "40trials").job.state is JobState.DONE
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.read(uncharged) == (0, 0)
