"""MetaSchedule's evolutionary search, driven by hand for one task."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from tunery.dialects._base import Proposer, Told
from tunery.dialects.metaschedule._tvm import meta_schedule, tvm
from tunery.dialects.metaschedule.features import FeatureCache
from tunery.dialects.metaschedule.program import Space, open_space, program_key, replay, trace_body
from tunery.domain import Candidate, Task

# Samples per candidate asked for: population times (1 + rounds). Stock takes 40; a sample costs 5 to 15 ms and a build
# 100 to 200 ms, so many more samples than this cost more than the builds they could save.
_POPULATION, _LEAST_POPULATION = 2, 16
_ROUNDS = 1
_DRAFT = 2  # samples per candidate while there is no cost model: nothing can tell them apart yet


class EvolutionaryProposer(Proposer):
    """Proposes by evolution from the best records, scored by the shared cost model (random while there is none)."""

    def __init__(self, task: Task, space: Space, history: Sequence[Told], cost_model: str | None, seed: int) -> None:
        from tunery.dialects.metaschedule.cost_model import SteeringModel

        self.features = FeatureCache()
        self._task = task
        self._space = space
        self._model = SteeringModel(self.features, seed)
        self._database = meta_schedule.database.MemoryDatabase()
        self._workload = self._database.commit_workload(space.module)
        # A resumed search must not replay its own first steps.
        self._seed = 1 + (seed * 7919 + len(history) * 104729) % (2**30)
        self._search: tuple[int, bool, Any] | None = None  # batch size, with a model or not, TuneContext
        self._known: set[str] = set()
        self._traces: dict[str, tuple[Any, Any]] = {}
        self.tell(history)
        if cost_model:
            self.learn(cost_model)

    @override
    def propose(self, n: int) -> list[Candidate]:
        if n < 1:
            return []
        context = self._context(n)
        for _ in range(4):
            found = context.generate_measure_candidates()
            if found is None:
                break
            context.notify_runner_results(found, [])
            fresh = [c for c in (self._take(candidate) for candidate in found) if c]
            if fresh:
                scores = self._model.scores([candidate.key for candidate in fresh])
                return [replace(c, score=score) for c, score in zip(fresh, scores, strict=True)]
        return []

    def _context(self, n: int) -> Any:
        """Return the running search for batches of `n`: a draw from the space without a model, else evolution."""
        guided = self._model.loaded
        if self._search is None or self._search[:2] != (n, guided):
            strategy = meta_schedule.search_strategy.EvolutionarySearch(
                population_size=max(_POPULATION * n, _LEAST_POPULATION) if guided else _DRAFT * n,
                genetic_num_iters=_ROUNDS if guided else 0,
                init_min_unmeasured=4,
            )
            space = open_space(self._space.module, self._space.target, strategy=strategy, seed=self._seed)
            self._seed = self._seed % (2**30) + 1
            space.context.pre_tuning(
                max_trials=1 << 30,
                num_trials_per_iter=n,
                design_spaces=list(space.designs),
                database=self._database,
                cost_model=self._model.handle,
            )
            self._search = (n, guided, space.context)
        return self._search[2]

    def _take(self, found: Any) -> Candidate | None:
        key = program_key(found.sch.mod)
        if key in self._known:
            return None
        self._known.add(key)
        self._traces[key] = (found.sch.trace, found.args_info)
        return Candidate(key, self._task.key, trace_body(found.sch.trace, self._space))

    @override
    def tell(self, results: Sequence[Told]) -> None:
        for told in results:
            self._known.add(told.candidate.key)
            if told.latency_s is None or told.latency_s <= 0 or not told.candidate.body:
                continue
            trace, info = self._traces.pop(told.candidate.key, (None, None))
            if trace is None:
                schedule = tvm.s_tir.Schedule(self._space.module)
                tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(told.candidate.body), schedule)
                trace = schedule.trace
                info = meta_schedule.arg_info.ArgInfo.from_entry_func(self._space.module, remove_preproc=False)
            self._database.commit_tuning_record(
                meta_schedule.database.TuningRecord(trace, self._workload, [told.latency_s], self._space.target, info)
            )

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
