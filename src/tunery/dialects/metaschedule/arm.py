"""An ARM processor of another host in LLVM's words, from the facts that its device tells: no compiler runs there."""

from collections.abc import Callable, Mapping
from typing import Any

from tunery._processor import arm_name

TRIPLE = "aarch64-linux-gnu"
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
    name = arm_name(facts)
    named: dict[str, object] = {"kind": "llvm", "mtriple": TRIPLE, "mcpu": name}
    if name and needs(named) <= has:
        return named
    return {**named, "mcpu": "generic", "mattr": [f"+{name}" for name in _ASKED_FOR if name in has]}
