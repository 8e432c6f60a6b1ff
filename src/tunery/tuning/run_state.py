"""Where one run of a job is, and what it does next: an immutable state and pure rules, without I/O or a clock."""

from dataclasses import dataclass, replace
from enum import StrEnum

_LOOKS = 0.2  # of the time since the last finals may go into finals that only may find the target met


class Phase(StrEnum):
    """What a run is at; the words are those of its progress."""

    IMPORTING = "importing"
    BASELINE = "baseline"
    SEARCH = "search"
    FINALS = "finals"


_NEXT = {
    Phase.IMPORTING: {Phase.BASELINE},
    Phase.BASELINE: {Phase.SEARCH},
    Phase.SEARCH: {Phase.SEARCH, Phase.FINALS},
    Phase.FINALS: {Phase.SEARCH},
}


@dataclass(frozen=True, slots=True)
class RunState:
    """One run of a job. `unproven` are the keys of tasks whose finals did not fit into the budget, `finals_at_s` is
    when finals were last held, or the search began, in seconds of the run."""

    phase: Phase = Phase.IMPORTING
    tried_before: int = 0
    unproven: frozenset[str] = frozenset()
    finals_at_s: float = 0.0

    @property
    def served(self) -> bool:
        """Whether nothing was measured yet: of a run that has ended, because verified records met its target."""
        return self.phase is Phase.IMPORTING

    def enter(self, phase: Phase, at_s: float) -> "RunState":
        if phase not in _NEXT[self.phase]:
            raise ValueError(f"a run that is at {self.phase} cannot go on with {phase}")
        first = self.phase is Phase.BASELINE
        return replace(self, phase=phase, finals_at_s=at_s if first else self.finals_at_s)

    def prove(self, task_key: str, at_s: float) -> "RunState":
        return replace(self, unproven=self.unproven - {task_key}, finals_at_s=at_s)

    def leave_unproven(self, task_key: str) -> "RunState":
        return replace(self, unproven=self.unproven | {task_key})

    def look_pays(self, cost_s: float, at_s: float) -> bool:
        return 0.0 < cost_s <= _LOOKS * (at_s - self.finals_at_s)
