"""What is known of one job, as plain data that pages and plots are drawn from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunery.domain import HERE, JobState, JobStatus, Mode, Outcome, Spend, TaskState
from tunery.reports.data import reached_of, total
from tunery.reports.format import ENDED_EARLY

if TYPE_CHECKING:
    from tunery.store import Event, Failure, Store, Trial

MOST_FAILURES = 200
"""So many failed candidates are told of a job, the latest."""
STAGES, COMPILED, COMPARED, ANSWER = "stages", "compiled", "compared", "answer"
"""Kinds of a job's events: the stages of a run, its compiled file, a comparison, another kind of job's answer."""
_SLACK_S = 5.0
_MOST_STRETCHES = 2000
_SPAN_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """The network's latency from a moment on: `at_s` after the job began, when `paid_s` worker seconds were paid."""

    at_s: float
    paid_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stage of a kind that held a resource (`lane`) for a while, in seconds after the first of all began."""

    lane: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Operator:
    """A task of the job: `before_s` and `after_s` are of one call, `share` is its calls' part of the whole after.
    `onnxruntime_s` is what ONNX Runtime takes for one call; None where nobody has timed it."""

    name: str
    task: str
    kind: str
    calls: int
    before_s: float | None
    after_s: float | None
    onnxruntime_s: float | None
    share: float | None
    measured: int
    outcomes: Mapping[str, int]
    note: str


@dataclass(frozen=True, slots=True)
class JobView:
    """One job: its state, what its network took before and after, its curve, operators and stages, and its spend.
    `before_s` and `after_s` are sums over the tasks that were reached, `first_s` that when each of them had a verified
    candidate for the first time. `whole_s` and `onnxruntime_s` are the latencies of the compiled file and of ONNX
    Runtime as last timed beside one another, None where they were not. `headline` says who runs the compiled file (""
    without one), `times` how many times as fast as ONNX Runtime that is (None where it tells none). `answer` is that of
    a job of another kind than tuning. The curve's pauses are left out."""

    job: str
    kind: str
    network: str
    model: str
    target: str
    threads: int
    dialect: str
    state: str
    message: str
    created_at: float
    updated_at: float
    spend: Spend
    before_s: float | None
    first_s: float | None
    after_s: float | None
    whole_s: float | None
    onnxruntime_s: float | None
    headline: str
    times: float | None
    curve: tuple[Point, ...]
    operators: tuple[Operator, ...]
    stages: tuple[Stretch, ...]
    answer: Mapping[str, Any]


def job_view(store: "Store", job_id: str) -> JobView:
    status = store.job(job_id)
    events = [event for event in store.events.after(job_id=job_id) if event.kind != "progress"]
    return view_of(status, store.trials(job_id), events)


def view_of(status: JobStatus, trials: "Sequence[Trial]", events: "Sequence[Event]") -> JobView:
    request, reached = status.request, reached_of(status.tasks)
    latest = {event.kind: event.payload for event in events}
    whole_s, theirs_s, theirs = _compared(latest)
    after_s = total(reached, "best_s") if reached else None
    curve, first_s = _curve(status, trials)
    missed = "not searched yet" if status.state in {JobState.QUEUED, JobState.RUNNING} else "not reached"
    operators = sorted((_operator(task, after_s, theirs, missed) for task in status.tasks), key=_by_share)
    return JobView(
        status.job_id, status.kind, str(request.get("name", "")), str(request.get("model", "")),
        str(request.get("target", "")), int(request.get("threads") or 0), str(request.get("dialect", "")),
        status.state.value, status.message, status.created_at, status.updated_at, status.spend,
        total(reached, "baseline_s") if reached else None, first_s, after_s, whole_s, theirs_s, headline_of(latest),
        _times(_told(latest).get("verdict") or {}),
        tuple(curve), tuple(operators), tuple(_stages(events)), latest.get(ANSWER, {}),
    )  # fmt: skip


def _by_share(row: Operator) -> tuple[bool, float, str]:
    return row.share is None, -(row.share or 0.0), row.name


def _operator(task: TaskState, after_s: float | None, theirs: Mapping[str, float], missed: str) -> Operator:
    best_s = None if task.unreached else task.best_s
    notes = [*([missed] if task.unreached else []), *([ENDED_EARLY] if task.preempted else [])]
    notes += [task.problem] if task.problem else [] if task.tunable else ["nothing to tune"]
    return Operator(
        task.name, task.task_key, task.kind, task.weight, task.baseline_s, best_s, theirs.get(task.workload_key),
        task.weight * best_s / after_s if best_s and after_s else None, task.measured, dict(task.outcomes),
        ", ".join(notes),
    )  # fmt: skip


