"""How likely a candidate fails to build or run, learned from those that did. Where nothing fails nothing is learned,
and nothing is paid for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery.costmodels.columns import FeatureRows, Layout, without_stores

LIKELY = 0.9
"""A likelihood above which a candidate is not built."""
LEAST_FAILURES, LEAST_SUCCESSES = 5, 5
_GROWTH = 1.25
_MOST_ROWS = 1024
_TREES = 32
_PARAMETERS: dict[str, Any] = {
    "boosting": "rf",
    "objective": "regression",
    # A leaf of n candidates, k of them failures, says (k + 2 rate) / (n + 2), the rate being that of all: where few
    # fail nothing is held likely that was not seen some twenty times.
    "lambda_l2": 2.0,
    "num_leaves": 8,
    "min_data_in_leaf": 3,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    # All columns for all trees: of many that say nothing, one may say it all.
    "max_bin": 63,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 47,
    "deterministic": True,
    "force_col_wise": True,
    "feature_pre_filter": False,
}


class FailureModel:
    """Bagged trees (Breiman 1996) on rows of a layout; each leaf is drawn to the share of failures among all."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout
        self._rows: dict[str, tuple[npt.NDArray[np.float32], bool]] = {}
        self._booster: Any = None
        self._due = 0.0

    def learn(self, key: str, row: bytes, *, failed: bool) -> None:
        """Take in how a candidate ended, once by its key; `row` is its features, float32, empty where not known."""
        if row:
            self._rows[key] = self._picked([row])[0], failed
            if len(self._rows) > 2 * _MOST_ROWS:
                self._rows = dict(list(self._rows.items())[-_MOST_ROWS:])
                self._due = min(self._due, _MOST_ROWS * _GROWTH)

    def likelihoods(self, rows: Sequence[bytes]) -> list[float] | None:
        """Return the likelihood of each candidate to fail; None before there are five failures and five successes."""
        failures = sum(failed for _, failed in self._rows.values())
        if failures < LEAST_FAILURES or len(self._rows) - failures < LEAST_SUCCESSES:
            return None
        if len(self._rows) >= self._due:
            self._fit()
        found, known = [0.0] * len(rows), [i for i, row in enumerate(rows) if row]
        if known:
            features = self._picked([rows[i] for i in known])
            for i, value in zip(known, self._booster.predict(features, num_threads=1), strict=True):
                found[i] = float(min(max(value, 0.0), 1.0))
        return found

    def _fit(self) -> None:
        import lightgbm

        self._due = len(self._rows) * _GROWTH
        latest = list(self._rows.values())[-_MOST_ROWS:]
        features = np.stack([row for row, _ in latest])
        failed = np.array([failed for _, failed in latest], np.float64)
        data = lightgbm.Dataset(features, failed, params={"verbosity": -1})
        self._booster = lightgbm.train(_PARAMETERS, data, num_boost_round=_TREES)

    def _picked(self, rows: Sequence[bytes]) -> npt.NDArray[np.float32]:
        """Return rows without their stores one by one: four times as many columns, in an order that says nothing."""
        assert self._layout is not None, "who has features has a layout"
        return FeatureRows.read(rows, self._layout).pick(without_stores(self._layout))
