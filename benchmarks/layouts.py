"""Channels last or first: whole networks, tuned and compiled in either layout within the same budget.

The layout that is not taken is lowered by the ablation's arm, in a process of its own whose workers are forked so. Our
programs for convolutions are for channels last only, so channels first has none of ours, and channels last is tuned
both with all and with none of them: that one against channels first is the layout alone. All files and ONNX Runtime are
then timed in turns. Winners of like tasks and the cost model ship for channels last, so nobody begins with them, and
nothing is predicted: an operator that got no trial within the budget is the compiler's default, and the table says how
many are. Give it enough that none is.

    python benchmarks/layouts.py [--budget 1min] [--networks resnet18,mobilenet_v2] [--json FILE]

One line of JSON is kept for each network in --json; run it again to go on, with the same code on the same device.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean

import ablation
from rows import Kept, Row
from studies._children import end_with_parent, watch

from tunery._errors import TuneryError
from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.reports.format import as_text, new_table
from tunery.service.session import bench, compile_model, tune

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "densenet121", "shufflenet_v2_x1_0", "googlenet", "unet")
LAST, GENERIC, FIRST = "channels last", "last, generic only", "channels first"
LAYOUTS = {LAST: ablation.ALL_ON, GENERIC: ablation.VARIANTS, FIRST: ablation.STOCK_LAYOUT}
"""The ablation's arms that make them."""
_SECONDS = 5.0


def request_of(network: str, budget: str, work: Path) -> Request:
    """Return what both layouts are tuned by."""
    return Request(f"zoo:{network}", budget=Budget.parse(budget), store=str(work / "store.db"), pretrained=False)


def run_one(network: str, budget: str, work: Path) -> None:
    """Tune and compile a network in the layout that this process was started for."""
    ablation.switch_off_in_workers()
    request = request_of(network, budget, work)
    tune(request)
    report, _ = compile_model(request, work / "network.tunery")
    (work / "untuned").write_text(str(report.untuned))


def measure(network: str, budget: str) -> Row:
    """Tune all layouts, each in a child, and time their files and ONNX Runtime in turns."""
    with tempfile.TemporaryDirectory(prefix="tunery-layouts-") as scratch:
        files, untuned = dict[str, Path](), dict[str, int]()
        for layout, arm in LAYOUTS.items():
            work = Path(scratch, arm.replace(" ", "-"))
            work.mkdir()
            environment = {ablation.SWITCHED_OFF: arm, "TUNERY_CACHE": str(work / "cache")}
            watch([__file__, "--one", network, "--budget", budget, "--work", str(work)], work / "log", environment)
            files[layout] = work / "network.tunery"
            untuned[layout] = int((work / "untuned").read_text())
        request = request_of(network, budget, Path(scratch))
        report = bench(request, ("onnxruntime",), _SECONDS, compiled=files.pop(LAST), others=files)
    latency_s = {LAST if label == "tunery" else label: asdict(one) for label, one in report.latency_s.items()}
    return {"network": network, "threads": report.threads, "latency_s": latency_s, "wrong": list(report.wrong),
            "untuned": untuned}  # fmt: skip


def run(networks: Sequence[str], budget: str, file: Path) -> int:
    """Measure what the file does not hold yet, print all, and return the exit code."""
    kept, failed = Kept(file, __file__, budget=budget), list[str]()
    rows = {row["network"]: row for row in kept.read() if row["network"] in networks}
    for network in (name for name in networks if name not in rows):
        try:
            rows[network] = kept.add(measure(network, budget))
            print(f"{network}: channels first takes {slower(rows[network], GENERIC):.2f} x as long", flush=True)
        except TuneryError as error:
            failed.append(f"{network} failed: {str(error).strip().splitlines()[-1]}")
            print(failed[-1], flush=True)
    print(table([rows[name] for name in networks if name in rows]))
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


def slower(row: Row, than: str) -> float:
    """Return how many times as long a network takes with channels first as otherwise."""
    return float(row["latency_s"][FIRST]["median"] / row["latency_s"][than]["median"])


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, with the geometric mean of the ratios."""
    sides = (*LAYOUTS, "onnxruntime")
    shown = new_table(
        "network", *(f"#{side} ms" for side in sides), "#first / last", "#of the layout", "#untuned", "wrong"
    )
    for row in rows:
        spreads = (row["latency_s"].get(side) for side in sides)
        cells = (
            f"{one['median'] * 1e3:.3g} ({one['p10'] * 1e3:.3g} to {one['p90'] * 1e3:.3g})" if one else "-"
            for one in spreads
        )
        times = (f"{slower(row, than):.2f}" for than in (LAST, GENERIC))
        shown.add_row(row["network"], *cells, *times, str(max(row["untuned"].values())), ", ".join(row["wrong"]))
    if not rows:
        return f"{as_text(shown)}\nnothing was measured"
    means = (geometric_mean(slower(row, than) for row in rows) for than in (LAST, GENERIC))
    return "{}\ngeometric mean {:.2f}, of the layout alone {:.2f}".format(as_text(shown), *means)


def main() -> None:
    """Read what is asked for and run it, or one layout in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="1min")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--json", default="out/layouts.jsonl")
    parser.add_argument("--one", metavar="NETWORK", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM imports it where it can, and both carry LLVM
    if options.one:
        end_with_parent()
        if ablation.SWITCHED_OFF not in os.environ:
            parser.error("a layout is tuned by its parent")
        run_one(options.one, options.budget, options.work)
        return
    sys.exit(run(options.networks.split(","), options.budget, Path(options.json)))


if __name__ == "__main__":
    main()
