"""What the jobs of one runtime have in common: one search per task, one cost model per target."""

import itertools
from contextlib import suppress

from tunery._errors import EngineError
from tunery.domain import Provenance, Task
from tunery.engines import Role
from tunery.jobs.context import Context
from tunery.jobs.learning import Learning
from tunery.jobs.runtime import Runtime
from tunery.jobs.search import TaskSearch
from tunery.jobs.sifting import Sifter

_CLOSE_DEADLINE_S = 60.0
HELD_OUT_TAU = 0.52
"""Kendall's tau of the shipped model on tasks it was not trained on (docs/decisions/004)."""


class Searches:
    """The searches that are open, each for as long as a job has part in it; its first job's cost model serves it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[tuple[str, Provenance], tuple[TaskSearch, str]] = {}
        self._learnings: dict[tuple[str, bool], Learning] = {}
        self._proposers = itertools.cycle(runtime.workers(Role.PROPOSER))

    def learning(self, target_key: str, base: str | None) -> Learning:
        """Return the cost model that jobs of a target share, which starts from `base`."""
        key = (target_key, base is not None)
        if key not in self._learnings:
            name = f"{target_key}{'' if base is None else ' pretrained'}"
            self._learnings[key] = Learning(self._runtime, name, base)
        return self._learnings[key]

    def join(self, context: Context, task: Task) -> TaskSearch:
        """Return the task's search after letting the job take part in it."""
        key = (task.key, context.provenance)
        if key not in self._open:
            proposer = next(self._proposers)
            prior_tau = HELD_OUT_TAU if context.learning.pretrained else None
            sifter = Sifter(task, context.trimming, context.seed, prior_tau)
            self._open[key] = TaskSearch(task, proposer, context.learning, sifter), proposer
        search = self._open[key][0]
        search.join(context, task.weight)
        return search

    def leave(self, context: Context) -> None:
        """Let a job go out of all its searches; those that are nobody's any more are closed."""
        for key, (search, proposer) in list(self._open.items()):
            if context.job_id in search.jobs and search.leave(context):
                del self._open[key]
                with suppress(EngineError):
                    future = self._runtime.engine.call(proposer, "close", search.task.key, deadline_s=_CLOSE_DEADLINE_S)
                    future.add_done_callback(lambda done: done.cancelled() or done.exception())
