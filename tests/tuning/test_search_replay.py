"""What two searches build, race and record, step by step, is what was written down: a refactoring changes none of it.

`python tests/tuning/test_search_replay.py` writes the sequence down anew, after a change that is meant.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from search_tools import context_of, fake_tasks, runtime_in

from tunery.domain import Candidate, Record, Task
from tunery.runtime.runtime import Runtime
from tunery.store import Store, open_store
from tunery.tuning.calls import Context
from tunery.tuning.search.task_search import SearchRegistry, TaskSearch

pytestmark = pytest.mark.jobs

WRITTEN = Path(__file__).parent / "assets" / "search-replay.json"
SOURCE = (
    "fake:replay?tasks=2&space=6x6x4&seed=5&ops=matmul,gather&noise=0"
    "&refuse=0.08&fail=0.06&one_off=0.05&absurd=0.1&partial=0.03"
)
SHORT = 10

Steps = list[list[str]]


def watch(runtime: Runtime, store: Store, tasks: Sequence[Task]) -> Steps:
    """Write down each call to a builder or measurer, and each record, in the order in which they happen."""
    steps: Steps = []
    jobs: dict[str, str] = {}
    names = {task.key: f"task {number}" for number, task in enumerate(tasks)}
    call, add_records = runtime.call, store.add_records

    async def watched(worker: str, method: str, *args: Any, **more: Any) -> Any:
        if method in {"build", "race"}:
            candidate = next(one for one in args if isinstance(one, Candidate))
            steps.append([names[candidate.task_key], method, candidate.key[:SHORT]])
        elif method == "finals":
            steps.append([names[args[0].key], method, *(one.key[:SHORT] for one in args[2])])
        return await call(worker, method, *args, **more)

    def stored(task: Task, records: Sequence[Record], *more: Any, **named: Any) -> int:
        for one in records:
            measured = one.measurement
            row = [one.candidate.key[:SHORT], measured.outcome.value, measured.mode.value]
            jobs.setdefault(one.job_id, f"job {len(jobs)}")
            steps.append([names[task.key], "record", jobs[one.job_id], *row])
        return add_records(task, records, *more, **named)

    runtime.call = watched  # type: ignore[method-assign]
    store.add_records = stored  # type: ignore[method-assign, assignment]
    return steps


async def one_job(job: Context, searches: Sequence[TaskSearch]) -> None:
    for search in searches:
        await search.measure_baseline(job)
    for size in (4, 8, 16, 3):
        for search in searches:
            await search.batch(job, size)
    for search in searches:
        await search.finals(job)
        await search.batch(job, 6)
        await search.finals(job)


async def two_jobs(directory: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let one job search two tasks, a second join one of them, a third resume the first after all have left."""
    tasks = fake_tasks(SOURCE)
    with open_store(str(directory / "store.db")) as store:
        async with runtime_in(directory, patch) as runtime:
            steps = watch(runtime, store, tasks)
            registry, states = SearchRegistry(runtime), []
            first = context_of(runtime, store, seed=3)
            searches = await registry.join(first, tasks)
            await one_job(first, searches)
            second = context_of(runtime, store, seed=4, learning=first.learning, most_trials=20)
            await one_job(second, await registry.join(second, tasks[:1]))
            states += [search.report(first.job_id) for search in searches] + [searches[0].report(second.job_id)]
            registry.leave(first)
            registry.leave(second)
            again = context_of(runtime, store, first.job_id, seed=9)
            searches = await registry.join(again, tasks)
            await one_job(again, searches)
            states += [search.report(first.job_id) for search in searches]
            trials = [job.trials for job in (first, second, again)]
    told = [
        [one.name, one.baseline_s, one.best_s, one.best_candidate, one.outcomes, one.problem, one.timings, one.measured]
        for one in states
    ]
    return {"steps": steps, "states": told, "trials": trials}


def replayed(directory: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return json.loads(json.dumps(asyncio.run(two_jobs(directory, patch))))


def test_a_search_builds_races_and_records_what_was_written_down(tmp_path: Path) -> None:
    found, written = replayed(tmp_path), json.loads(WRITTEN.read_text(encoding="utf-8"))
    assert len(found["steps"]) > 300
    for number, (step, before) in enumerate(zip(found["steps"], written["steps"], strict=False)):
        assert step == before, f"step {number}"
    assert found == written


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        found = replayed(Path(scratch))
    rows = ",\n".join(json.dumps(step) for step in found.pop("steps"))
    rest = json.dumps(found)
    WRITTEN.write_text(f'{{"steps": [\n{rows}\n],\n{rest[1:]}\n', encoding="utf-8")
