"""Settings for all tests: a loaded machine may make a test slow, but must not make it fail."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from inline_engine import run_workers_here
from sqlalchemy.engine import URL, make_url
from store_guard import calls_on_the_loop

from postgres_server import PostgresServer, binaries, temporary_database
from tunery.devices.cpu.facts import bring_back
from tunery.store import open_store

settings.register_profile("tunery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("tunery"), max_examples=25)
settings.load_profile("tunery")

# Beside other work every measurement would wait for its patience; the watch has tests of its own.
os.environ.setdefault("TUNERY_LOAD_WATCH", "off")
# What the user has set for work of their own: their store, their service. What only tests read stays.
USERS = [name for name in os.environ if name.startswith("TUNERY_") and not name.startswith("TUNERY_TEST_")
         and name != "TUNERY_LOAD_WATCH"]  # fmt: skip


# What developers run by hand: it breaks by itself only, and costs a tenth of all tests.
_TRIED_RARELY = {"benchmarks", "studies"}

_ROOM_BYTES = 8 << 30  # all tests together write 2 GiB


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory where there is room: each job writes its store through to the disk."""
    shm = Path("/dev/shm")
    if config.option.basetemp is None and "TMPDIR" not in os.environ and shm.is_dir():
        facts = os.statvfs(shm)
        if facts.f_bavail * facts.f_frsize > _ROOM_BYTES and not facts.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(shm))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, by its fixture or its parameter, and the studies; begin with the longest files.

    Processes that share the files then end together: the last ones are those of quick tests.
    """
    long = Counter[Path]()
    for item in items:
        if "postgres_url" in getattr(item, "fixturenames", ()) or "postgresql" in item.name.partition("[")[2]:
            item.add_marker("postgresql")
        if item.path.parent.name in _TRIED_RARELY:
            item.add_marker("slow")
        long[item.path] += any(mark.name in {"jobs", "tvm"} for mark in item.iter_markers())
    items.sort(key=lambda item: -long[item.path])  # a file stays together


@pytest.fixture(scope="session", autouse=True)
def _own_places_for_shared_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that several tests share have a cache and a default store apart from those of the user."""
    places = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        for name in USERS:
            patch.delenv(name)
        patch.setenv("TUNERY_TEST_DIALECTS", "on")
        patch.setenv("TUNERY_CACHE", str(places / "cache"))
        patch.setenv("XDG_DATA_HOME", str(places / "data"))
        patch.setenv("XDG_CONFIG_HOME", str(places / "config"))
        yield


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache and a default store of its own: none reads or fills those of the user."""
    monkeypatch.setenv("TUNERY_TEST_DIALECTS", "on")
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}-config")  # beside: what a test leaves is looked at


@pytest.fixture
def inline_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads of this process."""
    run_workers_here(monkeypatch)


@pytest.fixture
def worker_processes(inline_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are processes after all, where those of other tests of the file are threads."""
    monkeypatch.setenv("TUNERY_ENGINE", "local")


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    """What measures in this process pins it; the next test has all cores again."""
    before = os.sched_getaffinity(0)
    yield
    if os.sched_getaffinity(0) != before:
        bring_back(tuple(before))


@pytest.fixture(autouse=True)
def store_calls_on_the_loop() -> Iterator[list[str]]:
    """Coroutines of the package call a store by `AsyncStore` alone."""
    with calls_on_the_loop() as found:
        yield found
    assert sorted(set(found)) == []


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


@pytest.fixture(scope="session")
def new_postgres_store(postgres_url: URL) -> Iterator[str]:
    """The name of a database on PostgreSQL that holds a new store: a copy of it needs no migrations."""
    with temporary_database(postgres_url) as url:
        open_store(url).close()
        yield str(make_url(url).database)


@pytest.fixture
def postgres_database(postgres_url: URL, new_postgres_store: str) -> Iterator[str]:
    """The URL of a database on PostgreSQL that holds a new store."""
    with temporary_database(postgres_url, f"TEMPLATE {new_postgres_store}") as url:
        yield url
