"""Families of processors: which of them run the same code, so that one cost model serves them."""

import platform
from collections.abc import Mapping
from typing import Any

_X86 = ("x86", "znver", "skylake", "cascadelake", "cooperlake", "icelake", "sapphirerapids", "emeraldrapids", "haswell",
        "broadwell", "alderlake", "raptorlake", "core-avx", "gracemont")  # fmt: skip
"""Names of x86 processors that a machine of another kind knows, too; there are new ones every year."""
_OTHERS = ("a64fx", "ampere", "apple", "arm", "carmel", "cortex", "cyclone", "exynos", "falkor", "fujitsu", "gb10",
           "generic-", "grace", "hip", "kryo", "la464", "la664", "loongarch", "neoverse", "olympus", "oryon", "power",
           "ppc", "pwr", "rocket-", "saphira", "sifive", "spacemit", "syntacore", "thunderx", "tsv110", "veyron",
           "xiangshan", "z1")  # fmt: skip
"""What LLVM's names of processors of other architectures begin with."""


def family(config: Mapping[str, Any]) -> str:
    """Return the family of a target: all x86 processors, whatever LLVM calls them, are one; of others each is its own.

    >>> family({"kind": "llvm", "mcpu": "znver4"}), family({"mcpu": "apple-m1"})
    ('x86', 'apple-m1')
    """
    if config.get("kind", "llvm") == "llvm" and _is_x86(config):
        return "x86"
    return str(config.get("mcpu") or config.get("kind") or "metaschedule")


def _is_x86(config: Mapping[str, Any]) -> bool:
    triple, name = str(config.get("mtriple", "")), str(config.get("mcpu", ""))
    if triple:
        return triple.startswith(("x86", "amd64", "i386", "i686"))
    if not name or name.startswith((*_X86, *_OTHERS)):
        return name.startswith(_X86)
    return platform.machine().lower() in {"x86_64", "amd64"}


def machine_of(config: Mapping[str, Any]) -> str:
    """Return the kind of machine that a target's code is for, as `platform.machine` names it.

    >>> machine_of({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    'aarch64'
    """
    return str(config.get("mtriple") or platform.machine()).partition("-")[0]


def is_of_this_machine(config: Mapping[str, Any]) -> bool:
    return machine_of(config) == platform.machine()
