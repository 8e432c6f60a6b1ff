"""A command line with a store and a cache of its own, and one tuned job to look at."""

from pathlib import Path

import pytest
from cli_tools import Run, run_in_process
from inline_engine import run_workers_here

BUDGET = "30trials"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_workers: None) -> Run:
    monkeypatch.setenv("TUNERY_STORE", str(tmp_path / "store.db"))
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return run_in_process


@pytest.fixture
def first_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line of somebody who names no store, and has none yet."""
    monkeypatch.delenv("TUNERY_STORE")
    return run


@pytest.fixture(scope="session")
def tuned_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds one finished job of fake:demo."""
    directory = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNERY_CACHE", str(directory / "cache"))
        run_workers_here(patch)
        args = ("tune", "fake:demo", "--dialect", "fake", "--budget", BUDGET, "--store", str(directory / "store.db"))
        assert run_in_process(*args).code == 0
    return directory / "store.db"


@pytest.fixture
def tuned(run: Run, tuned_store: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TUNERY_STORE", str(tuned_store))
    return run
