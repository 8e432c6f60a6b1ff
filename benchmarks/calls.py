"""What a call takes when the machine is not ours alone: medians and 99th percentiles, beside ONNX Runtime's.

    python benchmarks/calls.py MODEL.onnx [MODEL.onnx ...] [--calls 400] [--only TEXT] [--json FILE]

Each model is compiled untuned and by our kernels alone (`--onnxruntime never`). The file and ONNX Runtime, each in a
process of its own with its own defaults, are called in turns of a few dozen calls: on an idle machine, each call after
a pause of 50 ms, beside one and two busy processes, and in a control group with half a core. Prints for each condition
the medians and 99th percentiles in milliseconds, and ours over theirs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tunery.domain.request import CompileOptions, Request
from tunery.measuring.inputs import make_inputs
from tunery.reports.format import as_text, new_table
from tunery.service.session import compile_model

SIDES = ("tunery", "onnxruntime")
_TURN, _WARM = 25, 20
_REST_S = 0.15  # ONNX Runtime's threads spin for 40 ms of a core after a call
_QUOTA_US = 50_000  # of the period's 100,000
_GROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


def serve(side: str, path: str, arrays: str, group: str = "") -> None:
    """Call a network as often as each line from standard input says, in a control group if one is named.

    Prints what the calls took.
    """
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    inputs = dict(np.load(arrays))
    call: Callable[[], object]
    if side == "tunery":
        import tunery

        call = partial(tunery.load_compiled(path), *inputs.values())
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        call = partial(session.run, None, inputs)
    for line in sys.stdin:
        calls, pause_s = json.loads(line)
        taken = []
        for _ in range(calls):
            time.sleep(pause_s)
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        time.sleep(_REST_S)
        print(json.dumps(taken), flush=True)


class Side:
    """One side's process, in a control group if there is one."""

    def __init__(self, side: str, path: Path, arrays: Path, group: Path | None) -> None:
        command = [sys.executable, __file__, "--serve", side, str(path), str(arrays), *([str(group)] if group else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.latencies_s: list[float] = []
        self.call(_WARM, 0.0)

    def call(self, calls: int, pause_s: float) -> list[float]:
        """Return what so many calls took."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([calls, pause_s]) + "\n")
        self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline()))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes at work meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def half_a_core() -> Iterator[Path | None]:
    """Yield a control group with such a quota; None where none can be made."""
    group = next((root / "tunery-calls" for root in _GROUPS if (root / "cgroup.procs").exists()), None)
    if group is None:
        yield None
        return
    try:
        group.mkdir(exist_ok=True)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{_QUOTA_US} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
    except OSError:
        group = None
    try:
        yield group
    finally:
        if group:
            with suppress(OSError):
                group.rmdir()


def measure(files: Sequence[Path], arrays: Path, calls: int, only: str) -> dict[str, dict[str, list[float]]]:
    """Return the latencies of both sides by condition."""
    conditions: dict[str, tuple[int, float, bool]] = {
        "idle": (0, 0.0, False), "after 50 ms": (0, 0.05, False), "one busy process": (1, 0.0, False),
        "two busy processes": (2, 0.0, False), "half a core": (0, 0.0, True),
    }  # fmt: skip
    found = {}
    for name, (others, pause_s, limited) in conditions.items():
        if only not in name:
            continue
        with ExitStack() as stack:
            group = stack.enter_context(half_a_core()) if limited else None
            if limited and group is None:
                print("half a core: no control group can be made here")
                continue
            sides = {side: Side(side, file, arrays, group) for side, file in zip(SIDES, files, strict=True)}
            try:
                with busy(others):
                    for _ in range(-(-calls // _TURN)):
                        for side in sides.values():
                            side.latencies_s += side.call(_TURN, pause_s)
            finally:
                for side in sides.values():
                    side.process.kill()
                    side.process.wait()
            found[name] = {side: one.latencies_s for side, one in sides.items()}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--only", default="", help="conditions whose name has this text")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in asked.models:
        with tempfile.TemporaryDirectory(prefix="tunery-calls-") as scratch:
            file, arrays = Path(scratch, "network.tunery"), Path(scratch, "inputs.npz")
            request = Request(str(model), store=str(Path(scratch, "store.db")))
            _, network = compile_model(request, file, CompileOptions(predict=True, onnxruntime="never"))
            named = zip(network.inputs, make_inputs(network.inputs, 0), strict=True)
            np.savez(arrays, **{spec.name: array for spec, array in named})  # type: ignore[arg-type]
            for name, sides in measure((file, model), arrays, asked.calls, asked.only).items():
                row: dict[str, Any] = {"model": model.stem, "condition": name}
                for side in SIDES:
                    row[side] = [float(np.percentile(sides[side], share) * 1e3) for share in (50, 99)]
                rows.append(row)
    if asked.json:
        asked.json.write_text(json.dumps(rows))
    table = new_table("network", "condition", "p50", "theirs", "ratio", "p99", "theirs", "ratio")
    for row in rows:
        cells = [f"{value:.2f}" for pair in zip(row["tunery"], row["onnxruntime"], strict=True)
                 for value in (*pair, pair[0] / pair[1])]  # fmt: skip
        table.add_row(row["model"], row["condition"], *cells)
    print(as_text(table))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
