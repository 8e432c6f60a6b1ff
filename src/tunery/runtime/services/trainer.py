"""What trains cost models while a job runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunery.costmodels import Layout


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One candidate's features (float32 bytes) and what was measured; `latency_s` is inf for a failure."""

    task_key: str
    candidate_key: str
    features: bytes
    latency_s: float


class Trainer:
    """Keeps the rows measured so far, and cost models warm on them, one for each name."""

    def __init__(self) -> None:
        from tunery.costmodels.warm import OnlineTrainer

        self._new = OnlineTrainer
        self._warm: dict[str, OnlineTrainer] = {}

    def learn(self, name: str, layout: Layout, rows: Sequence[LabelledRow], base: str | None) -> str | None:
        """Add rows of a layout and train on top of `base`.

        Returns the model if it ranks rows that neither has seen better than the one before; None otherwise, and while
        there is too little to learn from.
        """
        fresh = [(r.task_key, r.candidate_key, np.frombuffer(r.features, np.float32), r.latency_s) for r in rows]
        return self._warm.setdefault(name, self._new(layout)).learn(fresh, base)
