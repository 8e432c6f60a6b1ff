"""What code is generated for: the user's words as a canonical TVM target."""

import json

from tunery._errors import TargetError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.domain import Target

# LLVM's level 3 builds a depthwise convolution in 0.51 s and level 2 in 0.24 s, for kernels equal within noise: their
# loops are tiled, vectorised and unrolled before LLVM sees them. Level 1 makes slower kernels (docs/decisions/005).
_OPT_LEVEL = 2
# Level 2 leaves "am I in the padding?" inside the loop over channels, as masked loads from beyond the array. Where that
# memory is not mapped, each is a fault to be suppressed: kernels two to three times as slow by the luck of an address.
_OPTIONS = ("-enable-nontrivial-unswitch=true",)  # docs/decisions/005
OWN = ("opt-level", "cl-opt", "vector-width")
"""What is added to a target for the user: how the compiler works, not what it generates code for."""
# Features by which code differs; LLVM's lists also name tuning hints and system instructions, which kernels never use.
_INSTRUCTIONS = ("sse", "avx", "amx", "fma", "f16c", "neon", "sve", "sme", "dotprod", "i8mm", "bf16", "fullfp16")
_EXAMPLE = '\'{"kind": "llvm", "mcpu": "znver4"}\''


def resolve(dialect: str, spec: str, threads: int) -> Target:
    """Return the target that `spec` names: `native`, a processor's LLVM name, or a JSON object.

    Raises:
        TargetError: it is not a CPU, unknown to LLVM, or needs instructions that this machine lacks.
    """
    config = _config(spec)
    if config.get("kind") != "llvm":
        raise TargetError(f"target {spec!r} is not a CPU; this dialect measures on this machine's CPU: use {_EXAMPLE}")
    known = {str(name) for name in tvm.target.codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm"}))}
    if not isinstance(config.get("mcpu"), str) or config["mcpu"] not in known:
        raise TargetError(f"unknown target {spec!r}; use native, a processor name such as znver4, or {_EXAMPLE}")
    config["num-cores"] = threads
    config.setdefault("opt-level", _OPT_LEVEL)
    config.setdefault("cl-opt", list(_OPTIONS))
    try:
        width = _vector_width(config)
    except Exception as error:
        raise TargetError(f"TVM refuses target {spec!r}; write for example {_EXAMPLE}") from error
    if width:
        config.setdefault("vector-width", width)
    _refuse_foreign(spec, config)
    return Target(dialect, config, threads)


def _config(spec: str) -> dict[str, object]:
    if spec == "native":
        return {"kind": "llvm", "mcpu": _native()}
    if not spec.lstrip().startswith("{"):
        return {"kind": "llvm", "mcpu": spec}
    try:
        return dict(json.loads(spec))
    except ValueError as error:
        raise TargetError(f"target {spec!r} is not JSON ({error}); write for example {_EXAMPLE}") from error


def _native() -> str:
    return str(tvm.target.codegen.llvm_get_system_cpu())


def _vector_width(config: dict[str, object]) -> int:
    """Return the bits of an x86 target's vectors where they are fewer than the 512 that TVM takes for all; else 0."""
    target = tvm.target.Target(config)
    has = tvm.target.codegen.target_has_features
    if not has("sse", target) or has("avx512f", target):
        return 0
    return 256 if has("avx", target) else 128


def _refuse_foreign(spec: str, config: dict[str, object]) -> None:
    """Refuse what this CPU cannot run: kernels are measured here, and each would die of an illegal instruction."""
    missing = _features(config) - _features({"kind": "llvm", "mcpu": _native()})
    if missing:
        raise TargetError(
            f"target {spec!r} needs instructions that this machine's {_native()} lacks "
            f"({', '.join(sorted(missing)[:4])}); tune on such a machine, or use native"
        )


def _features(config: dict[str, object]) -> set[str]:
    names = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(config))}
    return {name for name in names if name.startswith(_INSTRUCTIONS)}
