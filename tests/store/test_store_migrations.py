import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection
from store_samples import HALF_CHECKED, HERE, network, record, task

from tunery.domain import JobState, Outcome, Record, Task
from tunery.store import Store, open_store
from tunery.store.database import schema
from tunery.store.database.migrate import alembic_config
from tunery.store.records.records import insert_tasks
from tunery.store.records.rows import record_row

ASSETS = Path(__file__).parent / "assets"
CONV = task()


def old_store(path: Path, name: str) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript((ASSETS / name).read_text(encoding="utf-8"))
    connection.close()
    return str(path)


@pytest.mark.parametrize("version", ["v1", "v2", "v4", "v5"])
def test_an_older_store_keeps_its_rows_and_gains_the_new_tables(tmp_path: Path, version: str) -> None:
    url = old_store(tmp_path / "old.db", f"{version}.sql")
    for _ in range(2):  # migrating, and opening what was migrated
        with open_store(url) as store:
            store.check()
            (best,) = store.best(CONV.key, HERE)
            assert (best.candidate.key, best.measurement.latency_s) == ("fast", 1.25e-3)
            assert [r.measurement.outcome for r in store.records()] == [Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
            assert store.task(CONV.key) == CONV
            (job,) = store.jobs()
            assert (job.state, job.request["model"]) == (JobState.STOPPED, "resnet18.onnx")
            (paid,) = [c for c in store.ledger(job.job_id) if c.stage == "measure"]
            assert (paid.core_s, paid.money, paid.currency) == (2.5, None, "")
            assert store.resumable({"model": "resnet18.onnx", "budget": "1h"}) == job
            assert len(store.calibrations("device-a")) == (version in ("v4", "v5"))
            store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
            store.devices.save("device-a", {"model": "x"}, "host")
            assert store.events.append("opened") > 0


def import_as_before(url: str, theirs: Task, record_of: Record) -> None:
    """Put a record into a store as an import did when nothing told its records and its programs from others."""
    row = record_row(record_of, 1.0) | {"deliverable": False}
    with open_store(url) as store:
        store.write(lambda c: insert_tasks(c, [theirs]))
        store.write(lambda c: c.execute(sa.insert(schema.records).values(row)))
        store.write(lambda c: downgrade(c, "0005"))


def downgrade(connection: sa.Connection, version: str) -> None:
    from alembic import command

    command.downgrade(alembic_config(connection), version)


def test_what_an_older_store_imported_is_told_from_what_it_measured(tmp_path: Path) -> None:
    url, other = str(tmp_path / "old.db"), task("other")
    hostile = replace(CONV, workload=replace(CONV.workload, program="hostile"))
    with open_store(url) as store:
        store.add_record(other, record(other, "mine", job_id=store.create_job({"model": "x"}).job_id))
        store.add_record(other, record(other, "half", verification=HALF_CHECKED))
    import_as_before(url, hostile, record(CONV, "theirs", 1e-9, job_id="elsewhere"))
    with open_store(url) as store:
        store.write(lambda c: downgrade(c, "0005"))
    with open_store(url) as store:
        assert [one.candidate.key for one in store.records()] == ["mine", "half"]
        assert store.hints(CONV.key, HERE, 9) == ["body of theirs"]
        assert store.imported_workloads() >= {CONV.workload.key}
        store.save_tasks(network(), [CONV, other], target=CONV.target, compiler="fake-1")
        assert store.load_tasks("net-1", CONV.target.key, "fake-1") == [CONV, other]
        assert store.imported_workloads() == set()


@pytest.mark.parametrize("with_import", [False, True])
def test_networks_are_extracted_again_only_where_there_was_an_import(tmp_path: Path, with_import: bool) -> None:
    url, other = str(tmp_path / "old.db"), task("other")
    with open_store(url) as store:
        store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
        store.add_record(CONV, record(CONV, "mine"))
        store.write(lambda c: downgrade(c, "0005"))
    if with_import:
        import_as_before(url, other, record(other, "theirs", 1e-9))
    with open_store(url) as store:
        assert [one.candidate.key for one in store.best(CONV.key, HERE)] == ["mine"]
        known = store.load_tasks("net-1", CONV.target.key, "fake-1")
        assert known == (None if with_import else [CONV])


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    url = old_store(tmp_path / "v1.db", "v1.sql")
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute("CREATE TABLE extractions (in_the_way INTEGER)")  # 0002 makes networks, then fails here
        before = list(connection.iterdump())
    connection.close()
    try:
        open_store(url).close()
        raised = ""
    except Exception as error:  # noqa: BLE001
        raised = type(error).__name__
    assert raised == "StoreError"
    with closing(sqlite3.connect(url)) as connection, connection:
        assert list(connection.iterdump()) == before
    connection.close()


def test_tables_and_migrations_say_the_same(store: Store) -> None:
    def compare(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        script = ScriptDirectory.from_config(alembic_config(connection))
        assert script.get_current_head() == schema.HEAD

    store.write(compare)


def test_the_order_of_versions_is_the_order_of_their_names(store: Store) -> None:
    script = store.read(lambda connection: ScriptDirectory.from_config(alembic_config(connection)))
    names = [revision.revision for revision in script.walk_revisions()]
    assert names == sorted(names, reverse=True)  # what decides whether a schema is newer


def test_every_migration_can_be_taken_back(store: Store) -> None:
    def down_and_up(connection: Connection) -> None:
        command.downgrade(alembic_config(connection), "base")
        assert sa.inspect(connection).get_table_names() == [schema.VERSION_TABLE]
        command.upgrade(alembic_config(connection), "head")

    store.write(down_and_up)
    assert store.stats().records == 0
