"""MetaSchedule's evolutionary search, driven by hand for one task."""

import heapq
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from tunery.dialects._base import Proposer, Told
from tunery.dialects.metaschedule._tvm import meta_schedule, tvm_ffi
from tunery.dialects.metaschedule.code_size import LARGEST, code_size
from tunery.dialects.metaschedule.cost_model import SteeringModel
from tunery.dialects.metaschedule.features import FeatureCache
from tunery.dialects.metaschedule.program import Space, open_expression, program_key, replay, trace_body
from tunery.dialects.metaschedule.sampling import Sampler, replayed
from tunery.domain import Candidate, Task

# Samples per candidate asked for: drawn, and evolved from those and the best. Stock takes forty; a sample costs 5 to
# 15 ms and a build 100 to 300 ms, so many more samples than this cost more than the builds they could save.
_DRAWN, _EVOLVED_ROUNDS = 2, 1
_LEAST_POPULATION = 8
_ELITE = 16
_RANDOM_SHARE = 16  # one candidate in so many is drawn at random, whatever the model says
_TRIES = 4


class EvolutionaryProposer(Proposer):
    """Draws from the design space, evolves the draws and the best records by the cost model, and picks the top.

    Without a cost model nothing can tell candidates apart, and the draws themselves are proposed.
    """

    def __init__(
        self,
        task: Task,
        space: Space,
        history: Sequence[Told],
        cost_model: str | None,
        seed: int,
        *,
        features: FeatureCache | None = None,
    ) -> None:
        self.features = features or FeatureCache()
        self._task = task
        self._space = space
        self._model = SteeringModel(self.features, seed, task)
        # A resumed search must not repeat its own first steps.
        self._seed = 1 + (seed * 7919 + len(history) * 104729) % (2**30)
        self._sampler = Sampler(space, task.workload.kind, self._seed)
        self._evolution: tuple[int, Any] | None = None  # batch size, MetaSchedule's strategy
        self._known: set[str] = set()
        self._best: list[tuple[float, str, str]] = []  # negative latency, key, body: a heap of the fastest
        self.tell(history)
        if cost_model:
            self.learn(cost_model)

    @override
    def propose(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        for _ in range(_TRIES if n > 0 else 0):
            # Without a model the draws are what is proposed, and more of them than that would be thrown away.
            count = max(_DRAWN * n, _LEAST_POPULATION) if self._model.loaded else n - len(chosen) + 2
            drawn = self._sampler.draw(count)
            ranked = self._evolve(drawn, n) if self._model.loaded and drawn else drawn
            lucky = max(1, n // _RANDOM_SHARE) if ranked is not drawn else 0
            for schedule in [*ranked[: n - lucky], *drawn[:lucky], *ranked[n - lucky :]]:
                if len(chosen) < n and (candidate := self._take(schedule)):
                    chosen.append(candidate)
            if len(chosen) == n:
                break
        return chosen

    def _evolve(self, drawn: list[Any], n: int) -> list[Any]:
        """Return schedules evolved from draws and the best records that are new, best score first."""
        best = [body for _, _, body in heapq.nlargest(max(1, n // 4), self._best)]
        evolve = tvm_ffi.get_global_func("s_tir.meta_schedule.SearchStrategyEvolutionarySearchEvolveWithCostModel")
        found = list(evolve(self._strategy(n), [*drawn, *replayed(best, self._space)], 2 * n))
        scored = [
            (self._model.score(key) or 0.0, key, s) for s in found if (key := program_key(s.mod)) not in self._known
        ]
        return [schedule for _, _, schedule in sorted(scored, key=lambda item: (-item[0], item[1]))]

    def _strategy(self, n: int) -> Any:
        if self._evolution is None or self._evolution[0] != n:
            strategy = meta_schedule.search_strategy.EvolutionarySearch(
                population_size=max(_DRAWN * n, _LEAST_POPULATION), genetic_num_iters=_EVOLVED_ROUNDS
            )
            self._seed = self._seed % (2**30) + 1
            space = open_expression(self._space.expression, self._space.target, strategy=strategy, seed=self._seed)
            space.context.pre_tuning(
                max_trials=1 << 30,
                num_trials_per_iter=n,
                design_spaces=list(space.designs),
                database=meta_schedule.database.MemoryDatabase(),
                cost_model=self._model.handle,
            )
            self._evolution = (n, space.context)
        return self._evolution[1].search_strategy

    def _take(self, schedule: Any) -> Candidate | None:
        key = program_key(schedule.mod)
        if key in self._known:
            return None
        self._known.add(key)
        if code_size(schedule.mod) > LARGEST:
            return None
        return Candidate(key, self._task.key, trace_body(schedule.trace, self._space), score=self._model.score(key))

    @override
    def tell(self, results: Sequence[Told]) -> None:
        for told in results:
            self._known.add(told.candidate.key)
            if told.latency_s is not None and told.latency_s > 0 and told.candidate.body:
                heapq.heappush(self._best, (-told.latency_s, told.candidate.key, told.candidate.body))
                if len(self._best) > _ELITE:
                    heapq.heappop(self._best)

    @override
    def learn(self, cost_model: str) -> None:
        self._model.load(cost_model)


class SingleProposer(Proposer):
    """For a task without a decision: its one schedule."""

    def __init__(self, task: Task, space: Space, history: Sequence[Told]) -> None:
        self._left: list[Candidate] = []
        known = {told.candidate.key for told in history}
        for design in space.designs:
            body = trace_body(design.trace, space)
            candidate = Candidate(program_key(replay(space, body).mod), task.key, body)
            if candidate.key not in known:
                self._left.append(candidate)
                known.add(candidate.key)

    @override
    def propose(self, n: int) -> list[Candidate]:
        chosen, self._left = self._left[:n], self._left[n:]
        return chosen

    @override
    def tell(self, results: Sequence[Told]) -> None:
        known = {told.candidate.key for told in results}
        self._left = [candidate for candidate in self._left if candidate.key not in known]
