"""What a proposed candidate costs and how good the search is: tunery's proposer against stock's evolutionary search.

All sides search the same tasks of the zoo with the same number of trials, one after the other in one process; which
goes first turns with the seed. Kernels have one thread, and as many tasks are searched at once as there are cores, each
on a core of its own. All candidates are built, verified and raced against the best so far by our own procedure, each
side with a measurer of its own, and nothing is filtered before its build, so that each proposed candidate is a trial.

- tunery: the proposer as in a job, with the cost model that ships and learns, and programs of
  our own beside the generic one;
- bare: the proposer alone, in stock's own space: the generic program, a cost model that has learned from nothing but
  this search;
- stock: MetaSchedule's `EvolutionarySearch` in batches of 64 with its `XGBModel`, all settings at their defaults but
  for one thread. Its model predicts at random until it has learned from 100 candidates, so with fewer than three
  batches of 64 it never steers.

CPU seconds of proposing are those of this process: opening the search, sampling, features, replays, predicting and
training; not reading the task, which is done before. In the end the winners of a task are timed together, interleaved.
Where stock found something valid and we did not, the ratio is infinite.

Resumable: one line of JSON is kept for each finished (task, seed) in --json; run again to go on, with the same code on
the same device: other rows are not used. What fails, or takes longer than its limit, is named at the end and tried
again next time.

    python benchmarks/proposals.py [--quick] [--trials 192] [--seeds 3] [--tasks 20] [--json out/proposals.jsonl]
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from pydantic import TypeAdapter
from rows import Kept, Row
from studies._children import end_with_parent, watch

from tunery._errors import WorkError
from tunery.devices import open_device
from tunery.devices.cpu.facts import usable_cores
from tunery.dialects import Observation, get_dialect, store_built
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import Artifact, Candidate, Outcome, Task
from tunery.measuring.service import Measurer
from tunery.testing.fake_blobs import FakeBlobs

NETWORKS = ("resnet18", "mobilenet_v2", "bert-small", "efficientnet_b0", "vit_b_32")
"""The model that ships was trained on none of them."""
OURS = ("tunery", "bare")
SIDES = (*OURS, "stock")
_TASK = TypeAdapter(Task)
_OUR_BATCH, _LEARN_AT, _LEARN_GROWTH = 16, 48, 1.25  # as in a job
_STOCK_BATCH = 64
_LEAST_TASKS, _LEAST_SEEDS, _LEAST_CPU = 20, 3, 5.0  # the bounds
_SLOWER = 0.05  # a task that is so much slower in every seed is no luck
_LIMIT_S, _LIMIT_PER_TRIAL_S = 300.0, 5.0  # for all searches of a task


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
        self.task, self.directory, self.blobs = task, directory, FakeBlobs()
        dialect = get_dialect("metaschedule")
        assert isinstance(dialect, MetaScheduleDialect)
        self.dialect = dialect
        self.renew()  # it pins this process to its cores, which must come before the compiler's threads
        self.reference = self.build(self.dialect.reference(task))

    def renew(self) -> None:
        """Measure with a new measurer from now on: what one has learned of the noise is not the next one's."""
        device = open_device("cpu", usable_cores()[: self.task.target.threads])
        self.measurer = Measurer("metaschedule", device, self.blobs)

    def build(self, candidate: Candidate) -> Artifact:
        """Build a candidate."""
        return store_built(self.blobs, self.dialect.build(self.task, candidate, self.directory))

    def measure(self, course: Course, candidates: Sequence[Candidate]) -> list[Observation]:
        """Race the candidates against the course's best and note its progress."""
        told = []
        for candidate in candidates:
            best_s = course.best_s[-1] if course.best_s else float("inf")
            try:
                artifact = self.build(candidate)
                result = self.measurer.race(self.task, artifact, candidate, best_s, self.reference)
                outcome, latency_s = result.outcome, result.latency_s
            except Exception:  # noqa: BLE001 - a candidate that does not build is a trial like any other
                outcome, latency_s = Outcome.BUILD_FAILED, None
            if outcome is Outcome.OK and latency_s and latency_s < best_s:
                best_s, course.winner = latency_s, (candidate, artifact)
            course.best_s.append(best_s)
            told.append(Observation(candidate, outcome, latency_s))
        return told

    def retime(self, courses: Sequence[Course]) -> list[float | None]:
        """Time the courses' winners together; None for a course that has none, or whose winner is wrong."""
        found = [course.winner for course in courses if course.winner]
        results = self.measurer.finals(self.task, [a for _, a in found], [c for c, _ in found], self.reference, 40)
        latencies_s = iter([result.latency_s for result in results])
        return [next(latencies_s) if course.winner else None for course in courses]

    @contextmanager
    def anew(self, *, alternatives: bool = True) -> Iterator[None]:
        """Forget what earlier searches of the task have left in this process, and afterwards what this one has.

        Without `alternatives` the task has its generic program only.
        """
        from tunery.dialects.metaschedule.variants import program
        from tunery.dialects.metaschedule.variants import variant as variants

        def forget() -> None:
            self.dialect.forget(self.task)
            program._variants.cache_clear()
            program._space.cache_clear()

        known = variants._ALTERNATIVES
        variants._ALTERNATIVES = known if alternatives else {}
        forget()
        program.space_of(self.task)  # read before the clock runs
        try:
            yield
        finally:
            variants._ALTERNATIVES = known
            forget()


