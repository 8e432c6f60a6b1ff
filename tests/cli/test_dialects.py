"""Environments of dialects: what is not there is one sentence with the command that installs it."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

import tunery
from tunery._environments import (
    check_environment,
    environment_fault,
    environment_python,
    install_environment,
    remove_environment,
)
from tunery._errors import UsageError, WorkError
from tunery._settings import environments_directory
from tunery.cli.app import app
from tunery.dialects import get_dialect, installed_dialects
from tunery.runtime import worker_environment

PINNED = ("mine==1.0",)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_a_dialect_without_its_environment_is_one_sentence_with_the_command() -> None:
    with pytest.raises(UsageError, match="tunery dialects install mine"):
        check_environment("mine", PINNED)
    check_environment("mine", ())  # it needs none


def test_an_environment_of_other_versions_is_not_used() -> None:
    place = environments_directory() / "mine"
    place.mkdir(parents=True)
    (place / "tunery.json").write_text(json.dumps({"requirements": ["mine==0.9"]}))
    assert "other versions" in environment_fault("mine", PINNED)
    (place / "tunery.json").write_text("{")
    assert "cannot be read" in environment_fault("mine", PINNED)
    assert remove_environment("mine")
    assert not place.exists()
    assert not remove_environment("mine")


def test_of_an_environment_that_is_a_link_or_a_file_that_alone_is_removed(tmp_path: Path) -> None:
    place, other = environments_directory() / "mine", tmp_path / "other"
    place.parent.mkdir(parents=True)
    other.mkdir()
    (other / "tunery.json").write_text("{}")
    place.symlink_to(other)
    assert remove_environment("mine")
    assert not place.is_symlink()
    assert (other / "tunery.json").exists()
    place.write_text("no directory")
    assert remove_environment("mine")
    assert not place.exists()


def test_an_environment_that_has_lost_its_python_is_not_used() -> None:
    place = environments_directory() / "mine"
    place.mkdir(parents=True)
    made_by = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "tunery": tunery.__path__[0]}
    (place / "tunery.json").write_text(json.dumps({"requirements": [*PINNED], **made_by}))
    assert "lost its Python" in environment_fault("mine", PINNED)
    environment_python("mine").parent.mkdir()
    environment_python("mine").touch()
    assert not environment_fault("mine", PINNED)


def test_an_environment_that_cannot_be_removed_is_not_said_to_be() -> None:
    place = environments_directory() / "mine"
    place.mkdir(parents=True)
    place.parent.chmod(0o777)
    with pytest.raises(UsageError, match="everybody can write there"):
        remove_environment("mine")
    assert place.exists()


@pytest.mark.jobs
def test_without_a_network_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(WorkError, match="cannot reach its package index"):
        install_environment("mine", PINNED)
    assert not (environments_directory() / "mine").exists(), "half of it is left"


@pytest.mark.slow
def test_an_install_that_is_killed_leaves_nothing_that_may_be_used_and_its_place_to_no_other_until_pip_ends() -> None:
    """A second install would clear what the first one's pip, which outlives it, goes on to write."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        code = f"from tunery._environments import install_environment as f; f('mine', {PINNED!r})"
        first = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PIP_INDEX_URL": index})
        asked, _ = silent.accept()
        [pip] = psutil.Process(first.pid).children()
        first.kill()
        first.wait()
        assert "has no environment" in environment_fault("mine", PINNED)
        with (environments_directory() / "mine.lock").open() as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            pip.kill()
            asked.close()
            fcntl.flock(lock, fcntl.LOCK_EX)
    assert remove_environment("mine")


def test_each_dialect_is_listed_with_the_state_of_its_environment() -> None:
    code, said = run("dialects", "list", "--json")
    found = {one["name"]: one for one in json.loads(said)["dialects"]}
    assert code == 0
    assert list(found) == installed_dialects()
    assert found["fake"]["ready"]
    assert not found["fake"]["own_environment"]


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_dialect_that_needs_no_environment_gets_none(command: str) -> None:
    code, said = run("dialects", command, "fake")
    assert code == 2
    assert "nothing to install" in said


@pytest.mark.parametrize("words", [["list"], ["install", "fake"], ["check", "fake"], ["remove", "fake"]])
def test_a_service_installs_nothing(words: list[str]) -> None:
    code, said = run("dialects", *words, "--server", "http://127.0.0.1:1")
    assert code == 2
    assert "without --server" in said


def test_a_dialect_is_checked_by_its_own_checks() -> None:
    code, said = run("dialects", "check", "fake")
    assert code == 0
    assert said.startswith("ok")


def test_requirements_are_pinned_and_only_such_dialects_have_a_python_of_their_own() -> None:
    for name in installed_dialects():
        dialect = get_dialect(name)
        assert all("==" in one for one in dialect.requirements)
        own = str(environment_python(name)) if dialect.requirements else ""
        assert dialect.environment().python == own


def test_workers_of_a_dialect_without_its_environment_are_not_started() -> None:
    lacking = [name for name in installed_dialects() if get_dialect(name).requirements]
    for name in lacking:
        with pytest.raises(UsageError, match=f"tunery dialects install {name}"):
            worker_environment(name)
