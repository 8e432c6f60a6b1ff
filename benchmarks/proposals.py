"""What a proposed candidate costs and how good the search is: tunery's proposer against stock's evolutionary search.

Both sides search the same tasks of the zoo with the same number of trials, and both sides' candidates are built and
measured by our own procedure (a race against the best so far, verified); only who proposes differs. Stock is
MetaSchedule's `EvolutionarySearch` with all its defaults (population 512, five rounds, batches of 64, its own cost
model trained on what was measured). CPU seconds of proposing hold everything that choosing takes: sampling, features,
training. In the end both winners of a task are timed together, interleaved.

Resumable: one line of JSON is kept for each finished (task, seed) in --json; run again to go on.

    python benchmarks/proposals.py [--quick] [--trials 128] [--seeds 3] [--tasks 20] [--json out/proposals.jsonl]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from tunery.dialects import Dialect, Told, get_dialect
from tunery.domain import Artifact, Candidate, Outcome, Task
from tunery.measure import Measurer

NETWORKS = ("resnet18", "mobilenet_v2", "bert-small", "efficientnet_b0", "squeezenet1_1", "deit_tiny_patch16_224")
SIDES = ("tunery", "stock")
_TASK = TypeAdapter(Task)
_OUR_BATCH, _LEARN_AT, _LEARN_GROWTH = 16, 48, 1.25  # as in a job
_STOCK_BATCH = 64


@dataclass
class Course:
    """One search: CPU seconds of proposing, and the best latency after each trial."""

    cpu_s: float = 0.0
    proposed: int = 0
    best_s: list[float] = field(default_factory=list)
    winner: tuple[Candidate, Artifact] | None = None


class Bench:
    """Builds and races candidates of one task."""

    def __init__(self, task: Task, directory: Path) -> None:
        self.task, self.directory = task, directory
        self.dialect: Dialect = get_dialect("metaschedule")
        self.measurer = Measurer("metaschedule", tuple(range(task.target.threads)), str(directory))
        self.reference = self.dialect.build(task, self.dialect.reference(task), directory)

    def measure(self, course: Course, candidates: Sequence[Candidate]) -> list[Told]:
        """Race the candidates against the course's best and note its progress."""
        told = []
        for candidate in candidates:
            best_s = course.best_s[-1] if course.best_s else float("inf")
            try:
                artifact = self.dialect.build(self.task, candidate, self.directory)
                result = self.measurer.race(self.task, artifact, candidate, best_s, self.reference)
                outcome, latency_s = result.outcome, result.latency_s
            except Exception:  # noqa: BLE001 - a candidate that does not build is a trial like any other
                outcome, latency_s = Outcome.BUILD_FAILED, None
            if outcome is Outcome.OK and latency_s and latency_s < best_s:
                best_s, course.winner = latency_s, (candidate, artifact)
            course.best_s.append(best_s)
            told.append(Told(candidate, outcome, latency_s))
        return told

    def retime(self, courses: Sequence[Course]) -> list[float | None]:
        """Time the courses' winners together."""
        found = [course.winner for course in courses if course.winner]
        if len(found) < len(courses):
            return [None] * len(courses)
        results = self.measurer.finals(self.task, [a for _, a in found], [c for c, _ in found], self.reference, 40)
        return [result.latency_s for result in results]


@contextmanager
def timed(course: Course) -> Iterator[None]:
    """Charge the CPU seconds of a part of proposing."""
    start = time.process_time()
    try:
        yield
    finally:
        course.cpu_s += time.process_time() - start


def tunery(bench: Bench, trials: int, seed: int) -> Course:
    """Search as a job does, in one process: the shipped model from the start, trained further on what was measured."""
    from tunery.costmodels import BoostedModel, Dataset, load_cost_model, pretrained

    course, task, dialect = Course(), bench.task, bench.dialect
    base = pretrained("metaschedule", task.target.config)
    start = load_cost_model(base) if base else None
    with timed(course):
        proposer = dialect.open(task, [], base, seed)
    dataset, learned = Dataset(), 0
    while len(course.best_s) < trials:
        with timed(course):
            candidates = proposer.propose(min(_OUR_BATCH, trials - len(course.best_s)))
            rows = dialect.features(task, candidates)
        if not candidates:
            break
        course.proposed += len(candidates)
        told = bench.measure(course, candidates)
        for one, row in zip(told, rows, strict=True):
            dataset.add(task.key, one.candidate.key, row, one.latency_s or float("inf"))
        with timed(course):
            proposer.tell(told)
            if len(dataset) >= max(_LEARN_AT, learned * _LEARN_GROWTH):
                learned = len(dataset)
                proposer.learn(BoostedModel.fit(dataset, start if isinstance(start, BoostedModel) else None).dumps())
    return course


def stock(bench: Bench, trials: int, seed: int) -> Course:
    """Search with MetaSchedule's own strategy and cost model, all settings at their defaults."""
    from tunery.dialects.metaschedule._tvm import meta_schedule as ms
    from tunery.dialects.metaschedule.program import program_key, space_of, trace_body

    course, space = Course(), space_of(bench.task)
    model, database = ms.cost_model.XGBModel(), ms.database.MemoryDatabase()
    workload = database.commit_workload(space.module)
    context = ms.TuneContext(
        mod=space.module, target=space.target, space_generator="post-order-apply",
        search_strategy=ms.search_strategy.EvolutionarySearch(), num_threads=1, rand_state=seed + 1, task_name="main",
    )  # fmt: skip
    with timed(course):
        designs = context.generate_design_space()
    context.pre_tuning(trials, _STOCK_BATCH, designs, database, model)
    while len(course.best_s) < trials:
        with timed(course):
            found = context.generate_measure_candidates()
        if not found:
            break
        course.proposed += len(found)
        bodies = [trace_body(one.sch.trace, space) for one in found]
        named = [
            Candidate(program_key(one.sch.mod), bench.task.key, body) for one, body in zip(found, bodies, strict=True)
        ]
        told = bench.measure(course, named)
        results = [ms.runner.RunnerResult([one.latency_s or 1e10], None) for one in told]
        for one, result in zip(found, results, strict=True):
            trace = one.sch.trace.simplified(remove_postproc=True)
            database.commit_tuning_record(
                ms.database.TuningRecord(trace, workload, result.run_secs, space.target, one.args_info)
            )
        with timed(course):
            model.update(context, found, results)
        context.notify_runner_results(found, results)
    return course


