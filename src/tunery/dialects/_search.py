"""What a dialect's search gives and is told."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tunery.domain import Candidate, Outcome


@dataclass(frozen=True, slots=True)
class Observation:
    """What became of one candidate: `latency_s` is None where nothing was timed."""

    candidate: Candidate
    outcome: Outcome
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Candidates that a cost model thinks fast, found without a search. `transfer_state` is what they teach about like
    tasks, in words of the dialect's own; "" where that is nothing. `fallbacks` are of another kind, which lost on like
    tasks: should the candidates fail, these are there, and a measurement tells whether they lose here, too."""

    candidates: tuple[Candidate, ...]
    transfer_state: str = ""
    fallbacks: tuple[Candidate, ...] = ()


class Proposer(ABC):
    """The search for one task. Stateful, and rebuilt from history when its process is lost."""

    @abstractmethod
    def propose(self, n: int) -> list[Candidate]:
        """Return up to `n` candidates that were neither proposed nor observed before; an empty list means exhausted."""

    @abstractmethod
    def observe(self, results: Sequence[Observation]) -> None:
        """Take in outcomes, of any subset of what was proposed, in any order."""

    def refused(self) -> list[tuple[Candidate, str]]:
        """Return what the search found not worth a build since the last call, each with the reason, and proposed never.
        For what is seen while looking for proposals (`Space.reject` judges a proposed candidate); it is recorded."""
        return []

    def learn(self, cost_model: str) -> None:  # noqa: B027 - a search without a cost model ignores it
        """Use this cost model (its serialised form) from now on."""
