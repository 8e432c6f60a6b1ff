"""The search of the fake dialect: mutate what was fast, sample the rest, never twice the same."""

import json
from collections.abc import Sequence

import numpy as np

from tunery.dialects import Observation, Proposer
from tunery.domain import Candidate, Outcome
from tunery.testing.fake_dialect._kernel import misbehave, spend
from tunery.testing.fake_dialect._space import FEATURES, FakeSpace

_ELITE = 8
_MUTATED = 0.7
_POOL = 4


class FakeProposer(Proposer):
    """Evolutionary search over configs. `learned` counts the cost models it was given.

    A cost model of the form `{"weights": [...]}` with one weight per feature ranks a pool of mutants, higher is faster;
    any other is counted and ranks nothing. One that is not `generic_only` acts out what is scripted to befall it.
    """

    def __init__(
        self,
        space: FakeSpace,
        history: Sequence[Observation],
        cost_model: str | None,
        seed: int,
        *,
        generic_only: bool = False,
    ) -> None:
        self._space, self._generic_only = space, generic_only
        self._rng = np.random.default_rng([seed, int(space.task.key, 16)])
        self._seen: set[int] = set()
        self._elite: list[tuple[float, int]] = []
        self._weights: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
        self.learned = 0
        self.observe(history)
        if cost_model is not None:
            self.learn(cost_model)

    def propose(self, n: int) -> list[Candidate]:
        script = self._space.script
        spend(script.propose_s, script.spin)
        misbehave("segfault" if script.propose_dies and not self._generic_only else None)
        known = min(self._space.size, script.exhaust or self._space.size)
        wanted = max(0, min(n, known - len(self._seen)))
        pool = self._pool(wanted * _POOL if self._weights is not None else wanted)
        scored = [(self._score(index), index) for index in pool]
        if self._weights is not None:
            scored.sort(key=lambda pair: (-(pair[0] or 0.0), pair[1]))
        chosen = scored[:wanted]
        self._seen.update(index for _, index in chosen)
        return [self._space.candidate(index, score) for score, index in chosen]

    def observe(self, results: Sequence[Observation]) -> None:
        for told in results:
            index = self._space.index(told.candidate.body)
            if index is None:
                continue
            self._seen.add(index)
            if told.outcome in (Outcome.OK, Outcome.ABANDONED) and told.latency_s is not None:
                self._elite.append((told.latency_s, index))
        self._elite = sorted(set(self._elite))[:_ELITE]

    def learn(self, cost_model: str) -> None:
        self.learned += 1
        try:
            weights = np.asarray(json.loads(cost_model)["weights"], np.float64)
        except (ValueError, KeyError, TypeError):
            weights = np.empty(0)
        self._weights = weights if weights.shape == (FEATURES,) and np.isfinite(weights).all() else None

    def _score(self, index: int) -> float | None:
        if self._weights is None:
            return None
        return float(self._weights @ np.asarray(self._space.features(self._space.candidate(index).body)))

    def _pool(self, size: int) -> list[int]:
        """Return up to `size` unseen indices: mutants of the elite first, then a random sample."""
        pool: dict[int, None] = {}
        for _ in range(4 * size if self._elite else 0):
            if len(pool) >= _MUTATED * size:
                break
            mutant = self._mutate(self._elite[int(self._rng.integers(len(self._elite)))][1])
            if mutant not in self._seen:
                pool[mutant] = None
        for index in self._rng.permutation(self._space.size):
            if len(pool) >= size:
                break
            if int(index) not in self._seen:
                pool[int(index)] = None
        return list(pool)

    def _mutate(self, index: int) -> int:
        axes = np.asarray(self._space.script.axes)
        position = np.asarray(np.unravel_index(index, self._space.script.axes))
        moved = np.clip(position + self._rng.integers(-2, 3, size=3), 0, axes - 1)
        return int(np.ravel_multi_index(tuple(moved), self._space.script.axes))
