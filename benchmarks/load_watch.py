"""What a CPU hog that starts in mid-run does to a tuned task, with the watch on foreign load and without it.

    python benchmarks/load_watch.py [--trials 32] [--hog-s 20] [--threads 1] [--json FILE] [--only watched|unwatched]

One real convolution is tuned twice: same seed, same trials, a process of our own priority that spins on the measured
core from a third of the trials on, for `--hog-s` seconds. Afterwards, with the hogs gone, every candidate of either run
is built and timed again, once for both. Shown: how well a run's own latencies rank the candidates (Kendall's tau with
the quiet timings), how far they are off, and how much slower than the best of its candidates the run's winner is.

A look at the samples themselves (was our thread kept from running?) stays on in both runs. Nothing else should run.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper
from scipy.stats import kendalltau

from tunery.domain import Artifact, Budget, Candidate, Mode, Origin, Record, Task
from tunery.domain.request import Progress, Request, TuneReport
from tunery.engines import LocalEngine, Role
from tunery.runtime.foreign_load import VARIABLE
from tunery.runtime.runtime import Runtime
from tunery.runtime.spec import RuntimeSpec
from tunery.service.session import tune
from tunery.store import open_store


@dataclass(frozen=True)
class Found:
    """One run. `tau` ranks its latencies against the quiet ones; `slower` is its winner over its best candidate."""

    run: str
    candidates: int
    marked: int
    raced_twice: int
    seconds: float
    tau: float
    off_median: float
    off_p90: float
    winner_us: float
    best_us: float
    slower: float


def convolution(path: Path) -> str:
    """Write a model of one 3x3 convolution, 64 channels, 28x28."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64, 3, 3], [0.01] * (64 * 64 * 9))
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 28, 28]) for name in "xy"]
    graph = helper.make_graph([node], "conv", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return str(path)


def hog(core: int, seconds: float) -> int:
    """Start a process that spins on a core, and return its id."""
    # Its parent ends at once, so that it is not of our process tree: our own work is not foreign load.
    spin = f"import os, time\nos.sched_setaffinity(0, {{{core}}})\nend = time.time() + {seconds}\n"
    command = [
        "sh",
        "-c",
        '"$0" -c "$1" >/dev/null 2>&1 & echo $!',
        sys.executable,
        spin + "while time.time() < end: pass",
    ]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def tuned(model: str, directory: Path, name: str, arguments: argparse.Namespace) -> tuple[TuneReport, list[Record]]:
    """Tune beside a hog, and return the report with all races of candidates."""
    os.environ[VARIABLE] = "on" if name == "watched" else "off"
    hogs: list[int] = []

    def listen(progress: Progress) -> None:
        if progress.phase == "search" and progress.trials >= arguments.trials / 3 and not hogs:
            hogs.append(hog(min(os.sched_getaffinity(0)), arguments.hog_s))

    store = str(directory / f"{name}.db")
    budget = Budget.parse(f"{arguments.trials}trials")
    report = tune(Request(model, threads=arguments.threads, budget=budget, store=store), listen)
    while hogs and Path("/proc", str(hogs[0])).exists():  # it ends by itself, and what follows waits for that
        time.sleep(0.1)
    with open_store(store) as opened:
        found = opened.records(report.tasks[0].key, modes=[Mode.RACE])
    return report, [record for record in found if record.candidate.origin is not Origin.BASELINE]


def compared(name: str, report: TuneReport, found: Sequence[Record], quiet_s: Mapping[str, float]) -> Found:
    """Compare what a run measured with the quiet timings."""
    latest = {r.candidate.key: r for r in found if r.measurement.latency_s and r.candidate.key in quiet_s}
    told_s = {key: record.measurement.latency_s or 0.0 for key, record in latest.items()}
    off = sorted(abs(told_s[key] / quiet_s[key] - 1) for key in latest)
    best_s = min(quiet_s[key] for key in latest)
    winner_s = quiet_s.get(report.job.tasks[0].best_candidate or "", float("nan"))
    tau = kendalltau([told_s[key] for key in latest], [quiet_s[key] for key in latest]).statistic
    return Found(
        name, len(latest), sum(bool(record.measurement.context.get("contaminated")) for record in latest.values()),
        len(found) - len({r.candidate.key for r in found}), report.job.spend.wall_s, round(float(tau), 3),
        statistics.median(off), off[int(0.9 * (len(off) - 1))], 1e6 * winner_s, 1e6 * best_s, winner_s / best_s,
    )  # fmt: skip


def retime(task: Task, records: Sequence[Record], directory: Path, threads: int) -> dict[str, float]:
    """Return the latencies of the records' candidates, each raced against nobody."""

    async def all_of_them(runtime: Runtime) -> dict[str, float]:
        runtime.dispatch.submit("retime")

        async def build(candidate: Candidate) -> Artifact:
            async with runtime.stage("retime", "build", Role.BUILDER) as grant:
                built: Artifact = await runtime.call(grant.worker, "build", task, candidate, deadline_s=60)
                return built

        async with runtime.stage("retime", "build", Role.BUILDER) as grant:
            reference, _ = await runtime.call(grant.worker, "baselines", task, deadline_s=60)
        yardstick = await build(reference)
        latencies = {}
        for record in records:
            artifact = await build(record.candidate)
            async with runtime.stage("retime", "measure", Role.MEASURER) as grant:
                measurement = await runtime.call(
                    grant.worker, "race", task, artifact, record.candidate, None, yardstick, deadline_s=60
                )
            if measurement.latency_s:
                latencies[record.candidate.key] = measurement.latency_s
        return latencies

    scratch = directory / "retime"
    with LocalEngine(scratch / "logs") as engine:
        return asyncio.run(all_of_them(Runtime(engine, RuntimeSpec("metaschedule", threads), scratch)))


def main() -> None:
    """Print both runs side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--hog-s", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=["watched", "unwatched"])
    parser.add_argument("--json", type=Path, help="write both runs here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ.setdefault("TUNERY_CACHE", f"{place}/cache")
        model = convolution(Path(place, "conv.onnx"))
        names = [arguments.only] if arguments.only else ["unwatched", "watched"]
        done = {name: tuned(model, Path(place), name, arguments) for name in names}
        raced = {record.candidate.key: record for _, found in done.values() for record in found}
        task = next(iter(done.values()))[0].tasks[0]
        quiet_s = retime(task, list(raced.values()), Path(place), arguments.threads)
        runs = [compared(name, *done[name], quiet_s) for name in names]
    for one in runs:
        print(
            f"{one.run:>9}: {one.candidates} candidates in {one.seconds:.0f} s, {one.marked} marked, {one.raced_twice} "
            f"raced twice; tau {one.tau:.2f}; off by {one.off_median:.1%} (p90 {one.off_p90:.1%}); "
            f"winner {one.winner_us:.0f} us, best {one.best_us:.0f} us ({one.slower:.3f} x)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in runs], indent=1) + "\n")


if __name__ == "__main__":
    main()
