"""One run of the scheduling study: several jobs of one user in a room under one strategy, on a cold store."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunery._errors import WorkError
from tunery.domain import Budget, Candidate, JobState, Mode, Task
from tunery.domain.request import Request
from tunery.engines import Role
from tunery.runtime.dispatch import CORE, Dispatch, Span
from tunery.runtime.importing import ImportedModel
from tunery.runtime.runtime import DEVICE, Runtime
from tunery.scheduling import CapacityChanged
from tunery.service.manager import JobManager
from tunery.service.queue_policy import MOST_ACTIVE
from tunery.store import open_store

_MEASURING = frozenset({"measure", "finals"})
_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run took.

    `makespan_s` counts from the submission of all jobs to the end of the last; `busy_s` maps a resource to the seconds
    it was held, times how much of it; `capacity` says how much there is. `best` is each task's winner.
    `waited_s` is how long measuring was held back because others used our cores: then the run is a disturbed one.
    """

    strategy: str
    jobs: int
    repeat: int
    makespan_s: float
    busy_s: dict[str, float]
    capacity: dict[str, int]
    spans: tuple[Span, ...]
    best: dict[str, tuple[Candidate, float]]
    trials: int
    waited_s: float = 0.0

    @property
    def bound_s(self) -> float:
        """The largest resource's total work: no schedule of this work is shorter."""
        return max(self.busy_s[name] / self.capacity[name] for name in self.busy_s)

    @property
    def mean_end_s(self) -> float:
        """The mean job's seconds from the submission of all to the end of its last work."""
        return statistics.mean(
            max(s.end_s for s in self.spans if s.job_id == job) for job in {s.job_id for s in self.spans}
        )

    def idle(self, name: str) -> float:
        """Return the share of a resource's time that nobody held it, 0 to 1."""
        return 1.0 - self.busy_s[name] / (self.makespan_s * self.capacity[name])


def tune_all(
    strategy: str, requests: Sequence[Request], imported: Sequence[ImportedModel], repeat: int, trials: int
) -> Run:
    """Tune networks at once on a cold store, each with its own number of trials.

    Workers are started, and have compiled or imported something, before the clock begins.

    Raises:
        WorkError: a job did not come to its end.
    """
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as directory:
        return asyncio.run(_tune_all(strategy, requests, imported, repeat, trials, Path(directory)))


async def _tune_all(
    strategy: str, requests: Sequence[Request], imported: Sequence[ImportedModel], repeat: int, trials: int, place: Path
) -> Run:
    budget = Budget(trials=trials)
    with open_store(str(place / "store.db")) as store:
        most_active = 1 if strategy == "sequential" else MOST_ACTIVE
        async with JobManager(store, strategy=strategy, most_active=most_active) as room:
            await _warm(room.runtime(requests[0]), imported[0].tasks[0])
            room.dispatch.spans.clear()
            began, origin_s = time.monotonic(), room.dispatch.now()
            asked = [replace(request, budget=budget, seed=repeat) for request in requests]
            ids = [await room.submit(request, imported=model) for request, model in zip(asked, imported, strict=True)]
            done = [await room.wait(job_id) for job_id in ids]
            makespan_s = time.monotonic() - began
            for status in done:
                if status.state is not JobState.DONE:
                    raise WorkError(f"a job of the study is {status.state} under {strategy}: {status.message}")
            names = {job_id: request.model for job_id, request in zip(ids, asked, strict=True)}
            spans = tuple(
                replace(s, job_id=names[s.job_id], start_s=s.start_s - origin_s, end_s=s.end_s - origin_s)
                for s in room.dispatch.spans
            )
            best = {}
            for state in (task for status in done for task in status.tasks):
                records = store.records(state.task_key, modes=[Mode.FINAL])
                for record in records:
                    if record.candidate.key == state.best_candidate and state.best_s:
                        best[state.task_key] = (record.candidate, state.best_s)
            trials_done = sum(status.spend.trials for status in done)
            capacity = {CORE: len(room.dispatch.cores), DEVICE: 1}
            waited_s = _waited(room.dispatch, room.runtime(requests[0]))
            return Run(
                strategy, len(requests), repeat, makespan_s, _busy(spans), capacity, spans, best, trials_done, waited_s
            )


def _busy(spans: Sequence[Span]) -> dict[str, float]:
    busy = {CORE: 0.0, DEVICE: 0.0}
    for span in spans:
        held_s = span.end_s - span.start_s
        busy[CORE] += held_s * span.cores
        busy[DEVICE] += held_s * (span.kind in _MEASURING)
    return busy


def _waited(dispatch: Dispatch, runtime: Runtime) -> float:
    """Return for how long the measurer's capacity was none."""
    name, waited_s, since_s = runtime.spec.resource(Role.MEASURER), 0.0, None
    for event in (event for entry in dispatch.scheduler.log.entries for event in entry.events):
        if isinstance(event, CapacityChanged) and event.resource == name:
            if event.capacity == 0:
                since_s = event.at_s if since_s is None else since_s
            elif since_s is not None:
                waited_s, since_s = waited_s + event.at_s - since_s, None
    return waited_s + (dispatch.now() - since_s if since_s is not None else 0.0)


async def _warm(runtime: Runtime, task: Task) -> None:
    """Let every builder and proposer do something, so that no run pays for starting them."""
    runtime.dispatch.submit("warm-up")
    builders, proposers = runtime.workers(Role.BUILDER), runtime.workers(Role.PROPOSER)
    calls = [runtime.call(w, "baselines", task, deadline_s=_DEADLINE_S) for w in builders]
    calls += [runtime.call(w, "close", "", deadline_s=_DEADLINE_S) for w in proposers]
    await asyncio.gather(*calls)
    runtime.dispatch.end("warm-up")
