"""A kernel file is a model like any other: its name's ending says which dialect takes it."""

import json
import shutil
from pathlib import Path

import pytest
from cli_tools import Run

from tunery.dialects.kernels.kernel_tuner import read_results

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


@pytest.mark.jobs
@pytest.mark.parametrize("format_name", ["kernel-tuner", "t4"])
def test_records_of_a_kernel_leave_in_the_formats_of_others_and_return_as_hints(
    run: Run, tmp_path: Path, format_name: str
) -> None:
    (tmp_path / "double.c").write_text(SOURCE)
    (tmp_path / "double.toml").write_text(FILE)
    assert run("tune", "double.toml", "--budget", "9trials").code == 0
    said = run("records", "export", "results.json", "--format", format_name, "--json").data
    assert said["records"] > 0
    results = read_results(tmp_path / "results.json")
    assert sorted(one.configuration["STEP"] for one in results) == [1, 2, 4]
    assert all(one.latency_s is not None for one in results)
    plain = json.loads((tmp_path / "results.json").read_text())
    if format_name == "t4":  # what its schema asks for
        known = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
        for one in plain["results"]:
            assert {"configuration", "times", "invalidity", "correctness"} <= one.keys()
            assert one["invalidity"] in known
            assert isinstance(one["correctness"], int)
    else:
        assert (plain["kernel_name"], plain["tune_params_keys"]) == ("double_all", ["STEP"])
        assert plain["tune_params"] == {"STEP": [1, 2, 4]}
    (tmp_path / "hinted.toml").write_text(FILE.replace("source =", 'hints = "results.json"\nsource ='))
    assert (
        run("extract", "hinted.toml", "--json").data["tasks"] == run("extract", "double.toml", "--json").data["tasks"]
    )
    for more in (["--format", "csv"], ["--format", format_name, "--task", "0123456789abcdef"], ["--task", "0123"]):
        refused = run("records", "export", "other.json", *more)
        assert refused.code in {1, 2}
        assert "Traceback" not in refused.err
        assert not (tmp_path / "other.json").exists()


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
