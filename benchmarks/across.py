"""What each way of saving saves, by dialect and kind of device: the same tasks and trials, with one of them on in turn.

    python benchmarks/across.py [--trials 4] [--seeds 3] [--dialects metaschedule,kernels,opencl] [--json FILE]

Every arm is a job of its own on an empty store: `none` builds every candidate, measures it to its end, one at a time,
and gives every task an equal share; `filter`, `abandonment` and `allocation` switch on one thing each, `parallel`
measures as many kernels at once as there are slots (only repeated timings then say whether that is too many), and `all`
is all of them but that. Ratios are over `none` of the same tasks and seed: below 1 is saved, or faster. `to equal` is
the time, or the core-seconds, until the latency was reached which the slower of the two ended with.

A line of JSON is kept for each finished arm in --json; run it again to go on, with the same code on the same device.
--table prints the table of that file alone.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rows import Kept, Row

from tunery._errors import TuneryError
from tunery.devices import open_device
from tunery.dialects import get_dialect
from tunery.domain import Budget, Calibration, Task
from tunery.domain.request import NO_TRIMMING, Request, Trimming
from tunery.reports.format import as_text, new_table
from tunery.reports.job import job_view
from tunery.service.session import extract, tune_tasks
from tunery.store import open_store

_KERNELS = Path(__file__).parents[1] / "examples" / "kernels"
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "metaschedule": ("zoo:mlp-mnist",),
    "kernels": tuple(str(_KERNELS / f"{name}.toml") for name in ("matmul", "conv2d", "reduction")),
    "opencl": tuple(str(_KERNELS / "opencl" / f"{name}.toml") for name in ("matmul", "conv2d", "reduction")),
    "iree": ("zoo:mlp-mnist",),
}
NONE, PARALLEL = "none", "parallel"
ARMS: Mapping[str, Trimming] = {
    NONE: NO_TRIMMING,
    "filter": replace(NO_TRIMMING, filter=True),
    "abandonment": replace(NO_TRIMMING, abandon=True),
    "allocation": replace(NO_TRIMMING, allocate=True),
    PARALLEL: NO_TRIMMING,
    "all": Trimming(),
}
_SAME = 1.02
"""How many times a latency counts as that latency."""
KINDS = {"wall_s": "wall", "core_s": "core", "device_s": "device", "after_s": "latency"}

Curve = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Plan:
    """What is run: `trials` for each task that can be tuned, on kernels of one thread."""

    dialects: tuple[str, ...]
    trials: int
    seeds: int


def main() -> None:
    """Read what is asked for, and run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dialects", default="metaschedule,kernels,opencl")
    parser.add_argument("--json", default="out/across.jsonl")
    parser.add_argument("--table", action="store_true", help="print the table of what is known, and measure nothing")
    options = parser.parse_args()
    dialects = tuple(options.dialects.split(","))
    if unknown := sorted(set(dialects) - SUBJECTS.keys()):
        parser.error(f"there is nothing to tune for {', '.join(map(repr, unknown))}, only for {', '.join(SUBJECTS)}")
    file = Path(options.json)
    if options.table:
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        rows: list[Row] = [json.loads(line) for line in lines]
    else:
        plan = Plan(dialects, options.trials, options.seeds)
        rows = study(plan, Kept(file, __file__, trials=options.trials))
    print(table(rows))


def study(plan: Plan, kept: Kept, subjects: Mapping[str, Sequence[str]] = SUBJECTS) -> list[Row]:
    """Run each arm that is not known yet; return all rows of the plan. A dialect that cannot take part is printed."""
    rows = {(row["dialect"], row["arm"], row["seed"]): row for row in kept.read()}
    for dialect in plan.dialects:
        try:
            tasks = _tasks(dialect, subjects[dialect])
        except TuneryError as error:
            print(f"without {dialect}: {error}", flush=True)
            continue
        for seed in range(plan.seeds):
            arms = list(ARMS)
            for arm in (*arms[seed % len(arms) :], *arms[: seed % len(arms)]):
                if (dialect, arm, seed) not in rows:
                    print(f"{dialect}, seed {seed}, {arm}", flush=True)
                    rows[dialect, arm, seed] = kept.add(tuned(dialect, tasks, arm, seed, plan.trials))
    return [row for key, row in rows.items() if key[0] in plan.dialects and key[2] < plan.seeds]


