"""Gradient-boosted trees over feature rows, trained on latencies relative to each task's best."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from tunery._errors import UsageError
from tunery.costmodels._base import CostModel

_ROUNDS, _MORE = 120, 60
_LEAST_ROWS = 16
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

    def groups(self) -> dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]]:
        """Return features and labels by task; a label is the task's best latency over the candidate's, in [0, 1]."""
        found = {}
        for task_key, group in self._groups.items():
            finite = [latency for _, latency in group.values() if np.isfinite(latency)]
            if finite:
                best = min(finite)
                labels = [best / latency if np.isfinite(latency) else 0.0 for _, latency in group.values()]
                found[task_key] = (np.stack([row for row, _ in group.values()]), np.asarray(labels))
        return found


class BoostedModel(CostModel):
    """LightGBM regression of best latency over latency, and beside it of the seconds a build takes."""

    def __init__(self, booster: Any, build_booster: Any = None) -> None:
        self._booster, self._build_booster = booster, build_booster

    @classmethod
    def fit(cls, dataset: Dataset, base: "BoostedModel | None" = None) -> "BoostedModel":
        """Train on all rows, on top of `base` if there is one.

        A task's labels are scaled to what `base` expects of its candidates: how good the best found so far is, is not
        known while a task is tuned, and only the order within a task is to be learned.

        Raises:
            UsageError: fewer than 16 rows, or all labels equal.
        """
        import lightgbm

        features, labels = [], []
        for rows, gains in dataset.groups().values():
            features.append(rows)
            labels.append(gains * (_scale(base.predict(rows), gains) if base else 1.0))
        y = np.concatenate(labels) if labels else np.empty(0)
        if len(y) < _LEAST_ROWS or np.ptp(y) == 0:
            raise UsageError(f"{len(y)} candidates are too few, or too alike, to train a cost model; measure more")
        data = lightgbm.Dataset(np.concatenate(features), y)
        start = base._booster if base else None
        booster = lightgbm.train(_PARAMETERS, data, num_boost_round=_MORE if base else _ROUNDS, init_model=start)
        return cls(booster, base._build_booster if base else None)

    def with_build_cost(self, features: npt.NDArray[np.float32], build_s: npt.NDArray[np.float64]) -> "BoostedModel":
        """Return this model with a regression of the logarithm of build seconds beside it."""
        import lightgbm

        data = lightgbm.Dataset(features, np.log(np.maximum(build_s, 1e-3)))
        return BoostedModel(self._booster, lightgbm.train(_PARAMETERS, data, num_boost_round=_ROUNDS))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "BoostedModel":
        """Read the form `dumps` writes.

        Raises:
            ValueError: the booster text is damaged.
        """
        import lightgbm

        try:
            build = data.get("build_booster")
            speed = lightgbm.Booster(model_str=str(data["booster"]))
            return cls(speed, lightgbm.Booster(model_str=str(build)) if build else None)
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(str(error)) from error

    @override
    def predict(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return np.asarray(self._booster.predict(features, num_threads=1), dtype=np.float64)

    @override
    def build_cost(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        if self._build_booster is None:
            return super().build_cost(features)
        return np.asarray(self._build_booster.predict(features, num_threads=1), dtype=np.float64)

    @override
    def dumps(self) -> str:
        build = self._build_booster.model_to_string() if self._build_booster else None
        return json.dumps({"family": "boosted", "booster": self._booster.model_to_string(), "build_booster": build})


def _scale(expected: npt.NDArray[np.float64], gains: npt.NDArray[np.float64]) -> float:
    """Return the factor that brings gains closest to what was expected (least squares), within reason."""
    share = float(expected @ gains) / max(float(gains @ gains), 1e-12)
    return min(max(share, 0.05), 1.0)
