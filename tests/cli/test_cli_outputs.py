"""What the commands that write a file leave alone: the store, their own input, and files of another kind."""

import shutil
from pathlib import Path

import pytest
from cli_tools import Run

from tunery._errors import CrashError, DialectError, StoreError, TargetError, TuneryError
from tunery.cli.console.live import LiveLine
from tunery.service.kinds.compile import CompileOptions
from tunery.tuning.work import Work

FAKE = ("--dialect", "fake")


@pytest.fixture
def private(tuned_store: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line whose store is a copy of the tuned one, so that a test may lose it."""
    shutil.copyfile(tuned_store, tmp_path / "store.db")
    return run


WRITERS = [
    ("compile", "fake:demo", *FAKE, "-o"),
    ("tune", "fake:demo", *FAKE, "--budget", "30trials", "-o"),
    ("records", "export"),
    ("spend", "--chart"),
]


@pytest.mark.jobs
@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
@pytest.mark.parametrize("force", [False, True])
def test_no_command_replaces_the_store(private: Run, command: tuple[str, ...], force: bool, tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to("store.db")
    before = private("records", "stats", "--json").data
    assert before
    for name in ("store.db", "./store.db", "link.png", "store.db-wal"):
        answer = private(*command, name, *(["--force"] if force else []))
        assert answer.code == 2, answer
        assert len(answer.err.splitlines()) == 1
        assert "name another file" in answer.err
    (tmp_path / "hard.png").hardlink_to(tmp_path / "store.db")
    assert private(*command, "hard.png", *(["--force"] if force else [])).code == 2
    (tmp_path / "hard.png").unlink()
    assert private("records", "stats", "--json").data == before
    assert private(*command, "another.png").code == 0, "the advice helps"
    assert (tmp_path / "link.png").is_symlink()


@pytest.mark.jobs
def test_a_place_that_is_lost_while_tuning_is_told_as_one_that_was_never_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(LiveLine, "show", lambda *_: shutil.rmtree(tmp_path / "here", ignore_errors=True))
    answer = run("tune", "fake:lost?tasks=1", *FAKE, "--budget", "8trials", "-o", "here/out.tunery")
    assert answer.code == 2, answer
    assert "here" in answer.err
    [job] = run("jobs", "list", "--json").data["jobs"]
    assert (job["status"], job["spend"]["trials"]) == ("done", 8), "what was measured is kept"


@pytest.mark.jobs
@pytest.mark.parametrize(("error", "code"), [(TargetError, 2), (StoreError, 2), (DialectError, 1), (CrashError, 1)])
def test_a_network_that_is_not_compiled_after_tuning_ends_as_compile_does_once_the_table_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[TuneryError], code: int
) -> None:
    async def compile_network(work: Work, options: CompileOptions) -> None:
        raise error("the wand is broken")

    monkeypatch.setattr("tunery.service.kinds.tune.compile_network", compile_network)
    answer = run("tune", "fake:wand?tasks=1", *FAKE, "--budget", "8trials", "-o", "out.tunery")
    assert answer.code == code
    assert "sum of tasks" in answer.out
    assert "the wand is broken" in answer.err
    [job] = run("jobs", "list", "--json").data["jobs"]
    assert (job["status"], job["spend"]["trials"]) == ("done", 8)
    answer = run("tune", "fake:wand?tasks=1", *FAKE, "--budget", "8trials", "-o", "out.tunery", "--json")
    assert (answer.code, answer.data["status"]) == (code, "done"), "one document"
    assert "the wand is broken" in answer.data["error"]


@pytest.mark.jobs
@pytest.mark.parametrize("command", WRITERS[:3], ids=lambda command: command[0])
def test_a_file_of_another_kind_is_replaced_only_by_force(
    private: Run, command: tuple[str, ...], tmp_path: Path
) -> None:
    thesis = tmp_path / "thesis.doc"
    thesis.write_text("years of work")
    answer = private(*command, "thesis.doc")
    assert answer.code == 2
    assert "--force" in answer.err
    assert thesis.read_text() == "years of work"
    assert private(*command, "thesis.doc", "--force").code == 0
    made = thesis.read_bytes()
    assert made != b"years of work"
    assert private(*command, "thesis.doc").code == 0, "its own kind needs no force"


@pytest.mark.jobs
def test_a_model_is_never_replaced_by_what_is_compiled_from_it(private: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model, or as good as")
    for verb in ("compile", "tune"):
        answer = private(verb, "model.onnx", "-o", "model.onnx", "--force")
        assert answer.code == 2
        assert "works on" in answer.err
    assert model.read_bytes() == b"a model, or as good as"


def test_a_price_sheet_is_not_replaced_by_the_chart_of_what_it_prices(private: Run, tmp_path: Path) -> None:
    (tmp_path / "prices.png").write_text('currency = "EUR"\n')
    answer = private("spend", "--prices", "prices.png", "--chart", "prices.png", "--force")
    assert answer.code == 2
    assert (tmp_path / "prices.png").read_text() == 'currency = "EUR"\n'
