"""Stock MetaSchedule against tunery: the same tasks, the same number of trials, side by side on this machine.

Each side tunes each task in a process of its own (stock: `tune_tasks` with its local builder and runner and all its
defaults; tunery: its normal job on a cold store), so wall and CPU seconds are those of whole process trees. The two
winners are then re-timed together, interleaved and alone on the machine, by one procedure (the measure room's finals).

    python benchmarks/stock.py [--trials 64] [--tasks conv2d,dense,depthwise] [--repeats 1] [--json out/stock.json]
"""

import argparse
import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from tunery.domain import Artifact, Budget, Candidate, Mode, Origin, Outcome, Task
from tunery.studies._children import end_with_parent, watch
from tunery.studies.stock_sides import stock_config

TASKS = {
    "conv2d": ("zoo:resnet18", "conv2d", "a 3x3 convolution of ResNet-18"),
    "dense": ("zoo:bert-small", "matmul", "a dense layer of BERT"),
    "depthwise": ("zoo:mobilenet_v2", "depthwise", "a depthwise convolution of MobileNetV2"),
}
_TASK, _CANDIDATE = TypeAdapter(Task), TypeAdapter(Candidate)


@dataclass(frozen=True)
class Side:
    """What one side needed for one task, and its best candidate re-timed."""

    wall_s: float
    cpu_s: float
    trials: int
    best_s: float = 0.0


def main() -> None:
    """Run the comparison, or one side of it in a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", default="out/stock.json")
    parser.add_argument("--side", choices=["stock", "tunery", "extract", "retime"], help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        end_with_parent()
        child = {"stock": stock, "tunery": tunery, "extract": extract, "retime": retime}[options.side]
        child(Path(options.work), options.trials)
        return
    rows = []
    for repeat in range(options.repeats):
        for name in options.tasks.split(","):
            rows.append({"task": name, "repeat": repeat, **compare(name, options.trials)})
            print_row(rows[-1])
    summary(rows)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps({"trials": options.trials, "rows": rows}, indent=1))


def compare(name: str, trials: int) -> dict[str, object]:
    """Tune one task on both sides and re-time the winners."""
    with tempfile.TemporaryDirectory(prefix="tunery-stock-") as scratch:
        work = Path(scratch)
        (work / "request.json").write_text(json.dumps(TASKS[name]))
        run("extract", work, trials)
        sides = {side: run(side, work, trials) for side in ("stock", "tunery")}
        run("retime", work, trials)
        best = json.loads((work / "retimed.json").read_text())
        description = json.loads((work / "description.json").read_text())
    return {
        "description": description,
        **{
            side: asdict(Side(wall, cpu, int(best[f"{side}_trials"]), best[side]))
            for side, (wall, cpu) in sides.items()
        },
    }


def run(side: str, work: Path, trials: int) -> tuple[float, float]:
    """Run one side as a child and return its wall and CPU seconds, its descendants included."""
    command = [__file__, "--side", side, "--work", str(work), "--trials", str(trials)]
    done = watch(command, work / f"{side}.log", {"TUNERY_CACHE": str(work / "cache")})
    return done.wall_s, done.cpu_s


def extract(work: Path, trials: int) -> None:
    """Write the heaviest task of the kind asked for."""
    del trials
    from tunery.jobs import Request
    from tunery.jobs import extract as extract_tasks

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
    from tunery.jobs import Request
    from tunery.jobs.session import tune_tasks

    report = tune_tasks(
        Request("stock-comparison", budget=Budget(trials=trials), store=str(work / "tunery.db")), [read_task(work)]
    )
    assert report.job.spend.trials >= min(trials, 1)


def retime(work: Path, trials: int) -> None:
    """Take both winners and time them together."""
    del trials
    task = read_task(work)
    os.environ["TVM_NUM_THREADS"] = str(task.target.threads)
    from tunery.dialects import get_dialect
    from tunery.dialects.metaschedule._tvm import meta_schedule
    from tunery.dialects.metaschedule.program import program_key, replay, space_of, trace_body
    from tunery.measure import Measurer
    from tunery.store import open_store

    dialect, space = get_dialect("metaschedule"), space_of(task)
    database = meta_schedule.database.JSONDatabase(work_dir=str(work / "stock"))
    records = database.get_all_tuning_records()
    valid = [r for r in records if r.run_secs and float(r.run_secs[0]) < 1e9]
    fastest = min(valid, key=lambda r: statistics.mean(float(s) for s in r.run_secs))
    body = trace_body(fastest.trace, space)
    theirs = Candidate(program_key(replay(space, body).mod), task.key, body)
    with open_store(str(work / "tunery.db")) as store:
        ours_all = store.records(task.key)
        provenance = ours_all[0].provenance
        ours = store.best(task.key, provenance)[0].candidate
        tried = [
            r
            for r in ours_all
            if r.measurement.outcome is not Outcome.FILTERED and r.measurement.mode is not Mode.FINAL
        ]
        trials_ours = len({r.candidate.key for r in tried if r.candidate.origin is not Origin.BASELINE})
    artifacts = work / "artifacts"
    artifacts.mkdir()
    reference = dialect.build(task, dialect.reference(task), artifacts)
    # Each winner is built as its own side builds it.
    plain = replace(task, target=replace(task.target, config=stock_config(task.target)))
    entrants = [theirs, ours]
    built = [
        dialect.build(owner, candidate, artifacts) for owner, candidate in zip((plain, task), entrants, strict=True)
    ]
    measurer = Measurer("metaschedule", tuple(range(task.target.threads)))
    results = measurer.finals(task, [Artifact(**asdict(a)) for a in built], entrants, reference, 60)
    times = [result.latency_s for result in results]
    names = {"stock": times[0], "tunery": times[1], "stock_trials": len(records), "tunery_trials": trials_ours}
    (work / "retimed.json").write_text(json.dumps(names))


def ratios(row: dict[str, object]) -> tuple[float, float, float]:
    """Return stock over tunery: wall per trial, CPU per trial, best latency."""
    theirs, ours = Side(**row["stock"]), Side(**row["tunery"])  # type: ignore[arg-type]
    return (
        (theirs.wall_s / theirs.trials) / (ours.wall_s / ours.trials),
        (theirs.cpu_s / theirs.trials) / (ours.cpu_s / ours.trials),
        theirs.best_s / ours.best_s,
    )


def print_row(row: dict[str, object]) -> None:
    """Print one task's result."""
    print(f"\n{row['task']}: {row['description']}")
    print(f"  {'':8} {'trials':>6} {'wall s':>8} {'s/trial':>8} {'CPU s/trial':>12} {'best ms':>9}")
    for name in ("stock", "tunery"):
        side = Side(**row[name])  # type: ignore[arg-type]
        print(
            f"  {name:8} {side.trials:6} {side.wall_s:8.1f} {side.wall_s / side.trials:8.3f} "
            f"{side.cpu_s / side.trials:12.3f} {side.best_s * 1e3:9.4f}"
        )
    wall, cpu, best = ratios(row)
    print(
        f"  stock / tunery: wall per trial {wall:.2f}x, CPU per trial {cpu:.2f}x, best latency {best:.3f}x", flush=True
    )


def summary(rows: list[dict[str, object]]) -> None:
    """Print the medians over all rows with their range."""
    print("\nstock / tunery over all rows: median (min to max)")
    for name, values in zip(
        ("wall per trial", "CPU per trial", "best latency"), zip(*map(ratios, rows), strict=True), strict=True
    ):
        print(f"  {name:15} {statistics.median(values):6.2f}x ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
