"""Kernels in C for an ARM processor of another host, made here by gcc's cross compiler, from what its device tells."""

import json
from collections.abc import Mapping
from typing import Any

from tunery._errors import TargetError
from tunery._processor import arm_name
from tunery.dialects.kernels.gcc import Processor, defined, version
from tunery.domain import DeviceDescription

_MACHINE = "aarch64"
_FEATURES = {
    "asimddp": ("dotprod", "__ARM_FEATURE_DOTPROD"),
    "asimdhp": ("fp16", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    "sve": ("sve", "__ARM_FEATURE_SVE"),
    "i8mm": ("i8mm", "__ARM_FEATURE_MATMUL_INT8"),
    "bf16": ("bf16", "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC"),
}
"""Linux's names of instructions, gcc's, and the macro by which gcc says that it may use them."""


def config_for(spec: str, device: DeviceDescription) -> dict[str, str]:
    """Return the target that `spec` names for a device: `native`, gcc's name of a processor, or a JSON object."""
    if device.facts.get("arch") != _MACHINE:
        raise TargetError(f"no code is made here for {device.name}: only for {_MACHINE}, and for this machine's kind")
    has = {name for name in device.facts.get("vector", ()) if name in _FEATURES}
    if spec == "native":
        processor = _native(device.facts, has)
    else:
        processor = Processor(_name_in(spec), _MACHINE)
        if missing := _needs(processor) - has:
            raise TargetError(f"target {spec!r:.60} needs {', '.join(sorted(missing))}, which {device.name} lacks")
    config = {"kind": "c", "machine": _MACHINE, "mcpu": processor.name, "gcc": version(processor.gcc)}
    if spec.startswith("{") and json.loads(spec) != config:
        raise TargetError(f"unknown target {spec!r:.120}; use native, or {json.dumps(config)}")
    return config


def _native(facts: Mapping[str, Any], has: set[str]) -> Processor:
    """Return a device's processor by name, if it has all that gcc uses on such a one, else by what it has."""
    generic = Processor("+".join(["generic", *(_FEATURES[name][0] for name in sorted(has))]), _MACHINE)
    defined(generic)
    named = Processor(arm_name(facts) or generic.name, _MACHINE)
    try:
        return named if _needs(named) <= has else generic
    except TargetError:  # a newer processor than this gcc
        return generic


def _needs(processor: Processor) -> set[str]:
    known = defined(processor)
    return {name for name, (_, macro) in _FEATURES.items() if macro in known}


def _name_in(spec: str) -> str:
    try:
        return str(json.loads(spec)["mcpu"]) if spec.startswith("{") else spec
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TargetError(
            f"unknown target {spec!r:.60}; use native, or a processor's name such as cortex-a72"
        ) from None
