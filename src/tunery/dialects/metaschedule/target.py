"""What code is generated for: the user's words as a canonical TVM target."""

from collections.abc import Mapping
from functools import cache

from tunery._errors import TargetError
from tunery._processor import ARM_BEGINNINGS, lacking
from tunery.dialects import _arm as arm
from tunery.dialects.metaschedule._tvm import FIELDS, open_target, tvm
from tunery.domain import DeviceDescription, Target
from tunery.domain.closed_target import read_target

# LLVM's level 3 builds a depthwise convolution in 0.51 s and level 2 in 0.24 s, for kernels equal within noise: their
# loops are tiled, vectorised and unrolled before LLVM sees them. Level 1 makes slower kernels (docs/decisions/005).
_OPT_LEVEL = 2
_UNSWITCH = True  # docs/decisions/005
# Features by which code differs; LLVM's lists also name tuning hints and system instructions, which kernels never use.
_INSTRUCTIONS = ("sse", "avx", "amx", "fma", "f16c", *ARM_BEGINNINGS)
_FIELDS = tuple(name for name in FIELDS if name not in {"kind", "mtriple"})
_EXAMPLE = '\'{"kind": "llvm", "mcpu": "znver4"}\''


def resolve(dialect: str, spec: str, threads: int, device: DeviceDescription | None = None) -> Target:
    """Return the target that `spec` names: `native`, a processor's LLVM name, or a JSON object. `device` is an ARM
    processor of another host that kernels are to run on; None is this machine's."""
    if device is not None:
        arm.check_device(device)
    config = _config(spec) if device is None else _config_for(spec, device)
    machine = {name: str(config[name]) for name in ("kind", "mtriple") if name in config}
    if config.get("mcpu") not in _processors(**machine):
        raise TargetError(f"unknown target {spec!r:.120}; use native, a processor name such as znver4, or {_EXAMPLE}")
    words = config.get("mattr", [])
    if isinstance(words, list) and words and (unknown := {word[1:] for word in words} - _features(**machine)):
        raise TargetError(f"target {spec!r:.120} has {min(unknown)!r}, which no processor has; leave it away")
    config["num-cores"] = threads
    config.setdefault("opt-level", _OPT_LEVEL)
    config.setdefault("unswitch", _UNSWITCH)
    if width := _vector_width(config):
        config.setdefault("vector-width", width)
    _refuse_foreign(spec, config, device)
    return Target(dialect, config, threads)


def _config(spec: str) -> dict[str, object]:
    if spec == "native":
        config: dict[str, object] = {"kind": "llvm", "mcpu": _native()}
        hidden = lacking(instructions(config))  # a virtual machine may hide some of a processor's
        return {**config, "mattr": [f"-{name}" for name in hidden]} if hidden else config
    return read_target(spec, "llvm", _FIELDS, _EXAMPLE)


def _config_for(spec: str, device: DeviceDescription) -> dict[str, object]:
    if spec == "native":
        return {"kind": "llvm", **arm.native(device.facts, lambda config: instructions({"kind": "llvm", **config}))}
    return {"mtriple": arm.TRIPLE, **read_target(spec, "llvm", (*_FIELDS, "mtriple"), _EXAMPLE)}


@cache
def _processors(**machine: str) -> frozenset[str]:
    return frozenset(str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(open_target(machine)))


@cache
def _features(**machine: str) -> frozenset[str]:
    of_each = (_features_of({**machine, "mcpu": name}) for name in _processors(**machine))
    return frozenset().union(*of_each)


def _native() -> str:
    return str(tvm.target.codegen.llvm_get_system_cpu())


def _vector_width(config: dict[str, object]) -> int:
    """Return the bits of an x86 target's vectors where they are fewer than the 512 that TVM takes for all; else 0."""
    target = open_target(config)
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
    return {name for name in _features_of(config) if name.startswith(_INSTRUCTIONS)}


def _features_of(config: Mapping[str, object]) -> set[str]:
    return {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(open_target(config))}