def compare(path: Path, trials: int, seed: int) -> dict[str, object]:
    """Run both searches on one task and time their winners together."""
    task = _TASK.validate_json(path.read_bytes())
    os.environ["TVM_NUM_THREADS"] = str(task.target.threads)
    with tempfile.TemporaryDirectory(prefix="tunery-proposals-") as scratch:
        bench = Bench(task, Path(scratch))
        courses = [side(bench, trials, seed) for side in (tunery, stock)]
        retimed_s = bench.retime(courses)
    row: dict[str, object] = {"task": task.key, "kind": task.workload.kind, "name": task.workload.name, "seed": seed}
    for name, course, final_s in zip(SIDES, courses, retimed_s, strict=True):
        course.winner = None
        row[name] = {**asdict(course), "retimed_s": final_s}
    return row


def choose(directory: Path, networks: Sequence[str], count: int) -> list[Path]:
    """Write `count` tunable tasks, from the networks and their kinds in turn, and return their files."""
    from tunery.jobs import Request, extract

    pools: list[list[Task]] = []
    for network in networks:
        by_kind: dict[str, list[Task]] = {}
        for task in extract(Request(f"zoo:{network}", store=str(directory / "tasks.db"))).tasks:
            if task.tunable:
                by_kind.setdefault(task.workload.kind, []).append(task)
        pools.extend(by_kind.values())
    chosen: dict[str, Task] = {}
    for depth in range(max(map(len, pools))):
        for pool in sorted(pools, key=lambda pool: -pool[0].workload.flop):
            if depth < len(pool) and len(chosen) < count:
                chosen.setdefault(pool[depth].workload.key, pool[depth])
    paths = []
    for task in chosen.values():
        paths.append(directory / f"{task.key}.json")
        paths[-1].write_bytes(_TASK.dump_json(task))
    return paths


def summary(rows: Sequence[dict[str, Any]], trials: int) -> None:
    """Print CPU per proposed candidate and the ratio of best latencies along the trials."""
    per = {side: [row[side]["cpu_s"] / max(row[side]["proposed"], 1) for row in rows] for side in SIDES}
    print("\nCPU seconds per proposed candidate, median (min to max)")
    for side, values in per.items():
        print(f"  {side:8} {statistics.median(values):7.4f} ({min(values):.4f} to {max(values):.4f})")
    print(
        f"best latency so far, tunery / stock, geometric mean over {len(rows)} searches (min to max); below 1 is better"
    )
    for at in sorted({max(trials // 8, 1), max(trials // 4, 1), max(trials // 2, 1), trials}):
        pairs = [(row["tunery"]["best_s"], row["stock"]["best_s"]) for row in rows]
        print_ratio(
            f"after {at} trials", [a[min(at, len(a)) - 1] / b[min(at, len(b)) - 1] for a, b in pairs if a and b]
        )
    final = [(row["tunery"]["retimed_s"], row["stock"]["retimed_s"]) for row in rows]
    print_ratio("winners re-timed together", [a / b for a, b in final if a and b])


def print_ratio(what: str, ratios: Sequence[float]) -> None:
    """Print one line of ratios; those of a search that found nothing are left out."""
    finite = [ratio for ratio in ratios if np.isfinite(ratio) and ratio > 0]
    if finite:
        print(f"  {what:26} {np.exp(np.mean(np.log(finite))):.3f} ({min(finite):.3f} to {max(finite):.3f})")


def main() -> None:
    """Run what is missing, each (task, seed) in a process of its own, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument(
        "--quick", action="store_true", help="two tasks of BERT, one seed, 16 trials: shows that it runs"
    )
    parser.add_argument("--json", default="out/proposals.jsonl")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compare(Path(options.one[0]), options.trials, int(options.one[1]))))
        return
    if options.quick:
        options.trials, options.seeds, options.tasks = 16, 1, 2
    networks = ("bert-small",) if options.quick else NETWORKS
    output = Path(options.json)
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = output.read_text().splitlines() if output.exists() else []
    rows = [row for row in map(json.loads, lines) if row["trials"] == options.trials]
    done = {(row["task"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="tunery-proposals-") as scratch:
        for path in choose(Path(scratch), networks, options.tasks):
            for seed in range(options.seeds):
                if (path.stem, seed) not in done and (row := child(path, seed, options.trials)):
                    rows.append(row)
                    with output.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{row['name']} seed {seed}: " + ", ".join(
                        f"{side} {row[side]['cpu_s'] / max(row[side]['proposed'], 1):.3f} CPU s each, "
                        f"best {(row[side]['retimed_s'] or 0) * 1e3:.4f} ms" for side in SIDES
                    ), flush=True)  # fmt: skip
    if rows:
        summary(rows, options.trials)


def child(path: Path, seed: int, trials: int) -> dict[str, Any] | None:
    """Compare in a new process; None, with its last words, if that failed."""
    command = [sys.executable, __file__, "--trials", str(trials), "--one", str(path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{path.stem} seed {seed} failed: {done.stderr.strip()[-600:]}", flush=True)
        return None
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "trials": trials}


if __name__ == "__main__":
    main()
