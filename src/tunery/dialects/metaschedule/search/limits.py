"""Which scheduled programs are not worth a build, told from what a search has at hand of them anyway.

A program that unrolls to too much code, and one whose tile no cache holds. Nothing is lowered for it.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunery._errors import DialectError
from tunery.costmodels.columns import STORE_WIDTH
from tunery.dialects.metaschedule.features.features import Row
from tunery.dialects.metaschedule.search.code_size import LARGEST, WIDEST, code_size
from tunery.dialects.metaschedule.variants.program import DesignSpace
from tunery.dialects.metaschedule.variants.vectors import lanes_of

# Columns of a store's features: log2(x + 1) of the bytes of the buffer it writes, and how often that is allocated anew.
_ALLOCATED, _ANEW = 157, 159
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CACHE_FILES = ("type", "size", "shared_cpu_list")


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
