"""Where and when stages run: a pure state machine with exchangeable strategies.

scheduler = Scheduler({"core": 2, "device:cpu": 1}, strategy="predictive")
for decision in scheduler.handle(event): ...
"""

from tunery.scheduling._events import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    CapacityChanged,
    Decision,
    Event,
    EventLog,
    JobCancelled,
    JobEnded,
    JobPaused,
    JobResumed,
    JobSubmitted,
    LoggedStep,
    Refuse,
    Run,
    StageFinished,
    StageReady,
    StageRequest,
    StageWithdrawn,
    Stop,
    WorkerLost,
)
from tunery.scheduling._scheduler import Scheduler, Snapshot
from tunery.scheduling._state import Durations
from tunery.scheduling.strategies import STRATEGIES, get_strategy

__all__ = [
    "LEAST_WEIGHT",
    "MOST_WEIGHT",
    "STRATEGIES",
    "CapacityChanged",
    "Decision",
    "Durations",
    "Event",
    "EventLog",
    "JobCancelled",
    "JobEnded",
    "JobPaused",
    "JobResumed",
    "JobSubmitted",
    "LoggedStep",
    "Refuse",
    "Run",
    "Scheduler",
    "Snapshot",
    "StageFinished",
    "StageReady",
    "StageRequest",
    "StageWithdrawn",
    "Stop",
    "WorkerLost",
    "get_strategy",
]
