"""Which scheduled programs are not worth a build, told from what a search has at hand of them anyway. A program that
unrolls to too much code, and one whose tile no cache holds. Nothing is lowered for it."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery.costmodels.columns import STORE_WIDTH
from tunery.dialects.metaschedule.features.features import Row
from tunery.dialects.metaschedule.variants.program import DesignSpace
from tunery.dialects.metaschedule.variants.vectors import lanes_of

# Columns of a store's features: log2(x + 1) of the bytes of the buffer it writes, and how often that is allocated anew.
_ALLOCATED, _ANEW = 157, 159
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CACHE_FILES = ("type", "size", "shared_cpu_list")
LARGEST = 768
"""Vector stores in the text of a program above which LLVM spends seconds on it; no such program has won a search
(docs/decisions/005)."""

WIDEST = 16
"""Float32 in the widest vector register there is."""
_SERIAL, _VECTORIZED, _UNROLLED = 0, 2, 3  # tvm.tirx.ForKind
_LIMIT = "pragma_auto_unroll_max_step"


def post_processed(schedule: Any, space: DesignSpace) -> str:
    """Apply the target's post-processing; return why the program is not worth a build, "" where it is."""
    schedule.enter_postproc()
    for post in space.postprocessors:
        if not post.apply(schedule):
            raise DialectError("the target's post-processing does not take the program")
    # On x86 the limit was found in registers of 16, also for those of 8 (docs/decisions/005).
    size = code_size(schedule.mod, lanes_of(space.target) if "arm_cpu" in space.target.keys else WIDEST)
    return f"unrolls to {size:.0f} vector stores, more than {LARGEST}" if size > LARGEST else ""


def beyond_cache(row: Row, cache_bytes: int) -> str:
    """Return why a program is hopeless by its features: its tile is summed up in a buffer that no cache holds. `row` is
    a folded one: the first columns are of the store with the most arithmetic. Only a buffer that is allocated anew for
    each tile counts; a sum that goes straight to the output has none. `cache_bytes` is a thread's share."""
    if len(row) < STORE_WIDTH or not cache_bytes or not row[_ANEW] > 1:
        return ""
    size = 2.0 ** float(row[_ALLOCATED]) - 1
    if size <= cache_bytes:
        return ""
    return f"a tile takes {size / 2**20:.1f} MiB, a thread's share of a cache is {cache_bytes / 2**20:.1f}"


@lru_cache
def cache_share(threads: int, caches: Path = _CACHES) -> int:
    """Return the bytes that each of `threads` has of this machine's caches at the most, 0 where it does not say. A
    cache is shared by the threads of its cores: one of 32 MiB by at most eight, say, and others have another one."""
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


def code_size(module: Any, lanes: int = WIDEST) -> float:
    """Return how many stores of one vector register each are in a scheduled module's text once its loops are unrolled.
    `lanes` is how many float32 a register holds. The rule is that of TVM's UnrollLoop pass: a serial loop without a
    loop left inside is unrolled if its stores stay within the limit that the nearest annotation around it states. Takes
    0.2 ms."""
    return sum(_Count(lanes).visit(function.body, 0)[1] for function in module.functions.values())


class _Count:
    """Counts for registers of so many lanes."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes

    def visit(self, statement: Any, limit: int) -> tuple[int, float, bool]:
        """Return a statement's stores, the same counted in vector registers, and whether a loop is left in it."""
        match type(statement).__name__:
            case "For":
                return self._loop(statement, int(statement.annotations.get(_LIMIT, limit)))
            case "SBlockRealize":
                return self.visit(statement.block, limit)
            case "SBlock":
                return self._total([part for part in (statement.init, statement.body) if part is not None], limit)
            case "SeqStmt":
                return self._total(statement.seq, limit)
            case "IfThenElse":
                parts = (statement.then_case, statement.else_case)
                return self._total([part for part in parts if part is not None], limit)
            case _:
                return 1, 1.0, False

    def _total(self, statements: Any, limit: int) -> tuple[int, float, bool]:
        parts = [self.visit(statement, limit) for statement in statements]
        return sum(steps for steps, _, _ in parts), sum(size for _, size, _ in parts), any(left for _, _, left in parts)

    def _loop(self, loop: Any, limit: int) -> tuple[int, float, bool]:
        steps, size, left = self.visit(loop.body, limit)
        extent, kind = int(loop.extent), int(loop.kind)
        if extent == 1:
            return steps, size, left
        if kind == _VECTORIZED:
            return steps, size * max(1, extent / self._lanes), left
        if kind == _UNROLLED or (kind == _SERIAL and not left and steps * extent <= limit):
            return steps * extent, size * extent, left
        return steps, size, True
