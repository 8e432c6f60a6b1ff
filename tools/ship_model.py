"""Gives the model that ships with tunery its card: judged on networks held out of its training, and gated.

python tools/ship_model.py DATASET.parquet MODEL.json.gz [--fit | --grow ROUNDS] [--bits 512]

MODEL was trained on DATASET without the networks below, and is written back with its card; its trees stay as they are.
With --fit it is trained by the recipe below and written to MODEL. With --grow the model that ships gets that many more
trees, grown on DATASET without these networks for devices like its one, in place of what it had grown, and is written
to MODEL. A model that does not pass its gate is not written. The model that ships now is a rival, unless it is MODEL
itself. A dataset of several devices does not say how wide their vectors are: --bits does.

What ships is in `costmodels/pretrained`, and found by its name: DIALECT-TARGET-BITS.json.gz.
"""

import argparse
import gzip
import json
import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tunery.costmodels import Recipe, Table, load_cost_model
from tunery.costmodels.boosted import BoostedModel, trees_digest, trimmed
from tunery.costmodels.dataset import columns_of
from tunery.costmodels.registry import Version, document, new_card, shipped
from tunery.costmodels.training.automl import fit
from tunery.costmodels.training.evaluation import hold_out_networks
from tunery.costmodels.training.parquet import read_parquet
from tunery.costmodels.training.train import appraise, facts, plain
from tunery.domain.request import Request
from tunery.service.session import extract

RECIPE = Recipe(
    "gain",
    800,
    {"learning_rate": 0.04, "num_leaves": 63, "min_data_in_leaf": 8, "feature_fraction": 0.15, "lambda_l2": 1.0},
    members=1,
    store_members=2,
)
GROWTH = {"learning_rate": 0.03, "num_leaves": 31, "feature_fraction": 0.3, "lambda_l2": 1.0}
HELD_OUT = ("bert-small", "efficientnet_b0", "mobilenet_v2", "resnet18", "vit_b_32")


def main() -> None:
    """Judge, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("model", type=Path)
    made = parser.add_mutually_exclusive_group()
    made.add_argument("--fit", action="store_true")
    made.add_argument("--grow", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--bits", type=float, help="width of vectors, where the dataset is of several devices")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    table = read_parquet(chosen.dataset)
    hidden = hidden_workloads()
    learn, judge = hold_out_networks(table.groups, HELD_OUT)
    if leaked := {group.workload_key for group in learn} & hidden:
        raise SystemExit(f"{len(leaked)} workloads of held-out networks are not marked as theirs in {chosen.dataset}")
    bits = chosen.bits or float(columns_of(learn[0])[0])
    if math.isnan(bits):
        raise SystemExit("the dataset is of several devices; say with --bits how wide their vectors are")
    current = shipped(table.dialect, table.target, bits)
    if chosen.grow and (current is None or len(table.devices) != 1):
        raise SystemExit("what grows is a model that ships, on a dataset of one device")
    base = current if chosen.grow else None
    if chosen.fit:
        text = fit([group for group in learn if group.usable], RECIPE, threads=chosen.threads).dumps()
    else:
        text = _trunk(base[1]) if base else _text(chosen.model)
    model = load_cost_model(text)
    if not isinstance(model, BoostedModel):
        raise SystemExit("a model of trees is what ships")
    if base:
        trunk = model.rounds
        model = model.grown([(group.inputs, group.gains) for group in learn if group.usable], chosen.grow, GROWTH)
        model = model.grown_for(bits, trunk)
        text = model.dumps()
    if current is not None and json.loads(current[1])["digest"] == json.loads(text)["digest"]:
        current = None
    found = appraise(model, judge, current)
    for row in found.rows:
        print(row.kind, row.ranking, row.quality)
    print(*found.pairs, *found.remarks, found.gate, sep="\n")
    if not found.gate.passed:
        raise SystemExit("it did not pass its gate, so nothing was written")
    card = new_card(
        dialect=table.dialect,
        compiler=table.compiler,
        target=table.target,
        recipe={**base[0].recipe, "grown": {"rounds": chosen.grow, **GROWTH}} if base else _recipe(text),
        data=_facts(Table(learn, table.dialect, table.compiler, table.target), base[0] if base else None),
        metrics=tuple(plain(row) for row in found.rows),
        passed=True,
        held_out=HELD_OUT,
        layout=str(table.layout),
    )
    chosen.model.write_bytes(document(card, text, 0))


def hidden_workloads() -> set[str]:
    """Return the keys of all workloads of the networks that are held out, whatever a dataset says of its owners."""
    with tempfile.TemporaryDirectory() as scratch:  # the user's own store is not for this
        store = str(Path(scratch, "tasks.db"))
        return {task.workload.key for name in HELD_OUT for task in extract(Request(f"zoo:{name}", store=store)).tasks}


def _trunk(text: str) -> str:
    """Return a model without what it has grown since: growth is always of a whole dataset."""
    data = json.loads(text)
    return json.dumps(trimmed(data) if data.get("growth") else data)


def _facts(table: Table, grew: Version | None) -> dict[str, Any]:
    """Return what the card says of the data: of a model that grew both datasets together, and the first one beside."""
    mine: dict[str, Any] = facts(table)
    if grew is None:
        return mine
    base = grew.data.get("base") or {**grew.data, "tau": grew.tau}
    counts = {name: base[name] + mine[name] for name in ("candidates", "tasks", "failed")}
    lists = {name: sorted({*base[name], *mine[name]}) for name in ("networks", "devices", "workloads") if name in base}
    if "workloads" not in base:  # an older card's networks say more than half a list
        del mine["workloads"]
    kinds = dict(Counter(base["kinds"]) + Counter(mine["kinds"]))
    return {**mine, **counts, **lists, "kinds": kinds, "base": base}


def _text(path: Path) -> str:
    """Return a model's text with the digest of its trees, which one that an earlier tunery wrote lacks."""
    whole = json.loads(gzip.decompress(path.read_bytes()))
    model = whole.get("model", whole)
    return json.dumps(model if "digest" in model else model | {"digest": trees_digest(model)})


def _recipe(text: str) -> dict[str, object]:
    """Return what LightGBM says in its own text of how the trees were grown."""
    model = json.loads(text)
    said = dict(
        line[1:-1].split(": ", 1) for line in model["boosters"][0].splitlines() if line.startswith("[") and ": " in line
    )
    names = ("learning_rate", "num_leaves", "min_data_in_leaf", "feature_fraction", "lambda_l2")
    return {
        "family": model["objective"],
        "rounds": int(said["num_iterations"]),
        "parameters": {name: float(said[name]) for name in names},
        "members": len(model["boosters"]),
        "store_members": len(model["stores"]["boosters"]) if model.get("stores") else 0,
    }


if __name__ == "__main__":
    main()
