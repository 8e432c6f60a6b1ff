"""A lowered network's unique tasks, and whether a workload from elsewhere is what it says it is."""

import json
import re
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.constructs import check_program
from tunery.dialects.metaschedule.importing.lowering import Lowered, argument_specs
from tunery.dialects.metaschedule.operators.keys import key_of_module
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.program import open_space, parsed, tvm_target
from tunery.dialects.metaschedule.variants.variant import CHANNELS_LAST, REMARK
from tunery.domain import Target, Task, TensorSpec, Workload

# Patterns in a fused function's name that tell its operator family, the heaviest first.
_KINDS = (
    ("conv2d", "conv2d"), ("conv1d", "conv1d"), ("conv3d", "conv3d"), ("conv", "conv"), ("matmul", "matmul"),
    ("dense", "matmul"), ("softmax", "softmax"), ("layer_norm", "norm"), ("rms_norm", "norm"), ("group_norm", "norm"),
    ("instance_norm", "norm"), ("pool", "pool"), ("mean", "reduce"), ("sum", "reduce"),
    ("(max|min)(?!imum)", "reduce"), ("take", "gather"), ("gather", "gather"), ("resize", "resize"),
    ("transpose", "layout"), ("reshape", "layout"), ("concatenate", "layout"), ("split", "layout"),
    ("strided_slice", "layout"),
)  # fmt: skip

_TOO_LARGE = "exceeds range of int32"
"""What TVM says of an array with more elements than it counts."""


def tasks_of(lowered: Lowered, target: Target) -> list[Task]:
    """Return the unique tasks with their weights, heaviest work first; functions never called are left out. A function
    with symbolic shapes cannot be measured and is left out too."""
    found: dict[str, Task] = {}
    for name, (_, key) in lowered.functions.items():
        weight = lowered.calls.get(name, 0)
        if not weight:
            continue
        if key in found:
            known = found[key]
            found[key] = Task(known.workload, target, known.weight + weight, known.tunable)
            continue
        task = _task(lowered, name, target, weight)
        if task is not None:
            found[key] = task
    return sorted(found.values(), key=lambda task: (-task.weight * task.workload.flop, task.workload.key))


def _task(lowered: Lowered, name: str, target: Target, weight: int) -> Task | None:
    module, key = lowered.functions[name]
    function = module["main"]
    specs = argument_specs(function)
    if specs is None:
        return None
    arguments = tuple(TensorSpec(f"a{i}", tuple(shape), dtype) for i, (shape, dtype) in enumerate(specs))
    workload = Workload(
        key=key,
        name=name.rstrip("0123456789") or name,
        kind=_kind(name, arguments),
        program=tvm.ir.save_json(_remarked(lowered, name)),
        arguments=arguments,
        outputs=len(arguments) - lowered.inputs[name],
        flop=_flop(module),
        operator=key_of_module(module),
    )
    try:
        tunable = open_space(module, tvm_target(target)).tunable
    except DialectError:
        tunable = False
    except ValueError as error:
        if _TOO_LARGE not in str(error):
            raise
        tunable = False
    return Task(workload, target, weight, tunable)


def _remarked(lowered: Lowered, name: str) -> Any:
    """Return a function's module with what its network was lowered without, which is no part of its key. Of the layout
    only convolutions say so."""
    module, _ = lowered.functions[name]
    left_out = {rule: why for rule, why in lowered.left_out.items() if rule != CHANNELS_LAST or "conv2d" in name}
    return module.with_attr(REMARK, json.dumps(left_out, sort_keys=True)) if left_out else module


def _kind(name: str, arguments: tuple[TensorSpec, ...]) -> str:
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, name)), "elementwise")
    if kind == "conv2d" and len(arguments) > 2:
        weights = arguments[1].shape
        if len(weights) == 4 and weights[2] == 1 and weights[3] == arguments[0].shape[-1] and max(weights[:2]) > 1:
            return "depthwise"
    return kind


def _flop(module: Any) -> float:
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # noqa: BLE001 - an estimate: unknown intrinsics make it fail
        return 0.0


def check_workload(workload: Workload) -> None:
    """Check that a workload's program consists of known constructs, has its key, and takes its arguments."""
    check_program(workload.program)
    try:
        specs = argument_specs(parsed(workload.key, workload.program)["main"])
    except DialectError:
        raise
    except Exception as error:
        raise DialectError(f"the program of workload {workload.key} cannot be read: {reason_of(error)}") from error
    told = [(list(spec.shape), spec.dtype) for spec in workload.arguments]
    if specs != told or not 1 <= workload.outputs <= len(told):
        raise DialectError(f"the program of workload {workload.key} takes other arguments than the workload says")
