"""From a prepared ONNX file to fused tensor programs, in the layout that tunes best. Extraction and compilation both
run exactly this, so what was tuned is what is compiled."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tunery._errors import DialectError, tells_of_memory
from tunery.dialects.metaschedule._tvm import relax, replaceable, tvm
from tunery.dialects.metaschedule.importing.canonical import restore_clips, scale_and_shift
from tunery.dialects.metaschedule.importing.folding import move_constants
from tunery.dialects.metaschedule.importing.halves import has_halves, in_single
from tunery.dialects.metaschedule.importing.integers.dequantised import in_numbers, with_scales_apart
from tunery.dialects.metaschedule.importing.integers.four_bits import as_products
from tunery.dialects.metaschedule.importing.integers.quantised import in_integers
from tunery.dialects.metaschedule.importing.layouts import (
    interleave_phases,
    keep_channels_first,
    keep_rows,
    sink_layouts,
)
from tunery.dialects.metaschedule.importing.mapped import with_mapped_weights
from tunery.dialects.metaschedule.importing.operators import own_operators
from tunery.dialects.metaschedule.importing.segments.foreign import failing_nodes, foreign_nodes, with_small_islands
from tunery.dialects.metaschedule.importing.segments.graph import Graph, Segment, named, split
from tunery.dialects.metaschedule.importing.special import lost_by
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants import dots
from tunery.dialects.metaschedule.variants.loads import looked_up
from tunery.dialects.metaschedule.variants.program import normalised, program_key, tvm_target
from tunery.dialects.metaschedule.variants.variant import CHANNELS_LAST
from tunery.domain import Network, Target

_log = logging.getLogger(__name__)
_MOST_FUSED = 32  # operators of single elements in one program: LLVM takes longer than in proportion for more
# A rewritten layout pays for its own unpacking only on weights; vectors such as biases stay as they are.
_PREPACK_MIN_ELEMENTS = 1024

Rule = Callable[[Any], Any]
"""From a module to a module."""

_NEED_NONE = {
    "relax.call_tir",
    "relax.call_dps_packed",
    "relax.call_pure_packed",
    "relax.reshape",
}  # a reshape is a view

# Channels last: a 3x3, 64->64 convolution on 56x56 takes 0.90 ms against 1.43 ms in NCHW on one core.
_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NHWC", "IOHW"],
    # Where nothing is said of these, the data keeps the layout of a convolution before, and the weights have another.
    "relax.nn.conv3d": ["NCDHW", "OIDHW"],
    "relax.nn.conv3d_transpose": ["NCDHW", "IODHW"],
    "relax.nn.conv1d": ["NCW", "OIW"],
    "relax.nn.conv1d_transpose": ["NCW", "IOW"],
}


@dataclass(frozen=True)
class Lowered:
    """A lowered network: `functions` maps a global name to its normalised one-function module and workload key;
    `calls` to the number of call sites; `inputs` to how many of its parameters are read; `left_out` says which rules
    for whole networks it does without, and why. `segments` are the parts that run in ONNX Runtime; `elsewhere` says of
    each of their nodes why it does; `not_kept`, which kinds of values the other nodes may lose.
    """

    module: Any
    functions: dict[str, tuple[Any, str]]
    calls: dict[str, int]
    inputs: dict[str, int]
    left_out: Mapping[str, str] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    not_kept: tuple[str, ...] = ()


def lower(network: Network, target: Target) -> Lowered:
    """Import, fold, lay out, legalise and fuse a network; what TVM does not take of it is left to ONNX Runtime. That is
    what rules know of, else what fails when it is tried alone, else the whole network."""
    graph = Graph(with_mapped_weights(Path(network.path)))
    reasons = foreign_nodes(graph, network.elsewhere)
    try:
        return _lowered_but(graph, reasons, target)
    except Exception as error:  # of whatever kind: TVM's importer raises many
        if isinstance(error, MemoryError) or tells_of_memory(str(error)):
            raise DialectError(f"TVM cannot import {network.name}: {reason_of(error)}") from error
        whole = reason_of(error)
    failing = failing_nodes(graph, reasons, lambda alone: _objection(alone, target))
    if failing:
        try:
            return _lowered_but(graph, with_small_islands(graph, reasons | failing), target)
        except Exception as error:  # noqa: BLE001
            whole = reason_of(error)
    everything = dict.fromkeys(range(len(graph.nodes)), f"TVM cannot take the network: {whole}")
    try:
        return _lowered_but(graph, everything | reasons | failing, target)
    except Exception as error:
        raise DialectError(f"TVM cannot import {network.name}: {reason_of(error)}") from error


def _objection(alone: onnx.ModelProto, target: Target) -> str:
    try:
        _lowered(_imported(alone, target), target, {}, channels_last=False)
    except Exception as error:  # noqa: BLE001
        return reason_of(error)
    return ""


def _lowered_but(graph: Graph, reasons: Mapping[int, str], target: Target) -> Lowered:
    model, segments = split(graph, reasons) if reasons else (graph.model, [])
    module = _imported(model, target, segments)
    left_out: dict[str, str] = {}
    try:
        lowered = _lowered(module, target, left_out, channels_last=True)
    except Exception as error:  # noqa: BLE001 - layout conversion fails on some real graphs (dynamic-rank reshapes around a conv)
        left_out = {CHANNELS_LAST: reason_of(error)}
        lowered = _lowered(module, target, left_out, channels_last=False)
    functions = {}
    for name, function in lowered.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            single = normalised(function)
            functions[name.name_hint] = (single, program_key(single))
    elsewhere = named(graph, reasons)
    not_kept = lost_by(graph, reasons)
    return Lowered(lowered, functions, *_call_sites(lowered), left_out, tuple(segments), elsewhere, not_kept)


def _imported(model: onnx.ModelProto, target: Target, segments: Sequence[Segment] = ()) -> Any:
    """Return TVM's module of an ONNX model, without its check of the model; with quantised products in integers. The
    check copies all weights three times, and all that follows is a warning; ONNX Runtime has taken the file."""
    from tvm.relax.frontend.onnx import from_onnx

    check = replaceable(onnx.checker, "check_model", "model")
    onnx.checker.check_model = lambda model: None  # noqa: ARG005 - its name is part of what is replaced
    try:
        # Of an operator that it does not take it prints the whole expression.
        with tvm_target(target), own_operators(segments), redirect_stdout(StringIO()):
            integers = dots.instruction_of(tvm_target(target)) is not None
            model = model if has_halves(tvm_target(target)) else in_single(model)
            model = with_scales_apart(in_numbers(as_products(model), products=integers))
            return from_onnx(in_integers(model) if integers else model)
    finally:
        onnx.checker.check_model = check


_KEPT_BYTES = 512 << 20
_kept: dict[tuple[str, str], tuple[Mapping[str, str], Lowered]] = {}
"""One, for a compilation that follows an extraction in this process, with what was decided before it."""


def lower_and_keep(network: Network, target: Target) -> Lowered:
    lowered = lower(network, target)
    _kept.clear()
    if Path(network.path).stat().st_size <= _KEPT_BYTES:
        _kept[network.digest, target.key] = network.elsewhere, lowered
    return lowered


def take_lowered(network: Network, target: Target) -> Lowered:
    """Lower a network, or copy the latest result if it is of this network; the caller may change it."""
    decided, kept = _kept.get((network.digest, target.key), (None, None))
    if kept is None or network.elsewhere not in (decided, kept.elsewhere):
        kept = lower_and_keep(network, target)
    return replace(kept, module=kept.module.clone())


def _lowered(module: Any, target: Target, left_out: dict[str, str], *, channels_last: bool) -> Any:
    with tvm_target(target), tvm.transform.PassContext(config={"relax.FuseOps.max_depth": _MOST_FUSED}):
        plain = _tried(move_constants, left_out)(module)
        plain = _folded(_tried(restore_clips, left_out)(plain))
        passes = _passes(left_out, channels_last=channels_last and _has_layouts(plain))
        done = relax.transform.AttachAttrLayoutFreeBuffers()(passes(plain))
        _refuse_leftovers(done)
        return _limit_layout_freedom(done)


def _tried(rule: Rule, left_out: dict[str, str], otherwise: Rule = lambda given: given) -> Rule:
    """Return the rule; where it fails `otherwise` is done in its place, and `left_out` is told why."""

    def changed(given: Any) -> Any:
        try:
            return rule(given)
        except Exception as error:  # noqa: BLE001 - of whatever kind
            left_out[rule.__name__] = reason_of(error)
            _log.error("the rule %s fails on this network, which is compiled without it: %s", rule.__name__, error)
            return otherwise(given)

    return changed


def _passes(left_out: dict[str, str], *, channels_last: bool) -> Any:
    to_last: list[Any] = []
    if channels_last:
        to_last = [
            relax.transform.ConvertLayout(_LAYOUTS),
            _pass(_tried(interleave_phases, left_out, otherwise=keep_channels_first)),
            _pass(_tried(sink_layouts, left_out)),
        ]
    return tvm.transform.Sequential(
        [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            _pass(_tried(keep_rows, left_out)),
            relax.transform.FoldBatchnormToConv2D(),
            *to_last,
            relax.transform.DeadCodeElimination(),
            relax.transform.Normalize(),
            _pass(_tried(move_constants, left_out)),
            _pass(_folded),
            _pass(_tried(scale_and_shift, left_out)),
            relax.transform.DeadCodeElimination(),
            relax.get_pipeline("zero"),
            # Pure reshapes become views here; left as programs they would be tuned, and copied at run time.
            relax.transform.RewriteDataflowReshape(),
            relax.transform.DeadCodeElimination(),
        ]
    )


def _values(module: Any) -> Iterator[Any]:
    for _, function in module.functions_items():
        for block in function.body.blocks if isinstance(function, relax.Function) else ():
            yield from (one.value for one in block.bindings if hasattr(one, "value"))


def _calls(module: Any) -> Iterator[Any]:
    return (value for value in _values(module) if isinstance(value, relax.Call))


def _has_layouts(module: Any) -> bool:
    """Whether there is anything to lay out: TVM's pass looks at every pair of nodes."""
    return any(isinstance(call.op, tvm.ir.Op) and str(call.op.name) in _LAYOUTS for call in _calls(module))


