"""Products of 8-bit integers by the processor's dot products: two or four of them and their sum are one step of a lane.
They add to lanes of 32 bits, without saturation. So the weights are packed beforehand: 16 channels side by side, as
many of what is summed over in each as a step takes. A tile of rows and vectors of channels is summed up in registers.
MetaSchedule's own rule needs programs with weights that lie so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.loading.preparing import DOT_CHANNELS, DOT_DEPTH, DOTS, dot_groups
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.variants.rewriting import FusedProduct, fuse, long_of, moved, padded_rows, shape_of
from tunery.dialects.metaschedule.variants.scheduling import around_reduction, result_of, unroll

NAME = DOTS
_MOST_ROWS, _TILES = 14, 2
_MOST_TILES = 64  # that a thread takes in turn


@dataclass(frozen=True)
class Rewritten:
    """A program whose arguments are transformed as `transforms` names it, by index."""

    module: Any
    transforms: Mapping[int, str]


@dataclass(frozen=True)
class Instruction:
    """A processor's dot product: `lanes` sums of `depth` products of data and signed bytes. Data of type `data` is
    multiplied as `wide`. `vectors` of 16 channels are sums and weights in registers."""

    feature: str
    name: str
    llvm: str
    lanes: int
    depth: int
    vectors: int
    data: str = "uint8"
    wide: str = "uint8"

    @property
    def transform(self) -> str:
        return DOTS if self.depth == DOT_DEPTH else f"{DOTS}{self.depth}"


_INSTRUCTIONS = (
    Instruction("avx512vnni", "tunery_dot_16x4", "llvm.x86.avx512.vpdpbusd.512", 16, 4, 30),
    Instruction("avxvnni", "tunery_dot_8x4", "llvm.x86.avx512.vpdpbusd.256", 8, 4, 7),
    # `vpmaddubsw` would take twice as many, and saturate at 16 bits.
    Instruction("avx512bw", "tunery_dot_16x2", "llvm.x86.avx512.pmaddw.d.512", 16, 2, 30, wide="int16"),
    Instruction("avx2", "tunery_dot_8x2", "llvm.x86.avx2.pmadd.wd", 8, 2, 7, wide="int16"),
    Instruction("i8mm", "tunery_dot_4x4_mixed", "llvm.aarch64.neon.usdot.v4i32.v16i8", 4, 4, 7),
    Instruction("dotprod", "tunery_dot_4x4", "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 4, 7, "int8", "int8"),
)  # the best first


def instruction_of(target: Any) -> Instruction | None:
    has = tvm.target.codegen.target_has_features
    return next((one for one in _INSTRUCTIONS if has(one.feature, target)), None)


def register(name: str, llvm: str, *, data: str, weights: str, lanes: int, depth: int) -> None:
    """Register an instruction for one order of its operands' types. TVM's own of it gives LLVM 22 operands of types
    that earlier versions took."""
    types = tvm.tirx
    many = f"int32x{lanes}"
    a = types.decl_buffer((depth,), data, "A", offset_factor=1)
    b = types.decl_buffer((lanes, depth), weights, "B", offset_factor=1)
    sums = types.decl_buffer((lanes,), "int32", "C", offset_factor=1)

    def whole(buffer: Any) -> Any:
        return types.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(0, extent) for extent in buffer.ty.shape])

    def body(statement: Any) -> Any:
        block = tvm.s_tir.SBlock([], [whole(buffer) for buffer in (sums, a, b)], [whole(sums)], "root", statement)
        return types.PrimFunc([a, b, sums], tvm.s_tir.SBlockRealize([], True, block)).with_attr("s_tir", True)

    kind = f"{'int16' if data == 'int16' else 'int8'}x{lanes * depth}"
    same = types.Broadcast(types.reinterpret("int32", a.vload([0], f"{data}x{depth}")), lanes)
    given, fixed = types.reinterpret(kind, same), b.vload([0, 0], f"{weights}x{lanes * depth}")
    before = sums.vload([0], many)
    if data == "int16":
        added = before + types.call_llvm_pure_intrin(many, llvm, given, fixed.astype(kind))
    else:
        both = (given, types.reinterpret(kind, fixed))
        unsigned, signed = both if weights == "int8" else reversed(both)
        added = types.call_llvm_pure_intrin(many, llvm, before, unsigned, signed)
    described = _described(a, b, sums)
    tvm.s_tir.TensorIntrin.register(name, body(described), body(sums.vstore([0], added)), override=True)


def _described(data: Any, weights: Any, sums: Any) -> Any:
    types = tvm.tirx
    lanes, deep = shape_of(weights)
    lane, depth = types.Var("i", "int32"), types.Var("k", "int32")
    axes = [
        types.IterVar(tvm.ir.Range.from_min_extent(0, extent), types.Var(name, "int32"), kind)
        for extent, name, kind in (
            (lanes, "vi", types.IterVar.DataPar),
            (deep, "vk", types.IterVar.CommReduce),
        )
    ]
    i, k = (axis.var for axis in axes)
    product = data[k].astype("int32") * weights[i, k].astype("int32")
    store = types.BufferStore(sums, sums[i] + product, [i])
    reads = [
        types.BufferRegion(buffer, [tvm.ir.Range.from_min_extent(at, 1) for at in places])
        for buffer, places in ((sums, [i]), (data, [k]), (weights, [i, k]))
    ]
    block = tvm.s_tir.SBlock(
        axes, reads, [types.BufferRegion(sums, [tvm.ir.Range.from_min_extent(i, 1)])], "update", store
    )
    inner = types.For(depth, 0, deep, 0, tvm.s_tir.SBlockRealize([lane, depth], True, block))
    return types.For(lane, 0, lanes, 0, inner)


def rewrite(module: Any, target: Any) -> Rewritten | None:
    """Return the module with its reduction as dot products of packed weights; None on targets without them."""
    instruction = instruction_of(target)
    if instruction is None:
        return None
    found = _Dot(module["main"])
    if not found.constant:
        raise DialectError("its weights are no constant, or too few")
    if str(found.data.ty.dtype) != instruction.data:
        raise DialectError(f"its data is not in {instruction.data}")
    return Rewritten(fuse(found, _core(found, instruction)), {found.weight: instruction.transform})


class _Dot(FusedProduct):
    @override
    def factor(self, expression: Any) -> Any:
        if not isinstance(expression, tvm.tirx.Cast) or str(expression.ty.dtype) != "int32":
            raise OtherKindError("the reduction is not of integers")
        return expression.value

    @override
    def check(self, weights: list[int]) -> None:
        self.weights = weights
        *places, self.channels = shape_of(self.output)
        self.rows = places[-1] if self.row is not None else 1
        if str(self.output.ty.dtype) != "int32":
            raise DialectError("its sums are not of 32 bits")
        if str(self.parameters[self.weight].ty.dtype) != "int8":
            raise DialectError("its weights are not signed")
        *_, self.depth = shape_of(self.data)
        summed = next((axis for axis, _, reduced in self.axes if reduced and axis.same_as(self.indices[0][-1])), None)
        if summed is None or not summed.same_as(self.indices[1][-1]):
            raise DialectError("it is not summed along the last axis of its data")


def _core(found: _Dot, instruction: Instruction) -> Any:
    from tvm import te

    deep, kind = instruction.depth, instruction.wide
    shape, depth = shape_of(found.output), -(-found.depth // deep)
    data = wide = te.placeholder(long_of(*shape_of(found.data)), instruction.data, name="data")
    groups = dot_groups(found.channels)
    rows = padded_rows(found.rows) if found.row is not None else 0
    packed_shape = long_of(groups, *found.weights[:-2], depth, DOT_CHANNELS, deep)
    packed = te.placeholder(packed_shape, "int8", name="weights")
    if found.depth % deep or kind != instruction.data:
        [last], zero = long_of(found.depth), tvm.tirx.const(0, kind)

        def filled(*axes: Any) -> Any:
            given = data[axes].astype(kind)
            return te.if_then_else(axes[-1] < last, given, zero) if found.depth % deep else given

        wide = te.compute(long_of(*shape_of(found.data)[:-1], depth * deep), filled, name="wide_data")
    inner = found.indices[0][-1]
    outer = [(axis, extent) for axis, extent, reduced in found.axes if reduced and not axis.same_as(inner)]
    reduced = [te.reduce_axis(tuple(long_of(0, extent)), name=f"k{i}") for i, (_, extent) in enumerate(outer)]
    k, k4 = (te.reduce_axis(tuple(long_of(0, extent)), name=name) for extent, name in ((depth, "k"), (deep, "k4")))
    spatial = [axis for axis, _, is_reduced in found.axes if not is_reduced]

    def product(*axes: Any) -> Any:
        *rest, group, lane = axes
        places = dict(zip(spatial[:-1], rest, strict=True)) | {
            axis: place.var for (axis, _), place in zip(outer, reduced, strict=True)
        }
        if rows > found.rows:  # beyond the last one its data is read again
            places[found.row] = te.min(places[found.row], *long_of(found.rows - 1))
        of_data = [moved(index, places) for index in found.indices[0][:-1]]
        of_weights = [moved(index, places) for index in found.indices[1][:-1]]
        left = wide[(*of_data, k * deep + k4)].astype("int32")
        return te.sum(left * packed[(group, *of_weights, k, lane, k4)].astype("int32"), axis=[*reduced, k, k4])

    computed = [*shape[:-2], rows] if rows else shape[:-1]
    dots = te.compute(long_of(*computed, groups, DOT_CHANNELS), product, name="dots")

    def taken(*axes: Any) -> Any:
        return dots[(*axes[:-1], axes[-1] // DOT_CHANNELS, axes[-1] % DOT_CHANNELS)]

    return te.create_prim_func([data, packed, te.compute(long_of(*shape), taken, name="output")])


def designs(module: Any, target: Any) -> Any:
    """Return the function that turns a schedule of what `rewrite` returns for a target into the designs."""
    instruction = instruction_of(target)
    assert instruction is not None, "rewrite has found it"
    schedule = tvm.s_tir.Schedule(module)
    around = around_reduction(schedule)
    *_, rows, groups, _ = around.spatial
    tiles = _tiles(rows, groups, instruction.vectors)
    if not tiles:
        raise DialectError("it has too few rows and channels")
    return lambda schedule: [
        _design(schedule.copy(), instruction, *tile, weights_first=first) for tile in tiles for first in (True, False)
    ]


def _tiles(rows: int, groups: int, registers: int) -> list[tuple[int, int]]:
    """Return rows and vectors of channels that are summed up in registers, the most first, where there are several.

    >>> _tiles(56, 4, 30), _tiles(7, 32, 30), _tiles(1, 64, 30)
    ([(14, 2), (4, 4)], [(7, 2), (7, 1)], [(1, 4), (1, 2)])
    >>> _tiles(56, 4, 7), _tiles(1, 64, 7)
    ([(2, 2), (4, 1)], [(1, 4), (1, 2)])
    """
    tiles = []
    for vectors in (4, 3, 2, 1):
        most = min(_MOST_ROWS, (registers - vectors) // vectors)  # beside the sums a row of weights is kept
        row = max((n for n in range(1, most + 1) if rows % n == 0), default=int(rows == 1))
        if row and groups % vectors == 0 and row * vectors > 1:
            tiles.append((row, vectors))
    return sorted(tiles, key=lambda tile: -math.prod(tile))[:_TILES]


def _design(schedule: Any, instruction: Instruction, rows: int, vectors: int, *, weights_first: bool) -> Any:
    """Schedule with a tile of `rows` and `vectors`; threads share groups of channels, or rows, first."""
    s = schedule
    around = around_reduction(s)
    dots, result = around.reduction, result_of(s, around)
    _copies(s, around.before)
    *outer, row, group, lane = s.get_loops(dots)[: len(around.spatial)]
    groups, vector = s.split(group, [None, *long_of(vectors)])
    blocks, row = s.split(row, [None, *long_of(rows)])
    shared = [groups, *outer, blocks] if weights_first else [*outer, blocks, groups]
    s.reorder(*shared, row, vector, lane)
    tile = s.fuse(*shared)
    *sums, four = s.get_loops(dots)[-len(around.reduced) :]
    parts = []
    if instruction.lanes < DOT_CHANNELS:
        *parts, lane = s.split(lane, [None, *long_of(instruction.lanes)])
    s.reorder(*sums, row, vector, *parts, lane, four)
    unroll(s, row, vector, *parts)
    s.reverse_compute_at(result, tile, preserve_unit_loops=True)
    *_, result_row, channel = s.get_loops(result)
    result_vector, result_lane = s.split(channel, [None, *long_of(DOT_CHANNELS)])
    unroll(s, result_row, result_vector)
    s.vectorize(result_lane)
    whole = s.blockize(lane)
    s.tensorize(lane, instruction.name)
    chunks, _ = s.split(tile, s.sample_perfect_tile(tile, 2, _MOST_TILES))  # before it is cut the intrinsic must fit
    s.parallel(chunks)
    init = s.decompose_reduction(whole, sums[0])
    s.vectorize(s.get_loops(s.get_child_blocks(init)[0])[-1])
    return s


def _copies(schedule: Any, before: Sequence[Any]) -> None:
    """Schedule what comes before: padding is copied, for four numbers side by side are read at once."""
    for block in before[:-1]:
        schedule.compute_inline(block)
    if not before:
        return
    body = schedule.get(before[-1]).body
    if isinstance(body.value, tvm.ir.TensorLoad) and shape_of(body.value.source) == shape_of(body.buffer):
        schedule.compute_inline(before[-1])
        return
    *outer, channel = schedule.get_loops(before[-1])
    schedule.parallel(schedule.fuse(*outer))
    schedule.vectorize(channel)


for _one in _INSTRUCTIONS:
    register(_one.name, _one.llvm, data=_one.wide, weights="int8", lanes=_one.lanes, depth=_one.depth)
