"""Training a cost model from a store or a dataset file, and judging one that is there."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tunery._errors import UsageError
from tunery.costmodels import BoostedModel, CostModel, Group, Table, load_cost_model
from tunery.costmodels.automl import Search, fit, search
from tunery.costmodels.boosted import check_rows, describe
from tunery.costmodels.evaluation import Gate, Ranker, Row, evaluate, gate, random_ranker
from tunery.costmodels.registry import Version, in_use, new_card, register, shipped, version
from tunery.costmodels.rival import StockModel
from tunery.costmodels.splits import by_kind, hold_out_networks
from tunery.costmodels.transfer import Transfer, transfer
from tunery.domain import Target
from tunery.jobs.dataset import load

Notify = Callable[[str], None]
_TEST_SHARE = 0.2
_LEAST_NETWORKS = 4


@dataclass(frozen=True)
class Training:
    """What training gave: the registered version, its rows of metrics on held-out networks and on held-out kinds."""

    card: Version
    rows: tuple[Row, ...]
    kinds: tuple[Row, ...]
    search: Search
    gate: Gate
    transfers: tuple[Transfer, ...]
    left_out: dict[str, int]


def open_table(
    store: str, dialect: str, data: Path | None, notify: Notify = lambda _: None, *, any_compiler: bool = False
) -> Table:
    """Return the dataset of a store, or of a file that `tunery records export --parquet` wrote.

    Raises:
        UsageError: there is nothing to learn from, or the file is no dataset.
    """
    if data is None:
        return load(store, dialect, notify, any_compiler=any_compiler)
    from tunery.costmodels.parquet import read_parquet

    return read_parquet(data)


def train(
    table: Table,
    seconds: float,
    *,
    hold_out: Sequence[str] = (),
    threads: int = 1,
    seed: int = 0,
    kinds: bool = False,
    most: int = 400,
    notify: Notify = lambda _: None,
) -> Training:
    """Search the best recipe for about `seconds`, judge it on networks it has not seen, and register the model.

    With `hold_out` those networks are what it is judged on, and no model ever sees them. Without, a fifth of the
    networks is drawn to judge the recipe by, and the registered model is then trained on all. `kinds` also judges the
    recipe on operator kinds that were left out of training as a whole.

    Raises:
        UsageError: too few or too uniform candidates or networks, an unknown network, or a library is missing.
    """
    check_rows([group.gains for group in table])
    chosen = tuple(hold_out) or _drawn(table, seed)
    known = {name for group in table for name in group.networks}
    for name in hold_out:
        if name not in known:
            raise UsageError(f"no candidate in the dataset is of network {name!r}; it holds {', '.join(sorted(known))}")
    learn, judge = hold_out_networks(table.groups, chosen)
    if not learn or not judge:
        raise UsageError("holding out whole networks leaves nothing to train on; collect from more networks")
    found = search(learn, seconds, threads=threads, seed=seed, most=most, notify=notify)
    notify("judging on held-out networks")
    model = fit(learn, found.recipe, threads=threads)
    rows = evaluate(judge, rankers(model, learn, threads, seed))
    verdict = gate(rows)
    left = _by_kind(table.groups, found, threads, notify) if kinds else []
    moved = [transfer(table.groups, device, found.recipe, seed) for device in table.devices if len(table.devices) > 1]
    final = model if hold_out else fit(table.groups, found.recipe, threads=threads)
    card = new_card(
        dialect=table.dialect,
        compiler=table.compiler,
        target=table.target,
        recipe=describe(found.recipe) | {"tried": found.tried, "search_s": found.seconds, "inner_ndcg8": found.score},
        data=facts(table),
        metrics=tuple(_plain(row) for row in rows),
        passed=verdict.passed,
        reasons=verdict.reasons,
        held_out=tuple(sorted(hold_out)),
    )
    return Training(
        register(card, final), tuple(rows), tuple(left), found, verdict, _known(moved), dict(table.left_out)
    )


def judge(
    table: Table, name: str, target: Target | None = None, *, seed: int = 0, all_groups: bool = False
) -> tuple[str, list[Row], bool]:
    """Judge a registered version, a model file, or the model in use, on a dataset.

    Returns the model's name, its rows beside random (and the shipped model's, where it is another), and whether the
    dataset's networks were held out of its training: if not, it may have seen what it is judged on. `all_groups` judges
    on everything in the dataset, held out or not.

    Raises:
        UsageError: the model is damaged or does not fit the dataset.
        NothingFoundError: there is no such version.
    """
    card, model = (None, None)
    text = shipped(table.dialect, target.config) if target else None
    if name:
        card, model = version(name, table.dialect)
    elif target is not None and (used := in_use(table.dialect, target.config)) is not None:
        card, model = version(used.path, table.dialect)
    if model is None:
        if text is None:
            raise UsageError(f"there is no cost model for {target or table.dialect}; run `tunery costmodel train`")
        model = load_cost_model(text)
    groups = table.groups
    unseen = card is not None and bool(card.held_out)
    if card is not None and card.held_out and not all_groups:
        _, groups = hold_out_networks(table.groups, card.held_out)
        if not groups:
            raise UsageError(f"the dataset holds none of the networks held out of it: {', '.join(card.held_out)}")
    chosen: dict[str, Ranker] = {"model": _ranker(model), "random": random_ranker(seed)}
    if card is not None and text is not None:
        chosen["shipped"] = _ranker(load_cost_model(text))
    return (f"version {card.version}" if card else "shipped"), evaluate(groups, chosen), unseen


def rankers(model: CostModel, learn: Sequence[Group], threads: int, seed: int) -> dict[str, Ranker]:
    """Return the model, a random ranking and, where xgboost is installed, MetaSchedule's model trained on `learn`."""
    found: dict[str, Ranker] = {"model": _ranker(model), "random": random_ranker(seed)}
    try:
        found["stock"] = StockModel(learn, threads).predict
    except UsageError:  # an extra that nothing but this comparison needs
        return found
    return found


