"""The answer to "best known implementation", and where it came from."""

from dataclasses import dataclass
from enum import StrEnum

from tunery.domain.candidate import Candidate


class Rung(StrEnum):
    """How strong the evidence behind an answer is, strongest first."""

    EXACT = "exact"
    COMPATIBLE = "compatible-device"
    ZERO_SHOT = "zero-shot"
    DEFAULT = "compiler-default"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is delivered for one task: the candidate, its latency as re-timed in isolation, and its rung.

    `candidate` is None on the last rung: the compiler's own default is used. `source` says where the candidate was
    measured, if not on this host; on the rung of compatible devices the latencies are those of there.
    """

    task_key: str
    rung: Rung
    candidate: Candidate | None = None
    latency_s: float | None = None
    baseline_s: float | None = None
    source: str = ""
