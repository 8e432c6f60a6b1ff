"""The doctor tells what is wrong and what to do about it."""

from importlib.metadata import version
from pathlib import Path

import pytest
from cli_tools import Run

from tunery.cli import doctor as checks
from tunery.dialects.metaschedule import doctor
from tunery.domain import Check, CheckState


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the compiler takes seconds; one test does it."""
    monkeypatch.setattr(doctor, "compiler", lambda: Check("compiler", CheckState.OK, "TVM loads"))


@pytest.mark.tvm
@pytest.mark.usefixtures("worker_processes")  # the importer changes settings of its whole process
def test_this_machine_passes(run: Run) -> None:
    answer = run("doctor", "--json")
    assert answer.code == 0
    assert answer.data["ok"] is True
    states = {check["name"]: check["state"] for check in answer.data["checks"]}
    assert set(states) == {
        "python", "versions", "compiler", "linker", "cores", "load", "memory", "store", "cache", "models",
        "torch", "gcc", "OpenCL", "CUDA", "iree", "sandbox",
    }  # fmt: skip
    assert states["compiler"] == "ok"
    assert all(check["advice"] for check in answer.data["checks"] if check["state"] != "ok")


@pytest.mark.usefixtures("no_compiler")
def test_a_failure_is_a_line_with_advice_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    answer = run("doctor")
    assert answer.code == 1
    [line] = [line for line in answer.out.splitlines() if line.startswith("fail")]
    assert "binutils" in line


@pytest.mark.usefixtures("no_compiler")
def test_unusable_places_are_found(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "file" / "cache"))
    answer = run("doctor", "--store", str(tmp_path), "--json")
    failed = {check["name"]: check for check in answer.data["checks"] if check["state"] == "fail"}
    assert set(failed) == {"store", "cache"}
    assert "TUNERY_CACHE" in failed["cache"]["advice"]
    assert failed["store"]["advice"]


@pytest.mark.usefixtures("no_compiler")
def test_a_damaged_cost_model_is_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_MODELS", str(tmp_path))
    (tmp_path / "fake-0001.json.gz").write_bytes(b"x")
    [found] = [check for check in run("doctor", "--json").data["checks"] if check["name"] == "models"]
    assert found["state"] == "warn"
    assert "fake-0001.json.gz is damaged" in found["found"]
    assert "delete it" in found["advice"]


@pytest.mark.parametrize(("gib", "state"), [(0.5, CheckState.FAIL), (2, CheckState.WARN), (16, CheckState.OK)])
def test_memory(monkeypatch: pytest.MonkeyPatch, gib: float, state: CheckState) -> None:
    class Free:
        available = gib * 2**30

    monkeypatch.setattr("psutil.virtual_memory", Free)
    assert checks.memory().state is state


def test_versions_name_the_compilers(run: Run) -> None:
    found = run("version", "--json").data
    assert found["tunery"]
    assert found["python"]
    assert found["apache-tvm"] == version("apache-tvm")
