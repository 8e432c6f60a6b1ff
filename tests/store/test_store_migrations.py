import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from store_samples import HERE, record, task

from tunery._errors import StoreError
from tunery.store import open_store
from tunery.store.database import schema

CONV = task()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own, whose tables a test may change."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    own: str = request.getfixturevalue("postgres_database")
    return own


def add_note(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN note VARCHAR")


def fail_halfway(connection: Connection) -> None:
    add_note(connection)
    raise StoreError("no further")


def filled(url: str) -> None:
    with open_store(url) as store:
        store.add_record(CONV, record(CONV, "mine"))


def test_a_migration_keeps_the_rows_and_is_done_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(url)
    monkeypatch.setattr(schema, "VERSION", 2)
    monkeypatch.setattr(schema, "MIGRATIONS", {1: add_note})
    for _ in range(2):
        with open_store(url) as store:
            assert [one.candidate.key for one in store.best(CONV.key, HERE)] == ["mine"]
            columns = store.read(lambda connection: sa.inspect(connection).get_columns("jobs"))
            assert "note" in {column["name"] for column in columns}


def test_a_failed_migration_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(url)
    with monkeypatch.context() as newer:
        newer.setattr(schema, "VERSION", 2)
        newer.setattr(schema, "MIGRATIONS", {1: fail_halfway})
        with pytest.raises(StoreError, match="no further"):
            open_store(url)
    with open_store(url) as store:
        assert [one.candidate.key for one in store.records()] == ["mine"]
        columns = store.read(lambda connection: sa.inspect(connection).get_columns("jobs"))
        assert "note" not in {column["name"] for column in columns}


@pytest.mark.parametrize("table", ["version INTEGER", "version_num VARCHAR"])
def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path: Path, table: str) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(f"CREATE TABLE tunery_schema ({table}); INSERT INTO tunery_schema VALUES (99)")
        before = list(connection.iterdump())
    connection.close()
    with pytest.raises(StoreError, match=r"another version of tunery.*records export"):
        open_store(str(path))
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before
    connection.close()
