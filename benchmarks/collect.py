"""Collects records over many operators of the zoo, to train the cost model that ships with the package.

Resumable: a task that has enough records in the store is passed over. Networks named in --hold-out, and every
workload that occurs in them, are left out, so that figures on those networks are figures on unseen ones.

    python benchmarks/collect.py --store out/collect.db [--trials 40] [--per-network 6] [--minutes 15]
"""

import argparse
import time
from collections import defaultdict

from tunery.domain import Budget, Task
from tunery.frontends import zoo
from tunery.jobs import Request, extract
from tunery.jobs.session import tune_tasks
from tunery.store import open_store

NETWORKS = [
    "vgg11",
    "mobilenetv1_100",
    "minilm-l6",
    "squeezenet1_1",
    "efficientnet_b0",
    "deit_tiny_patch16_224",
    "googlenet",
    "mnasnet1_0",
    "bert-mini",
    "regnet_x_800mf",
    "densenet121",
    "shufflenet_v2_x1_0",
    "vit_b_32",
    "convnext_tiny",
    "mixer_b16_224",
    "whisper-tiny-encoder",
    "gpt2-4L",
    "mobilenet_v3_large",
    "inception_v3",
    "resmlp_12_224",
]
HOLD_OUT = ("resnet18", "mobilenet_v2", "bert-small")
_SHARE = {"conv2d": 0.5, "matmul": 0.5, "depthwise": 0.34}
_GROUP = 4


def main() -> None:
    """Collect until the time is up or every chosen task has its records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="out/collect.db")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--per-network", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=15.0)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    chosen = choose(options.store, options.per_network)
    print(f"{len(chosen)} tasks chosen", flush=True)
    with open_store(options.store) as store:
        left = [t for t in chosen if len(store.records(t.key)) < options.trials // 2]
    left.sort(key=lambda task: task.workload.flop)
    groups = [left[i : i + _GROUP] for i in range(0, len(left), _GROUP)]
    groups = groups[::2] + groups[1::2]  # if time runs out, every size has had its turn
    for number, group in enumerate(groups):
        if time.monotonic() > end:
            print("out of time; run again to go on")
            return
        tasks = [Task(t.workload, t.target, 1, t.tunable) for t in group]
        name = f"collect-{group[0].key}"
        report = tune_tasks(
            Request(name, budget=Budget(trials=options.trials * len(tasks)), store=options.store), tasks
        )
        print(
            f"{number + 1}/{len(groups)}: {report.job.spend.trials} trials, {report.job.spend.wall_s:.0f} s", flush=True
        )


def choose(store: str, per_network: int) -> list[Task]:
    """Return tunable tasks of every kind from each network, none of which occurs in a held-out network."""
    known = {entry.name for entry in zoo.names()}
    held = {t.workload.key for name in HOLD_OUT for t in extract(Request(f"zoo:{name}", store=store)).tasks}
    found: dict[str, Task] = {}
    for name in NETWORKS:
        if name not in known:
            continue
        by_kind: dict[str, list[Task]] = defaultdict(list)
        for task in extract(Request(f"zoo:{name}", store=store)).tasks:
            if task.tunable and task.workload.key not in held and task.workload.key not in found:
                by_kind[task.workload.kind].append(task)
        for kind, tasks in by_kind.items():
            count = max(1, round(per_network * _SHARE.get(kind, 0.15)))
            step = max(1, len(tasks) // count)
            found.update({t.workload.key: t for t in tasks[::step][:count]})
    return list(found.values())


if __name__ == "__main__":
    main()
