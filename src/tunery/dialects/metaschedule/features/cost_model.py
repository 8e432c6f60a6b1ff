"""The cost model as the search sees it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery.costmodels import CostModel, FeatureRows, load_cost_model, with_task
from tunery.costmodels.columns import STORES
from tunery.dialects.metaschedule._tvm import meta_schedule
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.domain import Task

_FLOOR = 1e-3
# A candidate that takes four times as long to build must promise a quarter more speed.
_THRIFT = 0.2


class SteeringModel:
    """Scores programs with a loaded cost model."""

    def __init__(self, features: FeatureCache, task: Task) -> None:
        self._features, self._task = features, task
        self._model: CostModel | None = None
        self._known: dict[str, tuple[float, float]] = {}  # speed and cost of building by program key

    @property
    def loaded(self) -> bool:
        return self._model is not None

    def load(self, text: str) -> None:
        self._model = load_cost_model(text)
        self._known.clear()

    def look(self, context: Any, schedules: Sequence[Any], keys: Sequence[str]) -> None:
        """Compute the features of programs, by which they can be scored from now on."""
        if schedules:
            self._features.rows(context, [meta_schedule.MeasureCandidate(each, []) for each in schedules], keys)

    def scores(self, keys: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return a positive score for each program, comparable among these; NaN for those that were not looked at."""
        self._predict([key for key in keys if key not in self._known])
        nothing = (np.nan, np.nan)
        speed, cost = np.array([self._known.get(key, nothing) for key in keys]).reshape(-1, 2).T
        if np.isnan(cost).all():
            return np.asarray(speed)
        return np.asarray(np.clip(speed * np.exp(-_THRIFT * (cost - np.nanmin(cost))), _FLOOR, None))

    def _predict(self, keys: Sequence[str]) -> None:
        found = [(key, row) for key in keys if (row := self._features.get(key)) is not None]
        if self._model is None or not found:
            return
        rows = with_task(FeatureRows(np.stack([row for _, row in found]), STORES), self._task)
        speed = np.nan_to_num(self._model.predict(rows), nan=_FLOOR, posinf=_FLOOR, neginf=_FLOOR)
        cost = self._model.build_cost(rows)
        self._known.update((key, (float(s), float(c))) for (key, _), s, c in zip(found, speed, cost, strict=True))
