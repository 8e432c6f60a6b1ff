"""What others take of the machine's cores, by the kernel's counters."""

import os
from collections.abc import Sequence

from typing_extensions import override

from tunery.devices._base import ForeignLoad
from tunery.devices.cpu.load import LoadWatch, Mark


class CpuForeignLoad(ForeignLoad):
    """Looks at /proc. This process and its descendants are ours, all others are foreign."""

    least_s = 0.1  # the kernel counts in ticks of 10 ms

    def __init__(self, cores: Sequence[int], watch: LoadWatch | None = None) -> None:
        self._watch = watch or LoadWatch(cores, root_pid=os.getpid())
        self._seen: Mark | None = None

    @override
    def taken(self) -> float:
        before, self._seen = self._seen, self._watch.mark(full=True)
        return 0.0 if before is None else taken_cores(before, self._seen)


def taken_cores(before: Mark, after: Mark) -> float:
    """Return how many of the watched cores others used between two full marks, stolen time included; 0 if not known.
    Time pressure (PSI) says nothing here: we press ourselves as soon as there are more stages than cores."""
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    marks = (before.cores_busy_s, after.cores_busy_s, before.tree_cpu_s, after.tree_cpu_s)
    if any(value is None for value in marks):
        return 0.0
    busy_before, busy_after, tree_before, tree_after = (value or 0.0 for value in marks)
    foreign_s = busy_after - busy_before - (tree_after - tree_before)
    stolen_s = (after.cores_steal_s or 0.0) - (before.cores_steal_s or 0.0)
    return (max(0.0, foreign_s) + max(0.0, stolen_s)) / wall_s
