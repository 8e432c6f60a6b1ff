"""Settings for all tests: a loaded machine may make a test slow, but must not make it fail."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import URL, make_url

from postgres_server import PostgresServer, binaries, temporary_database

settings.register_profile("tunery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tunery")

# Beside other work every measurement would wait for its patience; the watch has tests of its own.
os.environ.setdefault("TUNERY_LOAD_WATCH", "off")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own: none reads or fills that of the user."""
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    """The server that TUNERY_TEST_POSTGRES names, else one that is started for these tests."""
    if given := os.environ.get("TUNERY_TEST_POSTGRES"):
        yield make_url(given)
        return
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL's programs (Debian, Ubuntu: apt-get install postgresql)")
    server = PostgresServer(programs)
    try:
        server.start()
        yield server.url
    finally:
        server.close()


@pytest.fixture
def postgres_database(postgres_url: URL) -> Iterator[str]:
    """The URL of an empty database on PostgreSQL."""
    with temporary_database(postgres_url) as url:
        yield url
