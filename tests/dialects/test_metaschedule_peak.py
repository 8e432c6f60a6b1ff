"""The machine's peak: one multiply-add after another, without a load or a store between them."""

import re

import pytest

pytest.importorskip("tvm")

from tunery.dialects import get_dialect
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.calibration import _program
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.testing.fake_dialect import FakeDialect

pytestmark = pytest.mark.tvm

_LABEL = re.compile(r"^\.L\w+:$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\t(?P<name>[a-z]\w*)\t(?P<operands>.*)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("processor", "register", "chains"), [("znver4", "zmm", 12), ("znver4", "zmm", 24), ("znver3", "ymm", 12)]
)
def test_the_loop_holds_all_in_registers(processor: str, register: str, chains: int) -> None:
    width = {} if register == "zmm" else {"vector-width": 256}
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": processor, "opt-level": 2, **width}
    )
    code = tvm.tirx.build(_program(2, chains, lanes_of(target)), target=target).inspect_source("asm")
    parts = [[found.groups() for found in _INSTRUCTION.finditer(part)] for part in _LABEL.split(code)]
    loop = max(parts, key=lambda part: sum(name.startswith("vfmadd") for name, _ in part))
    loop = loop[: next(i for i, (name, _) in enumerate(loop) if name == "jne") + 1]
    fused = [operands for name, operands in loop if name.startswith("vfmadd")]
    assert fused
    assert len(fused) % chains == 0, "each step has one for each chain"
    assert all(register in operands for operands in fused)
    assert not any("(" in operands for _, operands in loop), "nothing of it is read or written"


def test_the_peak_is_measured_and_a_dialect_need_not_know_one() -> None:
    dialect = get_dialect("metaschedule")
    assert dialect.peak_flops(dialect.resolve_target("native", 1)) > 1e9
    fake = FakeDialect()
    assert fake.peak_flops(fake.resolve_target("native", 1)) is None
