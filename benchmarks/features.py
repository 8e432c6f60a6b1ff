"""What a candidate's features cost: replayed and extracted, folded, read from the cache, and scored by the model.

CPU milliseconds of one process for each candidate, medians over the candidates of a task. `extractor` is what
MetaSchedule's own extraction takes of it, `copy` what its deep copy of the program (to JSON and back) takes of that,
done here once more by itself; `cached` is a row of a program that was seen before.

    python benchmarks/features.py [--candidates 32] [--json out/features.json]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tunery._report import as_text, new_table
from tunery.costmodels import load_cost_model, with_task
from tunery.dialects import get_dialect
from tunery.domain import Candidate, Task
from tunery.jobs import Request, extract
from tunery.jobs.learning import start_for
from tunery.measure import this_device, usable_cores

T = TypeVar("T")
TASKS = {"conv2d": "zoo:resnet18", "matmul": "zoo:bert-small", "depthwise": "zoo:mobilenet_v2"}
"""The heaviest operator of a kind, and of which network."""
COLUMNS = ("replay", "extractor", "copy", "fold", "cached", "score")


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
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(found, indent=1))


def heaviest(network: str, kind: str, store: Path) -> Task:
    """Return the tunable task of a kind with the most arithmetic."""
    tasks = extract(Request(network, store=str(store))).tasks
    return max((t for t in tasks if t.tunable and t.workload.kind == kind), key=lambda t: t.workload.flop)


def measure(task: Task, count: int) -> dict[str, float]:
    """Return the medians by column, of `count` proposed candidates of a task, in CPU milliseconds for each."""
    from tunery.costmodels.columns import STORE_WIDTH, unfolded
    from tunery.dialects.metaschedule._tvm import meta_schedule, tvm
    from tunery.dialects.metaschedule.program import replay, space_for

    dialect = get_dialect("metaschedule")
    start = start_for("metaschedule", task.target.config, dialect.compiler, this_device(usable_cores()))
    candidates = dialect.open(task, [], None, 0).propose(count)  # the cache of this task has their rows now
    extractor = meta_schedule.feature_extractor.PerStoreFeature()

    def replayed(candidate: Candidate) -> tuple[object, object]:
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
