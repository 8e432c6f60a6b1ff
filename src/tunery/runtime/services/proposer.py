"""What holds searches, predicts, computes features, and trains the cost model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunery._errors import UsageError
from tunery.costmodels import CostModel, FeatureRows, Layout, load_cost_model, with_task
from tunery.costmodels.columns import fold
from tunery.dialects import Observation, Proposer, Space, get_dialect
from tunery.domain import Candidate, Task

_WITH_FALLBACK = 4  # of so many that are measured one is of another kind than the others


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates, their feature rows, the cost model's scores (higher is faster; None: none), in the same order.
    `rejected` says of each why it is not worth a build, None where it is; what the search itself refused comes last,
    without features."""

    candidates: tuple[Candidate, ...]
    features: tuple[bytes, ...]
    scores: tuple[float | None, ...] = ()
    rejected: tuple[str | None, ...] = ()

    @property
    def worth_building(self) -> tuple[tuple[Candidate, ...], tuple[bytes, ...]]:
        kept = [i for i in range(len(self.candidates)) if not (self.rejected and self.rejected[i])]
        return tuple(self.candidates[i] for i in kept), tuple(self.features[i] for i in kept)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Candidates by predicted speed, and how far each score may be off as a share of it; the first is the fastest."""

    candidates: tuple[Candidate, ...]
    uncertainty: tuple[float, ...]
    transfer_state: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Features of some candidates of a task, float32: rows of `width`, and behind one another their stores."""

    width: int
    rows: bytes
    store_width: int = 0
    stores: bytes = b""
    counts: tuple[int, ...] = ()


class ProposerHost:
    """Holds the searches of several tasks."""

    def __init__(self, dialect: str) -> None:
        self._space = Space.of(get_dialect(dialect))
        self._open: dict[str, tuple[Task, Proposer]] = {}
        self._model: CostModel | None = None

    def open(  # noqa: PLR0917 - arguments cross a process border by position
        self,
        task: Task,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        warm_start: bool = False,
        generic_only_reason: str | None = None,
    ) -> tuple[bytes, ...]:
        self._model = load_cost_model(cost_model) if cost_model else self._model
        proposer = self._space.open(
            task, history, cost_model, seed, warm_start=warm_start, generic_only_reason=generic_only_reason
        )
        self._open[task.key] = task, proposer
        return _as_bytes(self._rows(task, [told.candidate for told in history]), len(history))

    def propose(self, task_key: str, n: int, told: Sequence[Observation]) -> Proposal:
        task, proposer = self._open[task_key]
        if told:
            proposer.observe(told)
        candidates = tuple(proposer.propose(n))
        rows = self._rows(task, candidates)
        rejected = tuple(self._space.reject(task, candidate) for candidate in candidates)
        refused = proposer.refused()
        return Proposal(
            (*candidates, *(candidate for candidate, _ in refused)),
            (*_as_bytes(rows, len(candidates)), *(b"" for _ in refused)),
            (*self._scores(rows, len(candidates)), *(None for _ in refused)),
            (*rejected, *(why for _, why in refused)),
        )

    def _scores(self, rows: FeatureRows | None, count: int) -> tuple[float | None, ...]:
        if self._model is None or rows is None:
            return (None,) * count
        scores = np.where(np.isfinite(rows.values).any(axis=1), self._model.predict(rows), np.nan)
        return tuple(float(score) if np.isfinite(score) else None for score in scores)

    def predict(self, task: Task, n: int, keep: int, cost_model: str, seed: int) -> Prediction:
        """Look at `n` candidates with the cost model alone and return the `keep` it thinks fastest. The last may be a
        fallback: the best of another kind than the others."""
        prediction = predict(self._space, task, n, keep, cost_model, seed)
        if task.key not in self._open:
            self._space.forget(task)
        return prediction

    def learn(self, cost_model: str) -> None:
        self._model = load_cost_model(cost_model)
        for _, proposer in self._open.values():
            proposer.learn(cost_model)

    def close(self, task_key: str) -> None:
        task, _ = self._open.pop(task_key, (None, None))
        if task is not None:
            self._space.forget(task)

    def _rows(self, task: Task, candidates: Sequence[Candidate]) -> FeatureRows | None:
        features = self._space.features(task, candidates) if candidates else None
        return None if features is None else with_task(features, task)


