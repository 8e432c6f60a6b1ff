"""MetaSchedule's per-store features, a row of fixed width per candidate, and the cost model as the search sees it."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError
from tunery.costmodels import CostModel, FeatureRows, load_cost_model, with_task
from tunery.costmodels.columns import STORE_WIDTH, STORES, unfolded
from tunery.dialects.metaschedule._tvm import meta_schedule
from tunery.dialects.metaschedule.variants.program import replay, space_for
from tunery.domain import Candidate, Task

WIDTH = len(STORES.columns)
_LIMIT = 5_000  # 26 MB

_FLOOR = 1e-3
# A candidate that takes four times as long to build must promise a quarter more speed.
_THRIFT = 0.2

Row = npt.NDArray[np.float32]


class FeatureCache:
    """Feature rows by program key; a program is featurised once."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._extractor = meta_schedule.feature_extractor.PerStoreFeature()

    def rows(self, context: Any, candidates: Sequence[Any], keys: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return `(len(candidates), WIDTH)` rows; a row is NaN where MetaSchedule's extraction failed."""
        missing: dict[str, Any] = {k: c for k, c in zip(keys, candidates, strict=True) if k not in self._rows}
        if missing:
            for key, row in zip(missing, self._extract(context, list(missing.values())), strict=True):
                self._rows[key] = row
        result = np.stack([self._rows[key] for key in keys])
        while len(self._rows) > _LIMIT:
            self._rows.popitem(last=False)
        return result

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def _extract(self, context: Any, candidates: list[Any]) -> list[Row]:
        try:
            return [
                unfolded(array.numpy().reshape(-1, STORE_WIDTH))
                for array in self._extractor.extract_from(context, candidates)
            ]
        except Exception:  # noqa: BLE001 - one bad candidate must not cost the batch
            if len(candidates) == 1:
                return [np.full(WIDTH, np.nan, dtype=np.float32)]
            return [row for candidate in candidates for row in self._extract(context, [candidate])]


def candidate_rows(task: Task, candidates: Sequence[Candidate], cache: FeatureCache | None) -> npt.NDArray[np.float32]:
    cache = cache or FeatureCache()
    rows = []
    for candidate in candidates:
        row = cache.get(candidate.key)
        if row is None:
            row = _replayed_row(task, candidate, cache)
        rows.append(row)
    return np.stack(rows) if rows else np.empty((0, WIDTH), np.float32)


def _replayed_row(task: Task, candidate: Candidate, cache: FeatureCache) -> Row:
    try:
        space = space_for(task, candidate.body)
        if space.context is None:  # what is written from a design's numbers has no features
            return np.full(WIDTH, np.nan, dtype=np.float32)
        schedule = replay(space, candidate.body)
    except DialectError:
        return np.full(WIDTH, np.nan, dtype=np.float32)
    measured = meta_schedule.MeasureCandidate(schedule, [])
    row: Row = cache.rows(space.context, [measured], [candidate.key])[0]
    return row


def candidate_stores(task: Task, candidates: Sequence[Candidate]) -> list[npt.NDArray[np.float32]]:
    """Return each candidate's per-store features, `(n_stores, 164)`; none where it does not replay or extract."""
    extractor = meta_schedule.feature_extractor.PerStoreFeature()
    found = []
    for candidate in candidates:
        try:
            space = space_for(task, candidate.body)
            measured = meta_schedule.MeasureCandidate(replay(space, candidate.body), [])
            [stores] = extractor.extract_from(space.context, [measured])
            found.append(np.asarray(stores.numpy(), np.float32).reshape(-1, STORE_WIDTH))
        except Exception:  # noqa: BLE001 - one bad candidate must not cost the batch
            found.append(np.empty((0, STORE_WIDTH), np.float32))
    return found


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
