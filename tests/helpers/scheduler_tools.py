"""Whether a scheduler's state is whole, and a run of its log once more."""

from tunery.scheduling import EventLog, Scheduler
from tunery.scheduling._state import StageState


def replay(log: EventLog) -> Scheduler:
    """Run a log again, and return the scheduler in its final state."""
    scheduler = Scheduler(log.resources, log.strategy)
    for number, step in enumerate(log.entries):
        decisions = tuple(scheduler.handle(*step.events))
        assert decisions == step.decisions, f"step {number} of the log"
    return scheduler


def validate(scheduler: Scheduler) -> None:
    pool = scheduler._pool
    for name, capacity in pool.capacity.items():
        assert pool.free[name] + sum(amount for _, _, amount in pool._ends[name]) == capacity, name
    for stage_id, stage in scheduler._stages.items():
        job, running = stage.job, stage.state is StageState.RUNNING
        assert stage.state is not StageState.GONE, stage_id
        assert (stage_id in job.running) == running, stage_id
        assert (stage_id in job.ready) != running, stage_id
        assert stage.state is not StageState.OFFERED or not job.paused, f"{stage_id} is offered, and its job is paused"
        lane = scheduler._lanes.get(stage.request.affinity or "")
        waits = job.paused or (lane and (lane.busy or lane.offered))
        assert stage.state is not StageState.HELD or waits, f"{stage_id} waits for nothing"
    assert sum(len(job.ready) + len(job.running) for job in scheduler._jobs.values()) == len(scheduler._stages)
    idle = not any(stage.state is StageState.RUNNING for stage in scheduler._stages.values())
    assert not idle or scheduler._strategy.pick(scheduler._now_s) is None, "a stage could run and nothing does"
