"""A kernel file is a model like any other: its name's ending says which dialect takes it."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_tools import Run

import tunery
from tunery.dialects.kernels.kernel_tuner import read_results

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
    pytest.mark.usefixtures("worker_processes"),  # what an author writes may crash
]

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


@pytest.mark.jobs
def test_its_ending_says_which_dialect_takes_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "double.c").write_text(SOURCE)
    (tmp_path / "double.toml").write_text(FILE)
    answer = run("extract", "double.toml", "--json")
    assert answer.code == 0, answer.out
    data = answer.data
    assert [task["name"] for task in data["tasks"]] == ["double_all"]
    made = run("compile", "double.toml", "-o", "double.tunery", "--json").data
    assert [Path(one).name for one in made["texts"]] == ["double.tuned.c", "double.tuned.h", "double.tuned.json"]


REFERENCE = '[reference]\nnumpy = "2 * x"\n'
RIGHT = "2 * x[i] + 0 * STEP"


@pytest.mark.jobs
@pytest.mark.parametrize("body", ["2 * x[i] + STEP", "2 * x[i + 100000000]"])
def test_a_default_that_is_wrong_or_crashes_is_not_delivered(run: Run, tmp_path: Path, body: str) -> None:
    (tmp_path / "double.c").write_text(SOURCE.replace(RIGHT, body))
    (tmp_path / "double.toml").write_text(FILE + REFERENCE)
    ended = run("compile", "double.toml", "-o", "double.tunery")
    assert ended.code == 1
    assert "default" in ended.err
    assert "Traceback" not in ended.err
    assert not [*tmp_path.glob("double.tun*")]


@pytest.mark.jobs
def test_where_no_parameters_are_right_tuning_fails_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "double.c").write_text(SOURCE.replace(RIGHT, "2 * x[i] + STEP"))
    (tmp_path / "double.toml").write_text(FILE + REFERENCE)
    for more in ([], ["-o", "double.tunery"]):
        ended = run("tune", "double.toml", "--budget", "9trials", *more)
        assert ended.code == 1, ended.out
        assert "load_compiled" not in ended.out
    assert not [*tmp_path.glob("double.tun*")]
    jobs = run("jobs", "list", "--json").data["jobs"]
    assert [(job["kind"], job["status"]) for job in jobs] == [("tune", "failed")] * len(jobs)
    assert any("y: " in job["message"] and "[0]" in job["message"] for job in jobs), "which output is wrong, and where"


@pytest.mark.jobs
def test_a_right_winner_is_delivered_though_the_default_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "double.c").write_text(SOURCE.replace(RIGHT, "2 * x[i] + (STEP == 1)"))
    (tmp_path / "double.toml").write_text(FILE + REFERENCE)
    done = run("tune", "double.toml", "--budget", "9trials", "-o", "double.tunery", "--json")
    assert done.code == 0
    told = done.data["compiled"]
    assert [told["path"], *told["texts"]] == [f"double.{end}" for end in ("tunery", "tuned.c", "tuned.h", "tuned.json")]
    x = np.arange(64, dtype=np.float32)
    [y] = tunery.load_compiled(tmp_path / "double.tunery")(x)
    assert np.array_equal(y, 2 * x)
    made = json.loads((tmp_path / "double.tuned.json").read_text())
    assert made["parameters"]["STEP"] in {2, 4}
    native, told = (_instructions(flags) for flags in (["-O3", "-fopenmp", "-march=native"], made["flags"]))
    assert told == native, "the flags are those that the measured kernel was built with"


def _instructions(flags: list[str]) -> set[str]:
    command = ["gcc", *flags, "-dM", "-E", "-x", "c", "/dev/null"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())


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
