"""The compiler's own checks tell what is wrong and what to do about it."""

from pathlib import Path

import pytest

from tunery.dialects.metaschedule import doctor
from tunery.domain import CheckState


def test_another_pair_of_compiler_and_library_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.pins().state is CheckState.OK
    monkeypatch.setattr(doctor, "version", lambda name: {"apache-tvm": "0.27.0.post1"}.get(name, "0.1.15"))
    found = doctor.pins()
    assert found.state is CheckState.FAIL
    assert "apache-tvm-ffi==0.1.14.post1" in found.advice


def test_a_compiler_that_does_not_load_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ImportError: libtvm.so' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(broken))
    found = doctor.compiler()
    assert found.state is CheckState.FAIL
    assert "libtvm.so" in found.found


def test_torch_beside_tvm_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: object())
    assert doctor.torch().state is CheckState.OK
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert doctor.torch().state is CheckState.ABSENT
