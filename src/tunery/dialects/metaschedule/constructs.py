"""Which programs and traces are accepted from elsewhere: such that consist of known constructs, and of nothing else.
TVM's programs can call any function of the process and of its libraries, and carry C or LLVM source for the compiler;
reading one back can create any object that TVM knows, loaded machine code included. So text is checked before TVM reads
it, against lists of what operators and schedules of ours are made of. What is not on a list is refused."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tunery._errors import DialectError
from tunery.dialects.metaschedule.loading.preparing import POOLS, TILES, WINOGRAD

TILES_NUMBERS = 4

LONGEST = 16 << 20
"""Characters of a program or a body; the longest of the zoo has 0.4 million."""

_NODES = frozenset({
    "None", "bool", "int", "float", "ffi.Array", "ffi.Map", "ffi.String",
    "ir.Call", "ir.DictAttrs", "ir.FloatImm", "ir.GlobalVar", "ir.IRModule", "ir.IntImm", "ir.Op", "ir.PrimType",
    "ir.Range", "ir.SourceMap", "ir.TensorLoad", "ir.TensorRegion", "ir.TupleType", "ir.Type", "ir.Var",
    "prim.Add", "prim.And", "prim.BitwiseAnd", "prim.BitwiseNot", "prim.BitwiseOr", "prim.BitwiseXor", "prim.Cast",
    "prim.Div", "prim.EQ", "prim.FloorDiv", "prim.FloorMod", "prim.GE", "prim.GT", "prim.LE", "prim.LShift", "prim.LT",
    "prim.Let", "prim.Max", "prim.Min", "prim.Mod", "prim.Mul", "prim.NE", "prim.Not", "prim.Or", "prim.RShift",
    "prim.Select", "prim.Sub",
    "relax.FuncType", "relax.ShapeType", "relax.TensorType", "relax.expr.ShapeExpr",
    "s_tir.SBlock", "s_tir.SBlockRealize",
    "tirx.BufferRegionType", "tirx.BufferStore", "tirx.BufferType", "tirx.For", "tirx.IfThenElse", "tirx.IterVar",
    "tirx.PrimFunc", "tirx.SeqStmt",
})  # fmt: skip
_OPERATORS = frozenset({
    "prim.ceil", "prim.clz", "prim.if_then_else", "prim.likely", "prim.log2",
    "tirx.acos", "tirx.acosh", "tirx.asin", "tirx.asinh", "tirx.atan", "tirx.atan2", "tirx.atanh", "tirx.copysign",
    "tirx.cos", "tirx.cosh", "tirx.erf", "tirx.exp", "tirx.exp10", "tirx.exp2", "tirx.fabs", "tirx.floor", "tirx.fma",
    "tirx.fmod", "tirx.hypot", "tirx.isfinite", "tirx.isinf", "tirx.isnan", "tirx.ldexp", "tirx.log", "tirx.log10",
    "tirx.log1p", "tirx.nearbyint", "tirx.nextafter", "tirx.popcount", "tirx.pow", "tirx.q_multiply_shift",
    "tirx.q_multiply_shift_per_axis", "tirx.reinterpret", "tirx.round", "tirx.rsqrt", "tirx.sigmoid", "tirx.sin",
    "tirx.sinh", "tirx.sqrt", "tirx.tan", "tirx.tanh", "tirx.trunc",
})  # fmt: skip
_MODULE_ATTRIBUTES = frozenset({"tunery.left_out"})
_FUNCTION_ATTRIBUTES = frozenset({"global_symbol", "layout_free_buffers", "s_tir", "tirx.noalias"})
_BLOCK_ATTRIBUTES = frozenset({"axis", "layout_free_placeholders", "schedule_rule"})
_RULES = frozenset({
    "None", "meta_schedule.adaptive_pool_avg", "meta_schedule.adaptive_pool_max", "meta_schedule.pool_avg",
    "meta_schedule.pool_max",
})  # fmt: skip
_DTYPE = re.compile(r"(bool|bfloat16|(float|int|uint)[0-9]{1,3})(x[0-9]{1,3})?")

# The schedule primitives that keep what a program computes and take neither expressions nor layouts.
_INSTRUCTIONS = frozenset({
    "AddUnitLoop", "Annotate", "Bind", "Blockize", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline",
    "DecomposePadding", "DecomposeReduction", "Fuse", "GetChildBlocks", "GetConsumers", "GetLoops", "GetOutputBlocks",
    "GetProducers", "GetSBlock", "LoopPartition", "Merge", "PadEinsum", "Parallel", "RFactor", "ReIndex", "ReadAt",
    "Reorder", "ReorderBlockIterVar", "ReverseComputeAt", "ReverseComputeInline", "RollingBuffer",
    "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile", "SamplePerfectTile", "SetScope", "Split",
    "StorageAlign", "Tensorize", "Unannotate", "Unroll", "Vectorize", "WriteAt",
})  # fmt: skip
_ANNOTATIONS = frozenset({
    "meta_schedule.auto_tensorize", "meta_schedule.auto_tensorize_init", "meta_schedule.cooperative_fetch",
    "meta_schedule.layout_rewrite_preproc", "meta_schedule.meta_schedule_auto_tensorize", "meta_schedule.parallel",
    "meta_schedule.random_compute_producer", "meta_schedule.thread_extent_high_inclusive",
    "meta_schedule.thread_extent_low_inclusive", "meta_schedule.tiling_structure", "meta_schedule.unroll_explicit",
    "meta_schedule.unroll_implicit", "meta_schedule.vectorize", "pragma_auto_unroll_max_step",
    "pragma_unroll_explicit", "software_pipeline_async_stages", "software_pipeline_order", "software_pipeline_stage",
    "vector_bytes", "warp_execution",
})  # fmt: skip
_TAKEN_OFF = frozenset({"schedule_rule"})
"""Annotations of an operator's block that MetaSchedule removes where it has no such rule, as of pools on CPUs."""
_WORD = re.compile(r'[^{}()\[\]"\\\x00-\x20\x7f;#]{0,256}')  # names of blocks, loops, functions, scopes, intrinsics
_QUOTED = re.compile(r'"[A-Za-z0-9_.]{0,256}"')
_DEEPEST = 3  # lists in a list of an instruction: an annotation's or a decision's


