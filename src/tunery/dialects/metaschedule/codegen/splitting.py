"""A scheduled program, split: packing turns weights into the layout that the kernel wants; the entry is what runs. A
rewritten layout is a permutation, so no code need be compiled to apply it: that took a fifth of a candidate's build.
NumPy applies it from its index expressions, kept as nested lists that JSON can hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.lowering import argument_specs
from tunery.dialects.metaschedule.loading.kernel import PREPACK
from tunery.dialects.metaschedule.loading.preparing import OPERATORS, Index
from tunery.dialects.metaschedule.tiles.nests import PACKED
from tunery.domain import Task


def read_packing(function: Any) -> dict[str, tuple[str, list[Index]]] | None:
    """Return, per packed parameter of a packing PrimFunc, its source parameter and its index expressions. The axes of
    the source are named `0`, `1`, ... None where the function is anything but plain permutations."""
    found: dict[str, tuple[str, list[Index]]] = {}
    root = function.body.block.body if isinstance(function.body, tvm.s_tir.SBlockRealize) else function.body
    for nest in root.seq if isinstance(root, tvm.tirx.SeqStmt) else [root]:
        store = _inner_store(nest)
        if store is None or not isinstance(store.value, tvm.ir.TensorLoad):
            return None
        if not all(isinstance(index, tvm.ir.Var) for index in store.value.indices):
            return None
        axes = {variable: str(i) for i, variable in enumerate(store.value.indices)}
        indices = [_encode(index, axes) for index in store.indices]
        if any(index is None for index in indices):
            return None
        found[store.buffer.name] = (store.value.source.name, [index for index in indices if index is not None])
    return found


def _inner_store(node: Any) -> Any:
    while True:
        if isinstance(node, tvm.tirx.BufferStore):
            return node
        if isinstance(node, tvm.s_tir.SBlockRealize):
            node = node.block
        elif hasattr(node, "body"):
            node = node.body
        else:
            return None


def _encode(expression: Any, axes: dict[Any, str]) -> Index | None:
    if isinstance(expression, tvm.ir.Var):
        return axes.get(expression)
    if isinstance(expression, tvm.tirx.IntImm):
        return int(expression.value)
    name = type(expression).__name__
    if name not in OPERATORS:
        return None
    left, right = _encode(expression.a, axes), _encode(expression.b, axes)
    return None if left is None or right is None else [name, left, right]


@dataclass(frozen=True)
class Split:
    """A scheduled program ready to build. `prepack_inputs` are indices of the task's arguments; `packed` the shapes and
    dtypes prepacking produces; `call` names each argument of the entry: an argument index, or -1-i for packed array i;
    `packing` is, per packed array, its source argument and index expressions, empty where packing must be compiled;
    `weights` are the places in `call` of the network's constant matrices."""

    module: Any
    prepack_inputs: tuple[int, ...]
    packed: tuple[tuple[tuple[int, ...], str], ...]
    call: tuple[int, ...]
    packing: tuple[tuple[int, list[Index]], ...] = ()
    weights: tuple[int, ...] = ()


def split_prepack(module: Any, task: Task, entry_name: str) -> Split:
    """Separate the weight packing from the computation, with Relax's own pass; `entry_name` is what computes."""
    count = len(task.workload.arguments)
    function = module["main"]
    if not function.attrs or "layout_free_buffers" not in function.attrs:
        entry = function.with_attr("global_symbol", entry_name)
        weights = tuple(map(int, (function.attrs or {}).get(PACKED, ())))
        return Split(tvm.IRModule({entry_name: entry}), (), (), tuple(range(count)), weights=weights)
    constant = {int(index) for index in function.attrs["layout_free_buffers"]}
    wrapped, inputs = _wrap(function, task)
    wrapped = relax.transform.SplitLayoutRewritePreproc()(wrapped)
    variables = {variable: index for index, variable in enumerate(inputs)}
    calls = [b for block in wrapped["main"].body.blocks for b in block.bindings if _is_call_tir(b)]
    if len(calls) == 1:
        entry = wrapped[calls[0].value.args[0]].with_attr("global_symbol", entry_name)
        return Split(tvm.IRModule({entry_name: entry}), (), (), tuple(range(count)), weights=tuple(sorted(constant)))
    prepack, main = calls
    prepack_function = wrapped[prepack.value.args[0]]
    prepack_inputs = tuple(variables[v] for v in prepack.value.args[1].fields)
    specs = argument_specs(prepack_function) or []
    packed = tuple((tuple(shape), dtype) for shape, dtype in specs[len(prepack_inputs) :])
    source = {prepack.var: 0}
    for block in wrapped["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.TupleGetItem):
                source[binding.var] = int(binding.value.index)
    call = [variables[v] if v in variables else -1 - source[v] for v in main.value.args[1].fields]
    call += range(count - task.workload.outputs, count)
    packing = _packing(prepack_function, prepack_inputs)
    functions = {entry_name: wrapped[main.value.args[0]].with_attr("global_symbol", entry_name)}
    if not packing:
        functions[PREPACK] = prepack_function.with_attr("global_symbol", PREPACK)
    weights = tuple(place for place, index in enumerate(call) if index < 0 or index in constant)
    return Split(tvm.IRModule(functions), prepack_inputs, packed, tuple(call), packing, weights)


def _packing(function: Any, inputs: Sequence[int]) -> tuple[tuple[int, list[Index]], ...]:
    found = read_packing(function)
    names = [parameter.name for parameter in function.params]
    outputs = names[len(inputs) :]
    if found is None or set(outputs) != set(found):
        return ()
    sources = {name: inputs[i] for i, name in enumerate(names[: len(inputs)])}
    return tuple((sources[found[name][0]], found[name][1]) for name in outputs)


def _wrap(function: Any, task: Task) -> tuple[Any, list[Any]]:
    # Not the workload's own inputs: a variant may take transformed ones.
    specs = (argument_specs(function) or [])[: len(task.workload.input_specs)]
    inputs = [relax.Var(f"a{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(specs)]
    results = [relax.TensorType(s.shape, s.dtype) for s in task.workload.output_specs]
    builder = relax.BlockBuilder()
    name = builder.add_func(function.without_attr("global_symbol"), "kernel")
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(name, inputs, results[0] if len(results) == 1 else results))
        builder.emit_func_output(out)
    return builder.get(), inputs


def _is_call_tir(binding: Any) -> bool:
    value = binding.value
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.call_tir")
