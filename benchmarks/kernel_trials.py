"""Where the milliseconds of a trial of a kernel in C go, for this tree and, in turns, for another one.

    python benchmarks/kernel_trials.py [--candidates 12] [--turns 3] [--against TREE/src] examples/kernels/*.toml

Each turn builds, verifies and races the first candidates of a search with seed 0, in a process of its own, by the
service of a measurer worker. `start` are the processes of the kernel until they have loaded it, `calls` what is asked
of them, `other` is the rest of the race: references, checks of answers, filling arrays, looks at the load.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("build", "race", "start", "calls", "other", "processes")


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--against", help="the folder src of another tree")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(trials(options.files[0], options.candidates)))
        return
    trees = {"this": str(Path(__file__).parents[1] / "src"), **({"other": options.against} if options.against else {})}
    print(f"ms per trial, medians of {options.turns} turns")
    print(f"{'kernel':<14} {'tree':<6}" + "".join(f"{part:>10}" for part in PARTS))
    for file in options.files:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(options.turns):
            for name, source in trees.items():
                command = [sys.executable, __file__, "--one", "--candidates", str(options.candidates), file]
                environment = os.environ | {"PYTHONPATH": source}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                found[name].append(json.loads(done.stdout))
        for name, rows in found.items():
            cells = (statistics.median(row[part] for row in rows) for part in PARTS)
            print(f"{Path(file).stem:<14} {name:<6}" + "".join(f"{cell:10.1f}" for cell in cells), flush=True)


def trials(file: str, count: int) -> dict[str, float]:
    """Return what a trial takes in the mean, in ms, and how many processes it starts."""
    from tunery.devices import open_device
    from tunery.dialects import store_built
    from tunery.dialects.kernels import KernelsDialect
    from tunery.dialects.kernels.process import KernelProcess
    from tunery.measuring.service import Measurer
    from tunery.testing.fake_blobs import FakeBlobs

    spent = dict.fromkeys(PARTS, 0.0)
    _counted(KernelProcess, "__init__", spent, "start")
    for name in ("run", "restart"):
        _counted(KernelProcess, name, spent, "calls")
    dialect, blobs = KernelsDialect(), FakeBlobs()
    [task] = dialect.extract(dialect.own_network(file), dialect.resolve_target("native", 1))
    measurer = Measurer(dialect, open_device("cpu"), blobs)
    with tempfile.TemporaryDirectory() as directory:
        reference, baseline = (
            store_built(blobs, dialect.build(task, each, Path(directory)))
            for each in (dialect.reference(task), dialect.baseline(task))
        )
        measurer.race(task, baseline, dialect.baseline(task), None, reference)
        spent.update(dict.fromkeys(PARTS, 0.0))
        candidates = dialect.open(task, [], None, 0).propose(count)
        for candidate in candidates:
            began = time.perf_counter()
            artifact = store_built(blobs, dialect.build(task, candidate, Path(directory)))
            built = time.perf_counter()
            measurer.race(task, artifact, candidate, None, reference)
            spent["build"] += built - began
            spent["race"] += time.perf_counter() - built
    spent["other"] = spent["race"] - spent["start"] - spent["calls"]
    return {name: of / len(candidates) * (1 if name == "processes" else 1e3) for name, of in spent.items()}


def _counted(owner: type, name: str, spent: dict[str, float], part: str) -> None:
    """Have the calls of a method add what they take."""
    inner: Callable[..., Any] = getattr(owner, name)

    def outer(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*given, **named)
        finally:
            spent[part] += time.perf_counter() - began
            spent["processes"] += part == "start"

    setattr(owner, name, outer)


if __name__ == "__main__":
    main()
