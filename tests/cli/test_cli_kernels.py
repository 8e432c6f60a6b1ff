"""A kernel file is a model like any other: its name's ending says which dialect takes it."""

import shutil
from pathlib import Path

import pytest
from cli_tools import Run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

FILE = """
function = "double_all"
source = "double.c"
[[arguments]]
name = "x"
shape = [64]
[[arguments]]
name = "y"
shape = [64]
output = true
[parameters]
STEP = [1, 2, 4]
"""
SOURCE = "void double_all(const float *x, float *y) { for (int i = 0; i < 64; i++) y[i] = 2 * x[i] + 0 * STEP; }"


def test_its_ending_says_which_dialect_takes_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "double.c").write_text(SOURCE)
    (tmp_path / "double.toml").write_text(FILE)
    answer = run("extract", "double.toml", "--json")
    assert answer.code == 0, answer.out
    data = answer.data
    assert [task["name"] for task in data["tasks"]] == ["double_all"]
    made = run("compile", "double.toml", "-o", "double.tunery", "--json").data
    assert [Path(one).name for one in made["texts"]] == ["double.tuned.c", "double.tuned.h", "double.tuned.json"]


@pytest.mark.parametrize(
    ("source", "file", "told"),
    [
        (SOURCE, FILE.replace("STEP = [1, 2, 4]", "STEP = []"), "STEP has 0 values"),
        (SOURCE.replace("return", ""), FILE.replace("[64]", "[30000000000]"), "GB"),
        (SOURCE.replace("STEP", "STRIDE"), FILE, "STRIDE"),
    ],
)
def test_a_faulty_kernel_file_is_one_sentence(run: Run, tmp_path: Path, source: str, file: str, told: str) -> None:
    (tmp_path / "double.c").write_text(source)
    (tmp_path / "double.toml").write_text(file)
    ended = run("tune", "double.toml", "--budget", "5trials")
    assert ended.code == 2
    assert told in ended.err
    assert "Traceback" not in ended.err
