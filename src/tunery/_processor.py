"""What this process may use of the processor: cores, and the instructions that a compiled file needs.

Code with others would end the process.
"""

import os
from collections.abc import Iterable

# NumPy asks the processor and the system at its start; it tells of those that kernels may gain by.
from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]

_OTHERWISE = {
    "fma": "fma3",
    "sse4.1": "sse41",
    "sse4.2": "sse42",
    "neon": "asimd",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
}
"""What NumPy calls instructions otherwise than LLVM, beside underscores and capitals."""


def lacking(needed: Iterable[object]) -> list[str]:
    """Return which of these instructions, in LLVM's names, this processor lacks; none of those that are not known."""
    known = {_plain(name): has for name, has in __cpu_features__.items()}
    return sorted(str(one) for one in needed if known.get(_plain(_OTHERWISE.get(str(one), str(one)))) is False)


def usable_cores() -> int:
    """Return how many cores this process may run on, as `taskset` and containers say."""
    return len(os.sched_getaffinity(0))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
