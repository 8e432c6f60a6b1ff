"""Whether `tunery tune` keeps its budget of time, on a quiet machine and beside busy processes.

    python benchmarks/budgets.py [--networks zoo:NAME,...] [--budgets 10s,30s,1min,5min] [--beside 0,2] [--json FILE]

Each run is a command of its own with a store and a cache of its own, in turns over the networks; its wall time is from
its start to its end. What the JSON file has is not run again; the table is made from it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from tunery.domain import Budget
from tunery.reports.format import new_table

BUSY = "while True: pass"


@contextmanager
def busy(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def tuned(network: str, budget: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "tunery", "tune", network, "--budget", budget, "--json"]
        places = {"TUNERY_STORE": f"{scratch}/store.db", "TUNERY_CACHE": f"{scratch}/cache"}
        load, output, began = os.getloadavg()[0], Path(scratch, "network.tunery"), time.monotonic()
        done = subprocess.run(
            [*command, "-o", str(output)], env=os.environ | places, capture_output=True, text=True, check=False
        )
        wall_s, answer = time.monotonic() - began, json.loads(done.stdout)
        return {
            "wall_s": wall_s, "load": load, "exit": done.returncode, "file": output.exists(),
            "spent_s": answer["spend"]["wall_s"], "trials": answer["spend"]["trials"],
            "delivered": answer.get("compiled", {}).get("headline") or answer["message"],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="zoo:squeezenet1_1,zoo:mobilenet_v2,zoo:resnet18")
    parser.add_argument("--budgets", default="10s,30s,1min,5min")
    parser.add_argument("--beside", default="0,2", help="How many busy processes run beside it.")
    parser.add_argument("--json", default="out/budgets.json", help="What was measured, and is not measured again.")
    options = parser.parse_args()
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = json.loads(path.read_text()) if path.exists() else []
    for beside, budget, network in product(
        options.beside.split(","), options.budgets.split(","), options.networks.split(",")
    ):
        run = {"network": network, "budget": budget, "beside": int(beside)}
        if not any(run.items() <= row.items() for row in rows):
            with busy(int(beside)):
                rows.append(run | tuned(network, budget))
            path.write_text(json.dumps(rows, indent=1))
    table = new_table("network", "budget", "#busy", "#load", "#wall s", "#of budget", "#told s", "#trials", "delivered")
    for row in rows:
        of_budget = row["wall_s"] / (Budget.parse(row["budget"]).seconds or 1.0)
        delivered = row["delivered"] if row["file"] else f"NO FILE: {row['delivered']}"
        table.add_row(
            row["network"], row["budget"], str(row["beside"]), f"{row['load']:.1f}", f"{row['wall_s']:.1f}",
            f"{of_budget:.2f}", f"{row['spent_s']:.1f}", str(row["trials"]), delivered,
        )  # fmt: skip
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
