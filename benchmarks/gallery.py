"""What tuning gains on each kernel of examples/kernels, in C and in OpenCL: a table.

    python benchmarks/gallery.py [--trials 40] [--seconds 35] [--json FILE]

Every kernel is a job of its own on an empty store, on one thread, that ends after so many trials or seconds, whichever
comes first. The gain is the latency of the author's default over that of the best verified configuration, both timed
in turns by the finals. A line of JSON is kept for each finished kernel in --json; run it again to go on, with the same
code on the same device. --table prints the table of that file alone.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rows import Kept, Row

from tunery._errors import TuneryError
from tunery.dialects import file_dialect
from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.reports.format import as_text, new_table
from tunery.service.session import Session

KERNELS = Path(__file__).parents[1] / "examples" / "kernels"
_LANGUAGES = {"kernels": "C", "opencl": "OpenCL"}


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=35.0)
    parser.add_argument("--json", default="out/gallery.jsonl")
    parser.add_argument("--table", action="store_true", help="print the table of what is known, and measure nothing")
    options = parser.parse_args()
    file = Path(options.json)
    if options.table:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        print(table([json.loads(line) for line in lines]))
        return
    budget = Budget(trials=options.trials, seconds=options.seconds)
    kept = Kept(file, __file__, trials=options.trials, seconds=options.seconds)
    print(table(study(gallery(), budget, kept)))


def gallery() -> list[Path]:
    """Return the kernel files in C and in OpenCL, by name."""
    found = [*KERNELS.glob("*.toml"), *(KERNELS / "opencl").glob("*.toml")]
    return sorted((path for path in found if file_dialect(str(path)) in _LANGUAGES), key=lambda path: (path.stem, path))


def study(files: Sequence[Path], budget: Budget, kept: Kept) -> list[Row]:
    """Tune each kernel that is not known yet; return all rows. One that cannot be tuned here is printed."""
    rows = {(row["kernel"], row["dialect"]): row for row in kept.read()}
    for path in files:
        dialect = file_dialect(str(path)) or ""
        if (path.stem, dialect) in rows:
            continue
        print(f"{path.stem}, {dialect}", flush=True)
        try:
            rows[path.stem, dialect] = kept.add(tuned(path, dialect, budget))
        except TuneryError as error:
            print(f"without {path.stem} of {dialect}: {error}", flush=True)
    return list(rows.values())


def tuned(path: Path, dialect: str, budget: Budget) -> Row:
    """Tune one kernel from an empty store; return what it took before and after."""
    cores = os.cpu_count() or 1
    before = os.getloadavg()[0] / cores
    with tempfile.TemporaryDirectory(prefix="tunery-gallery-") as folder:
        store = str(Path(folder, "store.db"))
        with Session(store) as session:
            report = session.tune(Request(str(path), dialect=dialect, threads=1, store=store, budget=budget))
    [task] = report.job.tasks
    return {
        "kernel": path.stem, "dialect": dialect, "trials_done": report.job.spend.trials,
        "outcomes": dict(task.outcomes), "wall_s": report.job.spend.wall_s, "before_s": task.baseline_s,
        "after_s": task.best_s, "load_per_core": [round(before, 1), round(os.getloadavg()[0] / cores, 1)],
    }  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table, by kernel."""
    made = new_table("kernel", "language", "#trials", "#seconds", "#default", "#tuned", "#gain", "#load")
    for row in sorted(rows, key=lambda row: (row["kernel"], row["dialect"])):
        known = row["before_s"] and row["after_s"]
        times = [f"{1e3 * row[name]:.3g} ms" if row[name] else "-" for name in ("before_s", "after_s")]
        made.add_row(
            row["kernel"], _LANGUAGES.get(row["dialect"], row["dialect"]), str(row["trials_done"]),
            f"{row['wall_s']:.0f}", *times, f"{row['before_s'] / row['after_s']:.2f}x" if known else "-",
            f"{max(row['load_per_core']):.1f}",
        )  # fmt: skip
    return as_text(made, 120)


if __name__ == "__main__":
    main()
