"""Which scheduled programs are not worth a build, told from what a search has at hand of them anyway.

On any target a program that unrolls to too much code; on a GPU one that breaks a limit of the target; on a CPU one
whose tile no cache holds. Nothing is lowered for it on a CPU.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery.costmodels.columns import STORE_WIDTH
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.features.features import Row
from tunery.dialects.metaschedule.search.code_size import LARGEST, code_size
from tunery.dialects.metaschedule.variants.program import DesignSpace

_VTHREADS = 64  # each repeats the body; TVM states 8, and counts them when none is left
_REGISTER_BYTES = 4
_THREAD_BINDING = 4  # tvm.tirx.ForKind
_GPU_LIMITS = "VerifyGPUCode"  # TVM's step knows more limits, but not registers, and gives no reason
# Columns of a store's features: log2(x + 1) of the bytes of the buffer it writes, and how often that is allocated anew.
_ALLOCATED, _ANEW = 157, 159
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CACHE_FILES = ("type", "size", "shared_cpu_list")


def post_processed(schedule: Any, space: DesignSpace) -> str:
    """Apply the target's post-processing; return why the program is not worth a build, "" where it is.

    Raises:
        DialectError: the post-processing does not take the program.
    """
    schedule.enter_postproc()
    for post in space.context.space_generator.postprocs:
        limits = _GPU_LIMITS in str(post)
        if limits and (why := beyond_gpu(schedule.mod, space.target)):
            return why
        if post.apply(schedule):
            continue
        if limits:
            return "TVM's check of GPU code refuses it"
        raise DialectError("the target's post-processing does not take the program")
    size = code_size(schedule.mod)
    return f"unrolls to {size:.0f} vector stores, more than {LARGEST}" if size > LARGEST else ""


# -- CPU: the working set -------------------------------------------------------------------------------------------


def beyond_cache(row: Row, cache_bytes: int) -> str:
    """Return why a program is hopeless by its features: its tile is summed up in a buffer that no cache holds.

    `row` is a folded one: the first columns are of the store with the most arithmetic. Only a buffer that is allocated
    anew for each tile counts; a sum that goes straight to the output has none. `cache_bytes` is a thread's share.
    """
    if len(row) < STORE_WIDTH or not cache_bytes or not row[_ANEW] > 1:
        return ""
    size = 2.0 ** float(row[_ALLOCATED]) - 1
    if size <= cache_bytes:
        return ""
    return f"a tile takes {size / 2**20:.1f} MiB, a thread's share of a cache is {cache_bytes / 2**20:.1f}"


@lru_cache
def cache_share(threads: int, caches: Path = _CACHES) -> int:
    """Return the bytes that each of `threads` has of this machine's caches at the most, 0 where it does not say.

    A cache is shared by the threads of its cores: one of 32 MiB by at most eight, say, and others have another one.
    """
    units, shares = {"K": 2**10, "M": 2**20, "G": 2**30}, [0]
    for index in caches.glob("index*"):
        try:
            kind, size, cores = ((index / name).read_text(encoding="utf-8").strip() for name in _CACHE_FILES)
        except OSError:
            continue
        if kind != "Instruction" and (found := re.fullmatch(r"(\d+)([KMG])", size)):
            shares.append(int(found[1]) * units[found[2]] // max(min(threads, _count(cores)), 1))
    return max(shares)


def _count(cores: str) -> int:
    """Return how many cores a list such as `0-3,8` names."""
    ends = [part.split("-") for part in cores.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


# -- GPU ------------------------------------------------------------------------------------------------------------


@dataclass
class KernelLoops:
    """What one block of a GPU kernel asks for: extents of its threads by axis, bytes of shared and of local memory."""

    threads: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    local: int = 0

    def product(self, kind: str) -> int:
        """Return the product of the extents of `threadIdx` or `vthread`."""
        return prod(extent for axis, extent in self.threads.items() if axis.startswith(kind))


def beyond_gpu(module: Any, target: Any) -> str:
    """Return which limit that the target states a scheduled module breaks, "" if none.

    It lowers the module as far as the sizes of buffers need.
    """
    passes = tvm.s_tir.transform
    module = tvm.transform.Sequential(
        [
            passes.LowerCrossThreadReduction(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.UnifyThreadBinding(),
            passes.CompactBufferAllocation(),
        ]
    )(module)
    kernels = [kernel for function in module.functions.values() for kernel in kernels_of(function.body)]
    return next((why for kernel in kernels if (why := broken(kernel, dict(target.attrs)))), "")


def broken(kernel: KernelLoops, limits: dict[str, Any]) -> str:
    """Return the limit of a target's attributes that a kernel breaks, "" if none; one that is not stated holds."""
    threads, vthreads = kernel.product("threadIdx"), kernel.product("vthread")
    registers = kernel.local * vthreads * threads // _REGISTER_BYTES
    for asked, limit, what in (
        (threads, limits.get("max_threads_per_block", limits.get("max_num_threads")), "threads"),
        (vthreads, _VTHREADS, "virtual threads"),
        (kernel.shared, limits.get("max_shared_memory_per_block"), "bytes of shared memory"),
        (registers, limits.get("registers_per_block"), "registers"),
    ):
        if limit is not None and asked > int(limit):
            return f"a block asks for {asked} {what}, and may have {int(limit)}"
    return ""


def kernels_of(statement: Any) -> Iterator[KernelLoops]:
    """Yield the kernels of a lowered function: each outermost loop that is bound to a thread is one."""
    if _axis(statement):
        kernel = KernelLoops()
        _measure(statement, kernel)
        yield kernel
    else:
        for part in _parts(statement):
            yield from kernels_of(part)


def _measure(statement: Any, kernel: KernelLoops) -> None:
    if axis := _axis(statement):
        kernel.threads[axis] = max(kernel.threads.get(axis, 1), int(statement.extent))
    for buffer in getattr(statement, "alloc_buffers", ()):
        size = prod(int(extent) for extent in buffer.shape) * tvm.DataType(str(buffer.dtype)).itemsize
        kernel.shared += size * buffer.scope().startswith("shared")
        kernel.local += size * (buffer.scope() == "local")
    for part in _parts(statement):
        _measure(part, kernel)


def _axis(statement: Any) -> str:
    bound = type(statement).__name__ == "For" and int(statement.kind) == _THREAD_BINDING
    return str(statement.thread_binding.thread_tag) if bound else ""


def _parts(statement: Any) -> list[Any]:
    match type(statement).__name__:
        case "SBlockRealize":
            return [statement.block]
        case "SeqStmt":
            return list(statement.seq)
        case "IfThenElse":
            return [part for part in (statement.then_case, statement.else_case) if part is not None]
        case "SBlock":
            return [part for part in (statement.init, statement.body) if part is not None]
        case _:
            return [statement.body] if hasattr(statement, "body") else []