class Featurizer:
    """Computes features of candidates that were measured before, for a dataset."""

    def __init__(self, dialect: str) -> None:
        self._space = Space.of(get_dialect(dialect))

    def features(self, task: Task, candidates: Sequence[Candidate]) -> Block:
        stores = self._space.buffer_store_features(task, candidates)
        if stores is None:
            rows = self._space.features(task, candidates)
            if rows is None:
                raise UsageError(f"the dialect of {task.workload.name} has no features that a cost model could learn")
            return Block(len(rows.layout.columns), rows.values.tobytes())
        folded = np.stack([fold(each) for each in stores])
        counts = tuple(len(each) for each in stores)
        return Block(folded.shape[1], folded.tobytes(), stores[0].shape[1], np.concatenate(stores).tobytes(), counts)


def _as_bytes(rows: FeatureRows | None, count: int) -> tuple[bytes, ...]:
    return (b"",) * count if rows is None else tuple(row.tobytes() for row in rows)


def predict(  # noqa: PLR0917 - what a prediction depends on
    space: Space, task: Task, n: int, keep: int, cost_model: str, seed: int, transfer_states: Sequence[str] = ()
) -> Prediction:
    """Return the `keep` candidates of `n` that the cost model thinks fastest; the last may be a fallback."""
    suggested = space.suggest(task, n, cost_model, seed, transfer_states, several_fallbacks=keep >= _WITH_FALLBACK)
    worth = [one for one in suggested.candidates if not space.reject(task, one)]
    fallbacks = [one for one in suggested.fallbacks if not space.reject(task, one)]
    favourites = worth or list(suggested.candidates)
    candidates = favourites + fallbacks
    if not candidates:
        return Prediction((), (), suggested.transfer_state)
    features = space.features(task, candidates)
    if features is None:
        return Prediction(tuple(candidates[:keep]), (1.0,) * min(keep, len(candidates)), suggested.transfer_state)
    rows = with_task(features, task)
    model = load_cost_model(cost_model)
    # A row of NaN is no basis for a prediction, and a score that is no number is the worst.
    scores = np.where(np.isnan(rows.values).all(axis=1), -np.inf, np.nan_to_num(model.predict(rows), nan=-np.inf))
    order = np.argsort(-scores[: len(favourites)], kind="stable")
    order = order[:keep]
    if fallbacks:
        best = len(favourites) + int(np.argmax(scores[len(favourites) :]))
        order = np.append(order[: keep - 1], best)
    doubt = model.uncertainty(rows) / np.maximum(np.abs(scores), 1e-6)
    doubt = np.nan_to_num(doubt, nan=1.0, posinf=1.0)
    return Prediction(
        tuple(candidates[i] for i in order), tuple(float(doubt[i]) for i in order), suggested.transfer_state
    )


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
        from tunery.costmodels.boosted import OnlineTrainer

        self._new = OnlineTrainer
        self._warm: dict[str, OnlineTrainer] = {}

    def learn(self, name: str, layout: Layout, rows: Sequence[LabelledRow], base: str | None) -> str | None:
        """Add rows of a layout and train on top of `base`.

        Returns the model if it ranks rows that neither has seen better than the one before; None otherwise, and while
        there is too little to learn from.
        """
        fresh = [(r.task_key, r.candidate_key, np.frombuffer(r.features, np.float32), r.latency_s) for r in rows]
        return self._warm.setdefault(name, self._new(layout)).learn(fresh, base)