@contextmanager
def timed(course: Course) -> Iterator[None]:
    """Charge the CPU seconds of a part of proposing."""
    start = time.process_time()
    try:
        yield
    finally:
        course.cpu_s += time.process_time() - start


def tunery(bench: Bench, trials: int, seed: int) -> Course:
    """Search with the model that a job would start from, trained on what was measured as a job's trainer does."""
    from tunery.tuning.learning import start_for

    task, dialect = bench.task, bench.dialect
    start = start_for("metaschedule", task.target, dialect.compiler, open_device("cpu").describe())
    with bench.anew():
        return _ours(bench, trials, seed, start.model if start else None)


def bare(bench: Bench, trials: int, seed: int) -> Course:
    """Search the generic program without anything that ships."""
    with bench.anew(alternatives=False):
        return _ours(bench, trials, seed, None)


def _ours(bench: Bench, trials: int, seed: int, base: str | None) -> Course:
    from tunery.costmodels import with_task
    from tunery.costmodels.boosted import OnlineTrainer
    from tunery.costmodels.boosted import Row as Lesson
    from tunery.costmodels.columns import STORES, TASK_COLUMNS

    course, task, dialect = Course(), bench.task, bench.dialect
    with timed(course):
        proposer = dialect.open(task, [], base, seed, warm_start=base is not None)
    layout = STORES.with_columns(TASK_COLUMNS)
    trainer, fresh, learned = OnlineTrainer(layout), list[Lesson](), 0
    while len(course.best_s) < trials:
        with timed(course):
            candidates = proposer.propose(min(_OUR_BATCH, trials - len(course.best_s)))
            rows = with_task(dialect.features(task, candidates), task) if candidates else ()
        if not candidates:
            break
        course.proposed += len(candidates)
        told = bench.measure(course, candidates)
        for one, row in zip(told, rows, strict=True):
            latency_s = one.latency_s if one.outcome in {Outcome.OK, Outcome.ABANDONED} else None
            fresh.append((task.key, one.candidate.key, row, latency_s or math.inf))
        with timed(course):
            proposer.observe(told)
            if len(course.best_s) >= max(_LEARN_AT, learned * _LEARN_GROWTH):
                learned = len(course.best_s)
                if model := trainer.learn(fresh, base):
                    proposer.learn(model)
                fresh = []
    return course


def stock(bench: Bench, trials: int, seed: int) -> Course:
    """Search with MetaSchedule's own strategy and cost model, all settings at their defaults."""
    from tunery.dialects.metaschedule._tvm import meta_schedule as ms
    from tunery.dialects.metaschedule.variants.program import program_key, space_of, trace_body

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


SEARCHES: dict[str, Callable[[Bench, int, int], Course]] = {"tunery": tunery, "bare": bare, "stock": stock}


def compare(path: Path, trials: int, seed: int) -> Row:
    """Run all searches on one task, another first with each seed, and time their winners together."""
    task = _TASK.validate_json(path.read_bytes())
    os.environ["TVM_NUM_THREADS"] = str(task.target.threads)
    with tempfile.TemporaryDirectory(prefix="tunery-proposals-") as scratch:
        bench = Bench(task, Path(scratch))
        courses = {}
        first = seed % len(SIDES)
        for side in (*SIDES[first:], *SIDES[:first]):
            bench.renew()
            courses[side] = SEARCHES[side](bench, trials, seed)
        bench.renew()
        retimed_s = bench.retime([courses[side] for side in SIDES])
    row: Row = {"task": task.key, "kind": task.workload.kind, "name": task.workload.name, "seed": seed,
                "trials": trials}  # fmt: skip
    for name, final_s in zip(SIDES, retimed_s, strict=True):
        course = courses[name]
        course.winner = None
        row[name] = {**asdict(course), "retimed_s": final_s}
    return row


