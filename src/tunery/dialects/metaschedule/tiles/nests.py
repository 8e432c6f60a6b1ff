"""Nests of loops around calls of tiles' functions, and the function that holds them."""

import math
from collections.abc import Sequence
from typing import Any

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.codegen.regions import NANOSECONDS
from tunery.dialects.metaschedule.tiles.kernels import module_of
from tunery.dialects.metaschedule.tiles.products import Parts
from tunery.dialects.metaschedule.variants.rewriting import long_of, shape_of

PACKED = "tunery.packed"
"""Attribute of a function: which of its arguments are a network's constant matrices, as its code reads them."""
_SERIAL, _PARALLEL = 0, 1


def assembled(parts: Parts, nest: Any, functions: Sequence[str], lanes: int, packed: Any = None) -> Any:
    """Return the module of what comes before a nest and the nest, with the functions that it calls. Where its weights
    are `packed` they are this buffer."""
    parameters = list(parts.function.params)
    text = tvm.ir.StringImm(module_of(functions, lanes))
    body = tvm.tirx.SeqStmt([*parts.before, nest]) if parts.before else nest
    body = tvm.tirx.AttrStmt(tvm.tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)
    block = tvm.s_tir.SBlock([], [], [], "root", body, None, list(parts.allocated), [], {})
    attributes = {name: value for name, value in dict(parts.function.attrs).items() if name != "layout_free_buffers"}
    if packed is not None:
        parameters[parts.weight] = packed
        attributes[PACKED] = [parts.weight]
    function = tvm.tirx.PrimFunc(parameters, tvm.s_tir.SBlockRealize([], True, block))
    return tvm.IRModule({"main": function.with_attrs(attributes)})


def parallel(share: Any, shares: int, nanoseconds: int, body: Any) -> Any:
    time_ns = tvm.tirx.IntImm("int64", max(1, nanoseconds))
    return loop(share, shares, tvm.tirx.AttrStmt(zero(), NANOSECONDS, time_ns, body), _PARALLEL)


def zero() -> Any:
    return tvm.tirx.IntImm("int64", 0)


def address(buffer: Any, offset: Any) -> Any:
    indices: list[Any] = []
    shape = shape_of(buffer)
    size = math.prod(shape)
    for extent in shape:
        size //= extent
        indices.append(
            tvm.tirx.floormod(tvm.tirx.floordiv(offset, size), extent) if indices else tvm.tirx.floordiv(offset, size)
        )
    return tvm.tirx.address_of(buffer[tuple(indices)])


def digits(number: Any, extents: Sequence[int]) -> list[Any]:
    found: list[Any] = []
    for extent in reversed(extents[1:]):
        found.insert(0, tvm.tirx.floormod(number, extent))
        number = tvm.tirx.floordiv(number, extent)
    return [number, *found] if extents else []


def turns_in(count: int, block: Any, share: int) -> Any:
    return share if count % share == 0 else tvm.tirx.min(*long_of(share), count - block * share)


def loop(var: Any, extent: Any, body: Any, kind: int = _SERIAL) -> Any:
    extent = long_of(extent)[0] if isinstance(extent, int) else extent
    return tvm.tirx.For(var, zero(), extent, kind, body)
