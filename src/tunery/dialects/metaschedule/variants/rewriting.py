"""Taking a fused function apart around its reduction, and putting another program in the reduction's place."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.reasons import OtherKindError

_GOOD_ROWS, _SIX = range(4, 15), 6
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}


class Fused:
    """A function with one reduction of data and weights, taken apart: `before` and `after` are the nests around it.
    Subclasses say which operands it has, and what else is in the way of rewriting it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        root = function.body.block if isinstance(function.body, tvm.s_tir.SBlockRealize) else None
        if root is None:
            raise DialectError("the program is not in blocks")
        nests = list(root.body.seq) if isinstance(root.body, tvm.tirx.SeqStmt) else [root.body]
        blocks = [_block(nest) for nest in nests]
        if any(block is None for block in blocks):
            raise DialectError("a loop nest holds more than one block")
        heavy = [i for i, block in enumerate(blocks) if _reduces(block)]
        if len(heavy) != 1:
            raise OtherKindError("there is not exactly one reduction")
        self.parameters = list(function.params)
        self.data, weights, self.output = self.operands(blocks[heavy[0]])
        order = _leading_first(blocks, heavy[0], self.data)
        nests, blocks, position = [nests[i] for i in order], [blocks[i] for i in order], order.index(heavy[0])
        self.before, self.after = nests[:position], nests[position + 1 :]
        self.weight = self._position(weights)
        self.check(shape_of(weights))
        self.temporaries = list(root.alloc_buffers)
        self._check_surroundings(blocks, position)

    def operands(self, block: Any) -> tuple[Any, Any, Any]:
        raise NotImplementedError

    def check(self, weights: list[int]) -> None:
        raise NotImplementedError

    @property
    def constant(self) -> bool:
        """Whether the weights may be another array: they are constant, and not too few to be packed."""
        return self.weight in _free(self._function)

    def _check_surroundings(self, blocks: list[Any], position: int) -> None:
        if len(self.before) > 1 or (self.before and not blocks[0].body.buffer.same_as(self.data)):
            raise DialectError("more than padding comes before the convolution")
        last = blocks[-1].body.buffer
        if not last.same_as(self.parameters[-1]):
            raise DialectError("the last block does not write the result")
        if shape_of(last) != shape_of(self.output):
            raise DialectError("what follows changes the shape")
        written = [block.body.buffer for block in blocks]
        if sum(_index(buffer, self.parameters) is not None for buffer in written) != 1:
            raise DialectError("there is more than one result")
        self.read_after = [
            i
            for i, parameter in enumerate(self.parameters[:-1])
            if any(r.source.same_as(parameter) for block in blocks[position + 1 :] for r in block.reads)
        ]
        if any(r.source.same_as(self.data) for b in blocks[position + 1 :] for r in b.reads) and self.before:
            raise DialectError("the padded input is read again")
        if self.before and len(blocks[0].reads) != 1:
            raise DialectError("more than padding comes before the convolution")
        self.source = blocks[0].reads[0].source if self.before else self.data
        self.source_index = self._position(self.source)

    def _position(self, buffer: Any) -> int:
        position = _index(buffer, self.parameters)
        if position is None:
            raise DialectError("an operand of the convolution is not an argument")
        return position


