"""Whoever only reads creates no store: one that is named must be there; the default place reads as empty at first."""

from pathlib import Path

import pytest
from cli_tools import Run

from tunery.cli.doctor import store_place
from tunery.domain import CheckState

FAKE = ("--dialect", "fake")
READERS = [
    (("devices", "list"), 0), (("jobs", "list"), 0), (("jobs", "show", "3f2a9c01b7de"), 1), (("spend",), 0),
    (("jobs", "resume", "3f2a9c01b7de"), 1), (("spend", "3f2a9c01b7de"), 1), (("query", "0123456789abcdef"), 1),
    (("query", "fake:demo", *FAKE), 1), (("records", "stats"), 0), (("records", "export", "all.jsonl"), 0),
    (("records", "export", "all.parquet", "--parquet", *FAKE), 2), (("records", "prune", "--keep", "1"), 0),
]  # fmt: skip
"""What to run, and its exit code where nothing is known yet."""


@pytest.mark.parametrize("words", [words for words, _ in READERS], ids=" ".join)
def test_a_named_store_that_is_not_there_is_bad_usage(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    answer = run(*words, "--store", "deep/mistyped.db")
    assert answer.code == 2
    *_, last = answer.err.splitlines()
    assert last == (
        f"error: there is no store at {tmp_path / 'deep' / 'mistyped.db'}; name another with --store, or begin "
        "one with `tunery tune`"
    )
    assert answer.out == ""
    assert not (tmp_path / "deep").exists()
    assert not list(tmp_path.glob("all.*"))


@pytest.mark.parametrize("words", [words for words, _ in READERS], ids=" ".join)
def test_a_store_that_the_environment_names_and_is_not_there_is_bad_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TUNERY_STORE", "deep/mistyped.db")
    answer = run(*words)
    assert answer.code == 2
    *_, last = answer.err.splitlines()
    assert str(tmp_path / "deep" / "mistyped.db") in last
    assert "TUNERY_STORE" in last
    assert answer.out == ""
    assert not (tmp_path / "deep").exists()


@pytest.mark.jobs
@pytest.mark.parametrize(("words", "code"), READERS)
def test_the_default_place_reads_as_empty_before_the_first_job(
    first_run: Run, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    answer = first_run(*words)
    assert answer.code == code
    assert "there is no store" not in answer.err
    assert not list(tmp_path.rglob("*.db*"))


def test_the_doctor_says_that_a_store_is_still_to_come(tmp_path: Path) -> None:
    found = store_place(str(tmp_path / "deep" / "store.db"))
    assert (found.state, found.found) == (
        CheckState.OK, f"{tmp_path / 'deep' / 'store.db'}, not there yet: the first `tunery tune` begins it",
    )  # fmt: skip
    assert not (tmp_path / "deep").exists()
    assert store_place(str(tmp_path)).state is CheckState.FAIL
