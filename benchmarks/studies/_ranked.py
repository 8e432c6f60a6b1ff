"""The ranking part of the zero-shot study: models beside one another on candidates that were measured for this."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies._base import Options
from studies._delivered import Scale, model_of
from studies._stock_model import MOST_ROUNDS, StockModel, check_library
from tunery._errors import UsageError
from tunery.costmodels import Group, Recipe
from tunery.costmodels.registry import Version
from tunery.costmodels.training.automl import fit
from tunery.costmodels.training.evaluation import ALL, EvaluationRow, Paired, evaluate, hold_out_networks, paired
from tunery.costmodels.training.replay import load
from tunery.costmodels.training.train import judge, open_table
from tunery.devices.cpu.facts import usable_cores
from tunery.dialects import get_dialect
from tunery.domain.request import Request, Trimming
from tunery.service.session import collect

STOCK = "stock"
OURS = "ours, same data"
"""A model of our kind, trained on what MetaSchedule's own was trained on."""
_HIGHER, _LOWER = ("ndcg8", "kendall"), ("regret1", "regret8")


class Pair(NamedTuple):
    """One metric of one operator kind: ours and MetaSchedule's own; `edge` is by how much ours is better."""

    kind: str
    metric: str
    ours: float
    theirs: float
    edge: float


class Beside(NamedTuple):
    """Ours and MetaSchedule's own, trained on the same data: rows of both, and our NDCG@8 less theirs by task.

    `capped` says that theirs was still learning when its rounds, the most it is given, were over.
    """

    rows: list[EvaluationRow]
    difference: Paired
    capped: bool


def learnable(data: Path, held_out: Sequence[str]) -> list[Group]:
    """Return what of a dataset is of none of these networks: what may be trained on.

    Raises:
        UsageError: it is no dataset, made by another compiler, or of these networks only, or xgboost is missing.
    """
    check_library()
    found = list(hold_out_networks(open_table("", "metaschedule", data).groups, held_out)[0])
    if not found:
        raise UsageError(f"{data} holds nothing but tasks of {', '.join(held_out)}; collect from other networks")
    return found


def ranked(scale: Scale, options: Options, directory: Path) -> tuple[list[EvaluationRow], tuple[Group, ...]]:
    """Measure candidates of the networks' tasks; return how the model in use ranks them, and the candidates.

    None is given up: of what is, a race knows little but that it is slower, and an order is judged by all.
    """
    options.say("measuring candidates of held-out networks")
    request = Request(
        "collect",
        store=str(directory / "judge-whole.db"),
        seed=options.seed,
        pretrained=False,
        trimming=Trimming(abandon=False),
    )
    models = [model_of(network) for network in scale.networks]
    collect(request, models, tasks=scale.tasks, per_task=scale.per_task)
    table = load(request.store, request.dialect)
    target = get_dialect(request.dialect).resolve_target("native", 0)
    return judge(table, "", target, seed=options.seed, all_groups=True).rows, table.groups


def rivals(groups: Sequence[Group], learn: Sequence[Group], card: Version, options: Options) -> Beside:
    """Return how MetaSchedule's own model ranks these groups, and one of ours by the card's recipe, of the same data.

    Both learn from those of `learn` whose workloads are not among the groups'.

    Raises:
        UsageError: there are none, or the data's features are of another version.
    """
    judged = {group.workload_key for group in groups}
    fair = [group for group in learn if group.workload_key not in judged]
    if not fair:
        raise UsageError("the dataset holds no workload but those that are judged; collect from other networks")
    options.say(f"training two models on {len(fair)} tasks of other networks")
    threads = len(usable_cores())
    recipe = recipe_of(card)
    ours, theirs = fit(fair, recipe, threads=threads), StockModel(fair, threads)
    rankers = {OURS: lambda group: ours.predict(group.inputs), STOCK: theirs.predict}
    difference = paired(groups, rankers[OURS], rankers[STOCK], STOCK)
    return Beside(evaluate(groups, rankers), difference, theirs.capped)


def recipe_of(card: Version) -> Recipe:
    """Return the recipe on a card; JSON may have made numbers of it that LightGBM wants whole."""
    said = card.recipe
    parameters = {name: int(value) if value == int(value) else value for name, value in said["parameters"].items()}
    members, stores = int(said.get("members", 1)), int(said.get("store_members", 0))
    return Recipe(said["family"], int(said["rounds"]), parameters, members, stores)


def pairs(rows: Sequence[EvaluationRow]) -> list[Pair]:
    """Return ours on the same data beside MetaSchedule's own, by kind and metric; nothing if these were not trained."""
    by = {(row.kind, row.ranking): row.quality for row in rows if row.device == ALL}
    found = []
    for kind in dict.fromkeys(row.kind for row in rows):
        ours, theirs = by.get((kind, OURS)), by.get((kind, STOCK))
        if ours and theirs:
            for metric in (*_HIGHER, *_LOWER):
                mine, other = getattr(ours, metric), getattr(theirs, metric)
                found.append(Pair(kind, metric, mine, other, mine - other if metric in _HIGHER else other - mine))
    return found


def beside_text(beside: Beside) -> list[str]:
    """Return by how much our NDCG@8 is above MetaSchedule's own on the same tasks, and what was uneven between them."""
    mine = beside.difference
    found = [
        f"NDCG@8 less MetaSchedule's own, over {mine.tasks} tasks: {mine.mean:+.3f} (95 % interval {mine.low:+.3f} to "
        f"{mine.high:+.3f})"
    ]
    if beside.capped:
        found.append(f"note: MetaSchedule's own model was still learning when stopped after {MOST_ROUNDS} rounds")
    return found


def pairs_text(found: Sequence[Pair]) -> str:
    """Return in how many metrics of how many ours is better, and where it is not."""
    better, worse = sum(pair.edge > 0 for pair in found), [pair for pair in found if not pair.edge >= 0]
    ties = len(found) - better - len(worse)
    where = ", ".join(f"{pair.kind} {pair.metric} ({pair.ours:.3f}, theirs {pair.theirs:.3f})" for pair in worse)
    return (
        f"trained on the same data, ours ranks better than MetaSchedule's own in {better} of {len(found)}"
        + (f", as well in {ties}" if ties else "")
        + (f"; not: {where}" if where else "")
    )
