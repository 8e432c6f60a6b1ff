"""The help is quick, complete, and each command's shows an example that parses."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from cli_tools import Run

from tunery.cli.app import app

README = Path(__file__).parents[2] / "README.md"
HEAVY = ("tvm", "tvm_ffi", "onnx", "onnxruntime", "numpy", "sqlalchemy", "lightgbm", "torch", "pydantic")
COMMANDS = [
    (name, command)
    for name, command in sorted(typer.main.get_command(app).commands.items())  # type: ignore[attr-defined]
    if not hasattr(command, "commands")
] + [
    (f"{group} {name}", command)
    for group, parent in sorted(typer.main.get_command(app).commands.items())  # type: ignore[attr-defined]
    if hasattr(parent, "commands")
    for name, command in sorted(parent.commands.items())
]


def test_all_commands_are_there() -> None:
    assert [name for name, _ in COMMANDS] == [
        "agent", "bench", "bundle", "combine", "compile", "doctor", "extract", "inspect", "login", "query", "report",
        "serve", "spend", "tune", "version",
        "accounts create", "accounts delete", "accounts disable", "accounts enable", "accounts end-token",
        "accounts limit", "accounts list", "accounts log", "accounts token", "accounts tokens",
        "costmodel collect", "costmodel evaluate", "costmodel list", "costmodel train", "devices calibrate",
        "devices list", "dialects check", "dialects install", "dialects list", "dialects remove", "hosts add",
        "hosts check", "hosts list", "hosts remove", "jobs cancel", "jobs list", "jobs log", "jobs pause",
        "jobs resume", "jobs show", "jobs submit", "jobs watch", "keys create", "records export", "records import",
        "records prune", "records stats", "zoo extract", "zoo list",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_help_has_an_example_that_parses(
    run: Run, name: str, command: typer.main.TyperCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18.onnx").write_bytes(b"a model")  # the file that examples name is there
    answer = run(*name.split(), "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    assert f"Example: tunery {name}" in text
    assert "--json" in text or name == "agent", "whose output is for another program"
    example = shlex.split(command.epilog.removeprefix("Example: tunery"))  # type: ignore[union-attr]
    command.make_context(name, example[len(name.split()) :])


@pytest.mark.parametrize("code", [
    "import sys; from tunery.cli import main; sys.argv = ['tunery', '--help']\ntry: main()\nexcept SystemExit: pass",
    "import tunery; tunery.load('x.onnx').on('native'); tunery.__version__",
])  # fmt: skip
def test_nothing_heavy_is_imported_before_it_is_used(code: str) -> None:
    code += f"\nimport sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_installed_program_starts() -> None:
    program = os.path.join(os.path.dirname(sys.executable), "tunery")  # noqa: PTH118, PTH120
    done = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tunery ")


def test_the_readme_names_every_command_and_no_other() -> None:
    table = [line for line in README.read_text().splitlines() if line.startswith("| `tunery ")]
    named = set()
    for line in table:
        words = line.removeprefix("| `tunery ").partition("`")[0].replace("\\|", "|").split()
        grouped = len(words) > 1 and words[1].islower()
        named |= {f"{words[0]} {word}" for word in words[1].split("|")} if grouped else {words[0]}
    assert named == {name for name, _ in COMMANDS}
