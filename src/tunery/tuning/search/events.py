"""What a task's search hears and what it answers: plain frozen records."""

from __future__ import annotations

from dataclasses import dataclass, field

from tunery.dialects import Observation
from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome
from tunery.tuning.allocation.allocator import Cost


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """What one measurement says of a candidate; `timed` if it has samples, `contaminated` if others disturbed them."""

    candidate: Candidate
    outcome: Outcome
    latency_s: float | None
    mode: Mode = Mode.RACE
    build_s: float = 0.0
    timed: bool = False
    contaminated: bool = False

    @classmethod
    def of(cls, candidate: Candidate, measurement: Measurement) -> CandidateResult:
        return cls(
            candidate,
            measurement.outcome,
            measurement.latency_s,
            measurement.mode,
            measurement.build_s,
            bool(measurement.samples_s),
            bool(measurement.context.get("contaminated")),
        )

    @property
    def trial(self) -> bool:
        """Whether it is a try of the search, and not the compiler's default."""
        return self.candidate.origin is not Origin.BASELINE

    @property
    def told(self) -> Observation:
        return Observation(self.candidate, self.outcome, self.latency_s)


@dataclass(frozen=True, slots=True)
class Best:
    """The task's best verified record; `final` if finals decided it, `host` as in the record."""

    candidate_key: str
    latency_s: float | None
    final: bool
    host: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A job takes part. `tried` are the candidates that it tried in an earlier run, with how each ended last."""

    job_id: str
    weight: int
    tried: tuple[tuple[str, Outcome], ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A job takes part no more."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Restored:
    """The store's records of this task under the same conditions, oldest first, for the first job that takes part.

    Each comes with the id of its job ("" for a delivery). `finalists` are the candidates that finals would be held of,
    `cost` what the trials took.
    """

    job_id: str
    results: tuple[tuple[str, CandidateResult], ...]
    finalists: tuple[str, ...] = ()
    best: Best | None = None
    cost: Cost = field(default_factory=lambda: Cost(0.0))


@dataclass(frozen=True, slots=True)
class BatchAsked:
    """A job asks for up to `size` candidates. Answered by `FetchHints`, `Build` or `AskProposer`."""

    size: int


@dataclass(frozen=True, slots=True)
class HintsFound:
    """Candidates that imported records call fast."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class ProposerOpening:
    """A new proposer is about to be opened. Answered by `Tell` with the history."""


@dataclass(frozen=True, slots=True)
class NewsAsked:
    """The proposer is about to be asked. Answered by `Tell` with what it has not been told."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """What was selected of a proposal: `fresh` of its candidates were worth a build; it was `empty` if it had none."""

    build: tuple[Candidate, ...]
    dropped: tuple[str, ...] = ()
    fresh: int = 0
    empty: bool = False


@dataclass(frozen=True, slots=True)
class ProposerFailed:
    """The proposer died, or its dialect failed. Answered by `AskProposer`, or by `Build` of nothing."""

    detail: str


@dataclass(frozen=True, slots=True)
class Served:
    """What others have measured of candidates that were proposed here."""

    results: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class CandidateMeasured:
    """A measurement was stored that a job paid for; it counts for the jobs in `open_to` as well.

    Answered by `Counted`.
    """

    job_id: str
    result: CandidateResult
    open_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineTimed:
    """The compiler's default was timed, or could not be (None)."""

    latency_s: float | None


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The batch with these candidates ended, or was cut short, and took this much."""

    keys: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The task cannot be searched any more, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class FinalsBegun:
    """The finalists are about to be looked up: what is measured from here on is news after these finals."""


@dataclass(frozen=True, slots=True)
class FinalsAsked:
    """Finals are to be held of `challengers`. Answered by `HoldFinals` unless they would decide nothing."""

    challengers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinalsHeld:
    """Finals ended; `contaminated` says of each timing whether others disturbed it."""

    challengers: tuple[str, ...]
    contaminated: tuple[bool, ...]
    baseline_s: float | None
    best: Best | None


Event = (
    Joined
    | Left
    | Restored
    | BatchAsked
    | HintsFound
    | ProposerOpening
    | NewsAsked
    | Proposed
    | ProposerFailed
    | Served
    | CandidateMeasured
    | BaselineTimed
    | BatchEnded
    | LeftOut
    | FinalsBegun
    | FinalsAsked
    | FinalsHeld
)


@dataclass(frozen=True, slots=True)
class FetchHints:
    """Look up what imported records call fast, then ask again."""


@dataclass(frozen=True, slots=True)
class AskProposer:
    """Ask the proposer for candidates."""


@dataclass(frozen=True, slots=True)
class Build:
    """Build and race these candidates."""

    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the proposer these results."""

    results: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """A measurement is a new trial of these jobs; it `helped` if nothing was as fast before."""

    jobs: tuple[str, ...]
    helped: bool


@dataclass(frozen=True, slots=True)
class HoldFinals:
    """Hold the finals."""


Decision = FetchHints | AskProposer | Build | Tell | Counted | HoldFinals


@dataclass(frozen=True, slots=True)
class SearchStep:
    """An event and what was decided at it (None: nothing)."""

    event: Event
    decision: Decision | None
