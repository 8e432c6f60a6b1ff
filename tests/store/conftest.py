"""An open store per test: on SQLite, and on the PostgreSQL server that TUNERY_TEST_POSTGRES names, if any."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tunery.store import Store, open_store

SERVER = os.environ.get("TUNERY_TEST_POSTGRES", "")


@pytest.fixture(params=["sqlite", *(["postgresql"] if SERVER else [])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "store.db")
        return
    name = f"tunery_{uuid.uuid4().hex}"
    server = sa.create_engine(SERVER, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.url.set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened
