"""MetaSchedule's evolutionary search, driven by hand for one task."""

import json
from collections.abc import Sequence
from typing import Any

from tunery.dialects._base import Proposer, Told
from tunery.dialects.metaschedule._tvm import meta_schedule, tvm
from tunery.dialects.metaschedule.features import FeatureCache
from tunery.dialects.metaschedule.program import Space, program_key, replay, trace_body
from tunery.domain import Candidate, Task

_BATCH = 32  # candidates evolved at once; propose() serves any smaller number from them
_POPULATION = 128  # stock: 512; four times fewer replays and features, at equal best latency (docs/decisions)
_ROUNDS = 3  # stock: 4
_KEPT = 64  # best records fed to the search; it reads at most 0.2 x population


class EvolutionaryProposer(Proposer):
    """Proposes by evolution from the best records, scored by the shared cost model (random while there is none)."""

    def __init__(self, task: Task, space: Space, history: Sequence[Told], cost_model: str | None, seed: int) -> None:
        from tunery.dialects.metaschedule.cost_model import SteeringModel

        self.features = FeatureCache()
        self._task = task
        self._model = SteeringModel(self.features, seed)
        self._database = meta_schedule.database.MemoryDatabase()
        self._workload = self._database.commit_workload(space.module)
        self._context = meta_schedule.TuneContext(
            mod=space.module,
            target=space.target,
            space_generator="post-order-apply",
            search_strategy=meta_schedule.search_strategy.EvolutionarySearch(
                population_size=_POPULATION, genetic_num_iters=_ROUNDS, init_min_unmeasured=4
            ),
            num_threads=1,
            # A resumed search must not replay its own first steps.
            rand_state=1 + (seed * 7919 + len(history) * 104729) % (2**30),
            task_name=task.workload.name,
        )
        self._space = Space(space.module, space.target, self._context, tuple(self._context.generate_design_space()))
        self._context.pre_tuning(
            max_trials=1 << 30,
            num_trials_per_iter=_BATCH,
            design_spaces=list(self._space.designs),
            database=self._database,
            cost_model=self._model.handle,
        )
        self._known: set[str] = set()
        self._traces: dict[str, tuple[Any, Any]] = {}
        self._waiting: list[Candidate] = []
        self._exhausted = False
        self.tell(history)
        if cost_model:
            self.learn(cost_model)

    def propose(self, n: int) -> list[Candidate]:
        while len(self._waiting) < n and not self._exhausted:
            self._generate()
        chosen, self._waiting = self._waiting[:n], self._waiting[n:]
        return chosen

    def _generate(self) -> None:
        for _ in range(4):
            found = self._context.generate_measure_candidates()
            if found is None:
                break
            self._context.notify_runner_results(found, [])
            fresh = [c for c in (self._take(candidate) for candidate in found) if c]
            if fresh:
                scores = self._model.scores([candidate.key for candidate in fresh])
                for candidate, score in zip(fresh, scores, strict=True):
                    self._waiting.append(
                        Candidate(candidate.key, candidate.task_key, candidate.body, candidate.origin, score)
                    )
                return
        self._exhausted = True

    def _take(self, found: Any) -> Candidate | None:
        key = program_key(found.sch.mod)
        if key in self._known:
            return None
        self._known.add(key)
        self._traces[key] = (found.sch.trace, found.args_info)
        return Candidate(key, self._task.key, trace_body(found.sch.trace, self._space))

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
        if results:
            # What waits was chosen before these results were known; it may be proposed again if it is still good.
            self._known.difference_update(candidate.key for candidate in self._waiting)
            self._waiting.clear()

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

    def propose(self, n: int) -> list[Candidate]:
        chosen, self._left = self._left[:n], self._left[n:]
        return chosen

    def tell(self, results: Sequence[Told]) -> None:
        known = {told.candidate.key for told in results}
        self._left = [candidate for candidate in self._left if candidate.key not in known]
