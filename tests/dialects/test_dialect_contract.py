"""The contract suite is run on dialects that each break one rule: the test for that rule must fail."""

import re
import subprocess
import sys
from pathlib import Path

MUTANTS = Path(__file__).parent / "contract_mutants.py"


def test_each_broken_rule_is_caught(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", str(MUTANTS)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    caught = set(re.findall(r"FAILED \S+::(\w+)::(\w+)", run.stdout))
    source = MUTANTS.read_text()
    mutant = r"class (Test\w+)\(Base\):(?:\n    (?:made|options) = .*)*\n    expected = \"(\w+)\""
    planted = set(re.findall(mutant, source))
    assert len(planted) == source.count("expected = ") >= 20
    assert planted - caught == set(), run.stdout
    assert not [test for name, test in caught if name == "TestSound"], run.stdout
    assert "ERROR" not in run.stdout, run.stdout


def test_the_example_in_the_documentation_passes(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "dialects.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    path = tmp_path / "test_example.py"
    path.write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout
