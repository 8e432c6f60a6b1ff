"""A compiled file where it runs: start-up, memory of 1 and 4 processes, size on disk, and a call, beside ONNX Runtime.

    python benchmarks/delivery.py zoo:mobilenet_v2 tiny --json delivery.json

    git worktree add /tmp/older ad59553
    python benchmarks/delivery.py --json delivery.json --older /tmp/older --page benchmarks/experiments/delivery.md

`tiny` and `small` are made here: one and four products of a row with 32 x 32 and 128 x 128 weights, which show what a
call costs beside its kernels. Every number comes from processes of its own. Latencies are medians of turns, in which
both are timed one after the other. `over kernels` is what a call through the session takes of which every kernel
returns at once, since its code was overwritten in memory: Python, checks, the virtual machine and its buffers; first
call upon call, then after so many bytes were read as the file has, which puts as much out of the caches as its weights
do. `8 threads` of one process call one network at once. Of two processes with one
thread each, `two at once` says how many times as long a call takes as where one runs alone. An idle process has been
called, and is left alone. With `--older CHECKOUT`, another version of tunery compiles the model as well, and
its loader takes part in the turns. With `--json FILE`, a run that was stopped goes on where it was, and one that has
all networks only prints the table. All eight take some 12 minutes on two quiet cores.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = (
    "tiny", "small", "zoo:mlp-mnist", "zoo:ds-cnn", "zoo:mobilenet_v2", "zoo:resnet18", "zoo:bert-mini",
    "zoo:squeezenet1_1",
)  # fmt: skip
MADE = {"tiny": (32, 32), "small": (128, 128, 128, 128, 64)}
STARTS, PROCESSES, CALLS_S, TURNS = 5, 4, 0.3, 9
CALLERS, IDLE_S = 8, 2.0


def make(sizes: tuple[int, ...], path: Path) -> None:
    """Write a network of dense layers with ReLU for one row."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weights.append(
            numpy_helper.from_array(rng.standard_normal((rows, columns), np.float32) / rows**0.5, f"w{number}")
        )
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"x{number + 1}"]))
    ends = [
        [helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, [1, size])]
        for at, size in ((0, sizes[0]), (len(sizes) - 1, sizes[-1]))
    ]
    graph = helper.make_graph(nodes, path.stem, *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


# What every process does: open a file and call it once.
OPEN = """
import json, sys, threading, time
began = time.time()
path, kind, threads, calls_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
import numpy as np
if kind == "tunery":
    import tunery
    if hasattr(tunery, "InferenceSession"):
        session = tunery.InferenceSession(path, type("Options", (), {"intra_op_num_threads": threads}))
    else:  # an early version
        class Session:
            network = tunery.load_compiled(path, threads)
            def run(self, _, feed):
                return self.network(*feed.values())
            def get_inputs(self):
                told = [(one.name, one.shape, f"tensor({one.dtype})") for one in self.network.inputs]
                return [type("Input", (), dict(zip(("name", "shape", "type"), one))) for one in told]
        session = Session()
else:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
opened = time.time()
kinds = {"float": "float32", "double": "float64"}

def ones(shape, dtype):  # at a multiple of 64 bytes: ours copies others first
    whole = np.ones(shape, dtype)
    room = np.empty(whole.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    placed = room[start : start + whole.nbytes].view(dtype).reshape(shape)
    placed[...] = whole
    return placed

feed = {one.name: ones(one.shape, kinds.get(one.type[7:-1], one.type[7:-1])) for one in session.get_inputs()}
session.run(None, feed)
done = time.time()

def fastest(once, calls):
    best, until = float("inf"), time.perf_counter() + calls_s
    while time.perf_counter() < until:
        start = time.perf_counter_ns()
        for _ in range(calls):
            once()
        best = min(best, (time.perf_counter_ns() - start) * 1e-9 / calls)
    return best
"""

# Then it says what that took, and waits to be looked at.
CHILD = (
    OPEN
    + """
def at_once(callers):
    made, until = [0] * callers, time.perf_counter() + calls_s
    def call(number):
        while time.perf_counter() < until:
            session.run(None, feed)
            made[number] += 1
    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start) / sum(made)

calls = 1
if calls_s:
    once = fastest(lambda: session.run(None, feed), 1)
    calls = max(1, min(200, int(2e-3 / once)))
print(json.dumps({"begun": began, "opened": opened, "done": done}), flush=True)
for callers in map(int, sys.stdin):
    print(at_once(callers) if callers > 1 else fastest(lambda: session.run(None, feed), calls), flush=True)
"""
)

# Or it has every kernel return at once, and says what a call takes: call upon call, and with other bytes in the caches.
EMPTIED = (
    OPEN
    + r"""
import ctypes, mmap, os, platform, re, statistics, zipfile

code = {"x86_64": b"\x31\xc0\xc3", "aarch64": b"\x00\x00\x80\x52\xc0\x03\x5f\xd6"}[platform.machine()]  # return 0
protect = ctypes.CDLL(None).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
symbols = set(re.findall(rb"__tvm_ffi_[a-z]\w*(?=\0)", zipfile.ZipFile(path).read("network.so"))) - {b"__tvm_ffi_main"}
library = ctypes.CDLL(next(line.split()[5] for line in open("/proc/self/maps") if line.rstrip().endswith(
    ("network.so", "network.so (deleted)"))))
for symbol in symbols:
    start = ctypes.cast(library[symbol.decode()], ctypes.c_void_p).value
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    if protect(page, start + len(code) - page, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        raise SystemExit("kernels cannot be overwritten")
    ctypes.memmove(start, code, len(code))
warm = fastest(lambda: session.run(None, feed), 200)
others, cold = np.ones(os.path.getsize(path) // 8 + 1), []
until = time.perf_counter() + calls_s
while time.perf_counter() < until:
    others.sum()
    start = time.perf_counter_ns()
    session.run(None, feed)
    cold.append((time.perf_counter_ns() - start) * 1e-9)
print(json.dumps({"warm_s": warm, "cold_s": statistics.median(cold)}))
"""
)


class Child:
    """A process that has a network open, until `close`."""

    def __init__(self, path: Path, kind: str, threads: int, calls_s: float = 0.0, sources: Path | None = None) -> None:
        environment = os.environ | ({"PYTHONPATH": str(sources)} if sources else {})
        self._began = time.time()
        command = [sys.executable, "-c", CHILD, str(path), kind, str(threads), str(calls_s)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.said: dict[str, Any] = json.loads(self._process.stdout.readline())

    @property
    def start_s(self) -> float:
        """From the start of its program to its first outputs."""
        return float(self.said["done"]) - self._began

    @property
    def pss_bytes(self) -> int:
        """Its share of the memory that it uses: a page of several processes counts by parts."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))

    @property
    def cpu_s(self) -> float:
        """What it has used of processors."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def begin(self, callers: int = 1) -> None:
        """Have it call the network for a third of a second, from so many threads."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{callers}\n")
        self._process.stdin.flush()

    def end(self) -> float:
        """Return what a call took: the fastest of one thread, the mean of several."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def run_s(self, callers: int = 1) -> float:
        """Return what a call takes now."""
        self.begin(callers)
        return self.end()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def measured(path: Path, kind: str, threads: int) -> dict[str, Any]:
    """Return start-up, memory and calls of a network's file."""
    starts = []
    for _ in range(STARTS):
        child = Child(path, kind, threads)
        starts.append(child.start_s)
        alone = child.pss_bytes
        child.close()
    several = [Child(path, kind, threads) for _ in range(PROCESSES)]
    together = sum(child.pss_bytes for child in several)
    for child in several:
        child.close()
    return {
        "start_s": statistics.median(starts), "pss_1": alone, "pss_4": together, "size": path.stat().st_size
    }  # fmt: skip


def in_turns(children: dict[str, Child], callers: int = 1) -> dict[str, list[float]]:
    """Return what a call takes in each, turn by turn, from so many threads."""
    taken: dict[str, list[float]] = {label: [] for label in children}
    for turn in range(TURNS):
        for label in sorted(children, reverse=bool(turn % 2)):
            taken[label].append(children[label].run_s(callers))
    return taken


def beside(path: Path, kind: str, child: Child) -> dict[str, Any]:
    """Return how many times as long a call takes beside another process that calls, with one thread each; and idle."""
    both = [Child(path, kind, 1, CALLS_S) for _ in range(2)]
    ratios = []
    for _ in range(TURNS):
        alone = both[0].run_s()
        for one in both:
            one.begin()
        ratios.append(max(one.end() for one in both) / alone)
    for one in both:
        one.close()
    child.run_s()
    time.sleep(0.5)
    before = child.cpu_s
    time.sleep(IDLE_S)
    return {"pair": statistics.median(ratios), "idle_share": (child.cpu_s - before) / IDLE_S}


def over_kernels(path: Path, threads: int) -> dict[str, float]:
    """Return what a call takes beside its kernels, with warm and with cold caches."""
    command = [sys.executable, "-c", EMPTIED, str(path), "tunery", str(threads), str(CALLS_S)]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def compared(model: str, place: Path, threads: int, store: str, older: Path | None) -> dict[str, Any]:
    """Compile a model as predicted and return what is measured of both files."""
    from tunery.delivery.files.inspection import inspect
    from tunery.domain.request import CompileOptions, Request
    from tunery.models import prepare
    from tunery.service.session import compile_model

    if model in MADE:
        make(MADE[model], place / f"{model}.onnx")
        model = str(place / f"{model}.onnx")
    theirs, ours = Path(prepare(model, {}, place).path), place / "network.tunery"
    compile_model(Request(model, threads=threads, store=store), ours, CompileOptions(predict=True, force=True))
    found: dict[str, Any] = {
        "dialect": inspect(ours).file.dialect,
        "tunery": measured(ours, "tunery", threads),
        "onnxruntime": measured(theirs, "onnxruntime", threads),
    }
    children = {
        "tunery": Child(ours, "tunery", threads, CALLS_S), "onnxruntime": Child(theirs, "onnxruntime", threads, CALLS_S)
    }  # fmt: skip
    if older:
        before, sources = place / "older.tunery", older / "src"
        command = [
            sys.executable, "-m", "tunery", "compile", model, "--threads", str(threads), "--store", f"{store}.older",
            "-o", str(before),
        ]  # fmt: skip
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(sources)}, check=True, capture_output=True)
        children["older"] = Child(before, "tunery", threads, CALLS_S, sources)
    for label, path in (("tunery", ours), ("onnxruntime", theirs)):
        found[label] |= beside(path, label, children[label])
    for label, turns in in_turns(children, CALLERS).items():
        found.setdefault(label, {})["callers_s"] = statistics.median(turns)
    for label, turns in in_turns(children).items():
        found.setdefault(label, {}).update(run_s=statistics.median(turns), turns_s=turns)
        children[label].close()
    found["over_kernels"] = over_kernels(ours, threads) if found["dialect"] != "onnxruntime" else {}
    return found


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown: tunery / ONNX Runtime."""
    lines = [
        "| network | start, s | memory of 1, MB | of 4, MB | file, MB | call, µs | over kernels, µs |"
        f" {CALLERS} threads, µs a call | two at once | idle, % of a core |",
        "| --- " * 10 + "|",
    ]
    if any("older" in row for row in rows.values()):
        lines = [lines[0] + " older / now |", lines[1] + " --- |"]
    for name, row in rows.items():
        ours, theirs = row["tunery"], row["onnxruntime"]
        over = row["over_kernels"]
        cells = [
            f"{ours['start_s']:.2f} / {theirs['start_s']:.2f}",
            *(f"{ours[key] / 1e6:.3g} / {theirs[key] / 1e6:.3g}" for key in ("pss_1", "pss_4", "size")),
            f"{1e6 * ours['run_s']:.4g} / {1e6 * theirs['run_s']:.4g}",
            f"{1e6 * over['warm_s']:.1f}, cold {1e6 * over['cold_s']:.1f}" if over else "in ONNX Runtime",
            f"{1e6 * ours['callers_s']:.4g} / {1e6 * theirs['callers_s']:.4g}",
            f"{ours['pair']:.3g} / {theirs['pair']:.3g}",
            f"{100 * ours['idle_share']:.3g} / {100 * theirs['idle_share']:.3g}",
        ]
        if "older" in row:  # of the two in each turn
            ratios = [a / b for a, b in zip(row["older"]["turns_s"], ours["turns_s"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append(f"| {name.removeprefix('zoo:')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(page: Path, made: str) -> None:
    """Put a table in the place of a page's last one."""
    lines = page.read_text().splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("|")]
    first = last = rows[-1]
    while first - 1 in rows:
        first -= 1
    page.write_text("\n".join([*lines[:first], made, *lines[last + 1 :]]) + "\n")


def main() -> None:
    """Measure what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep the numbers here; networks that are in it are not run again")
    parser.add_argument("--older", type=Path, metavar="CHECKOUT", help="another version, timed in the same turns")
    parser.add_argument("--store", help="take the kernels from these records (without: as predicted)")
    parser.add_argument("--page", type=Path, help="put the table into this page, in the place of its last table")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for model in options.networks:
        if "over_kernels" not in rows.get(model, {}):  # or it is of an earlier version
            with tempfile.TemporaryDirectory(prefix="tunery-delivery-") as place:
                store = options.store or str(Path(place, "store.db"))
                rows[model] = compared(model, Path(place), options.threads, store, options.older)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    made = table({model: rows[model] for model in options.networks})
    print(made)
    if options.page:
        write_table(options.page, made)


if __name__ == "__main__":
    main()
