"""A model that goes on learning while it is used, and is replaced only by a better one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels._base import CostModel
from tunery.costmodels.boosted import BoostedModel, load_cost_model
from tunery.costmodels.columns import FeatureRows, Layout
from tunery.costmodels.dataset import Dataset

Row = tuple[str, str, npt.NDArray[np.float32], float]
"""Task, candidate, features, latency in seconds (inf: it failed)."""

_HELD = 4  # of the newest rows every so many-th is what old and new are judged by, before it is learned
_LEAST_PAIRS = 12


class OnlineTrainer:
    """Holds what was measured. The hold-out rolls: what the next model is judged by, the one after it learns."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._dataset = layout, Dataset(layout)
        self._current: CostModel | None = None

    def learn(self, rows: Sequence[Row], base: str | None) -> str | None:
        """Return a model trained on top of `base` if it beats the current one on some rows it did not see. Without
        enough held-out pairs to tell, the new model is taken: it has seen more."""
        held, taught = rows[_HELD - 1 :: _HELD], [row for i, row in enumerate(rows) if (i + 1) % _HELD]
        for row in taught:
            self._dataset.add(*row)
        start = load_cost_model(base) if base else None
        if self._current is None:
            self._current = start
        try:
            fresh = BoostedModel.fit(self._dataset, start if isinstance(start, BoostedModel) else None)
        except UsageError:
            return None
        finally:
            for row in held:
                self._dataset.add(*row)
        if self._current is not None:
            before, pairs = ordered(self._current, held, self._layout)
            if pairs >= _LEAST_PAIRS and ordered(fresh, held, self._layout)[0] < before:
                return None
        self._current = fresh
        return fresh.dumps()


def ordered(model: CostModel, rows: Sequence[Row], layout: Layout) -> tuple[float, int]:
    right, count = 0.0, 0
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row[0], []).append(row)
    for ones in by_task.values():
        scores = model.predict(FeatureRows(np.stack([features for _, _, features, _ in ones]), layout))
        latencies = [latency for _, _, _, latency in ones]
        for i, first in enumerate(latencies):
            for j in range(i):
                if first != latencies[j]:
                    count += 1
                    better = scores[i] - scores[j] if first < latencies[j] else scores[j] - scores[i]
                    right += 1.0 if better > 0 else 0.5 if better == 0 else 0.0
    return (right / count if count else 0.0), count
