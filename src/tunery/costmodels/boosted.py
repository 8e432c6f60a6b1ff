"""Gradient-boosted trees over feature rows, trained on latencies relative to each task's best."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import UsageError
from tunery.costmodels._base import CostModel

_ROUNDS = 120
_PARAMETERS: dict[str, Any] = {
    "objective": "regression",
    "learning_rate": 0.1,
    "num_leaves": 31,
    "min_data_in_leaf": 8,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "max_bin": 63,
    "num_threads": 1,
    "verbosity": -1,
    "seed": 43,
    "deterministic": True,
}


class Dataset:
    """Rows of features with latencies, grouped by task. A failed candidate has an infinite latency (label 0)."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, tuple[npt.NDArray[np.float32], float]]] = {}

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

    def add(self, task_key: str, candidate_key: str, row: npt.NDArray[np.float32], latency_s: float) -> None:
        """Add or replace one candidate of a task; rows of NaN are left out."""
        if not np.isnan(row).all():
            self._groups.setdefault(task_key, {})[candidate_key] = (row, latency_s)

    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Return features and labels; a label is the task's best latency over the candidate's, in [0, 1]."""
        rows, labels = [], []
        for group in self._groups.values():
            finite = [latency for _, latency in group.values() if np.isfinite(latency)]
            if not finite:
                continue
            best = min(finite)
            for row, latency in group.values():
                rows.append(row)
                labels.append(best / latency if np.isfinite(latency) else 0.0)
        if not rows:
            return np.empty((0, 0), np.float32), np.empty(0)
        return np.stack(rows), np.asarray(labels)


class BoostedModel(CostModel):
    """LightGBM regression of best latency over latency."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    @classmethod
    def fit(cls, dataset: Dataset) -> "BoostedModel":
        """Train on all rows.

        Raises:
            UsageError: fewer than 16 rows, or all labels equal.
        """
        import lightgbm

        features, labels = dataset.arrays()
        if len(labels) < 16 or np.ptp(labels) == 0:
            raise UsageError(f"{len(labels)} candidates are too few, or too alike, to train a cost model; measure more")
        return cls(lightgbm.train(_PARAMETERS, lightgbm.Dataset(features, labels), num_boost_round=_ROUNDS))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "BoostedModel":
        """Read the form `dumps` writes.

        Raises:
            ValueError: the booster text is damaged.
        """
        import lightgbm

        try:
            return cls(lightgbm.Booster(model_str=data["booster"]))
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(str(error)) from error

    @override
    def predict(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return np.asarray(self._booster.predict(features, num_threads=1), dtype=np.float64)

    @override
    def dumps(self) -> str:
        return json.dumps({"family": "boosted", "booster": self._booster.model_to_string()})
