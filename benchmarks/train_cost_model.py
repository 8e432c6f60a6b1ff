"""Trains the cost model that ships with the package from collected records, and says how well it ranks unseen tasks.

    python benchmarks/train_cost_model.py --store out/collect.db [--write src/tunery/costmodels/pretrained/…json.gz]

Tasks are held out whole (5 folds). Printed per operator kind: NDCG@8, the best of the top 8, Kendall's tau, beside a
random ranking.
"""

import argparse
import gzip
import json
import math
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tunery.costmodels import BoostedModel, Dataset
from tunery.costmodels.metrics import best_of_top, kendall, ndcg
from tunery.domain import Candidate, Mode, Origin, Outcome, Task
from tunery.store import open_store

FOLDS = 5


def main() -> None:
    """Replay, train, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="out/collect.db")
    parser.add_argument("--write")
    parser.add_argument("--json", default="out/cost_model.json")
    options = parser.parse_args()
    dataset, kinds, builds = load(options.store)
    rows = evaluate(dataset, kinds)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps(rows, indent=1))
    if options.write:
        text = BoostedModel.fit(dataset).with_build_cost(*builds).dumps()
        Path(options.write).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
        print(
            f"wrote {options.write}: {Path(options.write).stat().st_size / 1e6:.2f} MB, trained on {len(dataset)} rows"
        )


def load(store: str) -> tuple[Dataset, dict[str, str], tuple[np.ndarray, np.ndarray]]:
    """Return all race records as a dataset, each task's kind, and features with build seconds.

    Features come from replaying the candidates.
    """
    work: list[tuple[Task, list[Candidate], list[float]]] = []
    seconds: dict[str, float] = {}
    with open_store(store) as opened:
        for task in opened.tasks():
            found: dict[str, tuple[Candidate, float]] = {}
            for record in opened.records(task.key, modes=[Mode.RACE]):
                if record.candidate.origin is Origin.SEARCH:
                    good = record.measurement.outcome in (Outcome.OK, Outcome.ABANDONED)
                    latency = record.measurement.latency_s if good else None
                    seconds[record.candidate.key] = record.measurement.build_s
                    found[record.candidate.key] = (record.candidate, latency or math.inf)
            if len(found) >= 8 and any(math.isfinite(latency) for _, latency in found.values()):
                work.append((task, [c for c, _ in found.values()], [s for _, s in found.values()]))
    dataset = Dataset()
    built: list[tuple[np.ndarray, float]] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for (task, candidates, latencies), rows in zip(work, pool.map(features, work, chunksize=1), strict=True):
            for candidate, latency, row in zip(candidates, latencies, rows, strict=True):
                dataset.add(task.key, candidate.key, row, latency)
                if math.isfinite(latency):
                    built.append((row, seconds[candidate.key]))
    print(f"{len(dataset)} candidates of {len(work)} tasks")
    builds = (np.stack([row for row, _ in built]), np.asarray([s for _, s in built]))
    return dataset, {task.key: task.workload.kind for task, _, _ in work}, builds


def features(item: tuple[Task, list[Candidate], list[float]]) -> np.ndarray:
    """Return the feature rows of one task's candidates."""
    from tunery.dialects import get_dialect

    return get_dialect("metaschedule").features(item[0], item[1])


def evaluate(dataset: Dataset, kinds: dict[str, str]) -> list[dict[str, object]]:
    """Print and return the metrics per operator kind over held-out tasks."""
    groups = dataset.groups()
    keys = sorted(groups)
    scores: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for fold in range(FOLDS):
        test = keys[fold::FOLDS]
        train = Dataset()
        for key in set(keys) - set(test):
            rows, labels = groups[key]
            for i, (row, label) in enumerate(zip(rows, labels, strict=True)):
                train.add(key, str(i), row, 1 / label if label > 0 else math.inf)
        model = BoostedModel.fit(train)
        for key in test:
            rows, labels = groups[key]
            for name, predicted in (("model", model.predict(rows)), ("random", rng.random(len(labels)))):
                values = (ndcg(labels, predicted), best_of_top(labels, predicted), kendall(labels, predicted))
                for group in (kinds[key], "all"):
                    scores[f"{group}/{name}"].append(values)
    table = []
    print(f"{'kind':14} {'ranking':8} {'tasks':>5} {'NDCG@8':>7} {'best of 8':>9} {'Kendall':>8}")
    for name in sorted(scores):
        kind, ranking = name.split("/")
        mean = np.mean(scores[name], axis=0)
        row = {"kind": kind, "ranking": ranking, "tasks": len(scores[name])}
        table.append(row | {"ndcg8": mean[0], "best8": mean[1], "kendall": mean[2]})
        print(f"{kind:14} {ranking:8} {len(scores[name]):5} {mean[0]:7.3f} {mean[1]:9.3f} {mean[2]:8.3f}")
    return table


if __name__ == "__main__":
    main()
