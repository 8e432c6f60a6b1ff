"""Searching model families and hyper-parameters for the one that ranks unseen networks' candidates best. The objective
is NDCG@8 on held-out networks inside the training data; a search that minimised a global error instead chose models
that rank badly within a task, whatever product ran it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tunery._errors import UsageError
from tunery._extras import pip_install
from tunery.costmodels.boosted import BoostedModel, Groups, Recipe
from tunery.costmodels.columns import FeatureRows
from tunery.costmodels.dataset import Group
from tunery.costmodels.training.evaluation import by_network, ndcg

FAMILIES = ("gain", "log", "rank")
_FOLDS = 3
_MEMBERS = 4
"""Voters of the final model: their spread is its uncertainty. With voters on stores, half of them are such."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found: the best recipe, its NDCG@8 over the inner folds, and how many recipes were tried."""

    recipe: Recipe
    score: float
    tried: int
    seconds: float


def search(
    groups: Sequence[Group],
    seconds: float,
    *,
    threads: int = 1,
    seed: int = 0,
    most: int = 400,
    notify: Callable[[str], None] = lambda _: None,
) -> Search:
    """Return the best recipe found in about `seconds`; the default recipe is always tried first."""
    optuna = _optuna()
    folds = by_network(groups, _FOLDS, seed)
    if not folds:
        raise UsageError("all candidates are of one network, so none can be held out; collect from several")
    prepared = [(_pairs(train), test) for train, test in folds]
    began = time.monotonic()
    found: list[tuple[float, Recipe]] = []

    def objective(trial: Any) -> float:
        recipe = _recipe(trial, stores=stores)
        scores: list[float] = []
        for step, (pairs, test) in enumerate(prepared):
            model = BoostedModel.train(pairs, recipe, threads)
            scores += [ndcg(group.gains, model.predict(group.inputs)) for group in test]
            trial.report(float(np.mean(scores)), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        found.append((float(np.mean(scores)), recipe))
        notify(f"{len(found)} recipes tried, best NDCG@8 {max(score for score, _ in found):.3f}")
        return found[-1][0]

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )
    stores = folds[0][0][0].inputs.has_stores
    first, *others = FAMILIES
    study.enqueue_trial({"family": first, "stores": False, **_DEFAULTS})
    if stores:
        study.enqueue_trial({"family": first, "stores": True, **_STORE_DEFAULTS})
    for family in others:
        study.enqueue_trial({"family": family, **_DEFAULTS})
    # The first trial is never cut short by time, so there is always an answer.
    study.optimize(objective, n_trials=1)
    left = seconds - (time.monotonic() - began)
    if left > 0 and most > 1:
        study.optimize(objective, n_trials=most - 1, timeout=left)
    score, recipe = max(found, key=lambda pair: pair[0])
    tried = sum(trial.state.is_finished() for trial in study.trials)
    return Search(recipe, score, tried, time.monotonic() - began)


def voting(recipe: Recipe) -> Recipe:
    stores = _MEMBERS // 2 if recipe.store_members else 0
    return replace(recipe, members=_MEMBERS - stores, store_members=stores)


def fit(groups: Sequence[Group], recipe: Recipe, *, threads: int = 1) -> BoostedModel:
    model = BoostedModel.train(_pairs(groups), recipe, threads)
    builds = np.concatenate([group.build_s for group in groups])
    known = np.isfinite(builds) & (builds > 0)
    rows = FeatureRows.joined([group.rows for group in groups])
    return model.with_build_cost(rows[known], builds[known]) if known.sum() > 1 else model


def _pairs(groups: Sequence[Group]) -> Groups:
    return [(group.inputs, group.gains) for group in groups]


_DEFAULTS: dict[str, float | int] = {
    "rounds": 120, "learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 8, "feature_fraction": 0.4,
    "lambda_l2": 1e-3,
}  # fmt: skip
_STORE_DEFAULTS = {**_DEFAULTS, "rounds": 400, "learning_rate": 0.08, "feature_fraction": 0.15, "lambda_l2": 1.0}
"""Trees on single stores need more rounds: each learns a part of a sum (docs/decisions/008)."""


def _recipe(trial: Any, *, stores: bool) -> Recipe:
    family = trial.suggest_categorical("family", list(FAMILIES))
    rounds = trial.suggest_int("rounds", 60, 1000, log=True)
    return Recipe(
        family,
        rounds,
        {
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
            "num_leaves": trial.suggest_int("num_leaves", 7, 127, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 2, 60, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.1, 1.0),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-3, 10.0, log=True),
        },
        store_members=int(stores and family == "gain" and trial.suggest_categorical("stores", [False, True])),
    )


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UsageError(f"training needs optuna; install it with: {pip_install('train')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
