"""What a message tells the user to do exists, and doing it helps."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_tools import Run

from tunery._extras import pip_install
from tunery.cli.app import app

ROOT = Path(__file__).parents[2]
FAKE = ("--dialect", "fake")
EXTRA = r"\bpip_install\(['\"](\w+)"


@cache
def messages() -> tuple[str, ...]:
    """Return every text in the source that is not a docstring."""
    return tuple(_messages())


def _messages() -> Iterator[str]:
    """Yield every text in the source that is not a docstring; what is put in at run time is a blank."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(file.read_text())
        parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in parts | docs:
                continue
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


# Options of other programs that we run or name: pip's and IREE's.
OTHERS = {
    "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", "--platform", "--opset-version",
    "--compile-from", "--compile-to", "--function", "--no-as-needed", "--defsym",
}  # fmt: skip


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command with its options."""
    yield path, {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_every_command_that_is_advised_exists_with_its_options() -> None:
    known = dict(commands(typer.main.get_command(app)))
    advised = {found for text in messages() for found in re.findall(r"`tunery ([a-z][^`]*)`", text)}
    assert len(advised) > 10
    for line in advised:
        words = line.split()
        path = max((tuple(words[:n]) for n in range(3) if tuple(words[:n]) in known), key=len)
        assert path, f"there is no command `tunery {line}`"
        for option in (word.split("=")[0] for word in words if re.fullmatch(r"-{1,2}[a-z][a-z-]*(=.*)?", word)):
            assert option in known[path], f"`tunery {line}`: no option {option}"


def test_every_option_that_is_advised_exists() -> None:
    known = {option for _, options in commands(typer.main.get_command(app)) for option in options}
    told = [text for text in messages() if not re.search(r"var\(--|--[a-z]+:", text)]  # style sheets name colours so
    advised = {found for text in told for found in re.findall(r"(?<![\w,-])--[a-z][a-z-]+[a-z]\b", text)}
    assert {one for one in advised if not one.startswith(("--iree-", "--mlir-"))} <= known | {"--help"} | OTHERS


def test_everything_to_be_installed_is_of_this_package() -> None:
    lines = requires("tunery") or []
    extras = {found for line in lines for found in re.findall(r"extra == ['\"]([\w-]+)['\"]", line)}
    needed = {re.split(r"[\s\[<>=!~;]", line)[0].lower() for line in lines}
    advised = {found for text in messages() for found in re.findall(r"pip install '?([\w.-]+(?:\[[\w,-]+\])?)", text)}
    assert advised
    assert {name.partition("[")[0].lower() for name in advised} <= needed, "no index need have a package called tunery"
    asked = {found for file in (ROOT / "src").rglob("*.py") for found in re.findall(EXTRA, file.read_text())}
    assert asked
    for extra in asked:
        command, verb, *packages = shlex.split(pip_install(extra))
        assert (command, verb) == ("pip", "install")
        assert extra in extras
        assert {re.split(r"[\[<>=]", one)[0] for one in packages} <= needed


def test_pages_install_torch_as_messages_do() -> None:
    said = [
        line
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for line in re.findall(r"`([^`]*pip install [^`]*torch[^`]*)`", page.read_text())
    ]
    assert said
    assert {line.removeprefix(".venv/bin/") for line in said} == {pip_install("torch")}


def test_every_page_that_is_named_exists() -> None:
    named = {found for text in messages() for found in re.findall(r"\bdocs/[\w/-]+\.md", text)}
    assert named
    assert [page for page in named if not (ROOT / page).is_file()] == []


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("tune fake:demo --budget 4trials --budget abc", "abc"),
        ("tune fake:demo --budget 4trials --latency-target abc", "abc"),
        ("tune fake:demo --budget 4trials --target zzz", "zzz"),
        ("tune fake:demo --budget 4trials --threads 4000", "4000"),
        ("tune fake:demo --budget 4trials --effort great", "great"),
        ("tune fake:demo --budget 4trials --shape input", "input"),
    ],
)
def test_the_example_in_a_message_works_in_place_of_what_was_wrong(run: Run, line: str, wrong: str) -> None:
    words = shlex.split(line)
    answer = run(*words, *FAKE)
    assert answer.code == 2, answer.out
    found = re.search(r"(?:use at most|one of|(?:write|use)(?: for example)?) '?([\w:?=.,/-]+)", answer.err)
    assert found, answer.err
    again = [found[1].rstrip(",.;") if word == wrong else word for word in words]
    answer = run(*again, *FAKE)
    assert answer.code == 0, answer.err
