import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection
from store_samples import HERE, network, task

from tunery.domain import JobState, Outcome
from tunery.store import Store, _schema, open_store
from tunery.store._migrate import alembic_config

ASSETS = Path(__file__).parent / "assets"
CONV = task()


def old_store(path: Path, name: str) -> str:
    with sqlite3.connect(path) as connection:
        connection.executescript((ASSETS / name).read_text(encoding="utf-8"))
    connection.close()
    return str(path)


@pytest.mark.parametrize("version", ["v1", "v2", "v4"])
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
            assert len(store.calibrations("device-a")) == (version == "v4")
            store.save_tasks(network(), [CONV], target=CONV.target, compiler="fake-1")
            store.devices.save("device-a", {"model": "x"}, "host")
            assert store.events.append("opened") > 0


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    url = old_store(tmp_path / "v1.db", "v1.sql")
    with sqlite3.connect(url) as connection:
        connection.execute("CREATE TABLE extractions (in_the_way INTEGER)")  # 0002 makes networks, then fails here
        before = list(connection.iterdump())
    connection.close()
    try:
        open_store(url).close()
        raised = ""
    except Exception as error:  # noqa: BLE001
        raised = type(error).__name__
    assert raised == "StoreError"
    with sqlite3.connect(url) as connection:
        assert list(connection.iterdump()) == before
    connection.close()


def test_tables_and_migrations_say_the_same(store: Store) -> None:
    def compare(connection: Connection) -> None:
        context = MigrationContext.configure(connection, opts={"version_table": _schema.VERSION_TABLE})
        assert compare_metadata(context, _schema.metadata) == []
        script = ScriptDirectory.from_config(alembic_config(connection))
        assert script.get_current_head() == _schema.HEAD

    store.write(compare)


def test_the_order_of_versions_is_the_order_of_their_names(store: Store) -> None:
    script = store.read(lambda connection: ScriptDirectory.from_config(alembic_config(connection)))
    names = [revision.revision for revision in script.walk_revisions()]
    assert names == sorted(names, reverse=True)  # what decides whether a schema is newer


def test_every_migration_can_be_taken_back(store: Store) -> None:
    def down_and_up(connection: Connection) -> None:
        command.downgrade(alembic_config(connection), "base")
        assert sa.inspect(connection).get_table_names() == [_schema.VERSION_TABLE]
        command.upgrade(alembic_config(connection), "head")

    store.write(down_and_up)
    assert store.stats().records == 0
