"""The cost model as MetaSchedule's evolution sees it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir.utils import derived_object

from tunery.costmodels import CostModel, load_cost_model, with_task
from tunery.dialects.metaschedule._tvm import meta_schedule
from tunery.dialects.metaschedule.features import FeatureCache
from tunery.dialects.metaschedule.program import program_key
from tunery.domain import Task

# MetaSchedule uses scores as sampling weights: zero, negative or NaN ones silently pick index 0 for ever.
_FLOOR = 1e-3
# A candidate that takes four times as long to build must promise a quarter more speed.
_THRIFT = 0.2


class SteeringModel:
    """Scores candidates with a loaded cost model, at random while there is none."""

    def __init__(self, features: FeatureCache, seed: int, task: Task) -> None:
        self._features, self._task = features, task
        self._random = np.random.default_rng(seed)
        self._model: CostModel | None = None
        self._scores: dict[str, float] = {}
        self.handle = _facade(self)

    @property
    def loaded(self) -> bool:
        """Whether scores mean anything yet."""
        return self._model is not None

    def load(self, text: str) -> None:
        """Replace the model."""
        self._model = load_cost_model(text)
        self._scores.clear()

    def score(self, key: str) -> float | None:
        """Return the last score given to this program, None if there is none."""
        return self._scores.get(key)

    def predict(self, context: Any, candidates: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Return one positive, finite score per candidate; higher is faster."""
        if self._model is None:
            return self._random.uniform(0.1, 1.0, len(candidates))
        keys = [program_key(candidate.sch.mod) for candidate in candidates]
        rows = with_task(self._features.rows(context, candidates, keys), self._task)
        speed = np.nan_to_num(self._model.predict(rows), nan=_FLOOR, posinf=_FLOOR, neginf=_FLOOR)
        cost = self._model.build_cost(rows)
        scores = speed * np.exp(-_THRIFT * (cost - cost.min()))
        scores = np.clip(scores.astype(np.float64), _FLOOR, None)
        if len(self._scores) > 50_000:
            self._scores.clear()
        self._scores.update(zip(keys, scores.tolist(), strict=True))
        return np.asarray(scores)


def _facade(model: SteeringModel) -> Any:
    @derived_object
    class Facade(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
        """The plug point of MetaSchedule; loading and updating happen outside it."""

        def load(self, path: str) -> None:
            raise NotImplementedError

        def save(self, path: str) -> None:
            raise NotImplementedError

        def update(self, context: Any, candidates: Any, results: Any) -> None:
            """Results reach the model through the trainer."""

        def predict(self, context: Any, candidates: Any) -> npt.NDArray[np.float64]:
            return model.predict(context, list(candidates))

    return Facade()
