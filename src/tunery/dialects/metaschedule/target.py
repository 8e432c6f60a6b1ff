"""What code is generated for: the user's words as a canonical TVM target."""

import json
from collections.abc import Mapping

from tunery._errors import TargetError
from tunery._processor import ARM_BEGINNINGS, lacking
from tunery.dialects import _arm as arm
from tunery.dialects.metaschedule._tvm import tvm
from tunery.domain import DeviceDescription, Target

# LLVM's level 3 builds a depthwise convolution in 0.51 s and level 2 in 0.24 s, for kernels equal within noise: their
# loops are tiled, vectorised and unrolled before LLVM sees them. Level 1 makes slower kernels (docs/decisions/005).
_OPT_LEVEL = 2
# Level 2 leaves "am I in the padding?" inside the loop over channels, as masked loads from beyond the array. Where that
# memory is not mapped, each is a fault to be suppressed: kernels two to three times as slow by the luck of an address.
_OPTIONS = ("-enable-nontrivial-unswitch=true",)  # docs/decisions/005
OWN = ("opt-level", "cl-opt", "vector-width")
"""What is added to a target for the user: how the compiler works, not what it generates code for."""
# Features by which code differs; LLVM's lists also name tuning hints and system instructions, which kernels never use.
_INSTRUCTIONS = ("sse", "avx", "amx", "fma", "f16c", *ARM_BEGINNINGS)
# What TVM takes as it comes and its code generator reads as far less: numbers by what fits, lists by their length.
_RANGES = {"num-cores": (1, 65_536), "opt-level": (0, 3), "vector-width": (64, 2048)}
_LISTS = ("keys", "libs", "mattr", "cl-opt")
_FIXED = ("host", "from_device", "target_device_type")
_MOST_ENTRIES, _LONGEST_TEXT, _SHOWN = 64, 256, 120
_EXAMPLE = '\'{"kind": "llvm", "mcpu": "znver4"}\''


def resolve(dialect: str, spec: str, threads: int, device: DeviceDescription | None = None) -> Target:
    """Return the target that `spec` names: `native`, a processor's LLVM name, or a JSON object.

    `device` is an ARM processor of another host that kernels are to run on; None is this machine's.
    """
    if device is not None:
        arm.check_device(device)
    config = _config(spec) if device is None else _config_for(spec, device)
    shown = _shown(spec)
    if config.get("kind") != "llvm":
        raise TargetError(f"target {shown} is not a CPU; this dialect measures on this machine's CPU: use {_EXAMPLE}")
    kind = tvm.target.Target({key: config[key] for key in ("kind", "mtriple") if key in config})
    known = {str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(kind)}
    if not isinstance(config.get("mcpu"), str) or config["mcpu"] not in known:
        raise TargetError(f"unknown target {shown}; use native, a processor name such as znver4, or {_EXAMPLE}")
    _check_fields(shown, config)
    config["num-cores"] = threads
    config.setdefault("opt-level", _OPT_LEVEL)
    config.setdefault("cl-opt", list(_OPTIONS))
    try:
        width = _vector_width(config)
    except Exception as error:
        raise TargetError(f"TVM refuses target {shown}; write for example {_EXAMPLE}") from error
    if width:
        config.setdefault("vector-width", width)
    _refuse_foreign(shown, config, device)
    return Target(dialect, config, threads)


def _config(spec: str) -> dict[str, object]:
    if spec == "native":
        config: dict[str, object] = {"kind": "llvm", "mcpu": _native()}
        hidden = lacking(instructions(config))  # a virtual machine may hide some of a processor's
        return {**config, "mattr": [f"-{name}" for name in hidden]} if hidden else config
    if not spec.lstrip().startswith("{"):
        return {"kind": "llvm", "mcpu": spec}
    try:
        return dict(json.loads(spec))
    except (ValueError, RecursionError):
        raise TargetError(f"target {_shown(spec)} is not JSON; write for example {_EXAMPLE}") from None


def _config_for(spec: str, device: DeviceDescription) -> dict[str, object]:
    if spec == "native":
        return {"kind": "llvm", **arm.native(device.facts, lambda config: instructions({"kind": "llvm", **config}))}
    config = _config(spec)
    return {**config, "mtriple": config.get("mtriple", arm.TRIPLE)}


def _shown(spec: str) -> str:
    return repr(spec) if len(spec) <= _SHOWN else f"{spec[:_SHOWN]!r}..."


def _check_fields(shown: str, config: dict[str, object]) -> None:
    """Refuse fields that are out of their range, and those that are not a CPU's."""
    for name, value in config.items():
        if not _fits(name, value):
            least, most = _RANGES.get(name, ("", ""))
            wanted = f"a whole number from {least} to {most}" if name in _RANGES else "short text or a short list"
            advice = "leave it away" if name in _FIXED else f"write {wanted}"
            raise TargetError(f"target {shown} has a {name[:_LONGEST_TEXT]!r} that it cannot have; {advice}")


def _fits(name: str, value: object) -> bool:
    if name in _RANGES:
        least, most = _RANGES[name]
        return type(value) is int and least <= value <= most
    if name in _LISTS:
        return isinstance(value, list) and len(value) <= _MOST_ENTRIES and all(map(_is_text, value))
    return name not in _FIXED and (isinstance(value, bool) or _is_text(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def _native() -> str:
    return str(tvm.target.codegen.llvm_get_system_cpu())


def _vector_width(config: dict[str, object]) -> int:
    """Return the bits of an x86 target's vectors where they are fewer than the 512 that TVM takes for all; else 0."""
    target = tvm.target.Target(config)
    has = tvm.target.codegen.target_has_features
    if not has("sse", target) or has("avx512f", target):
        return 0
    return 256 if has("avx", target) else 128


def _refuse_foreign(shown: str, config: dict[str, object], device: DeviceDescription | None) -> None:
    """Refuse what the CPU that measures cannot run: each kernel would die of an illegal instruction."""
    if device is None:
        name, has = f"this machine's {_native()}", instructions({"kind": "llvm", "mcpu": _native()})
    else:
        name, has = device.name, arm.instructions_of(device.facts)
    missing = instructions(config) - has
    if missing:
        raise TargetError(
            f"target {shown} needs instructions that {name} lacks ({', '.join(sorted(missing)[:4])}); "
            "tune on such a machine, here or with --on HOST, or use native"
        )


def instructions(config: Mapping[str, object]) -> set[str]:
    """Return the instructions that a target's code may use, by LLVM's names."""
    names = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(dict(config)))}
    return {name for name in names if name.startswith(_INSTRUCTIONS)}
