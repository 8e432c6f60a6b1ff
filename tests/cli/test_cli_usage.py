"""Wrong requests end with one clear line and exit code 2, and leave nothing behind."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from cli_tools import Answer, Run, run_in_process
from hypothesis import given, settings
from hypothesis import strategies as st

from tunery._errors import UsageError
from tunery.cli.console.options import make_query, parse_rivals, parse_shapes
from tunery.domain.request import FillPolicy, Request

FAKE = ("--dialect", "fake")


def assert_refused(answer: Answer, *words: str) -> None:
    assert answer.code == 2
    assert answer.out == ""
    *_, last = answer.err.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in answer.err
    for word in words:
        assert word in last


@pytest.mark.parametrize(
    "budget", ["10", "min", "-5min", "0min", "0trials", "1.5trials", "10 parsecs", "10min,5min", "5trials+6trials",
               "1e3s", "ten minutes", "10min,", "nan s", "inf trials"],
)  # fmt: skip
def test_a_malformed_budget(run: Run, budget: str) -> None:
    assert_refused(run("tune", "fake:demo", *FAKE, f"--budget={budget}"), "budget")


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("tune", "missing.onnx"), "missing.onnx"),
        (("tune", "garbage.onnx"), "not an ONNX model"),
        (("tune", "empty.onnx"), "empty"),
        (("tune", "page.onnx"), "web page"),
        (("tune", "."), "error"),
        (("tune", "zoo:resnet81"), "resnet18"),
        (("tune", "resnet18"), "zoo:resnet18"),
        (("tune", "fake:demo?nonsense=1"), "nonsense"),
        (("tune", "fake:demo", "--target", "quantum"), "quantum"),
        (("tune", "fake:demo", "--shape", "x=1xx2"), "--shape"),
        (("tune", "fake:demo", "--shape", "x=0x3"), "--shape"),
        (("tune", "fake:demo", "--shape", "x=1", "--shape", "x=2"), "twice"),
        (("bench", "fake:demo", "--shape", f"x={','.join(map(str, range(1, 51)))}"), "50 values"),
        (("tune", "fake:demo", "--threads", "4096"), "threads"),
        (("tune", "fake:demo", "--threads", "-1"), "--threads"),
        (("tune", "fake:demo", "--seed", "-1"), "--seed"),
        (("tune", "fake:demo", "--effort", "heroic"), "quick"),
        (("compile", "fake:demo", "-o", "x", "--effort", "records", "--few-shot", "4"), "leave it out"),
        (("tune", "fake:demo", "--against", "tensorflow"), "tensorflow"),
        (("tune", "fake:demo", "-o", "nowhere/out.tunery"), "nowhere"),
        (("tune", "fake:demo", "--dialect", "llvm2"), "llvm2"),
        (("tune",), "MODEL"),
        (("compile", "fake:demo"), "--output"),
        (("compile", "fake:demo", "-o", "nowhere/out.tunery"), "nowhere"),
        (("compile", "fake:demo", "-o", "nowhere/"), "no directory"),
        (("tune", "fake:demo", "-o", "nowhere/"), "no directory"),
        (("bench", "fake:demo", "--against", "torch7"), "torch7"),
        (("bench", "fake:demo", "--seconds", "0"), "--seconds"),
        (("query", "fake:demo", "--all", "--latency-target", "1ms"), "--latency-target"),
        (("extract",), "MODEL"),
    ],
)
def test_a_request_that_cannot_be_right(run: Run, tmp_path: Path, args: tuple[str, ...], word: str) -> None:
    (tmp_path / "garbage.onnx").write_bytes(b"\x08\x07garbage\xff")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "page.onnx").write_text("<!DOCTYPE html>")
    dialect = () if "--dialect" in args else FAKE
    assert_refused(run(*args, *dialect), word)


@pytest.mark.parametrize("command", [("tune", "fake:demo"), ("compile", "fake:demo", "-o", "x")])
def test_a_refused_option_is_told_in_no_librarys_words(run: Run, command: tuple[str, ...]) -> None:
    said = run(*command, "--effort", "heroic").err
    assert said.startswith("error: Invalid value for '--effort': 'heroic' is not one of ")


@pytest.mark.parametrize("args", [("tune",), ("nonsense",), ("jobs",), ("records", "nonsense"), ("--nonsense",)])
def test_wrong_words_name_the_help(run: Run, args: tuple[str, ...]) -> None:
    assert_refused(run(*args), "--help")


def test_nothing_at_all_shows_the_help(run: Run) -> None:
    assert "Usage: tunery" in run().out


@pytest.mark.parametrize("store", [".", "mysql://host/name", "sqlite:///", "/proc/nowhere/store.db", "text.db"])
def test_a_store_that_cannot_be(run: Run, tmp_path: Path, store: str) -> None:
    (tmp_path / "text.db").write_text("no database, but more text than a header of SQLite has" * 10)
    assert_refused(run("tune", "fake:demo", *FAKE, "--store", store))
    assert_refused(run("records", "stats", "--store", store))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_places_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert_refused(run("tune", "fake:demo", *FAKE), "store.db")
        assert_refused(run("compile", "fake:demo", *FAKE, "-o", "demo.tunery"), "demo.tunery")
    finally:
        tmp_path.chmod(0o700)


def test_without_a_directory_for_temporary_files_its_variable_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/none"])
    answer = run("compile", "fake:demo", *FAKE, "-o", "demo.tunery")
    assert answer.code == 1
    assert "TMPDIR" in answer.err
    assert "internal" not in answer.err


def test_errors_are_json_where_asked_for(run: Run) -> None:
    answer = run("tune", "fake:demo", *FAKE, "--budget", "nonsense", "--json")
    assert answer.code == 2
    assert answer.data.keys() == {"error"}
    assert answer.err == ""


@pytest.mark.jobs
def test_a_compile_that_fails_leaves_no_file(run: Run, tmp_path: Path) -> None:
    answer = run("compile", "fake:demo?compile_fails=1", *FAKE, "-o", "demo.tunery")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "store.db"]


@pytest.mark.jobs
@pytest.mark.parametrize("command", ["tune", "extract", "query", "compile -o x.tunery"])
def test_an_unsupported_operator_is_the_models_fault(first_run: Run, tmp_path: Path, command: str) -> None:
    name, *more = command.split()
    assert_refused(first_run(name, "fake:demo?unsupported=1", *FAKE, *more), "Scripted", "export it")
    assert not (tmp_path / "x.tunery").exists()
    assert first_run("jobs", "list", "--json").data == {"jobs": []}


@pytest.mark.jobs
def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tuned: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for args in (("compile", "fake:demo", *FAKE, "-o", "pipe"), ("tune", "fake:demo", *FAKE, "-o", "pipe"),
                 ("records", "export", "pipe")):  # fmt: skip
        assert_refused(tuned(*args), "not a file")
        assert pipe.is_fifo()


def test_an_error_of_ours_is_one_line_and_a_traceback_only_with_v(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("several\nlines")

    monkeypatch.setattr("tunery.service.session.Session.answer", broken)
    quiet = run("extract", "fake:demo", *FAKE)
    assert quiet.code == 1
    assert quiet.err.count("\n") == 1
    assert "internal error: ZeroDivisionError: several lines; run again with -v" in quiet.err
    assert "Traceback" in run("extract", "fake:demo", *FAKE, "-v").err


def test_shapes_and_rivals_are_read() -> None:
    assert parse_shapes(["a=1x3x224x224", "b:0=7", "c=d=2"]) == [{"a": (1, 3, 224, 224), "b:0": (7,), "c=d": (2,)}]
    assert parse_shapes([]) == [{}]
    assert parse_shapes(["n=1,4", "x=1x2", "t=8,9"]) == [
        {"n": (1,), "x": (1, 2), "t": (8,)}, {"n": (4,), "x": (1, 2), "t": (9,)},
    ]  # fmt: skip
    for wrong in (["n=1,4", "t=1,2,3"], ["n=1,1"], ["n=1,"], ["n=1", "n=2"]):
        with pytest.raises(UsageError):
            parse_shapes(wrong)
    with pytest.raises(UsageError, match="image=1x3x64x64"):
        parse_shapes(["image=1,3,64,64"])
    assert parse_rivals("untuned, onnxruntime,untuned") == ("untuned", "onnxruntime")
    assert parse_rivals("") == ()


@given(st.text())
def test_any_text_is_a_shape_or_a_usage_error(text: str) -> None:
    try:
        shapes = parse_shapes([text])
    except UsageError:
        assert not re.fullmatch(r".+=[1-9][0-9]?(x[1-9])*", text, re.DOTALL)
    else:
        [name] = shapes[0]
        assert text == f"{name}={','.join('x'.join(map(str, one[name])) for one in shapes)}"


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("tune", "fake:demo", "--target", "quantum"), "quantum"),
        (("tune", "zoo:resnet81"), "resnet18"),
        (("tune", "zoo:resnet18@x"), "zoo:resnet18@8"),
        (("tune", "missing.onnx"), "there is no file 'missing.onnx'"),
        (("tune", "resnet18"), "zoo:resnet18"),
        (("tune", "fake:demo", "--budget", "10parsecs"), "10parsecs"),
        (("tune", "fake:demo", "--budget", "€5"), "2USD"),
        (("bench", "zoo:resnet81"), "resnet18"),
        (("bench", "fake:demo", "--target", "quantum"), "quantum"),
    ],
)
def test_a_mistyped_word_is_told_before_any_progress(run: Run, args: tuple[str, ...], word: str) -> None:
    answer = run(*args, *FAKE)
    assert_refused(answer, word)
    assert len(answer.err.splitlines()) == 1


def test_efforts_are_those_of_the_budgets() -> None:
    from tunery.accounting.meter import EFFORTS

    _, option = get_args(get_type_hints(Request, include_extras=True)["effort"])
    assert set(option.choices) == EFFORTS.keys()


COMMANDS = st.sampled_from(
    ["tune", "extract", "compile", "bench", "query", "jobs list", "jobs show", "jobs resume", "records stats",
     "records export", "records import", "records prune", "zoo list", "devices list", "spend", "version", "nonsense"]
)  # fmt: skip
# What a shell can hand over: no NUL, and undecodable bytes as lone surrogates; no slash, to keep to one directory.
TEXT = st.binary(max_size=10).map(lambda data: os.fsdecode(data.translate(None, b"\0/"))) | st.text(
    st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), max_size=10
)
MODELS = st.sampled_from(["fake:demo?exhaust=2&tasks=1", "fake:", "fake:x?tasks=-1", "zoo:", "zoo:none", "x.onnx"])
WORDS = st.sampled_from(
    ["--json", "-v", "--budget", "1trials", "--shape", "a=1x2", "--threads", "1", "--seed", "--target", "native",
     "--limit", "--keep", "--task", "--effort", "quick", "-o", "--help", "--"]
)  # fmt: skip
ARGUMENTS = st.lists(WORDS | TEXT, max_size=5)


@pytest.fixture(scope="module")
def quick_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A directory to run in, with workers in this process: hundreds of command lines in seconds."""
    directory = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("TUNERY_STORE", str(directory / "store.db"))
        patch.setenv("TUNERY_CACHE", str(directory / "cache"))
        patch.setenv("TUNERY_ENGINE", "inline")
        yield