def facts(table: Table) -> dict[str, object]:
    """Return what a card says of its data."""
    return {
        "digest": table.digest,
        "candidates": len(table),
        "tasks": len(table.groups),
        "failed": int(sum(np.isinf(group.latencies).sum() for group in table)),
        "devices": list(table.devices),
        "networks": sorted({name for group in table for name in group.networks}),
        "kinds": {kind: sum(len(g.keys) for g in table if g.kind == kind) for kind in sorted({g.kind for g in table})},
    }


def _ranker(model: CostModel) -> Ranker:
    return lambda group: model.predict(group.rows)


def _drawn(table: Table, seed: int) -> tuple[str, ...]:
    names = sorted({name for group in table for name in group.networks})
    if len(names) < _LEAST_NETWORKS:
        raise UsageError(
            f"the candidates are of {len(names)} networks, and {_LEAST_NETWORKS} are needed to hold some out; collect "
            "from more networks, or name one with --hold-out"
        )
    count = max(1, round(_TEST_SHARE * len(names)))
    return tuple(names[i] for i in np.random.default_rng(seed).permutation(len(names))[:count])


def _known(moved: Sequence[Transfer | None]) -> tuple[Transfer, ...]:
    return tuple(one for one in moved if one is not None)


def _by_kind(groups: Sequence[Group], found: Search, threads: int, notify: Notify) -> list[Row]:
    rows = []
    for kind, (learn, judged) in by_kind(groups).items():
        notify(f"judging on {judged[0].kind}, left out of training")
        model = BoostedModel.train([(g.rows, g.gains) for g in learn], found.recipe, threads)
        scored = evaluate(judged, {"model": _ranker(model), "random": random_ranker()})
        rows += [Row(kind, row.device, row.ranking, row.quality) for row in scored if row.kind == "all"]
    return rows


def _plain(row: Row) -> dict[str, object]:
    return {"kind": row.kind, "device": row.device, "ranking": row.ranking, **asdict(row.quality)}
