"""Whole networks, tuned on a cold store within a budget, against ONNX Runtime: same threads, interleaved.

    python benchmarks/networks.py [--budget 10min] [--networks resnet18,mobilenet_v2,bert-small] [--untuned]

Prints one row per network: median latencies with their 10th and 90th percentiles, the ratio, the sum of the tasks'
latencies, and the time after which the sum was within 5 % of its end. Each row is added to --json as a line when it is
known; a network that fails is named at the end, and the exit code is then 1.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rows import Kept, Row

from tunery._errors import TuneryError
from tunery.domain import Budget
from tunery.domain.request import Progress, Request
from tunery.reports.format import milliseconds
from tunery.service.session import bench, tune


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10min")
    parser.add_argument("--networks", default="resnet18,mobilenet_v2,bert-small")
    parser.add_argument("--untuned", action="store_true", help="time untuned TVM too")
    parser.add_argument("--json", default="out/networks.jsonl")
    options = parser.parse_args()
    against = ["onnxruntime", *(["untuned"] if options.untuned else [])]
    sys.exit(run(options.networks.split(","), options.budget, against, Path(options.json)))


def run(names: Sequence[str], budget: str, against: Sequence[str], file: Path) -> int:
    """Measure and print network by network, and return the exit code."""
    kept, failed = Kept(file, __file__, budget=budget), list[str]()
    for name in names:
        try:
            show(kept.add(measure(f"zoo:{name}", Budget.parse(budget), against)))
        except TuneryError as error:
            failed.append(f"{name} failed: {error}")
            print(failed[-1], flush=True)
    if failed:
        print("\n".join(["", f"{len(failed)} of {len(names)} networks have no result", *failed]))
    return 1 if failed else 0


def measure(model: str, budget: Budget, against: Sequence[str], seconds: float = 15.0) -> Row:
    """Tune one model on a store of its own and compare it, `seconds` of timing for each side."""
    curve: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        if progress.best_s is not None:
            curve.append((progress.elapsed_s, progress.best_s))

    with tempfile.TemporaryDirectory(prefix="tunery-networks-") as scratch:
        request = Request(model, budget=budget, store=str(Path(scratch, "cold.db")))
        report = tune(request, note)
        result = bench(request, against, seconds)
    final = report.after_s
    settled = next((at for at, best in curve if final and best <= 1.05 * final), None)
    return {
        "network": model.removeprefix("zoo:"),
        "threads": result.threads,
        "trials": report.job.spend.trials,
        "wall_s": report.job.spend.wall_s,
        "settled_s": settled,
        "tasks_s": final,
        "latency_s": {label: asdict(latency) for label, latency in result.latency_s.items()},
        "absent": dict(result.absent),
        "max_abs_error": result.max_abs_error,
        "curve": curve,
    }


def show(row: Row) -> None:
    """Print one network's result."""
    latencies: dict[str, dict[str, float]] = row["latency_s"]
    ours, theirs = latencies["tunery"]["median"], latencies["onnxruntime"]["median"]
    print(f"\n{row['network']}: {row['trials']} trials in {row['wall_s']:.0f} s, {row['threads']} threads")
    for label, spread in latencies.items():
        low, middle, high = (1e3 * spread[key] for key in ("p10", "median", "p90"))
        print(f"  {label:12} {middle:9.3f} ms  ({low:.3f} to {high:.3f})")
    print(f"  tunery / ONNX Runtime: {ours / theirs:.3f}   largest deviation {row['max_abs_error']:.1e}")
    for label, reason in row["absent"].items():
        print(f"  {label} took no part: {reason}")
    settled = "-" if row["settled_s"] is None else f"{row['settled_s']:.0f} s"
    print(f"  sum of tasks {milliseconds(row['tasks_s'])} ms, within 5 % of it after {settled}", flush=True)


if __name__ == "__main__":
    main()
