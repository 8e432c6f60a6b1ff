"""An ARM processor of another host in LLVM's words, from the facts that its device tells: no compiler runs there."""

from collections.abc import Callable, Mapping
from typing import Any

TRIPLE = "aarch64-linux-gnu"
# Implementer and part, as /proc/cpuinfo has them (the Arm Architecture Reference Manual's MIDR_EL1).
_PARTS = {
    ("0x41", "0xd03"): "cortex-a53",
    ("0x41", "0xd04"): "cortex-a35",
    ("0x41", "0xd05"): "cortex-a55",
    ("0x41", "0xd07"): "cortex-a57",
    ("0x41", "0xd08"): "cortex-a72",
    ("0x41", "0xd09"): "cortex-a73",
    ("0x41", "0xd0a"): "cortex-a75",
    ("0x41", "0xd0b"): "cortex-a76",
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd0d"): "cortex-a77",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd41"): "cortex-a78",
    ("0x41", "0xd42"): "cortex-a78ae",
    ("0x41", "0xd44"): "cortex-x1",
    ("0x41", "0xd46"): "cortex-a510",
    ("0x41", "0xd47"): "cortex-a710",
    ("0x41", "0xd48"): "cortex-x2",
    ("0x41", "0xd49"): "neoverse-n2",
    ("0x41", "0xd4b"): "cortex-a78c",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x4e", "0x004"): "carmel",
    ("0xc0", "0xac3"): "ampere1",
}
_NAMES = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "sve": "sve", "i8mm": "i8mm", "bf16": "bf16"}
"""Linux's names of instructions, and LLVM's."""
_ASKED_FOR = ("neon", "dotprod", "fullfp16")
"""What is named in the target of a processor that is not in the table: its vectors are of 128 bits."""


def instructions_of(facts: Mapping[str, Any]) -> set[str]:
    """Return the instructions that a device has, by LLVM's names, of those that kernels may gain by."""
    return {_NAMES[name] for name in facts.get("vector", ()) if name in _NAMES}


def native(facts: Mapping[str, Any], needs: Callable[[Mapping[str, object]], set[str]]) -> dict[str, object]:
    """Return the target of a device: its processor by name if it has all that such a one `needs`, else what it has.

    `needs` returns the instructions that a target's code may use.
    """
    has = instructions_of(facts)
    name = _PARTS.get((str(facts.get("vendor")), str(facts.get("model"))))
    named: dict[str, object] = {"kind": "llvm", "mtriple": TRIPLE, "mcpu": name}
    if name and needs(named) <= has:
        return named
    return {**named, "mcpu": "generic", "mattr": [f"+{name}" for name in _ASKED_FOR if name in has]}
