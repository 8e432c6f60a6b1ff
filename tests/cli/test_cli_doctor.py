"""The doctor tells what is wrong and what to do about it."""

import json
from pathlib import Path

import pytest
from cli_tools import Run

from tunery.cli.console import checks
from tunery.cli.console.checks import Check, State


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the compiler takes seconds; one test does it."""
    monkeypatch.setattr(checks, "compiler", lambda: Check("compiler", State.OK, "TVM loads"))


@pytest.mark.tvm
def test_this_machine_passes(run: Run) -> None:
    answer = run("doctor", "--json")
    assert answer.code == 0
    assert answer.data["ok"] is True
    states = {check["name"]: check["state"] for check in answer.data["checks"]}
    assert set(states) == {
        "python", "versions", "compiler", "linker", "cores", "load", "memory", "store", "cache", "models",
        "torch",
    }  # fmt: skip
    assert states["compiler"] == "ok"
    assert all(check["advice"] for check in answer.data["checks"] if check["state"] != "ok")


@pytest.mark.usefixtures("no_compiler")
def test_a_failure_is_a_line_with_advice_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "which", lambda _: None)
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


def test_another_pair_of_compiler_and_library_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.pins().state is State.OK
    monkeypatch.setattr(checks, "version", lambda name: {"apache-tvm": "0.27.0.post1"}.get(name, "0.1.15"))
    found = checks.pins()
    assert found.state is State.FAIL
    assert "apache-tvm-ffi==0.1.14.post1" in found.advice


def test_a_compiler_that_does_not_load_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ImportError: libtvm.so' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(checks.sys, "executable", str(broken))
    found = checks.compiler()
    assert found.state is State.FAIL
    assert "libtvm.so" in found.found


def test_a_quota_a_busy_machine_and_little_memory_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.devices.cpu.placement.usable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("tunery.devices.cpu.cgroups.quota_cores", lambda: 1.5)
    assert "--threads 1" in checks.cores().advice
    monkeypatch.setattr("tunery.devices.cpu.cgroups.quota_cores", lambda: None)
    assert checks.cores().state is State.OK
    monkeypatch.setattr("tunery.devices.cpu.placement.usable_cores", lambda: (0,))
    assert checks.cores().state is State.WARN
    monkeypatch.setattr(checks.os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert checks.load().state is State.WARN
    monkeypatch.setattr(checks.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert checks.load().state is State.OK


@pytest.mark.parametrize(("gib", "state"), [(0.5, State.FAIL), (2, State.WARN), (16, State.OK)])
def test_memory(monkeypatch: pytest.MonkeyPatch, gib: float, state: State) -> None:
    class Free:
        available = gib * 2**30

    monkeypatch.setattr("psutil.virtual_memory", Free)
    assert checks.memory().state is state


def test_torch_beside_tvm_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: object())
    assert checks.torch().state is State.WARN
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    assert json.dumps(checks.torch().advice) == '""'