def headline_of(latest: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sentence about a job's compiled file from its latest events by kind; "" without a file."""
    return str(_told(latest).get("headline", ""))


def _times(verdict: Mapping[str, Any]) -> float | None:
    whole = verdict.get("onnxruntime_share") == 1.0
    return None if whole else (verdict.get("delivered") or {}).get("ratio")


def _told(latest: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    said = (latest.get(kind, {}) for kind in (COMPARED, COMPILED, ANSWER))
    return next((one for one in said if one.get("headline")), {})


def _compared(latest: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, float | None, Mapping[str, float]]:
    """Return the latencies of a compiled file and of ONNX Runtime, and its latencies by operator, as far as known. An
    answer has them if it compares several (`bench_data`), or tells ONNX Runtime's beside its own (`compile_data`)."""
    answer = latest.get(ANSWER, {})
    if bench := answer if isinstance(answer.get("latency_s"), Mapping) else latest.get(COMPARED):
        medians = {name: spread.get("median") for name, spread in bench.get("latency_s", {}).items()}
        return medians.get("tunery"), medians.get("onnxruntime"), bench.get("onnxruntime", {})
    made = answer if "onnxruntime_s" in answer else latest.get(COMPILED, {})
    return made.get("latency_s"), made.get("onnxruntime_s"), {}


# -- the curve --------------------------------------------------------------------------------------------------------


def _curve(status: JobStatus, trials: "Sequence[Trial]") -> tuple[list[Point], float | None]:
    """Return the sum of the tasks' best latencies from each moment on at which it changed, and at the end. The second
    value is the sum when each task had a verified candidate, None where one has none. A candidate's latest final is its
    latency, before that its latest race. A task whose best was known before the job began has it from then on."""
    tasks = {task.task_key: task for task in reached_of(status.tasks)}
    if not tasks or any(task.baseline_s is None or task.best_s is None for task in tasks.values()):
        return [], None
    known: dict[str, dict[str, Trial]] = {key: {} for key in tasks}
    for trial in trials:
        if trial.task_key in known and trial.rank_s is not None:
            known[trial.task_key][trial.candidate_key] = trial
    first = {key: _at_first(task, known[key]) for key, task in tasks.items()}
    best = dict(first)
    so_far: dict[str, dict[str, float]] = {key: {} for key in tasks}
    final: set[tuple[str, str]] = set()
    waiting = {key for key, task in tasks.items() if task.tunable and first[key] == task.baseline_s}
    first_s = None if waiting else _weighted(tasks, first)
    paid_s, points = 0.0, [Point(0.0, 0.0, _weighted(tasks, best))]
    clock = _Clock(status, trials)
    for trial in trials:
        paid_s += trial.paid_s
        at_s = clock.at(trial.created_at)
        if (mine := so_far.get(trial.task_key)) is None or trial.outcome != Outcome.OK or trial.rank_s is None:
            continue
        which = (trial.task_key, trial.candidate_key)
        if trial.mode == Mode.FINAL or which not in final:
            mine[trial.candidate_key] = trial.rank_s
        if trial.mode == Mode.FINAL:
            final.add(which)
        best[trial.task_key] = min(*mine.values(), first[trial.task_key])
        latency_s = _weighted(tasks, best)
        if waiting:
            waiting.discard(trial.task_key)
            first_s = None if waiting else latency_s
        if not math.isclose(latency_s, points[-1].latency_s, rel_tol=1e-4):
            points.append(Point(at_s, paid_s, latency_s))
    last = total(list(tasks.values()), "best_s")
    assert last is not None
    points.append(Point(max(clock.end_s, points[-1].at_s), paid_s, last))
    return points, first_s


def _at_first(task: TaskState, ours: Mapping[str, "Trial"]) -> float:
    assert task.baseline_s is not None
    assert task.best_s is not None
    found = [trial.rank_s for trial in ours.values() if trial.rank_s is not None]
    before = not found or (task.best_candidate is not None and task.best_candidate not in ours)
    return min(task.best_s, task.baseline_s) if before else task.baseline_s


def _weighted(tasks: Mapping[str, TaskState], best: Mapping[str, float]) -> float:
    return sum(task.weight * best[key] for key, task in tasks.items())


class _Clock:
    """Seconds of a job's work at a time of the wall: the longest gaps are left out, as far as the job did not work."""

    def __init__(self, status: JobStatus, trials: "Sequence[Trial]") -> None:
        self._times = [status.created_at, *(trial.created_at for trial in trials)]
        last = max(self._times)
        idle_s = last - status.created_at - status.spend.wall_s - _SLACK_S if status.spend.wall_s else 0.0
        self._cuts: list[tuple[float, float]] = []  # where a gap ends, and what of it is left out
        for gap_s, end in sorted(
            ((b - a, b) for a, b in zip(self._times, self._times[1:], strict=False)), reverse=True
        ):
            if idle_s <= 0:
                break
            self._cuts.append((end, min(gap_s, idle_s)))
            idle_s -= gap_s
        self.end_s = max(self.at(last), status.spend.wall_s)

    def at(self, time_s: float) -> float:
        return max(time_s - self._times[0] - sum(cut_s for end, cut_s in self._cuts if end <= time_s), 0.0)


# -- stages -----------------------------------------------------------------------------------------------------------


def _stages(events: "Sequence[Event]") -> list[Stretch]:
    """Return the stages of all runs; between runs there is no gap, so that they are told apart by their order only."""
    found: list[Stretch] = []
    offset_s = 0.0
    for event in (event for event in events if event.kind == STAGES):
        spans = [span for span in event.payload.get("spans", []) if len(span) == _SPAN_FIELDS]
        if not spans:
            continue
        first = min(start for _, _, start, _ in spans)
        found += [Stretch(lane, kind, offset_s + start - first, offset_s + end - first)
                  for lane, kind, start, end in spans]  # fmt: skip
        offset_s = max(one.end_s for one in found)
    return found


def failure_data(tasks: Iterable[TaskState], failures: "Iterable[Failure]") -> list[dict[str, Any]]:
    """Return a job's failed candidates as `jobs log` has them; `at` is in seconds since 1970."""
    names = {task.task_key: task.name for task in tasks}
    return [
        {"at": one.created_at, "task": one.task_key, "name": names.get(one.task_key, one.task_key),
         "candidate": one.candidate_key, "outcome": one.outcome, "detail": one.detail}
        for one in failures
    ]  # fmt: skip


def failure_text(failure: Mapping[str, Any]) -> str:
    said = "{name}: candidate {candidate:.8} ended as {outcome}".format(**failure)
    return f"{said}: {failure['detail']}" if failure["detail"] else said


def host_seconds(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each host that worked on a job the seconds of its workers by kind of stage, of its events as JSON. A
    worker's name begins with its host's; one without is on the only host there is."""
    hosts: dict[str, dict[str, float]] = {}
    for lane, kind, start, end in (
        span for event in events if event["kind"] == STAGES for span in event.get("spans", [])
    ):
        host, _, worker = lane.rpartition("/")
        of_host = hosts.setdefault(host if worker and host else HERE, {})
        of_host[kind] = of_host.get(kind, 0.0) + end - start
    return hosts


def stages_payload(spans: Sequence[tuple[str, str, float, float]]) -> dict[str, Any]:
    """Return the event of a run's stages (worker, kind, start, end): neighbours of a kind are one where there are many.

    >>> stages_payload([("here/b1", "build", 1.0, 2.0), ("here/b1", "build", 2.0, 3.0)])
    {'spans': [['here/b1', 'build', 1.0, 2.0], ['here/b1', 'build', 2.0, 3.0]]}
    """
    rows = sorted(spans, key=lambda span: (span[0], span[2]))
    if not rows:
        return {"spans": []}
    gap_s = 0.0
    whole_s = max(end for *_, end in rows) - min(start for _, _, start, _ in rows)
    merged = _merged(rows, gap_s)
    while len(merged) > _MOST_STRETCHES:
        gap_s = max(2 * gap_s, whole_s / _MOST_STRETCHES)
        merged = _merged(merged, gap_s)
    return {"spans": [[lane, kind, round(start, 3), round(end, 3)] for lane, kind, start, end in merged]}


def _merged(rows: Sequence[tuple[str, str, float, float]], gap_s: float) -> list[tuple[str, str, float, float]]:
    """Return stages of a lane in order; what is of the same kind and no further apart than `gap_s` becomes one."""
    merged: list[tuple[str, str, float, float]] = []
    for lane, kind, start, end in rows:
        if gap_s and merged and merged[-1][0] == lane and start - merged[-1][3] <= gap_s:
            before = merged.pop()
            longer = before[1] if before[3] - before[2] >= end - start else kind
            merged.append((lane, longer, before[2], max(end, before[3])))
        else:
            merged.append((lane, kind, start, end))
    return merged