def _folded(module: Any) -> Any:
    """Fold what is computed of constants alone. To find out that nothing is, TVM would make a program of every node."""

    def is_foldable(value: Any) -> bool:
        if isinstance(value, relax.Call):
            return all(map(is_foldable, value.args))
        if isinstance(value, relax.Tuple):
            return all(map(is_foldable, value.fields))
        return not isinstance(value, relax.Var | relax.TupleGetItem)

    return relax.transform.FoldConstant()(module) if any(map(is_foldable, _values(module))) else module


def _pass(change: Rule) -> Any:
    return tvm.transform.module_pass(lambda given, _: change(given), opt_level=0)


def _refuse_leftovers(module: Any) -> None:
    """Raise for operators that have become no programs; TVM would say so only when all is tuned and compiled."""
    operators = (call.op for call in _calls(module) if isinstance(call.op, tvm.ir.Op))
    left = {str(operator.name) for operator in operators if operator.has_attr("FLegalize")}
    if left := left - _NEED_NONE:
        raise DialectError(f"TVM has no program for {', '.join(sorted(left))}")


def _limit_layout_freedom(module: Any) -> Any:
    """Keep the freedom to rewrite a constant's layout only where it is a weight matrix. Of a table that is looked up
    in, TVM would take one row for the whole."""
    for name, function in list(module.functions_items()):
        if not isinstance(function, tvm.tirx.PrimFunc) or "layout_free_buffers" not in (function.attrs or {}):
            continue
        tables = looked_up(function)
        free = [
            int(index)
            for index in function.attrs["layout_free_buffers"]
            if (shape := _static_shape(function.params[int(index)])) is not None
            and len([d for d in shape if d > 1]) > 1
            and np.prod(shape) >= _PREPACK_MIN_ELEMENTS
            and not any(table.same_as(function.params[int(index)]) for table in tables)
        ]
        bare = function.without_attr("layout_free_buffers")
        module.update_func(name, bare.with_attr("layout_free_buffers", free) if free else bare)
    return module


def _static_shape(parameter: Any) -> list[int] | None:
    shape = getattr(parameter.ty, "shape", None)
    if shape is None:
        return None
    try:
        return [int(d) for d in shape]
    except (TypeError, ValueError):
        return None


def argument_specs(function: Any) -> list[tuple[list[int], str]] | None:
    specs = []
    for parameter in function.params:
        shape = _static_shape(parameter)
        if shape is None:
            return None
        specs.append((shape, str(parameter.ty.dtype)))
    return specs


def _call_sites(module: Any) -> tuple[dict[str, int], dict[str, int]]:
    calls, inputs = Counter[str](), dict[str, int]()
    for call in _calls(module):
        if call.op == tvm.ir.Op.get("relax.call_tir"):
            name = call.args[0].name_hint
            calls[name] += 1
            inputs[name] = len(call.args[1].fields)
    return calls, inputs
