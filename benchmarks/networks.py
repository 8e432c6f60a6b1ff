"""Whole networks, tuned on a cold store within a budget, against ONNX Runtime: same threads, interleaved.

    python benchmarks/networks.py [--budget 10min] [--networks resnet18,mobilenet_v2,bert-small] [--untuned]

Prints one row per network: median latencies with their 10th and 90th percentiles, the ratio, the sum of the tasks'
latencies, and the time after which the sum was within 5 % of its end.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tunery.domain import Budget
from tunery.jobs import Progress, Request, bench, tune


def main() -> None:
    """Tune, compile, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10min")
    parser.add_argument("--networks", default="resnet18,mobilenet_v2,bert-small")
    parser.add_argument("--untuned", action="store_true", help="time untuned TVM too")
    parser.add_argument("--json", default="out/networks.json")
    options = parser.parse_args()
    against = ["onnxruntime", *(["untuned"] if options.untuned else [])]
    rows = []
    for name in options.networks.split(","):
        rows.append(run(name, Budget.parse(options.budget), against))
        show(rows[-1])
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps({"budget": options.budget, "rows": rows}, indent=1))


def run(name: str, budget: Budget, against: list[str]) -> dict[str, object]:
    """Tune one network on a store of its own and compare it."""
    curve: list[tuple[float, float]] = []

    def note(progress: Progress) -> None:
        if progress.best_s is not None:
            curve.append((progress.elapsed_s, progress.best_s))

    with tempfile.TemporaryDirectory(prefix="tunery-networks-") as scratch:
        request = Request(f"zoo:{name}", budget=budget, store=str(Path(scratch, "cold.db")))
        report = tune(request, note)
        result = bench(request, against, seconds=15.0)
    final = report.after_s or float("nan")
    settled = next((at for at, best in curve if best <= 1.05 * final), None)
    return {
        "network": name,
        "threads": result.threads,
        "trials": report.job.spend.trials,
        "wall_s": report.job.spend.wall_s,
        "settled_s": settled,
        "tasks_s": final,
        "latency_s": {label: asdict(latency) for label, latency in result.latency_s.items()},
        "max_abs_error": result.max_abs_error,
        "curve": curve,
    }


def show(row: dict[str, object]) -> None:
    """Print one network's result."""
    latencies: dict[str, dict[str, float]] = row["latency_s"]  # type: ignore[assignment]
    ours, theirs = latencies["tunery"]["median"], latencies["onnxruntime"]["median"]
    print(f"\n{row['network']}: {row['trials']} trials in {row['wall_s']:.0f} s, {row['threads']} threads")
    for label, spread in latencies.items():
        low, middle, high = (1e3 * spread[key] for key in ("p10", "median", "p90"))
        print(f"  {label:12} {middle:9.3f} ms  ({low:.3f} to {high:.3f})")
    print(f"  tunery / ONNX Runtime: {ours / theirs:.3f}   largest deviation {row['max_abs_error']:.1e}")
    print(
        f"  sum of tasks {1e3 * float(row['tasks_s']):.3f} ms, within 5 % of it after {row['settled_s']} s", flush=True
    )  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