def _tasks(dialect: str, models: Sequence[str]) -> list[Task]:
    with tempfile.TemporaryDirectory(prefix="tunery-across-") as folder:
        requests = [Request(one, dialect=dialect, threads=1, store=str(Path(folder, "store.db"))) for one in models]
        found = [task for request in requests for task in extract(request).tasks]
    return [task for task in {task.key: task for task in found}.values() if task.tunable]


def tuned(dialect: str, tasks: Sequence[Task], arm: str, seed: int, trials: int) -> Row:
    """Tune tasks with one arm, from an empty store; return what that took, and what was reached."""
    before = os.getloadavg()[0] / (os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="tunery-across-") as folder:
        store = str(Path(folder, "store.db"))
        request = Request(
            dialect, dialect=dialect, threads=1, store=store, seed=seed, trimming=ARMS[arm],
            budget=Budget(trials=trials * len(tasks)),
        )  # fmt: skip
        if arm == PARALLEL:
            with open_store(store) as opened:
                opened.save_calibration(_all_at_once(dialect))
        report = tune_tasks(request, tasks)
        with open_store(store) as opened:
            curve = job_view(opened, report.job.job_id).curve
    spend = report.job.spend
    return {
        "dialect": dialect, "device_kind": get_dialect(dialect).device, "arm": arm, "seed": seed, "tasks": len(tasks),
        "trials_done": spend.trials, "wall_s": spend.wall_s, "core_s": spend.core_s, "device_s": spend.device_s,
        "after_s": report.after_s, "degree": max(task.degree for task in report.job.tasks),
        "dropped": sum(task.dropped for task in report.job.tasks),
        "abandoned": sum(task.outcomes.get("abandoned", 0) for task in report.job.tasks),
        "curve": [[point.at_s, point.paid_s, point.latency_s] for point in curve],
        "load_per_core": [round(before, 1), round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)],
    }  # fmt: skip


def _all_at_once(dialect: str) -> Calibration:
    """Return a calibration that lets every slot of a dialect's device measure at the same time."""
    device = open_device(get_dialect(dialect).device).describe()
    slots = len(device.cores)
    degrees = {"compute": slots, "memory": slots}
    return Calibration(device.fingerprint, dialect, 1, slots, (), {}, degrees, 1e10, 1e10, 0.0, 1.0)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table: for each dialect and arm the medians over seeds, and the least and the most."""
    made = new_table(
        "dialect", "device", "arm", "#seeds", *(f"#{name}" for name in KINDS.values()), "#wall to equal",
        "#core to equal", "#dropped", "#abandoned", "#at once", "#load",
    )  # fmt: skip
    plain = {(row["dialect"], row["seed"]): row for row in rows if row["arm"] == NONE}
    for dialect in dict.fromkeys(row["dialect"] for row in rows):
        for arm in ARMS:
            mine = [row for row in rows if (row["dialect"], row["arm"]) == (dialect, arm)]
            pairs = [(row, plain[dialect, row["seed"]]) for row in mine if (dialect, row["seed"]) in plain]
            if not pairs:
                continue
            ratios = [_spread([one[kind] / base[kind] for one, base in pairs if one[kind] and base[kind]])
                      for kind in KINDS]  # fmt: skip
            equal = [ratio for one, base in pairs if (ratio := to_equal(one["curve"], base["curve"]))]
            ratios += [_spread([ratio[kind] for ratio in equal]) for kind in (0, 1)]
            made.add_row(
                dialect, mine[0]["device_kind"], arm, str(len(mine)), *ratios,
                *(f"{statistics.median(row[name] for row in mine):.0f}" for name in ("dropped", "abandoned", "degree")),
                f"{max(load for row in mine for load in row['load_per_core']):.1f}",
            )  # fmt: skip
    return as_text(made, 230)


def to_equal(one: Curve, other: Curve) -> tuple[float, float] | None:
    """Return what `one` took over what `other` took, in seconds and in core-seconds, to the latency that both reached.

    A curve has seconds, core-seconds and the latency from then on. None where one of them is empty.
    """
    if not one or not other:
        return None
    reached_s = _SAME * max(min(latency_s for _, _, latency_s in curve) for curve in (one, other))
    mine, theirs = (next(point for point in curve if point[2] <= reached_s) for curve in (one, other))
    return (mine[0] / theirs[0], mine[1] / theirs[1]) if theirs[0] > 0 and theirs[1] > 0 else None


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
