"""Pools datasets that `tunery records export --parquet` wrote into one, with a bound for each task.

python tools/pool_datasets.py POOLED.parquet DATASET.parquet [DATASET.parquet ...] [--most 64]

Of a task with more candidates the fastest quarter of so many stays, and of the others as many as are left, drawn at
random. A candidate that several files hold counts once, as the last one says. All must be of one dialect and family of
targets; the compiler named on the card is the last one's. Pool files of raced and of whole samples of one device only
where no task is in both: rows do not say which they are.
"""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from tunery.costmodels import Group
from tunery.costmodels.training.parquet import read_parquet, write_parquet
from tunery.costmodels.training.train import facts

_FASTEST = 0.25


def main() -> None:
    """Read, pool, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pooled", type=Path)
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=64, metavar="CANDIDATES")
    chosen = parser.parse_args()
    tables = [read_parquet(path) for path in chosen.datasets]
    if len({(table.dialect, table.target) for table in tables}) > 1:
        raise SystemExit("only datasets of one dialect and family of targets can be pooled")
    if len({group.stores is None for table in tables for group in table}) > 1:
        raise SystemExit("some of these rows hold stores one by one and others do not; export the older ones anew")
    found: dict[tuple[str, str, str], Group] = {}
    for group in (group for table in tables for group in table):
        place = (group.task_key, group.device, group.compiler)
        found[place] = _joined(found[place], group) if place in found else group
    rng = np.random.default_rng(0)
    groups = tuple(_thinned(group, chosen.most, rng) for group in found.values())
    left_out = sum((Counter(table.left_out) for table in tables), Counter[str]())
    left_out["thinned"] += sum(len(group.keys) for group in found.values()) - sum(len(group.keys) for group in groups)
    pooled = replace(tables[-1], groups=groups, left_out=dict(left_out))
    write_parquet(pooled, chosen.pooled, facts(pooled))
    print(f"{len(pooled)} candidates of {len(pooled.groups)} tasks")


def _joined(first: Group, second: Group) -> Group:
    new = set(second.keys)
    kept = _only(first, [number for number, key in enumerate(first.keys) if key not in new])
    stores = None if kept.stores is None or second.stores is None else (*kept.stores, *second.stores)
    return replace(
        second,
        networks=tuple(sorted({*first.networks, *second.networks})),
        keys=(*kept.keys, *second.keys),
        rows=np.concatenate([kept.rows, second.rows]),
        latencies=np.concatenate([kept.latencies, second.latencies]),
        build_s=np.concatenate([kept.build_s, second.build_s]),
        stores=stores,
    )


def _thinned(group: Group, most: int, rng: np.random.Generator) -> Group:
    if len(group.keys) <= most:
        return group
    order = np.argsort(group.latencies, kind="stable")
    fastest = round(_FASTEST * most)
    others = rng.permutation(order[fastest:])[: most - fastest]
    return _only(group, sorted([*order[:fastest].tolist(), *others.tolist()]))


def _only(group: Group, places: list[int]) -> Group:
    """Return these candidates of a group."""
    return replace(
        group,
        keys=tuple(group.keys[place] for place in places),
        rows=group.rows[places],
        latencies=group.latencies[places],
        build_s=group.build_s[places],
        stores=group.stores and tuple(group.stores[place] for place in places),
    )


if __name__ == "__main__":
    main()
