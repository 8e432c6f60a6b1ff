"""The nouns of the project as frozen dataclasses: no I/O, and no import from any other room."""

from tunery.domain.budget import CURRENCIES, LEAST, MOST, Budget, Prospect, Spend, parse_latency
from tunery.domain.candidate import Artifact, Candidate, Origin
from tunery.domain.delivery import Choice, Rung
from tunery.domain.device import HERE, Calibration, DeviceDescription, HostFacts, SharingPoint
from tunery.domain.environment import Check, CheckState, Environment
from tunery.domain.job import DEFAULT_KIND, JobState, JobStatus, TaskState
from tunery.domain.keys import BlobDigest, canonical_json, digest
from tunery.domain.measurement import Measurement, Mode, Outcome, Provenance, Record, Verification, paced
from tunery.domain.network import SEGMENT, InputRange, Network, TensorSpec, merged_network, merged_specs, shape_text
from tunery.domain.operator_key import OperatorKey, OperatorKeyError, OperatorPattern, operator_key
from tunery.domain.task import Target, Task, Workload, merged_tasks
from tunery.domain.ties import Contender, best_first, interval, median_interval

__all__ = [
    "CURRENCIES",
    "DEFAULT_KIND",
    "HERE",
    "LEAST",
    "MOST",
    "SEGMENT",
    "Artifact",
    "BlobDigest",
    "Budget",
    "Calibration",
    "Candidate",
    "Check",
    "CheckState",
    "Choice",
    "Contender",
    "DeviceDescription",
    "Environment",
    "HostFacts",
    "InputRange",
    "JobState",
    "JobStatus",
    "Measurement",
    "Mode",
    "Network",
    "OperatorKey",
    "OperatorKeyError",
    "OperatorPattern",
    "Origin",
    "Outcome",
    "Prospect",
    "Provenance",
    "Record",
    "Rung",
    "SharingPoint",
    "Spend",
    "Target",
    "Task",
    "TaskState",
    "TensorSpec",
    "Verification",
    "Workload",
    "best_first",
    "canonical_json",
    "digest",
    "interval",
    "median_interval",
    "merged_network",
    "merged_specs",
    "merged_tasks",
    "operator_key",
    "paced",
    "parse_latency",
    "shape_text",
]
