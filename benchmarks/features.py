"""What features cost: for each program that is extracted, and for each candidate that a search proposes.

CPU milliseconds of one process. First for each program, medians over the candidates of a task: replayed and extracted,
folded, read from the cache, and scored by the model. `extractor` is what MetaSchedule's own extraction takes,
`copy` what its deep copy of the program (to JSON and back) takes of that, done here once more by itself; `cached` is
a row of a program that was seen before.

Then for each of the first 64 candidates of a search: how many programs were extracted for it, and what that took, of
all that proposing took. On our side these are four proposals of 16, as in a job; on stock's one of MetaSchedule's
`EvolutionarySearch` with its `XGBModel`, all settings at their defaults but for one thread, whose model has learned
from 128 samples with made-up latencies: what these are does not change how many are extracted. Nothing is measured on
either side, so ours trains no model here; a job has half of what is proposed built, so for each built candidate ours
are about twice as much. What whole searches cost, with training, and how good they are: benchmarks/proposals.py.

    python benchmarks/features.py [--candidates 32] [--json out/features.json]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tunery.costmodels import load_cost_model, with_task
from tunery.devices import open_device
from tunery.dialects import get_dialect
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import Candidate, Task
from tunery.domain.request import Request
from tunery.reports.format import as_text, new_table
from tunery.service.session import extract
from tunery.tuning.learning import start_for

T = TypeVar("T")
TASKS = {"conv2d": "zoo:resnet18", "matmul": "zoo:bert-small", "depthwise": "zoo:mobilenet_v2"}
"""The heaviest operator of a kind, and of which network."""
COLUMNS = ("replay", "extractor", "copy", "fold", "cached", "score")
PROPOSED, BATCH, TAUGHT = 64, 16, 128


def main() -> None:
    """Measure each task, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=32)
    parser.add_argument("--json", type=Path, default=Path("out/features.json"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunery-features-") as directory:
        tasks = [heaviest(network, kind, Path(directory) / "tasks.db") for kind, network in TASKS.items()]
    found = {task.workload.kind: measure(task, chosen.candidates) for task in tasks}
    table = new_table("kind", *(f"#{name} ms" for name in COLUMNS))
    for kind, row in found.items():
        table.add_row(kind, *(f"{row[name]:.3f}" for name in COLUMNS))
    print(as_text(table))
    table = new_table("kind", "side", "#programs", "#features ms", "#proposing ms", "#share")
    for task in tasks:
        spent = {side: search(task) for side, search in (("tunery", ours), ("stock", stock))}
        for side, each_one in spent.items():
            table.add_row(
                task.workload.kind, side, f"{each_one.programs:.1f}", f"{each_one.features_ms:.1f}",
                f"{each_one.proposing_ms:.1f}", f"{each_one.features_ms / each_one.proposing_ms:.0%}",
            )  # fmt: skip
            found[task.workload.kind] |= {f"{side} {name}": value for name, value in asdict(each_one).items()}
        less = spent["stock"].features_ms / spent["tunery"].features_ms
        found[task.workload.kind]["less"] = less
        table.add_row(task.workload.kind, "less", "", f"{less:.1f} x")
    print("for each proposed candidate\n" + as_text(table))
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))


def metaschedule() -> MetaScheduleDialect:
    """Return the dialect, as every part of this process has it."""
    dialect = get_dialect("metaschedule")
    assert isinstance(dialect, MetaScheduleDialect)
    return dialect


def heaviest(network: str, kind: str, store: Path) -> Task:
    """Return the tunable task of a kind with the most arithmetic."""
    tasks = extract(Request(network, store=str(store))).tasks
    return max((t for t in tasks if t.tunable and t.workload.kind == kind), key=lambda t: t.workload.flop)


