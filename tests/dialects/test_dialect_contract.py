"""The contract suite is run on dialects that each break one rule: the test for that rule must fail."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import contract_ignored
import contract_mutants
import pytest
from contract_surface import surface

HERE = Path(__file__).parent
# Without the plug-ins that are installed, such as schemathesis, which takes longer to import than these tests to run.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
MUTANTS, RECORDED = HERE / "contract_mutants.py", HERE / "contract_recorded.py"


@pytest.mark.slow
def test_each_broken_rule_is_caught(tmp_path: Path) -> None:
    planted = [(name, made.expected) for name, made in vars(contract_mutants).items() if hasattr(made, "expected")]
    assert len(planted) == MUTANTS.read_text().count("expected = ") >= 20
    run, caught = run_mutants(
        ["contract_mutants.py::TestSound", *(f"contract_mutants.py::{name}::{test}" for name, test in planted)],
        tmp_path,
    )
    assert caught == set(planted), run  # of each what it breaks, and nothing of the sound one
    assert "ERROR" not in run, run


@pytest.mark.slow
def test_each_parameter_that_is_ignored_is_noticed(tmp_path: Path) -> None:
    run, caught = run_mutants(["contract_ignored.py"], tmp_path, "-p", "contract_ignored")
    planted = {contract_ignored.mutant(*each): each for each in surface() if each[2]}
    assert len(planted) >= 60
    ignored = {planted[name] for name in planted.keys() - {name for name, _ in caught}}
    # What was freed is not seen from outside; the scripted dialect's files have no members to write.
    assert ignored == {("Space", "forget", "task"), ("NetworkCompiler", "combine", "writer")}, run
    assert "FAILED" in run, run


def run_mutants(tests: Sequence[str], directory: Path, *options: str) -> tuple[str, set[tuple[str, str]]]:
    command = [*PYTEST, "-rfE", "--tb=no", *options]
    environment = os.environ | BARE | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run(
        [*command, *(str(HERE / test) for test in tests)], cwd=directory, env=environment, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    return done.stdout, set(re.findall(r"(?:FAILED|ERROR) \S+::(\w+)::(\w+)", done.stdout))


@pytest.mark.jobs
def test_every_method_and_keyword_is_called(tmp_path: Path) -> None:
    calls = tmp_path / "calls.json"
    command = [*PYTEST, f"{RECORDED}::TestNoted"]
    environment = os.environ | BARE | {"CALLS": str(calls)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    called = {tuple(call) for call in json.loads(calls.read_text())}
    everything = set(surface())
    assert ("Space", "open", "generic_only_reason") in everything
    assert everything - called == set(), "a plug-in that lacks one of these would pass"


def test_every_method_has_a_mutant() -> None:
    planted = {name for mutant in vars(contract_mutants).values() if isinstance(mutant, type) for name in vars(mutant)}
    planted |= {"inputs", "outputs", "threads"}  # set in `load_network` by mutants of that
    assert {name for _, name, _ in surface()} - planted == set()


@pytest.mark.jobs
def test_the_example_in_the_documentation_passes(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "dialects.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    path = tmp_path / "test_example.py"
    path.write_text(example)
    run = subprocess.run(
        [*PYTEST, str(path)],
        cwd=tmp_path,
        env=os.environ | BARE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
