"""Which processors share a cost model, by what LLVM calls them; asked without the compiler."""

import platform

import pytest

from tunery.costmodels import registry
from tunery.dialects.metaschedule import MetaScheduleDialect

FAMILY = MetaScheduleDialect().family


@pytest.mark.parametrize("name", ["znver5", "emeraldrapids", "graniterapids", "tigerlake", "ivybridge", "gracemont"])
def test_an_x86_processor_of_any_name_has_the_shipped_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    target = FAMILY({"kind": "llvm", "mcpu": name, "num-cores": 2})
    assert registry.starting("metaschedule", target) is not None


@pytest.mark.parametrize(
    ("machine", "config", "expected"),
    [
        ("x86_64", {"mcpu": "apple-m1"}, "apple-m1"),
        ("x86_64", {"mcpu": "neoverse-v2"}, "neoverse-v2"),
        ("x86_64", {"mcpu": "grace"}, "grace"),
        ("x86_64", {"mcpu": "foreign", "mtriple": "aarch64-linux-gnu"}, "foreign"),
        ("x86_64", {"kind": "llvm"}, "llvm"),
        ("x86_64", {"kind": "cuda", "mcpu": "sm_90"}, "sm_90"),
        ("AMD64", {"mcpu": "lunarlake"}, "x86"),
        ("aarch64", {"mcpu": "lunarlake"}, "lunarlake"),
        ("aarch64", {"mcpu": "lunarlake", "mtriple": "x86_64-linux-gnu"}, "x86"),
        ("aarch64", {"mcpu": "znver4"}, "x86"),
        ("aarch64", {"mcpu": "generic"}, "generic"),
    ],
)
def test_families_of_processors(
    machine: str, config: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert FAMILY(config) == expected


@pytest.mark.tvm
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler lists this machine's processors")
def test_no_x86_processor_is_taken_for_another() -> None:
    from tunery.dialects.metaschedule._tvm import tvm

    names = tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm"}))
    assert {FAMILY({"kind": "llvm", "mcpu": str(name)}) for name in names} == {"x86"}
