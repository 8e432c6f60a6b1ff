"""Stock MetaSchedule against tunery: the same tasks, the same number of trials, side by side on this machine.

Each side tunes each task in a process of its own (stock: `tune_tasks` with its local builder and runner and all its
defaults; tunery: its normal job on a cold store), so wall and CPU seconds are those of whole process trees. The two
winners are then re-timed together, interleaved and alone on the machine, by one procedure (the measure room's finals).
Each row is added to --json as a line when it is known; a task that fails is named at the end, and the exit code is then
1. Where a side found nothing that runs, its latency is "-".

    python benchmarks/stock.py [--trials 64] [--tasks conv2d,dense,depthwise] [--repeats 1] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rows import Kept, Row
from studies._children import end_with_parent, watch
from studies.stock_sides import stock_config

from tunery._errors import WorkError
from tunery.devices import open_device
from tunery.domain import Budget, Candidate, Mode, Origin, Outcome, Task
from tunery.reports.format import milliseconds

TASKS = {
    "conv2d": ("zoo:resnet18", "conv2d", "a 3x3 convolution of ResNet-18"),
    "dense": ("zoo:bert-small", "matmul", "a dense layer of BERT"),
    "depthwise": ("zoo:mobilenet_v2", "depthwise", "a depthwise convolution of MobileNetV2"),
}
_TASK, _CANDIDATE = TypeAdapter(Task), TypeAdapter(Candidate)


@dataclass(frozen=True)
class Side:
    """What one side needed for one task, and its best candidate re-timed; None where nothing runs."""

    wall_s: float
    cpu_s: float
    trials: int
    best_s: float | None = None


def main() -> None:
    """Run the comparison, or one side of it in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", default="out/stock.jsonl")
    parser.add_argument("--side", choices=["stock", "tunery", "extract", "retime"], help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        end_with_parent()
        child = {"stock": stock, "tunery": tunery, "extract": extract, "retime": retime}[options.side]
        child(Path(options.work), options.trials)
        return
    sys.exit(run(options.tasks.split(","), options.trials, options.repeats, Path(options.json)))


def run(tasks: Sequence[str], trials: int, repeats: int, file: Path) -> int:
    """Compare task by task, print all, and return the exit code."""
    kept, rows, failed = Kept(file, __file__, trials=trials), list[Row](), list[str]()
    for repeat in range(repeats):
        for name in tasks:
            try:
                rows.append(kept.add({"task": name, "repeat": repeat, **compare(name, trials)}))
                print_row(rows[-1])
            except WorkError as error:
                failed.append(f"{name}, repeat {repeat}: {str(error).strip().splitlines()[-1]}")
                print(f"failed: {failed[-1]}", flush=True)
    if rows:
        summary(rows)
    if failed:
        print("\n".join(["", f"failed: {len(failed)}, not in the summary", *failed]))
    return 1 if failed else 0


def compare(name: str, trials: int) -> Row:
    """Tune one task on both sides and re-time the winners."""
    with tempfile.TemporaryDirectory(prefix="tunery-stock-") as scratch:
        work = Path(scratch)
        (work / "request.json").write_text(json.dumps(TASKS[name]))
        run_child("extract", work, trials)
        sides = {side: run_child(side, work, trials) for side in ("stock", "tunery")}
        run_child("retime", work, trials)
        best = json.loads((work / "retimed.json").read_text())
        description = json.loads((work / "description.json").read_text())
    return {
        "description": description,
        **{
            side: asdict(Side(wall, cpu, int(best[f"{side}_trials"]), best[side]))
            for side, (wall, cpu) in sides.items()
        },
    }


def run_child(side: str, work: Path, trials: int) -> tuple[float, float]:
    """Run one side as a child and return its wall and CPU seconds, its descendants included."""
    command = [__file__, "--side", side, "--work", str(work), "--trials", str(trials)]
    done = watch(command, work / f"{side}.log", {"TUNERY_CACHE": str(work / "cache")})
    return done.wall_s, done.cpu_s


def extract(work: Path, trials: int) -> None:
    """Write the heaviest task of the kind asked for."""
    del trials
    from tunery.domain.request import Request
    from tunery.service.session import extract as extract_tasks

    model, kind, description = json.loads((work / "request.json").read_text())
    imported = extract_tasks(Request(model, store=str(work / "extract.db")))
    task = next(t for t in imported.tasks if t.tunable and t.workload.kind == kind)
    (work / "task.json").write_bytes(_TASK.dump_json(task))
    shapes = ", ".join("x".join(map(str, spec.shape)) for spec in task.workload.arguments)
    (work / "description.json").write_text(json.dumps(f"{description}: {task.workload.name} ({shapes})"))


def read_task(work: Path) -> Task:
    """Read the task both sides tune."""
    return _TASK.validate_json((work / "task.json").read_bytes())


def stock(work: Path, trials: int) -> None:
    """Tune with MetaSchedule's own `tune_tasks`, all settings at their defaults."""
    # As its documentation has it: all cores for the kernel, by the one setting it reads.
    task = read_task(work)
    os.environ["TVM_NUM_THREADS"] = str(task.target.threads)
    from tunery.dialects.metaschedule._tvm import meta_schedule, tvm

    module = tvm.ir.load_json(task.workload.program)
    target = tvm.target.Target(stock_config(task.target))
    context = meta_schedule.TuneContext(
        mod=module, target=target, space_generator="post-order-apply", search_strategy="evolutionary",
        task_name="main", rand_state=1, num_threads="physical",
    )  # fmt: skip
    (work / "stock").mkdir()
    meta_schedule.tune.tune_tasks(
        tasks=[context], task_weights=[1.0], work_dir=str(work / "stock"), max_trials_global=trials
    )


def tunery(work: Path, trials: int) -> None:
    """Tune with a normal job on a cold store."""
    from tunery.domain.request import Request
    from tunery.service.session import tune_tasks

    report = tune_tasks(
        Request("stock-comparison", budget=Budget(trials=trials), store=str(work / "tunery.db")), [read_task(work)]
    )
    assert report.job.spend.trials >= min(trials, 1)


def retime(work: Path, trials: int) -> None:
    """Take both winners and time them together."""
    del trials
    task = read_task(work)
    os.environ["TVM_NUM_THREADS"] = str(task.target.threads)
    from tunery.dialects import Codegen, get_dialect, store_built
    from tunery.dialects.metaschedule._tvm import meta_schedule
    from tunery.dialects.metaschedule.variants.program import program_key, replay, space_of, trace_body
    from tunery.measuring.service import Measurer
    from tunery.store import open_store
    from tunery.testing.fake_blobs import FakeBlobs

    dialect, space = get_dialect("metaschedule"), space_of(task)
    assert isinstance(dialect, Codegen)
    database = meta_schedule.database.JSONDatabase(work_dir=str(work / "stock"))
    records = database.get_all_tuning_records()
    # Each winner is built as its own side builds it.
    plain = replace(task, target=replace(task.target, config=stock_config(task.target)))
    winners: dict[str, tuple[Task, Candidate]] = {}
    if (found := fastest(records)) is not None:
        body = trace_body(found.trace, space)
        winners["stock"] = plain, Candidate(program_key(replay(space, body).mod), task.key, body)
    with open_store(str(work / "tunery.db")) as store:
        ours_all = store.records(task.key)
        for best in store.best(task.key, ours_all[0].provenance) if ours_all else ():
            winners["tunery"] = task, best.candidate
        tried = [
            r
            for r in ours_all
            if r.measurement.outcome is not Outcome.FILTERED and r.measurement.mode is not Mode.FINAL
        ]
        trials_ours = len({r.candidate.key for r in tried if r.candidate.origin is not Origin.BASELINE})
    artifacts = work / "artifacts"
    artifacts.mkdir()
    blobs = FakeBlobs()
    reference = store_built(blobs, dialect.build(task, dialect.reference(task), artifacts))
    built = [store_built(blobs, dialect.build(owner, one, artifacts)) for owner, one in winners.values()]
    measurer = Measurer("metaschedule", open_device("cpu", tuple(range(task.target.threads))), blobs)
    entrants = [candidate for _, candidate in winners.values()]
    results = measurer.finals(task, built, entrants, reference, 60) if winners else ()
    found_s = {side: result.latency_s for side, result in zip(winners, results, strict=True)}
    names = {"stock": found_s.get("stock"), "tunery": found_s.get("tunery"), "stock_trials": len(records),
             "tunery_trials": trials_ours}  # fmt: skip
    (work / "retimed.json").write_text(json.dumps(names))


def fastest(records: Sequence[Any]) -> Any:
    """Return stock's fastest record, None if nothing ran: what failed has a time of 1e10."""
    valid = [r for r in records if r.run_secs and float(r.run_secs[0]) < 1e9]
    return min(valid, key=lambda r: statistics.mean(float(s) for s in r.run_secs), default=None)


def ratios(row: Row) -> tuple[float | None, float | None, float | None]:
    """Return stock over tunery: wall per trial, CPU per trial, best latency; None where a side has none."""
    theirs, ours = Side(**row["stock"]), Side(**row["tunery"])
    return (
        over(each(theirs.wall_s, theirs), each(ours.wall_s, ours)),
        over(each(theirs.cpu_s, theirs), each(ours.cpu_s, ours)),
        over(theirs.best_s, ours.best_s),
    )


def each(seconds: float, side: Side) -> float | None:
    """Return seconds per trial of a side."""
    return seconds / side.trials if side.trials else None


def over(theirs: float | None, ours: float | None) -> float | None:
    """Return a ratio where both are known."""
    return theirs / ours if theirs and ours else None


def number(value: float | None, unit: str = "") -> str:
    """Return a number with its unit, `-` where there is none."""
    return "-" if value is None else f"{value:.3f}{unit}"


def print_row(row: Row) -> None:
    """Print one task's result."""
    print(f"\n{row['task']}: {row['description']}")
    print(f"  {'':8} {'trials':>6} {'wall s':>8} {'s/trial':>8} {'CPU s/trial':>12} {'best ms':>9}")
    for name in ("stock", "tunery"):
        side = Side(**row[name])
        wall, cpu = (number(each(seconds, side)) for seconds in (side.wall_s, side.cpu_s))
        best = milliseconds(side.best_s)
        print(f"  {name:8} {side.trials:6} {side.wall_s:8.1f} {wall:>8} {cpu:>12} {best:>9}")
    names = ("wall per trial", "CPU per trial", "best latency")
    found = (f"{name} {number(value, 'x')}" for name, value in zip(names, ratios(row), strict=True))
    print(f"  stock / tunery: {', '.join(found)}", flush=True)


def summary(rows: Sequence[Row]) -> None:
    """Print the medians over all rows with their range."""
    print("\nstock / tunery over all rows: median (min to max)")
    columns = zip(*map(ratios, rows), strict=True)
    for name, column in zip(("wall per trial", "CPU per trial", "best latency"), columns, strict=True):
        values = [value for value in column if value is not None]
        text = f"{statistics.median(values):6.2f}x ({min(values):.2f} to {max(values):.2f})" if values else f"{'-':>6}"
        print(f"  {name:15} {text} in {len(values)} of {len(rows)}")


if __name__ == "__main__":
    main()
