"""Every setting of the environment is documented, and each has the effect that is documented."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from cli_tools import Run

from tunery._settings import PREFIX, Settings, models_directory
from tunery.store import open_store

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bTUNERY_[A-Z_]+\b")


def test_the_page_lists_exactly_what_the_code_reads() -> None:
    read = {f"{PREFIX}{field.name.upper()}" for field in fields(Settings)}
    named = {name for file in (ROOT / "src").rglob("*.py") for name in NAME.findall(file.read_text())}
    assert named <= read
    assert read == set(NAME.findall((ROOT / "docs" / "settings.md").read_text()))


def test_store_names_the_store_and_the_option_wins(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(str(tmp_path / "one.db")).close()
    monkeypatch.setenv("TUNERY_STORE", str(tmp_path / "one.db"))
    assert run("records", "stats", "--json").data["place"] == str(tmp_path / "one.db")
    two = str(tmp_path / "two.db")
    open_store(two).close()
    assert run("records", "stats", "--store", two, "--json").data["place"] == two
    monkeypatch.delenv("TUNERY_STORE")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("records", "stats", "--json").data["place"] == str(tmp_path / ".local/share/tunery/tunery.db")


@pytest.mark.jobs
def test_cache_names_the_cache(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "there"))
    run("extract", "fake:demo", "--dialect", "fake")
    assert (tmp_path / "there").is_dir()
    monkeypatch.delenv("TUNERY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    run("extract", "fake:demo", "--dialect", "fake")
    assert (tmp_path / "xdg" / "tunery").is_dir()


@pytest.mark.jobs
def test_a_value_that_a_variable_cannot_have_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_LOAD_WATCH", "sometimes")
    answer = run("tune", "fake:demo", "--dialect", "fake", "--budget", "4trials")
    assert answer.code == 2
    assert "TUNERY_LOAD_WATCH" in answer.err
    assert "sometimes" in answer.err
    assert "on or off" in answer.err
    for advised in ("on", "off"):
        monkeypatch.setenv("TUNERY_LOAD_WATCH", advised)
        assert run("extract", "fake:demo", "--dialect", "fake").code == 0


def test_a_misspelt_name_is_named_and_others_are_left_alone(first_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_PORT", "tcp://10.0.0.1:80")  # as Kubernetes sets for a service of the name
    assert first_run("records", "stats").code == 0
    for name, meant in (("TUNERY_STROE", "TUNERY_STORE"), ("TUNERY_MODEL", "TUNERY_MODELS")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, "x")
            answer = first_run("records", "stats")
        assert answer.code == 2
        assert name in answer.err
        assert meant in answer.err


@pytest.mark.jobs
def test_models_and_store_follow_the_same_directory(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNERY_STORE", raising=False)
    monkeypatch.delenv("TUNERY_MODELS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert models_directory() == tmp_path / "data/tunery/models"
    run("extract", "fake:demo", "--dialect", "fake")
    assert (tmp_path / "data/tunery/tunery.db").is_file()