def check_program(program: str) -> None:
    """Check that a workload's program is built of arithmetic, loops and buffers alone; TVM reads nothing of it."""
    graph = _read(program, "program")
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not graph.keys() <= {"nodes", "root_index", "metadata"}:
        raise DialectError("the program is none of TVM's")
    for node in nodes:
        if not isinstance(node, dict) or not node.keys() <= {"type", "data"} or node.get("type") not in _NODES:
            kind = node.get("type") if isinstance(node, dict) else node
            raise DialectError(f"the program holds {_short(kind)}, which no operator of ours is made of")
    try:
        root = nodes[graph["root_index"]]
        if root["type"] != "ir.IRModule":
            raise DialectError(f"the program is {_short(root['type'])}, and no module")
        for node in nodes:
            _check_node(node, nodes)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise DialectError(f"the program is damaged: {error!r}") from error


def check_body(body: str) -> None:
    """Check that a candidate's body is a list of schedule primitives that keep what the program computes."""
    if not body.startswith(("[", "{")):
        return  # a program that is named by a word, or the program as it came
    whole = _read(body, "body")
    trace: Any = whole.get("trace") if isinstance(whole, dict) else whole
    if isinstance(whole, dict) and not whole.keys() <= {"expression", "trace", "left_out"}:
        raise DialectError("the body is none of a candidate")
    if isinstance(whole, dict) and whole.get("expression") in {POOLS, TILES, WINOGRAD}:
        _check_design(trace)
        return
    try:
        instructions, decisions = trace
        for name, inputs, attributes, outputs in instructions:
            if not isinstance(name, str) or name not in _INSTRUCTIONS:
                raise DialectError(f"the trace holds {_short(name)}, which no search of ours makes")
            allowed = _ANNOTATIONS | _TAKEN_OFF if name == "Unannotate" else _ANNOTATIONS
            if name in {"Annotate", "Unannotate"} and attributes[0] not in allowed:
                raise DialectError(f"the trace annotates a program with {_short(attributes[0])}")
            for value in (*inputs, *attributes, *outputs):
                _check_value(value, name)
        for place, decision in decisions:
            _check_value(place, "a decision")
            _check_value(decision, "a decision")
    except (TypeError, ValueError, IndexError) as error:
        raise DialectError(f"the body is not a candidate's trace: {error!r}") from error


