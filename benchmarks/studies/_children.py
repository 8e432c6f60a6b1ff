"""A contestant in a process of its own, watched from outside: what it and all it starts take, over time."""

import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tunery._errors import WorkError

_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class Tick:
    """Where a contestant stood: seconds since its start, and CPU seconds of its process tree."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What a contestant took, from its start to its end, and the ticks between; `began` is a point in time."""

    began: float
    wall_s: float
    cpu_s: float
    ticks: tuple[Tick, ...]

    def cpu_at(self, wall_s: float) -> float:
        """Return the CPU seconds that were used at a moment after the start."""
        return next((tick.cpu_s for tick in self.ticks if tick.wall_s >= wall_s), self.cpu_s)


def watch(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    every_s: float = 1.0,
    limit_s: float = math.inf,
) -> Watched:
    """Run Python with `arguments` to its end, for `limit_s` of wall time at the most; what it prints goes to `log`.

    The child gets a pipe as standard input that closes when this process ends, however that happens.

    Raises:
        WorkError: the child failed, or was ended at its limit; the message holds the end of its log.
    """
    before, began, start = _reaped(), time.time(), time.monotonic()
    ticks = []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=_environment(environment or {}), stdin=subprocess.PIPE,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            while process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(every_s)
                ticks.append(Tick(time.monotonic() - start, _tree_s(process.pid)))
                if ticks[-1].wall_s > limit_s:
                    break
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # pools of workers outlive a contestant that died
            process.communicate()
    wall_s, cpu_s = ticks[-1].wall_s, _reaped() - before
    if process.returncode:
        how = f"did not end within {limit_s:.0f} s" if wall_s > limit_s else "failed"
        raise WorkError(f"`python {' '.join(arguments)}` {how}: {log.read_text(errors='replace')[-_SHOWN:]}")
    return Watched(began, wall_s, cpu_s, (*ticks[:-1], Tick(wall_s, cpu_s)))


def end_with_parent() -> None:
    """End this process and all that it started once its standard input closes: whoever watched it is gone."""
    import threading

    def wait() -> None:
        os.read(0, 1)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _reaped() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree_s(pid: int) -> float:
    """Return the CPU seconds of a process, of its living descendants, and of those that these have waited for."""
    used = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
    return used


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return a child's variables: it finds the studies beside whatever else it was told to find."""
    here = str(Path(__file__).parents[1])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), **more}
