"""What the jobs of one runtime have in common: one search per task, one cost model per target."""

import itertools
from collections.abc import Sequence
from contextlib import suppress

from tunery._errors import EngineError
from tunery.domain import Provenance, Task, digest
from tunery.engines import Role
from tunery.runtime.runtime import Runtime
from tunery.tuning.calls import Context
from tunery.tuning.learning import InitialModel, Learning
from tunery.tuning.search.proposer import ProposalFilter
from tunery.tuning.search.state import SearchState
from tunery.tuning.search.stored import StoredTask, stored_tasks
from tunery.tuning.search.task_search import TaskSearch

_CLOSE_DEADLINE_S = 60.0


class SearchRegistry:
    """The searches that are open, each for as long as a job has part in it; its first job's cost model serves it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[tuple[str, Provenance], tuple[TaskSearch, str]] = {}
        self._learnings: dict[str, Learning] = {}
        self._proposers = itertools.cycle(runtime.workers(Role.PROPOSER))

    def learning(self, target_key: str, start: InitialModel | None) -> Learning:
        name = f"{target_key} {digest(start.model)}" if start else target_key
        if name not in self._learnings:
            model, tau = (start.model, start.tau) if start else (None, None)
            self._learnings[name] = Learning(self._runtime, name, model, tau)
        return self._learnings[name]

    async def join(self, context: Context, tasks: Sequence[Task]) -> list[TaskSearch]:
        stored = await stored_tasks(context, tasks)
        return [self._join(context, task, known) for task, known in zip(tasks, stored, strict=True)]

    def _join(self, context: Context, task: Task, stored: StoredTask) -> TaskSearch:
        key = (task.key, context.provenance)
        if key not in self._open:
            proposer = next(self._proposers)
            learning = context.learning
            proposal_filter = ProposalFilter(task, context.trimming, context.seed, learning.prior_tau, learning.failing)
            self._open[key] = TaskSearch(SearchState(task), proposer, learning, proposal_filter), proposer
        search = self._open[key][0]
        search.join(context, task.weight, stored)
        return search

    def leave(self, context: Context) -> None:
        for key, (search, proposer) in list(self._open.items()):
            if context.job_id in search.jobs and search.leave(context):
                del self._open[key]
                search.discard_artifacts(self._runtime)
                with suppress(EngineError):
                    future = self._runtime.engine.call(proposer, "close", search.task.key, deadline_s=_CLOSE_DEADLINE_S)
                    future.add_done_callback(lambda done: done.cancelled() or done.exception())
