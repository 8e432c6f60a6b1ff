"""What the confinement costs: CPU time at the start of a process, and time per call of a kernel, in turns without it.

python benchmarks/confinement.py
"""

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tunery import _sandbox
from tunery.dialects.kernels.buffers import ArgumentSets, GuardedArray
from tunery.dialects.kernels.process import _OPTIONS, LIBRARY, KernelProcess, readable

OPEN = LIBRARY.replace("_sandbox.enter", "lambda *_: None")
_OPTIONS[OPEN] = _OPTIONS[LIBRARY]
KERNEL = (
    "void tunery_run(float **p, const long *s, long n, long c)"
    "{ for (long k = 0; k < c; k++) for (int i = 0; i < 4096; i++) p[0][i] = p[0][i] * 0.5f + k; }"
)
_TURNS, _CALLS = 40, 2000


def start_s(groups: tuple[int, ...]) -> float:
    """Return the CPU seconds by which a forked process becomes confined."""
    read, write = os.pipe()
    if not (pid := os.fork()):
        before_s = time.process_time()
        _sandbox.enter(readable(), (), *groups)
        os.write(write, f"{time.process_time() - before_s}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    taken_s = float(os.read(read, 64))
    os.close(read)
    os.close(write)
    return taken_s


def main() -> None:
    for name, groups in (("a kernel", ()), ("a compiler", (_sandbox.FILES, _sandbox.PROGRAMS))):
        print(f"to confine {name}: {1e3 * statistics.mean(start_s(groups) for _ in range(_TURNS)):.2f} ms of CPU")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        subprocess.run(
            ["gcc", "-O2", "-x", "c", "-", "-shared", "-fPIC", "-o", library], input=KERNEL.encode(), check=True
        )
        array = GuardedArray("y", (4096,), "float32")
        processes = [KernelProcess(code, [library], 1, [array], ArgumentSets([])) for code in (LIBRARY, OPEN)]
        times: list[list[float]] = [[], []]
        for _ in range(_TURNS):
            for process, of in zip(processes, times, strict=True):
                of.append(process.run(_CALLS) / _CALLS)
        for process in processes:
            process.close()
    confined, without = (statistics.median(of) for of in times)
    spread = statistics.quantiles([a / b for a, b in zip(*times, strict=True)], n=4)
    print(f"a call: {confined * 1e9:.0f} ns confined, {without * 1e9:.0f} ns without, quartiles of the ratio "
          f"{spread[0]:.3f} to {spread[2]:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