def _check_design(numbers: Any) -> None:
    if not isinstance(numbers, list) or len(numbers) != TILES_NUMBERS or {type(number) for number in numbers} != {int}:
        raise DialectError("the body is no design of tiles, which is four whole numbers")
    if not all(0 < number < 1 << 31 for number in numbers):
        raise DialectError("a number of the body's design of tiles is out of range; they are from 1 to 2147483647")


def _read(text: str, what: str) -> Any:
    if len(text) > LONGEST:
        raise DialectError(f"the {what} has {len(text)} characters; {LONGEST} are the most")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DialectError(f"the {what} cannot be read: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("one name stands twice in an object")
    return found


def _check_node(node: Mapping[str, Any], nodes: list[Any]) -> None:
    kind: str = node["type"]
    if kind in _CHECKS:
        _CHECKS[kind](node.get("data"), nodes)


def _check_operator(data: Any, nodes: list[Any]) -> None:  # noqa: ARG001 - one of several
    if data not in _OPERATORS:
        raise DialectError(f"the program calls {_short(data)}")


def _check_call(data: Any, nodes: list[Any]) -> None:
    kind, attributes = nodes[data["op"]]["type"], nodes[data["attrs"]]["type"]
    if kind != "ir.Op" or attributes != "None":
        raise DialectError(f"the program calls {_short(kind if kind != 'ir.Op' else attributes)}")


def _check_dtype(data: Any, nodes: list[Any]) -> None:  # noqa: ARG001 - one of several
    if not _DTYPE.fullmatch(data["dtype"]):
        raise DialectError(f"the program computes with {_short(data['dtype'])}")


def _check_type(data: Any, nodes: list[Any]) -> None:
    if nodes[data["derive_func"]]["type"] != "None":
        raise DialectError("the program's type is told by a function")


def _check_buffer(data: Any, nodes: list[Any]) -> None:
    scope = nodes[data["storage_scope"]].get("data")
    if scope not in {"", "global"}:
        raise DialectError(f"the program has a buffer in {_short(scope)}")


def _check_loop(data: Any, nodes: list[Any]) -> None:
    _check_attributes(data["annotations"], nodes, ())


def _check_block(data: Any, nodes: list[Any]) -> None:
    _check_attributes(data["annotations"], nodes, _BLOCK_ATTRIBUTES)


def _check_function(data: Any, nodes: list[Any]) -> None:
    _check_dictionary(data["attrs"], nodes, _FUNCTION_ATTRIBUTES)


def _check_module(data: Any, nodes: list[Any]) -> None:
    _check_dictionary(data["attrs"], nodes, _MODULE_ATTRIBUTES)


_CHECKS: Mapping[str, Callable[[Any, list[Any]], None]] = {
    "ir.Call": _check_call,
    "ir.IRModule": _check_module,
    "ir.Op": _check_operator,
    "ir.PrimType": _check_dtype,
    "relax.FuncType": _check_type,
    "s_tir.SBlock": _check_block,
    "tirx.BufferType": _check_buffer,
    "tirx.For": _check_loop,
    "tirx.PrimFunc": _check_function,
}


def _check_dictionary(place: int, nodes: list[Any], known: Collection[str]) -> None:
    if nodes[place]["type"] != "None":
        _check_attributes(nodes[place]["data"]["__dict__"], nodes, known)


def _check_attributes(place: int, nodes: list[Any], known: Collection[str]) -> None:
    pairs = nodes[place].get("data") or []
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        name, given = nodes[key].get("data"), nodes[value].get("data")
        if name not in known or (name == "schedule_rule" and given not in _RULES):
            raise DialectError(f"the program says {_short(name)} of itself, which no operator of ours does")


def _check_value(value: Any, where: str, depth: int = 0) -> None:
    if isinstance(value, list):
        if depth == _DEEPEST:
            raise DialectError(f"the trace has lists in lists for {where}")
        for each in value:
            _check_value(each, where, depth + 1)
    elif isinstance(value, str):
        if not (_WORD.fullmatch(value) or _QUOTED.fullmatch(value)):
            raise DialectError(f"the trace has {_short(value)} for {where}")
    elif value is not None and not isinstance(value, int | float):
        raise DialectError(f"the trace has {_short(value)} for {where}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
