"""The cost model that tensor-program tuners of the field have, trained by its rules on our data: what ours must beat.

It is Ansor's (OSDI 2020), as compilers ship it: XGBoost on per-store features, a candidate's score is the sum over its
stores, the loss is the squared error weighted by the label, labels are the task's best latency over the candidate's,
depth 10, eta 0.2, gamma 0.001, and it stops after 50 rounds in which the training error did not fall. Unlike there it
also stops after 300 rounds, not after 10,000: that bounds what a comparison costs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels import Group

Floats = npt.NDArray[np.float64]

NAME = "Ansor's model"
_PARAMETERS = {"max_depth": 10, "gamma": 0.001, "min_child_weight": 0, "eta": 0.2, "seed": 43, "verbosity": 0}
MOST_ROUNDS, OWN_ROUNDS, _PATIENCE = 300, 10_000, 50
"""Rounds of training at most, here and by its own rules, and without progress."""


class StockModel:
    """Trained per-store trees; `capped` says whether it was still learning after the most rounds that are given it."""

    def __init__(self, groups: Sequence[Group], threads: int = 1) -> None:
        self._xgboost = _xgboost()
        stores, owner = _packed(groups)
        gains = np.concatenate([group.gains for group in groups])
        matrix = self._xgboost.DMatrix(stores)
        best, waited = np.inf, 0
        self._booster = self._xgboost.Booster({**_PARAMETERS, "nthread": threads}, [matrix])
        self.capped = True
        for number in range(MOST_ROUNDS):
            scores = _sums(self._booster.predict(matrix, output_margin=True), owner, len(gains))
            error = float(np.sqrt(np.mean((scores - gains) ** 2)))
            waited = 0 if error < best - 1e-6 else waited + 1
            best = min(best, error)
            if waited >= _PATIENCE:
                self.capped = False
                break
            # The gradient of weight * (sum - gain)^2 / 2, the same for every store of a candidate.
            slope = (gains * (scores - gains))[owner]
            self._booster.boost(matrix, number, grad=slope, hess=gains[owner])

    def predict(self, group: Group) -> Floats:
        stores, owner = _packed([group])
        scores = self._booster.predict(self._xgboost.DMatrix(stores), output_margin=True)
        return _sums(scores, owner, len(group.latencies))


def check_library() -> None:
    _xgboost()


def _packed(groups: Sequence[Group]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
    """Return all stores, one behind the other, and whose each is; a candidate without any has one row of zeros."""
    stores: list[npt.NDArray[np.float32]] = []
    owner: list[int] = []
    number = 0
    for group in groups:
        for each in group.stores if group.stores is not None else group.rows.values[:, None, :]:
            stores.append(each if len(each) else np.zeros((1, each.shape[1]), np.float32))
            owner += [number] * len(stores[-1])
            number += 1
    return np.concatenate(stores), np.asarray(owner)


def _sums(scores: npt.NDArray[np.float32], owner: npt.NDArray[np.intp], count: int) -> Floats:
    return np.asarray(np.bincount(owner, weights=scores.astype(np.float64), minlength=count), np.float64)


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError:
        raise UsageError("the comparison needs xgboost; install it with: pip install xgboost-cpu") from None
    return xgboost
