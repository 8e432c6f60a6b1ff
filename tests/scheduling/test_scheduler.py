"""What any driver of the scheduler relies on, under every strategy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_strategies import STRATEGIES
from scheduler_tools import replay, validate

from tunery._errors import UsageError
from tunery.scheduling import (
    CapacityChanged,
    Decision,
    JobCancelled,
    JobEnded,
    JobPaused,
    JobResumed,
    JobSubmitted,
    Refuse,
    Run,
    Scheduler,
    StageFinished,
    StageReady,
    StageRequest,
    StageWithdrawn,
    Stop,
    WorkerLost,
)

CORES = {"core": 2, "device:cpu": 1}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def ready(stage_id: str, job_id: str = "j", at_s: float = 0.0, **fields) -> StageReady:
    fields.setdefault("kind", "build")
    fields.setdefault("needs", {"core": 1})
    return StageReady(at_s, StageRequest(stage_id, job_id, **fields))


def runs(decisions: list[Decision]) -> list[str]:
    return [d.stage_id for d in decisions if isinstance(d, Run)]


@every_strategy
def test_starts_what_fits_and_goes_on_when_resources_come_free(strategy):
    scheduler = Scheduler(CORES, strategy)
    scheduler.handle(JobSubmitted(0, "j"))
    started = [stage for n in range(3) for stage in runs(scheduler.handle(ready(f"s{n}")))]
    assert started[0] == "s0"
    ended = 0
    while ended < len(started):
        started += runs(scheduler.handle(StageFinished(1.0 + ended, started[ended])))
        ended += 1
        validate(scheduler)
    assert sorted(started) == ["s0", "s1", "s2"]
    assert scheduler.snapshot().free == CORES


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ready("x", needs={"device:gpu": 1}), "'device:gpu', which does not exist here"),
        (ready("x", needs={"core": 3}), "it needs 3 of 'core', which has 2"),
        (ready("x", needs={"core": -1}), "cannot be negative"),
        (ready("x", job_id="nobody"), "its job 'nobody' is unknown"),
        (ready("x", size=-1), "its size -1 is less than nothing"),
        (ready("a"), "there is already a stage 'a'"),
        (JobSubmitted(0, "j"), "there is already a job 'j'"),
        (JobSubmitted(0, "k", priority=-1), "priority -1 is not between 0 and 10"),
        (JobSubmitted(0, "k", weight=0.0), "weight 0.0 is not between 0.01 and 100"),
        (JobSubmitted(0, "k", weight=float("inf")), "weight inf is not"),
        (JobSubmitted(0, "k", weight=1e6), "weight 1000000.0 is not"),
        (ready("x", needs={"core": 0.5}), "an amount is a whole number"),
        (CapacityChanged(0, "core", float("nan")), "capacity cannot be nan"),
        (StageFinished(0, "ghost"), "is not running"),
        (JobCancelled(0, "ghost"), "not a job here"),
        (JobPaused(0, "ghost"), "not a job here"),
        (CapacityChanged(0, "core", -2), "capacity cannot be -2"),
    ],
)
@every_strategy
def test_refuses_bad_input_with_its_reason_and_leaves_others_alone(strategy, event, reason):
    scheduler = Scheduler(CORES, strategy)
    scheduler.handle(JobSubmitted(0, "j"))
    assert runs(scheduler.handle(ready("a"))) == ["a"]
    (refusal,) = scheduler.handle(event)
    assert isinstance(refusal, Refuse)
    assert reason in refusal.reason
    validate(scheduler)
    assert scheduler.handle(StageFinished(1, "a")) == []
    assert runs(scheduler.handle(ready("b"))) == ["b"]


@every_strategy
@pytest.mark.parametrize("wrong_s", [float("nan"), float("inf"), -5.0])
def test_a_time_that_no_clock_shows_is_passed_over(strategy, wrong_s):
    scheduler = Scheduler(CORES, strategy)
    scheduler.handle(JobSubmitted(0, "j"))
    for n in range(4):
        assert runs(scheduler.handle(ready(f"s{n}", at_s=2.0 * n))) == [f"s{n}"]
        scheduler.handle(CapacityChanged(wrong_s, "other", 1))
        scheduler.handle(StageFinished(2.0 * n + 1.0, f"s{n}"))
        validate(scheduler)
    (run,) = scheduler.handle(ready("next", at_s=9.0))
    assert run == Run("next", 1.0)


def test_unknown_strategy_names_all():
    with pytest.raises(UsageError, match=r"unknown strategy 'best'.*predictive.*sequential"):
        Scheduler(CORES, "best")
    with pytest.raises(UsageError, match="at least one name"):
        Scheduler({})


def test_cancel_drops_ready_stages_and_stops_running_ones():
    scheduler = Scheduler({"core": 1})
    scheduler.handle(JobSubmitted(0, "j"))
    scheduler.handle(JobSubmitted(0, "k"))
    scheduler.handle(ready("a"))
    scheduler.handle(ready("b"))
    scheduler.handle(ready("c", "k"))
    assert scheduler.handle(JobCancelled(1, "j")) == [Stop("a")]
    assert isinstance(scheduler.handle(ready("d"))[0], Refuse)
    assert runs(scheduler.handle(StageFinished(2, "a", ok=False))) == ["c"]
    assert scheduler.snapshot().jobs == 1
    validate(scheduler)


def test_paused_job_waits_and_goes_on():
    scheduler = Scheduler({"core": 1})
    scheduler.handle(JobSubmitted(0, "j"))
    scheduler.handle(JobPaused(0, "j"))
    assert scheduler.handle(ready("a")) == []
    assert scheduler.handle(ready("b", affinity="w")) == []
    validate(scheduler)
    assert runs(scheduler.handle(JobResumed(1, "j"))) == ["a"]
    assert runs(scheduler.handle(StageFinished(2, "a"))) == ["b"]
    scheduler.handle(JobPaused(2, "j"))
    assert scheduler.handle(StageFinished(3, "b")) == []


def test_lost_worker_gives_its_stages_back_three_times_at_most():
    scheduler = Scheduler({"core": 2})
    scheduler.handle(JobSubmitted(0, "j"))
    assert runs(scheduler.handle(ready("a", affinity="w"))) == ["a"]
    assert runs(scheduler.handle(ready("b"))) == ["b"]
    assert runs(scheduler.handle(WorkerLost(1, "w"))) == ["a"]
    assert runs(scheduler.handle(WorkerLost(2, "v", ("b",)))) == ["b"]
    assert runs(scheduler.handle(WorkerLost(3, "w"))) == ["a"]
    (refusal,) = scheduler.handle(WorkerLost(4, "w"))
    assert refusal == Refuse("a", "its worker was lost 3 times")
    validate(scheduler)


def test_one_stage_at_a_time_runs_on_a_worker_and_the_oldest_is_next():
    scheduler = Scheduler({"core": 4})
    scheduler.handle(JobSubmitted(0, "j"))
    assert runs(scheduler.handle(ready("a", affinity="w"))) == ["a"]
    assert scheduler.handle(ready("b", affinity="w")) == []
    assert scheduler.handle(ready("c", affinity="w")) == []
    assert runs(scheduler.handle(StageFinished(1, "a"))) == ["b"]
    assert runs(scheduler.handle(StageFinished(2, "b"))) == ["c"]


def test_shrunken_capacity_holds_stages_back_until_it_grows():
    scheduler = Scheduler({"core": 2})
    scheduler.handle(JobSubmitted(0, "j"))
    scheduler.handle(ready("a", needs={"core": 2}))
    assert scheduler.handle(CapacityChanged(1, "core", 1)) == []
    validate(scheduler)
    assert scheduler.handle(ready("b", needs={"core": 2})) == []
    assert scheduler.handle(StageFinished(2, "a")) == []
    assert runs(scheduler.handle(ready("c"))) == ["c"]
    assert scheduler.handle(CapacityChanged(3, "core", 2)) == []
    assert runs(scheduler.handle(StageFinished(4, "c"))) == ["b"]


def test_withdrawn_stage_never_runs():
    scheduler = Scheduler({"core": 1})
    scheduler.handle(JobSubmitted(0, "j"))
    scheduler.handle(ready("a"))
    scheduler.handle(ready("b"))
    assert scheduler.handle(StageWithdrawn(1, "b")) == []
    assert scheduler.handle(StageFinished(2, "a")) == []
    assert scheduler.snapshot().ready == 0


NEEDS = st.sampled_from(
    [{"core": 1}, {"core": 2, "device:cpu": 1}, {"device:cpu": 1}, {"core": 1, "device:cpu": 1}, {}]
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "job",
                "stage",
                "stage",
                "stage",
                "finish",
                "finish",
                "fail",
                "withdraw",
                "end",
                "cancel",
                "pause",
                "resume",
                "lose",
                "resize",
            ]
        ),
        st.integers(0, 5),
        NEEDS,
        st.floats(0, 3),
    ),
    max_size=60,
)


class Machine:
    """Drives a scheduler by random actions as an engine would, and keeps its own account of what runs."""

    def __init__(self, strategy: str) -> None:
        self.scheduler = Scheduler(CORES, strategy)
        self.now_s = 0.0
        self.jobs: dict[str, str] = {}
        self.requests: dict[str, StageRequest] = {}
        self.waiting: set[str] = set()
        self.running: set[str] = set()
        self.count = 0

    def send(self, event) -> None:
        free = self.scheduler.snapshot().free
        if isinstance(event, StageFinished):
            self.running.discard(event.stage_id)
        if isinstance(event, WorkerLost):
            lost = {s for s in self.running if s in event.stage_ids or self.requests[s].affinity == event.worker}
            self.running -= lost
            self.waiting |= lost
        for decision in self.scheduler.handle(event):
            if isinstance(decision, Run):
                assert decision.stage_id in self.waiting
                self.waiting.remove(decision.stage_id)
                self.running.add(decision.stage_id)
            elif isinstance(decision, Refuse):
                self.waiting.discard(decision.subject)
            else:
                assert decision.stage_id in self.running
        validate(self.scheduler)
        for name, amount in self.scheduler.snapshot().free.items():
            used = sum(self.requests[s].needs.get(name, 0) for s in self.running)
            assert amount == self.scheduler._pool.capacity[name] - used
            assert amount >= 0 or amount >= free[name] or isinstance(event, CapacityChanged)
        workers = [self.requests[s].affinity for s in self.running if self.requests[s].affinity]
        assert len(workers) == len(set(workers))

    def act(self, action: str, pick: int, needs: dict[str, int], wait_s: float) -> None:
        self.now_s += wait_s
        now, job = self.now_s, f"j{pick}"
        stage = sorted(self.running)[pick % len(self.running)] if self.running else None
        if action == "job" and job not in self.jobs:
            self.jobs[job] = "on"
            self.send(JobSubmitted(now, job, owner=f"o{pick % 3}", weight=1.0 + pick, priority=pick % 2))
        elif action == "stage" and self.jobs.get(job) in ("on", "paused"):
            self.count += 1
            affinity = f"w{pick}" if self.count % 3 == 0 else None
            request = StageRequest(
                f"s{self.count}",
                job,
                "wide" if len(needs) > 1 else "narrow",
                needs=needs,
                affinity=affinity,
            )
            self.requests[request.stage_id] = request
            self.waiting.add(request.stage_id)
            self.send(StageReady(now, request))
        elif action in ("finish", "fail") and stage:
            self.send(StageFinished(now, stage, ok=action == "finish"))
        elif action == "withdraw" and self.waiting:
            stage = sorted(self.waiting)[pick % len(self.waiting)]
            self.waiting.remove(stage)
            self.send(StageWithdrawn(now, stage))
        elif action in ("end", "cancel") and self.jobs.get(job) in ("on", "paused"):
            self.jobs[job] = "over"
            self.waiting -= {s for s in self.waiting if self.requests[s].job_id == job}
            self.send(JobEnded(now, job) if action == "end" else JobCancelled(now, job))
        elif action in ("pause", "resume") and self.jobs.get(job) in ("on", "paused"):
            self.jobs[job] = "paused" if action == "pause" else "on"
            self.send(JobPaused(now, job) if action == "pause" else JobResumed(now, job))
        elif action == "lose":
            self.send(WorkerLost(now, f"w{pick}", (stage,) if stage else ()))
        elif action == "resize":
            self.send(CapacityChanged(now, "core", 1 + pick % 2))

    def drain(self) -> None:
        """Let everything that is left run to its end."""
        self.send(CapacityChanged(self.now_s, "core", 2))
        for job in sorted(job for job, state in self.jobs.items() if state == "paused"):
            self.send(JobResumed(self.now_s, job))
        open_jobs = sorted(job for job, state in self.jobs.items() if state != "over")
        while self.running or open_jobs:
            self.now_s += 1.0
            if self.running:
                self.send(StageFinished(self.now_s, min(self.running)))
            else:
                # Sequential strategies wait for the current job to end before others' stages run.
                idle = [job for job in open_jobs if not any(self.requests[s].job_id == job for s in self.waiting)]
                assert idle, f"{self.waiting} never ran"
                for job in idle:
                    open_jobs.remove(job)
                    self.send(JobEnded(self.now_s, job))


@every_strategy
@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_any_history_keeps_the_state_valid_and_every_stage_runs_in_the_end(strategy, actions):
    machine = Machine(strategy)
    for action in actions:
        machine.act(*action)
    machine.drain()
    assert not machine.waiting
    assert machine.scheduler.snapshot().free == CORES
    assert machine.scheduler.snapshot().jobs == 0
    assert replay(machine.scheduler.log).log == machine.scheduler.log