def choose(directory: Path, networks: Sequence[str], count: int) -> list[Path]:
    """Write `count` tunable tasks, from the networks and their kinds in turn, and return their files."""
    from tunery.domain.request import Request
    from tunery.service.session import extract

    pools: list[list[Task]] = []
    for network in networks:
        by_kind: dict[str, list[Task]] = {}
        for task in extract(Request(f"zoo:{network}", threads=1, store=str(directory / "tasks.db"))).tasks:
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


def summary(rows: Sequence[Row], trials: int, tasks: int, seeds: int) -> str:
    """Return CPU per proposed candidate, the ratios of best latencies along the trials, and the bounds."""
    per = {side: [cpu_each_s(row, side) for row in rows] for side in SIDES}
    whole = sum(
        len({row["seed"] for row in rows if row["task"] == task}) >= seeds for task in {r["task"] for r in rows}
    )
    claims = {
        f"at least {_LEAST_TASKS} tasks x {_LEAST_SEEDS} seeds: {whole} of {tasks} x {seeds}": (
            whole >= _LEAST_TASKS and seeds >= _LEAST_SEEDS
        )
    }
    lines = ["CPU seconds per proposed candidate, median (min to max)"]
    lines += [
        f"  {side:8} {statistics.median(each):7.4f} ({min(each):.4f} to {max(each):.4f})" for side, each in per.items()
    ]
    for side in OURS:
        cheaper = [theirs / ours for ours, theirs in zip(per[side], per["stock"], strict=True)]
        middle = statistics.median(cheaper)
        lines += [f"{side}: {middle:.2f} x less CPU per proposed candidate ({min(cheaper):.2f} to {max(cheaper):.2f})"]
        lines += [f"best latency so far, {side} / stock: geometric mean (min to max); below 1 is better"]
        along = {
            at: [(so_far(row[side], at), so_far(row["stock"], at)) for row in rows]
            for at in sorted({max(trials // part, 1) for part in (8, 4, 2, 1)})
        }
        finals = [_retimed(row, side) for row in rows]
        lines += [ratio_text(f"after {at} trials", pairs) for at, pairs in along.items()]
        lines.append(ratio_text("winners timed together", finals))
        lines += [f"  winners by kind of operator: {', '.join(by_kind(rows, side))}"]
        behind = always_slower(rows, side)
        lines += [f"  slower than stock in every seed, by least: {', '.join(behind)}"] if behind else []
        claims |= {
            f"{side}: >= {_LEAST_CPU:.0f} x less CPU per proposed candidate, median": middle >= _LEAST_CPU,
            f"{side}: winners no slower than stock's, geometric mean <= 1": mean_ratio(finals) <= 1,
            f"{side}: no task whose winners are all more than {_SLOWER:.0%} slower": not behind,
            f"{side}: nowhere along the trials behind stock's, geometric mean <= 1": all(
                mean_ratio(pairs) <= 1 for pairs in along.values() if ratios(pairs)
            ),
        }
    return "\n".join([*lines, *(f"{'met' if met else 'MISSED':<6}  {claim}" for claim, met in claims.items())])


def by_kind(rows: Sequence[Row], side: str) -> list[str]:
    """Return, for each kind of operator, the geometric mean of its winners' latencies over stock's."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    pairs = {kind: [_retimed(row, side) for row in rows if row["kind"] == kind] for kind in kinds}
    return [f"{kind} {mean_ratio(of):.3f} ({len(of)} searches)" for kind, of in pairs.items() if ratios(of)]


def always_slower(rows: Sequence[Row], side: str) -> list[str]:
    """Return the tasks whose winners are all slower than stock's by more than the bound, with the least difference."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        least = min(ratios([_retimed(row, side) for row in mine]), default=0.0)
        if least > 1 + _SLOWER:
            found.append(f"{mine[0]['name']} ({task[:6]}) {least:.2f} of {len(mine)}")
    return found


def _retimed(row: Row, side: str) -> tuple[float | None, float | None]:
    return row[side]["retimed_s"], row["stock"]["retimed_s"]


def cpu_each_s(row: Row, side: str) -> float:
    """Return the CPU seconds per proposed candidate of a side."""
    return row[side]["cpu_s"] / max(row[side]["proposed"], 1)  # type: ignore[no-any-return]


def so_far(course: Row, at: int) -> float | None:
    """Return the best latency after so many trials, None while nothing valid was found."""
    best_s = course["best_s"][:at]
    return best_s[-1] if best_s and math.isfinite(best_s[-1]) else None


def ratios(pairs: Sequence[tuple[float | None, float | None]]) -> list[float]:
    """Return ours over stock's wherever stock has something; infinity where we do not."""
    return [ours / theirs if ours else math.inf for ours, theirs in pairs if theirs]


def mean_ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float:
    """Return the geometric mean of ours over stock's, infinity if there is nothing to compare."""
    known = ratios(pairs)
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.inf


def ratio_text(what: str, pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """Return one line of ratios, which says in how many searches a side has nothing."""
    known = ratios(pairs)
    lacking = {
        "neither has": sum(not ours and not theirs for ours, theirs in pairs),
        "we have not": sum(not ours and bool(theirs) for ours, theirs in pairs),
        "stock has not": sum(bool(ours) and not theirs for ours, theirs in pairs),
    }
    mean = f"{mean_ratio(pairs):.3f} ({min(known):.3f} to {max(known):.3f})" if known else "-"
    without = "".join(f", {count} that {who}" for who, count in lacking.items() if count)
    return f"  {what:26} {mean} in {len(known)} of {len(pairs)} searches{without}"


def main() -> None:
    """Run what is missing, each (task, seed) in a process on a core of its own, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=192)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument(
        "--quick", action="store_true", help="two tasks of BERT, one seed, 16 trials: shows that it runs"
    )
    parser.add_argument("--json", default="out/proposals.jsonl")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        end_with_parent()
        os.sched_setaffinity(0, {options.core})  # before the compiler starts its threads
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # TVM imports it where it can: both carry LLVM
        row = compare(Path(options.one[0]), options.trials, int(options.one[1]))
        (Path(options.work) / "row.json").write_text(json.dumps(row))
        return
    if options.quick:
        options.trials, options.seeds, options.tasks = 16, 1, 2
    networks = ("bert-small",) if options.quick else NETWORKS
    with tempfile.TemporaryDirectory(prefix="tunery-proposals-") as scratch:
        tasks = choose(Path(scratch), networks, options.tasks)
        sys.exit(run(tasks, options.trials, options.seeds, Path(options.json), Path(scratch)))


def run(tasks: Sequence[Path], trials: int, seeds: int, output: Path, scratch: Path) -> int:
    """Run the searches that the output does not hold yet, one on each core, print all, and return the exit code."""
    kept = Kept(output, __file__, trials=trials)
    asked = [(path, seed) for seed in range(seeds) for path in tasks]
    known = {(row["task"], row["seed"]): row for row in kept.read()}
    rows = [known[path.stem, seed] for path, seed in asked if (path.stem, seed) in known]
    waiting = deque((path, seed) for path, seed in asked if (path.stem, seed) not in known)
    missing, failed, ended = len(waiting), list[str](), SimpleQueue[tuple[str, Row | WorkError]]()

    def search(core: int) -> None:
        while waiting:
            path, seed = waiting.popleft()
            try:
                ended.put((f"{path.stem} seed {seed}", child(path, seed, trials, scratch, core)))
            except WorkError as error:
                ended.put((f"{path.stem} seed {seed}", error))

    for core in usable_cores():
        Thread(target=search, args=(core,), daemon=True).start()  # its child ends with this process
    for _ in range(missing):
        name, result = ended.get()
        if isinstance(result, WorkError):
            failed.append(name)
            print(f"{name} failed: {' '.join(str(result).split())[-600:]}", flush=True)
        else:
            rows.append(kept.add(result))
            print(row_text(rows[-1]), flush=True)
    names = ", failed: " + ", ".join(failed) if failed else ""
    print(f"\n{len(rows)} of {len(asked)} searches, {len(tasks)} tasks x {seeds} seeds{names}")
    if rows:
        print(summary(rows, trials, len(tasks), seeds))
    return 1 if failed else 0


def row_text(row: Row) -> str:
    """Return one line of a finished row."""
    sides = (
        f"{side} {cpu_each_s(row, side):.3f} CPU s each, best {(row[side]['retimed_s'] or 0) * 1e3:.4f} ms"
        for side in SIDES
    )
    return f"{row['name']} seed {row['seed']}: {', '.join(sides)}"


def child(path: Path, seed: int, trials: int, scratch: Path, core: int) -> Row:
    """Compare in a new process on this core.

    Raises:
        WorkError: that failed, or took longer than its limit.
    """
    work = Path(tempfile.mkdtemp(dir=scratch))
    command = [__file__, "--trials", str(trials), "--one", str(path), str(seed), "--work", str(work)]
    command += ["--core", str(core)]
    # Threads of linear algebra would wait for one another on the other core, and their waiting is CPU time. The limit
    # holds for XGBoost, which TVM asks for as many as the machine has cores.
    alone = {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1", "OPENBLAS_NUM_THREADS": "1"}
    watch(command, work / "log", alone, limit_s=_LIMIT_S + _LIMIT_PER_TRIAL_S * trials)
    row: Row = json.loads((work / "row.json").read_text())
    return row


if __name__ == "__main__":
    main()
