"""An ARM processor of another host in LLVM's words, from the facts that its device tells: no compiler runs there."""

from collections.abc import Callable, Mapping
from typing import Any

from tunery._errors import TargetError
from tunery._processor import ARM_INSTRUCTIONS, ARM_VECTORS, arm_name
from tunery.domain import DeviceDescription

MACHINE, TRIPLE = "aarch64", "aarch64-linux-gnu"


def check_device(device: DeviceDescription) -> None:
    if device.facts.get("arch") != MACHINE:
        raise TargetError(
            f"no code is made here for {device.name}: only for {MACHINE}, and for this machine's processor"
        )


def instructions_of(facts: Mapping[str, Any]) -> set[str]:
    """Return the instructions that a device has, by LLVM's names, of those that kernels may gain by."""
    return {ARM_INSTRUCTIONS[name] for name in facts.get("vector", ()) if name in ARM_INSTRUCTIONS}


def native(facts: Mapping[str, Any], needs: Callable[[Mapping[str, object]], set[str]]) -> dict[str, object]:
    """Return the target of a device: its processor by name if it has all that such a one `needs`, else what it has.
    `needs` returns the instructions that a target's code may use."""
    has = instructions_of(facts)
    name = arm_name(facts)
    named: dict[str, object] = {"mtriple": TRIPLE, "mcpu": name}
    if name and needs(named) <= has:
        return named
    return {**named, "mcpu": "generic", "mattr": [f"+{name}" for name in ARM_VECTORS if name in has]}
