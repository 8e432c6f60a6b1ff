"""`tunery costmodel` in this process: a dataset file in, a version in use out, and one sentence for what is wrong."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_tools import Answer, Run
from costmodel_data import table

from tunery.costmodels import BoostedModel, Recipe, Table, registry
from tunery.costmodels.training.parquet import write_parquet

HELD = "n0,n1,n2,n3"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "models"))
    return tmp_path / "models"


def written(directory: Path, made: Table) -> str:
    path = directory / "data.parquet"
    write_parquet(made, path, {})
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return written(tmp_path, table(networks=10, per_network=5, rows=12))


def trained(run: Run, data: str, *more: str) -> Answer:
    return run("costmodel", "train", "--data", data, "--dialect", "fake", "--time", "0.1s", "--hold-out", HELD, *more)


def expect_refused(answer: Answer, words: str) -> None:
    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err + answer.out
    assert [line for line in answer.err.splitlines() if words in line] == answer.err.splitlines()[-1:]


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_from_a_file_to_a_model_in_use(run: Run, data: str) -> None:
    answer = trained(run, data)
    assert answer.code == 0
    assert "version 1 written to" in answer.out
    assert "in use from now on" in answer.out
    listed = run("costmodel", "list")
    assert "in use" in listed.out
    [one] = run("costmodel", "list", "--json").data["versions"]
    assert (one["version"], one["in_use"], one["held_out"]) == (1, True, HELD.split(","))
    judged = run("costmodel", "evaluate", "--data", data, "--dialect", "fake")
    assert judged.code == 0
    assert "version 1 on " in judged.out
    assert "trained on none of these" in judged.out
    assert run("costmodel", "evaluate", "1", "--data", data, "--dialect", "fake", "--json").data["unseen"] is True


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_a_second_version_is_compared_with_the_first(run: Run, data: str) -> None:
    trained(run, data)
    again = trained(run, data, "--json").data
    assert again["version"] == 2
    assert "in use" in {pair["rival"] for pair in again["compared"]}
    assert {"remarks", "in_use", "left_out"} <= again.keys()
    states = [line.split()[-1] for line in run("costmodel", "list").out.splitlines() if line.startswith("fake")]
    assert "older" in run("costmodel", "list").out
    assert len(states) == 2


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_a_dataset_of_other_processors_is_judged_by_their_model(run: Run, tmp_path: Path) -> None:
    made = table(networks=10, per_network=5, rows=12)
    ready_made(made)
    foreign = written(tmp_path, replace(made, target="elsewhere"))
    answer = trained(run, foreign)
    assert "not used: it is for other processors (elsewhere) than this machine's (fake)" in answer.out
    assert "in use from now on" not in answer.out
    judged = ("costmodel", "evaluate", "--data", foreign, "--dialect", "fake", "--json")
    assert run(*judged).data["model"] == "version 2"
    assert run(*judged, "--target", "native").data["model"] == "version 1"


def ready_made(made: Table, passed: bool = True) -> None:
    """Register a model without a search for its recipe."""
    model = BoostedModel.train([(g.rows, g.gains) for g in made], Recipe(rounds=5))
    card = registry.new_card(
        dialect="fake", compiler="fake 1.0", target="fake", recipe={}, data={}, metrics=(), passed=passed
    )
    registry.register(card, model)


@pytest.mark.usefixtures("models")
def test_the_list_says_where_the_shipped_model_is_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "shipped_targets", lambda: [("fake", "fake")])
    made = table(networks=2)
    ready_made(made, passed=False)
    sentence = "the model that ships with tunery is used for fake on fake"
    assert sentence in run("costmodel", "list").out
    ready_made(made)
    assert sentence not in run("costmodel", "list").out


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_an_empty_store_and_no_store(first_run: Run) -> None:
    run = first_run
    expect_refused(run("costmodel", "train", "--dialect", "fake"), "tunery costmodel collect")
    run("tune", "fake:demo", "--dialect", "fake", "--budget", "2trials")
    expect_refused(run("costmodel", "train", "--dialect", "fake"), "tunery costmodel collect")


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_a_collection_of_whole_samples_gives_nothing_up(run: Run) -> None:
    task = ("fake:slow?tasks=1&space=16x16x4", "--dialect", "fake", "--tasks", "1", "--per-task", "24", "--json")
    raced, whole = (
        json.loads(run("costmodel", "collect", "--store", f"{name}.db", "--networks", *task, *more).out)["outcomes"]
        for name, more in (("raced", ()), ("whole", ("--whole",)))
    )
    assert "abandoned" in raced
    assert whole == {"ok": 24}


@pytest.mark.parametrize("budget", ["$2", "50kJ", "1min,$2"])
def test_a_collection_is_not_limited_by_what_nobody_counts_there(run: Run, budget: str) -> None:
    expect_refused(run("costmodel", "collect", "--dialect", "fake", "--budget", budget), "30min")


@pytest.mark.usefixtures("models")
def test_data_that_is_all_alike(run: Run, tmp_path: Path) -> None:
    alike = table(networks=10, per_network=5, rows=12)
    path = written(tmp_path, alike.only(replace(g, latencies=np.ones(12)) for g in alike))
    expect_refused(trained(run, path), "too alike")


@pytest.mark.jobs
@pytest.mark.usefixtures("models")
def test_data_of_another_compiler(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, replace(table(networks=10, per_network=5, rows=12), compiler="fake 0.9"))
    expect_refused(trained(run, path), "--any-compiler")
    expect_refused(run("costmodel", "evaluate", "--data", path, "--dialect", "fake"), "--any-compiler")
    answer = trained(run, path, "--any-compiler")
    assert "not used: it is of another compiler version (fake 0.9)" in answer.out
    assert "of another compiler version" in run("costmodel", "list").out


@pytest.mark.jobs
def test_a_damaged_model(run: Run, data: str, models: Path) -> None:
    trained(run, data)
    path = models / "fake-0001.json.gz"
    path.write_bytes(path.read_bytes()[:-500])
    listed = run("costmodel", "list")
    assert listed.code == 0
    assert f"{path} is damaged" in listed.out
    assert "none trained yet" not in listed.out
    [sentence] = run("costmodel", "list", "--json").data["damaged"]
    assert "delete it" in sentence
    expect_refused(run("costmodel", "evaluate", "1", "--data", data, "--dialect", "fake"), f"{path} is damaged")
    path.write_bytes(gzip.compress(b"{}"))
    expect_refused(run("costmodel", "evaluate", str(path), "--data", data, "--dialect", "fake"), "is damaged")


@pytest.mark.jobs
def test_tuning_goes_on_without_a_damaged_model_and_says_so_in_a_line(tmp_path: Path, models: Path) -> None:
    """In a process of its own: what is said on stderr is a log record, and pytest takes those."""
    models.mkdir()
    (models / "fake-0001.json.gz").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-m", "tunery", "tune", "fake:demo", "--dialect", "fake", "--budget", "2trials", "--json"],
        env=os.environ | {"TUNERY_STORE": str(tmp_path / "store.db"), "TUNERY_CACHE": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)
    [line] = [line for line in done.stderr.splitlines() if "damaged" in line]
    assert line.startswith(f"passed over: {models / 'fake-0001.json.gz'} is damaged")


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("train", "--data", "none.parquet"), "there is no file none.parquet"),
        (("train", "--time", "5trials"), "is not a time"),
        (("evaluate", "--data", "none.parquet"), "there is no file none.parquet"),
    ],
)
def test_other_mistakes(run: Run, args: tuple[str, ...], words: str) -> None:
    expect_refused(run("costmodel", *args, "--dialect", "fake"), words)
