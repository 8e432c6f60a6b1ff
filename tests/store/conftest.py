"""An open store per test, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL

from postgres_server import temporary_database
from tunery.store import Store, open_store
from tunery.store.database.file import resolve
from tunery.store.database.schema import metadata

_FILLED = ", ".join(table.name for table in metadata.sorted_tables if table.name != "tunery_schema")


@pytest.fixture(scope="session")
def shared_database(postgres_url: URL) -> Iterator[str]:
    """The URL of a database on PostgreSQL that tests use one after the other: making one takes longer than most do."""
    with temporary_database(postgres_url) as url:
        open_store(url).close()
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    shared: str = request.getfixturevalue("shared_database")
    with sa.create_engine(resolve(shared), poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")  # of a test that has left a session open
        connection.exec_driver_sql(f"TRUNCATE {_FILLED} RESTART IDENTITY")
    return shared


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened
