"""Sums of products in a program: matrix products and convolutions as rows, columns and steps in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.operators.heavy import Heavy, heavy_operator
from tunery.dialects.metaschedule.operators.nests import UnknownProgramError, read_program
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.variants.rewriting import shape_of
from tunery.dialects.metaschedule.variants.scheduling import reductions

_DEEPEST = 3  # a kernel's rows and columns, and channels


@dataclass(frozen=True)
class ProductLoop:
    """A loop with its steps in the flat data, columns' values (weights) and result."""

    extent: int
    data: int
    weights: int
    result: int


@dataclass(frozen=True)
class Product:
    """`result[o, p, f] = finish(sum over t, k of data[o, p, t, k] * weights[o, t, k, f])`, with o, p and t in loops.

    `outer` are loops over batches and groups; `rows` those over pixels or rows, of which the second is inside the
    first; `taps` those over a kernel's rows and columns, and `depth` is the number of steps that lie side by side.
    """

    outer: tuple[ProductLoop, ...]
    rows: tuple[ProductLoop, ...]
    columns: ProductLoop
    taps: tuple[ProductLoop, ...]
    depth: int
    step: int
    """How far apart the columns' values of two steps are."""
    groups: int
    constant: bool
    parts: "Parts"
    padded: "tuple[Any, int, int] | None" = None
    """What the data is with zeros around it, and the rows and columns of these before it, if that is all before."""

    @property
    def row_count(self) -> int:
        """The number of rows of one turn of the outer loops."""
        return int(_product(loop.extent for loop in self.rows))

    @property
    def steps(self) -> int:
        """The number of products of a sum."""
        return int(self.depth * _product(loop.extent for loop in self.taps))

    @property
    def turns(self) -> int:
        """The number of turns of the outer loops."""
        return int(_product(loop.extent for loop in self.outer))


@dataclass(frozen=True)
class Parts:
    """A program's statements before the sum, its buffers, and what is computed of the sum."""

    function: Any
    before: tuple[Any, ...]
    allocated: tuple[Any, ...]
    data: Any
    weights: Any
    weight: int
    output: Any
    axes: tuple[Any, ...]
    value: Any
    """What is stored, in terms of `axes`, one for each dimension of the result."""
    sums: Any
    """The buffer that `value` reads the sum from."""


def around_sum(module: Any) -> tuple[Any, Any, list[Any], list[Any]]:
    """Return a schedule, the block of its one reduction, and what is before and after it, each in one block at most."""
    schedule = tvm.s_tir.Schedule(module)
    places = reductions(schedule)
    if len(places) != 1:
        raise OtherKindError("there is not exactly one reduction")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    before, after = blocks[: places[0]], blocks[places[0] + 1 :]
    for each in (*before[:-1], *after[:-1]):
        schedule.compute_inline(each)
    if before and _copies(schedule.get(before[-1])):  # as TVM pads by nothing
        schedule.compute_inline(before.pop())
    return schedule, schedule.get(blocks[places[0]]), before[-1:], after[-1:]


def _copies(block: Any) -> bool:
    """Return whether a block's result is what it reads."""
    load, places = block.body.value, block.body.indices
    if not isinstance(load, tvm.ir.TensorLoad) or shape_of(load.source) != shape_of(block.body.buffer):
        return False
    return len(load.indices) == len(places) and all(map(_same, load.indices, places))


def product_of(module: Any) -> Product:
    """Return the product that a module computes."""
    schedule, block, before, after = around_sum(module)
    data, weights = _factors(block)
    if before:
        _schedule_padding(schedule, before[0])
    function = schedule.mod["main"]
    nests = function.body.block.body
    nests = list(nests.seq) if isinstance(nests, tvm.tirx.SeqStmt) else [nests]
    last = schedule.get(after[0]) if after else block
    parts = parts_of(function, block, last, nests[: len(nests) - 1 - bool(after)], data.source, weights.source)
    return replace(_loops(parts, block, data, weights), padded=_padded(module, function) if before else None)


def convolution_of(module: Any) -> Heavy:
    """Return the convolution with channels last that a program is; OtherKindError where it is none."""
    try:
        operator = heavy_operator(read_program(module))
    except UnknownProgramError as error:
        raise OtherKindError("it is no operator that is known") from error
    if operator.kind != "conv2d" or operator.order != (0, 3, 1, 2) or "out" in operator.attributes:
        raise OtherKindError("it is no convolution with channels last")
    return operator


def _padded(module: Any, function: Any) -> tuple[Any, int, int] | None:
    try:
        operator = heavy_operator(read_program(module))
    except UnknownProgramError:
        return None
    [data] = [function.params[number] for number, name in operator.names.items() if name in {"x", "a"}]
    shape, _ = operator.tensors.get("x", ((), ""))
    if operator.kind != "conv2d" or shape_of(data) != [shape[0], *shape[2:], shape[1]]:
        return None
    pads: Any = operator.attributes["pads"]
    return data, int(pads[0]), int(pads[1])


def _factors(block: Any) -> tuple[Any, Any]:
    """Return what the sum reads: the data, and the weights, which have the result's last axis."""
    value = block.body.value
    if type(value).__name__ != "Add" or type(value.b).__name__ != "Mul":
        raise OtherKindError("the reduction is not a sum of products")
    loads = value.b.a, value.b.b
    if not all(isinstance(load, tvm.ir.TensorLoad) for load in (value.a, *loads)):
        raise OtherKindError("the reduction is not a product of two arrays")
    spatial = [axis.var for axis in block.iter_vars if not _reduced(axis)]
    if len(spatial) != len(block.body.indices) or not all(map(_same, block.body.indices, spatial)):
        raise OtherKindError("the result is not written axis by axis")
    if not isinstance(block.init, tvm.tirx.BufferStore) or float(getattr(block.init.value, "value", 1.0)) != 0:
        raise OtherKindError("the sum does not begin with 0")
    if any(str(load.source.ty.dtype) != "float32" for load in (value.a, *loads)):
        raise OtherKindError("it is not in float32")
    column = [any(_same(index, spatial[-1]) for index in load.indices[-1:]) for load in loads]
    if column == [True, False]:
        return loads[1], loads[0]
    if column != [False, True]:
        raise OtherKindError("its columns do not lie side by side")
    return loads


def _schedule_padding(schedule: Any, block: Any) -> None:
    *outer, channel = schedule.get_loops(block)
    if outer:
        schedule.parallel(schedule.fuse(*outer))
    if int(schedule.get(channel).extent) % 4 == 0:
        schedule.vectorize(channel)


def parts_of(  # noqa: PLR0917 - what a program consists of
    function: Any, block: Any, last: Any, before: Sequence[Any], data: Any, weights: Any
) -> Parts:
    parameters = list(function.params)
    if not last.body.buffer.same_as(parameters[-1]):
        raise OtherKindError("the last block does not write the result")
    if shape_of(last.body.buffer) != shape_of(block.body.buffer) or str(last.body.buffer.ty.dtype) != "float32":
        raise OtherKindError("what follows changes the shape")
    weight = next((i for i, one in enumerate(parameters) if one.same_as(weights)), None)
    if weight is None:
        raise OtherKindError("the weights are computed")
    axes = tuple(axis.var for axis in last.iter_vars)
    if last.body.buffer.same_as(block.body.buffer):
        axes = tuple(axis.var for axis in block.iter_vars if not _reduced(axis))
        value = block.body.buffer[axes]
    elif len(last.body.indices) != len(axes) or not all(map(_same, last.body.indices, axes)):
        raise OtherKindError("the result is not written axis by axis")
    else:
        value = last.body.value
    allocated = tuple(b for b in function.body.block.alloc_buffers if b.same_as(data))
    return Parts(
        function, tuple(before), allocated, data, weights, weight, parameters[-1], axes, value, block.body.buffer
    )


def _loops(parts: Parts, block: Any, data: Any, weights: Any) -> Product:
    spatial = [axis for axis in block.iter_vars if not _reduced(axis)]
    summed = [axis for axis in block.iter_vars if _reduced(axis)]
    column, groups = spatial[-1], 1
    share = _group_size(data, column.var)
    split: dict[Any, Any] = {}
    if share:
        groups, rest = divmod(int(column.dom.extent), share)
        if rest:
            raise OtherKindError("its groups are of several sizes")
        group, lane = tvm.tirx.Var("group", "int64"), tvm.tirx.Var("channel", "int64")
        split = {column.var: group * tvm.tirx.IntImm("int64", share) + lane}
        ranges = {group: (0, groups), lane: (0, share)}
        axes = [(axis.var, int(axis.dom.extent)) for axis in spatial[:-1]] + [(group, groups), (lane, share)]
    else:
        ranges = {}
        axes = [(axis.var, int(axis.dom.extent)) for axis in spatial]
    kernel = [(axis.var, int(axis.dom.extent)) for axis in summed]
    if min(extent for _, extent in (*axes, *kernel)) < 1:
        raise OtherKindError("it has no elements")
    variables = [var for var, _ in (*axes, *kernel)]
    extents = dict((*axes, *kernel)) | {var: end for var, (_, end) in ranges.items()}
    flat = [
        coefficients(source, indices, variables, split, extents)
        for source, indices in (
            (parts.data, data.indices), (parts.weights, weights.indices), (parts.sums, block.body.indices)
        )
    ]  # fmt: skip
    loops = {var: ProductLoop(extent, flat[0][var], flat[1][var], flat[2][var]) for var, extent in (*axes, *kernel)}
    *others, last = [loops[var] for var, _ in axes]
    if last.weights != 1 or last.data != 0 or last.result != 1:
        raise OtherKindError("its columns do not lie side by side")
    outer = [loop for loop in others if loop.extent > 1 and loop.weights]
    rows = [loop for loop in others if loop.extent > 1 and not loop.weights]
    rows = _merged(sorted(rows, key=lambda loop: -loop.result), lambda loop: (loop.data, loop.result))
    while len(rows) > 1 and (len(rows) > 2 or rows[-2].result != rows[-1].result * rows[-1].extent):
        outer.append(rows.pop(0))
    deep = [loops[var] for var, extent in kernel if extent > 1]
    deep = _merged(sorted(deep, key=lambda loop: -loop.weights), lambda loop: (loop.data, loop.weights))
    if not deep:
        deep = [ProductLoop(1, 1, last.extent, 0)]
    if deep[-1].data != 1 and deep[-1].extent > 1:
        deep.append(ProductLoop(1, 1, deep[-1].weights, 0))
    if len(deep) > _DEEPEST:
        raise OtherKindError("its sum runs over too many axes")
    attributes = parts.function.attrs or {}
    free = [int(i) for i in attributes["layout_free_buffers"]] if "layout_free_buffers" in attributes else []
    return Product(
        tuple(outer), tuple(rows), last, tuple(deep[:-1]), deep[-1].extent, deep[-1].weights, groups,
        parts.weight in free, parts,
    )  # fmt: skip


def _merged(loops: Sequence[ProductLoop], steps: Any) -> list[ProductLoop]:
    """Return the loops with those joined to one that are one in memory."""
    found: list[ProductLoop] = []
    for loop in loops:
        if found and steps(found[-1]) == tuple(step * loop.extent for step in steps(loop)):
            found[-1] = ProductLoop(found[-1].extent * loop.extent, loop.data, loop.weights, loop.result)
        else:
            found.append(loop)
    return found


def _group_size(load: Any, column: Any) -> int:
    """Return how many columns share data, 0 if all do."""
    sizes: set[int] = set()

    def visit(part: Any) -> None:
        if _same(part.a, column) and isinstance(part.b, tvm.tirx.IntImm):
            sizes.add(int(part.b))

    for index in load.indices:
        tvm_ffi.structural_walk(index, ((tvm.tirx.FloorDiv, visit),))
    if not sizes:
        return 0
    if len(sizes) > 1:
        raise OtherKindError("its groups are of several sizes")
    return sizes.pop()


def coefficients(
    buffer: Any, indices: Sequence[Any], variables: Sequence[Any], split: Mapping[Any, Any], extents: Mapping[Any, int],
    *, start: int | None = None,
) -> dict[Any, int]:  # fmt: skip
    """Return how far a step of each variable goes in a buffer; its first element is at `start`, if that is given."""
    offset: Any = tvm.tirx.IntImm("int64", 0)
    size = 1
    for index, extent in reversed(list(zip(indices, shape_of(buffer), strict=True))):
        offset = offset + index * tvm.tirx.IntImm("int64", size)
        size *= extent
    if split:
        offset = tvm_ffi.structural_map(offset, ((tvm.ir.Var, lambda var: split.get(var, var)),))
    analyzer = tvm.sym.Analyzer()
    for variable, extent in extents.items():
        analyzer.bind(variable, tvm.ir.Range.from_min_extent(0, tvm.tirx.IntImm("int64", extent)))
    found = tvm.sym.detect_linear_equation(analyzer.simplify(offset), list(variables))
    if len(found) != len(variables) + 1 or not all(isinstance(one, tvm.tirx.IntImm) for one in found):
        raise OtherKindError("an index is no sum of multiples of the loops")
    if start is None and int(found[-1]):
        raise OtherKindError("an index does not begin at 0")
    return {variable: int(one) for variable, one in zip(variables, found, strict=False)}


def _same(index: Any, axis: Any) -> bool:
    return bool(index.same_as(axis))


def _reduced(axis: Any) -> bool:
    return bool(int(axis.iter_type) == tvm.tirx.IterVar.CommReduce)


def _product(values: Any) -> int:
    total = 1
    for value in values:
        total *= value
    return total