def measure(task: Task, count: int) -> dict[str, float]:
    """Return the medians by column, of `count` proposed candidates of a task, in CPU milliseconds for each."""
    from tunery.costmodels.columns import STORE_WIDTH, unfolded
    from tunery.dialects.metaschedule._tvm import meta_schedule, tvm
    from tunery.dialects.metaschedule.variants.program import replay, space_for

    dialect = metaschedule()
    start = start_for("metaschedule", task.target, dialect.compiler, open_device("cpu").describe())
    candidates = dialect.open(task, [], None, 0).propose(count)  # the cache of this task has their rows now
    extractor = meta_schedule.feature_extractor.PerStoreFeature()

    def replayed(candidate: Candidate) -> tuple[Any, Any]:
        space = space_for(task, candidate.body)
        return space.context, meta_schedule.MeasureCandidate(replay(space, candidate.body), [])

    programs = [replayed(candidate) for candidate in candidates]
    stores = [extractor.extract_from(context, [one])[0].numpy() for context, one in programs]
    rows = with_task(dialect.features(task, candidates), task)
    model = load_cost_model(start.model) if start else None
    costs = {
        "replay": each(replayed, candidates),
        "extractor": each(lambda pair: extractor.extract_from(pair[0], [pair[1]]), programs),
        "copy": each(lambda pair: tvm.ir.load_json(tvm.ir.save_json(pair[1].sch.mod)), programs),
        "fold": each(lambda one: unfolded(one.reshape(-1, STORE_WIDTH)), stores),
        "cached": each(lambda one: dialect.features(task, [one]), candidates),
    }
    began = time.process_time()
    if model is not None:
        model.predict(rows)
    return costs | {"score": (time.process_time() - began) / len(candidates) * 1e3}


@dataclass
class Spent:
    """What a search took for each candidate that it proposed: programs extracted, and CPU milliseconds."""

    programs: float = 0.0
    features_ms: float = 0.0
    proposing_ms: float = 0.0


@contextmanager
def spending(proposed: int) -> Iterator[Spent]:
    """Count what is extracted and how long that and everything takes, for each of so many candidates."""
    from tunery.dialects.metaschedule._tvm import meta_schedule

    kind = meta_schedule.feature_extractor.PerStoreFeature
    original = kind.extract_from
    spent = Spent()

    def counted(self: Any, context: Any, candidates: Sequence[Any]) -> Any:
        began = time.process_time()
        try:
            return original(self, context, candidates)
        finally:
            spent.programs += len(candidates) / proposed
            spent.features_ms += (time.process_time() - began) * 1e3 / proposed

    kind.extract_from = counted
    began = time.process_time()
    try:
        yield spent
    finally:
        spent.proposing_ms = (time.process_time() - began) * 1e3 / proposed
        kind.extract_from = original


def ours(task: Task) -> Spent:
    """Propose as a job does, with the model that it would start from."""
    dialect = metaschedule()
    dialect.forget(task)
    start = start_for("metaschedule", task.target, dialect.compiler, open_device("cpu").describe())
    found = 0
    with spending(PROPOSED) as spent:
        proposer = dialect.open(task, [], start.model if start else None, 0, warm_start=start is not None)
        for _ in range(PROPOSED // BATCH):
            batch = proposer.propose(BATCH)
            dialect.features(task, batch)
            found += len(batch)
    if found != PROPOSED:
        raise RuntimeError(f"tunery proposed {found} candidates, not {PROPOSED}")
    return spent


def stock(task: Task) -> Spent:
    """Propose once as stock does when its model has begun to steer."""
    from tunery.dialects.metaschedule._tvm import meta_schedule as ms
    from tunery.dialects.metaschedule.variants.program import space_of

    space = space_of(task)
    model, database = ms.cost_model.XGBModel(), ms.database.MemoryDatabase()
    database.commit_workload(space.module)

    def opened(strategy: Any, batch: int) -> Any:
        context = ms.TuneContext(
            mod=space.module, target=space.target, space_generator="post-order-apply", search_strategy=strategy,
            num_threads=1, rand_state=1, task_name="main",
        )  # fmt: skip
        context.pre_tuning(TAUGHT + PROPOSED, batch, context.generate_design_space(), database, model)
        return context

    samples = opened(ms.search_strategy.ReplayTrace(), TAUGHT).generate_measure_candidates()
    context = opened(ms.search_strategy.EvolutionarySearch(), PROPOSED)
    model.update(context, samples, [ms.runner.RunnerResult([1e-3 * (1 + n)], None) for n in range(len(samples))])
    with spending(PROPOSED) as spent:
        found = context.generate_measure_candidates()
    if len(found) != PROPOSED:
        raise RuntimeError(f"stock proposed {len(found)} candidates, not {PROPOSED}")
    return spent


def each(act: Callable[[T], object], items: Sequence[T]) -> float:
    """Return the median CPU milliseconds of an act, over the items."""
    taken = []
    for item in items:
        began = time.process_time()
        act(item)
        taken.append((time.process_time() - began) * 1e3)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