class FusedProduct(Fused):
    """A reduction `out[..., f] += data[...] * weights[..., f]`, with `axes` and `indices` of its operands."""

    channels: int
    rows: int
    row: Any
    """The axis of the rows of a matrix product; None, with 1 row, for convolutions."""

    @override
    def operands(self, block: Any) -> tuple[Any, Any, Any]:
        """Return data, weights and output of `out[..., f] += data[...] * weights[..., f]`, `f` nowhere else."""
        sums = block.body.value
        if type(sums).__name__ != "Add" or type(sums.b).__name__ != "Mul":
            raise OtherKindError("the reduction is not a sum of products")
        data, weights = self.factor(sums.b.a), self.factor(sums.b.b)
        if not all(isinstance(load, tvm.ir.TensorLoad) for load in (sums.a, data, weights)):
            raise OtherKindError("the reduction is not a product of two arrays")
        self.axes = [(axis.var, int(axis.dom.extent), _reduced(axis)) for axis in block.iter_vars]
        *rest, last = block.body.indices
        self.indices = (list(data.indices), list(weights.indices[:-1]))
        spatial = [axis for axis, _, reduced in self.axes if not reduced]
        if len(spatial) != len(rest) + 1 or not all(map(_same, (*rest, last), spatial)):
            raise DialectError("the result is not written axis by axis")
        if not _same(weights.indices[-1], last):
            raise DialectError("its channels are not the last axis of the weights")
        others = {axis: axis for axis in (*spatial[:-1], *(axis for axis, _, reduced in self.axes if reduced))}
        for index in (*self.indices[0], *self.indices[1]):
            moved(index, others)  # raises where the channels are used
        row = rest[-1] if rest else None
        plain = all(isinstance(index, tvm.ir.Var) for index in data.indices)
        self.row = row if plain and not any(_same(index, row) for index in weights.indices) else None
        return data.source, weights.source, block.body.buffer

    def factor(self, expression: Any) -> Any:
        return expression

    @override
    def check(self, weights: list[int]) -> None:
        self.weights = weights
        *places, self.channels = shape_of(self.output)
        self.rows = places[-1] if self.row is not None else 1
        if any(str(b.ty.dtype) != "float32" for b in (self.data, self.output)):
            raise DialectError("it is not in float32")