@pytest.mark.jobs
@pytest.mark.usefixtures("quick_place")
@settings(max_examples=60, deadline=None)
@given(COMMANDS, MODELS | TEXT, ARGUMENTS)
def test_no_arguments_ever_show_a_traceback(command: str, model: str, more: list[str]) -> None:
    args = [*command.split(), model, *more]
    if command in {"tune", "extract", "compile", "bench", "query"}:
        args[1:1] = FAKE
    answer = run_in_process(*args)
    assert answer.code in {0, 1, 2}
    assert "internal error" not in answer.err + answer.out
    assert "Traceback" not in answer.err or "-v" in args


def test_few_shots_may_be_limited_in_time() -> None:
    assert make_query(few_shot=0).policy is None
    assert make_query(few_shot=4, few_shot_seconds="20s").policy == FillPolicy(4, 20.0)
    assert make_query(few_shot=4, predict=True).policy == FillPolicy(4)


@pytest.mark.parametrize(("few_shot", "within"), [(0, "20s"), (4, "20trials"), (4, "20s,5trials"), (4, "soon")])
def test_a_limit_of_few_shots_that_means_nothing_is_refused(few_shot: int, within: str) -> None:
    with pytest.raises(UsageError, match=r"for example|give --few-shot|such as|write"):
        make_query(few_shot=few_shot, few_shot_seconds=within, predict=True)
