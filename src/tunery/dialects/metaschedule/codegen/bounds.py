"""Indices that are read from memory, kept within what they index: one out of range reads and writes no other memory.

ONNX Runtime refuses such an index. It is done where code is made, for programs are known by how they are imported.
"""

from collections.abc import Collection
from typing import Any

import tvm_ffi

from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.variants.loads import has_load, variables_with_loads
from tunery.dialects.metaschedule.variants.rewriting import shape_of


def bound_indices(module: Any) -> Any:
    """Return the module with such indices of its tensor programs clamped to the sizes of their buffers."""
    bounded = module
    for name, program in module.functions_items():
        if isinstance(program, tvm.tirx.PrimFunc):
            changed = _bounded(program)
            if not changed.same_as(program):
                bounded = module.clone() if bounded is module else bounded
                bounded.update_func(name, changed)
    return bounded


def _bounded(program: Any) -> Any:
    read = variables_with_loads(program)

    def load(access: Any) -> Any:
        places = _clamped(access.indices, access.source, read)
        return tvm.tirx.BufferLoad(access.source, places) if places else access

    def store(access: Any) -> Any:
        places = _clamped(access.indices, access.buffer, read)
        return tvm.tirx.BufferStore(access.buffer, access.value, places) if places else access

    return tvm_ffi.structural_map(program, ((tvm.ir.TensorLoad, load), (tvm.tirx.BufferStore, store)))


def _clamped(indices: Any, buffer: Any, read: Collection[Any]) -> list[Any]:
    """Return an access's indices with those clamped that are read from memory; none where none is."""
    far = [has_load(at, read) for at in indices]
    if not any(far):
        return []
    sizes = shape_of(buffer)
    return [_between(at, size - 1) if is_far else at for at, size, is_far in zip(indices, sizes, far, strict=True)]


def _between(at: Any, last: int) -> Any:
    low, high = (tvm.tirx.const(end, str(at.ty.dtype)) for end in (0, last))
    return tvm.tirx.max(tvm.tirx.min(at, high), low)