def padded_rows(rows: int) -> int:
    """Return the number of rows to compute: as given, or up to sixes where nothing from 4 to 14 divides it.

    So many rows a register tile has that is any good.

    >>> [padded_rows(n) for n in (197, 394, 50, 49, 13, 1)]
    [198, 396, 50, 49, 13, 1]
    """
    if rows <= _GOOD_ROWS[-1] or any(rows % n == 0 for n in _GOOD_ROWS):
        return rows
    return -(-rows // _SIX) * _SIX


def moved(expression: Any, places: Mapping[Any, Any]) -> Any:
    if isinstance(expression, tvm.ir.Var):
        if expression not in places:
            raise DialectError("its channels are used elsewhere")
        return places[expression]
    if isinstance(expression, tvm.tirx.IntImm):
        return expression
    name = type(expression).__name__
    if name not in _OPERATORS:
        raise DialectError(f"an index is no sum or product: {expression}")
    return _OPERATORS[name](moved(expression.a, places), moved(expression.b, places))


def _same(index: Any, axis: Any) -> bool:
    return bool(index.same_as(axis))


def _reduced(axis: Any) -> bool:
    return bool(int(axis.iter_type) == tvm.tirx.IterVar.CommReduce)


def fuse(found: Fused, core: Any) -> Any:
    """Return the module with `core`, the PrimFunc `(data, transformed weights, output)`, in place of the reduction.
    Relax's own fusion joins what was before and after it."""
    builder = relax.BlockBuilder()
    specs = [_tensor_type(p) for p in found.parameters]
    specs[found.weight] = _tensor_type(core.params[1])
    inputs = [relax.Var(f"a{i}", spec) for i, spec in enumerate(specs[:-1])]
    middle = builder.add_func(core.without_attr("global_symbol"), "core")
    with builder.function("fused", inputs, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            value: Any = inputs[found.source_index]
            if found.before:
                pad = builder.add_func(_part([found.source, found.data], found.before, []), "before")
                value = builder.emit(relax.call_tir(pad, [value], _tensor_type(found.data)))
            convolved = [value, inputs[found.weight]]
            if not found.after:
                value = builder.emit_output(relax.call_tir(middle, convolved, _tensor_type(found.output)))
            else:
                value = builder.emit(relax.call_tir(middle, convolved, _tensor_type(found.output)))
                reads = [found.output, *(found.parameters[i] for i in found.read_after)]
                inner = [t for t in found.temporaries if not t.same_as(found.output) and not t.same_as(found.data)]
                after = builder.add_func(_part([*reads, found.parameters[-1]], found.after, inner), "after")
                rest = [inputs[i] for i in found.read_after]
                value = builder.emit_output(relax.call_tir(after, [value, *rest], specs[-1]))
        fused = builder.emit_func_output(value)
    outer = [relax.Var(f"b{i}", spec) for i, spec in enumerate(specs[:-1])]
    with builder.function("main", outer):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(fused, outer))
        builder.emit_func_output(result)
    function = relax.transform.FuseTIR()(builder.get())["fused"]
    function = function.with_attr("global_symbol", "main")
    if found.constant:  # else it would be packed at each call, which no measurement of a kernel sees
        function = function.with_attr("layout_free_buffers", [found.weight])
    return tvm.IRModule({"main": function})


def _part(parameters: list[Any], nests: list[Any], temporaries: list[Any]) -> Any:
    body = nests[0] if len(nests) == 1 else tvm.tirx.SeqStmt(nests)
    block = tvm.s_tir.SBlock([], [], [], "root", body, None, temporaries, [], {})
    return tvm.tirx.PrimFunc(parameters, tvm.s_tir.SBlockRealize([], True, block))


def _block(nest: Any) -> Any:
    while isinstance(nest, tvm.tirx.For):
        nest = nest.body
    block = nest.block if isinstance(nest, tvm.s_tir.SBlockRealize) else None
    return block if block is not None and isinstance(block.body, tvm.tirx.BufferStore) else None


def _reduces(block: Any) -> bool:
    return any(int(axis.iter_type) == tvm.tirx.IterVar.CommReduce for axis in block.iter_vars)


def _index(buffer: Any, among: Sequence[Any]) -> int | None:
    return next((i for i, other in enumerate(among) if other.same_as(buffer)), None)


def _leading_first(blocks: Sequence[Any], heavy: int, data: Any) -> list[int]:
    """Return the blocks' order with those before the reduction that its data does not depend on behind it."""
    wanted, leading = [data], list[int]()
    for i in reversed(range(heavy)):
        if _index(blocks[i].body.buffer, wanted) is not None:
            leading.insert(0, i)
            wanted += [region.source for region in blocks[i].reads]
    return [*leading, heavy, *(i for i in range(len(blocks)) if i != heavy and i not in leading)]


def _free(function: Any) -> list[int]:
    attributes = function.attrs or {}
    return [int(i) for i in attributes["layout_free_buffers"]] if "layout_free_buffers" in attributes else []


def shape_of(buffer: Any) -> list[int]:
    try:
        return [int(d) for d in buffer.ty.shape]
    except (TypeError, ValueError) as error:
        raise DialectError("a shape is not static") from error


def mapped(expression: Any, change: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 - one for each kind of part
    """Return an expression with parts replaced by what `change` returns; None: it looks at their parts."""
    found = change(expression)
    if found is not None:
        return found

    def of(part: Any) -> Any:
        return mapped(part, change)

    if isinstance(expression, (tvm.ir.Var, tvm.tirx.IntImm, tvm.tirx.FloatImm)):
        return expression
    if isinstance(expression, tvm.ir.TensorLoad):
        return expression.source[tuple(map(of, expression.indices))]
    if isinstance(expression, tvm.ir.Call):
        return tvm.ir.Call(expression.op, [*map(of, expression.args)], ret_ty=expression.ty)
    if isinstance(expression, tvm.tirx.Cast):
        return tvm.tirx.Cast(str(expression.ty.dtype), of(expression.value))
    if isinstance(expression, tvm.tirx.Select):
        return tvm.tirx.Select(*map(of, (expression.condition, expression.true_value, expression.false_value)))
    if not hasattr(expression, "a") or not hasattr(expression, "b"):
        raise DialectError(f"what is computed of it has a part of an unknown kind: {type(expression).__name__}")
    return type(expression)(of(expression.a), of(expression.b))


def realized(block: Any) -> Any:
    return tvm.s_tir.SBlockRealize([], True, block)


def variable(name: str) -> Any:
    """Return a new loop variable, of 64 bits as the networks' shapes."""
    return tvm.tirx.Var(name, "int64")


def long_of(*shape: int) -> list[Any]:
    """Return a shape as TVM's integers of 64 bits, in which networks give theirs."""
    return [tvm.tirx.IntImm("int64", extent) for extent in shape]


def _tensor_type(buffer: Any) -> Any:
    return relax.TensorType(shape_of(buffer), str(buffer.ty.dtype))
