"""One task's proposer in its worker, and the filter that says which of its candidates are built."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tunery._errors import DialectError, EngineError
from tunery.dialects import Observation
from tunery.domain import Candidate, Measurement, Outcome, Record, Task, digest
from tunery.domain.request import Trimming
from tunery.engines import Role
from tunery.runtime.services import Proposal
from tunery.tuning.allocation.failing import LIKELY, FailureModel
from tunery.tuning.allocation.trimming import Audit, CandidateFilter
from tunery.tuning.calls import Context, stage
from tunery.tuning.learning import Learning
from tunery.tuning.search.state import SearchState

PROPOSE_DEADLINE_S = 180.0


class TaskProposer:
    """Asks `worker` for candidates of a task, and tells it what is new in the search's state."""

    def __init__(self, task: Task, worker: str, learning: Learning) -> None:
        self._task, self._worker, self._learning = task, worker, learning
        self._opened: tuple[int, int] | None = None  # the worker's generation, the model's version

    async def propose(self, payer: Context, state: SearchState, count: int) -> Proposal:
        try:
            async with stage(payer, self._task, "propose", Role.PROPOSER, count, self._worker) as grant:
                await self._open_if_needed(payer, state)
                proposal: Proposal = await payer.runtime.call(
                    self._worker, "propose", self._task.key, count, state.known.unheard(),
                    deadline_s=PROPOSE_DEADLINE_S,
                )  # fmt: skip
        except (EngineError, DialectError):
            self._opened = None
            raise
        await payer.charge(self._task.key, "propose", "", grant, len(proposal.candidates))
        return proposal

    async def _open_if_needed(self, payer: Context, state: SearchState) -> None:
        runtime, learning = payer.runtime, self._learning
        generation = runtime.engine.generation(self._worker)
        if self._opened is None or self._opened[0] != generation:
            history = state.known.opening()
            rows: Sequence[bytes] = await runtime.call(
                self._worker, "open", self._task, history, learning.model, payer.seed, learning.warm_start,
                state.generic_only_reason, deadline_s=PROPOSE_DEADLINE_S,
            )  # fmt: skip
            for told, row in zip(history, rows, strict=True):
                learning.add(self._task.key, told, row)
            self._opened = (runtime.engine.generation(self._worker), learning.version)
        elif self._opened[1] != learning.version and learning.model:
            await runtime.call(self._worker, "learn", learning.model, deadline_s=PROPOSE_DEADLINE_S)
            self._opened = (generation, learning.version)


FILTERED_DETAIL = "ranked low by the cost model"
FAILING_DETAIL = "likely to fail to build or run"


@dataclass(frozen=True, slots=True)
class FilteredProposal:
    """A proposal's fresh candidates: to `build`, `served` from the store, and `dropped`, `outranked` of them for their
    rank alone."""

    build: tuple[Candidate, ...]
    features: tuple[bytes, ...]
    served: tuple[Observation, ...]
    dropped: tuple[Candidate, ...]
    reasons: tuple[str, ...]
    outranked: int

    @property
    def fresh(self) -> int:
        """How many of the proposal were new and worth a build, whether or not they are built: `outranked` are not."""
        return len(self.build) + len(self.served) + self.outranked

    def records(self, context: Context) -> list[Record]:
        return [
            context.record(candidate, Measurement(Outcome.FILTERED, detail=why))
            for candidate, why in zip(self.dropped, self.reasons, strict=True)
        ]


class ProposalFilter:
    """One task's filter at work; without filtering it still says what it would have dropped, for the record."""

    def __init__(
        self,
        task: Task,
        trimming: Trimming,
        seed: int,
        prior_tau: float | None = None,
        failing: FailureModel | None = None,
    ) -> None:
        self._task, self._trimming = task, trimming
        self._failing = failing
        own_seed = int(digest(str(seed), task.key)[:12], 16)  # each task's own, or all would draw alike
        self._random = random.Random(own_seed)  # noqa: S311 - a sample, keeps no secret
        self._filter = CandidateFilter(trimming.audit_share, own_seed, prior_tau)
        self._scores: dict[str, float] = {}
        self._dropped = 0
        self._watched: set[str] = set()
        self._audited: set[str] = set()
        self._best = ""

    def audit(self, winner: str | None = None) -> Audit:
        won = (winner or self._best) in self._audited
        return Audit(self._dropped, len(self._audited), int(won))

    def ask(self, wanted: int) -> int:
        return self._filter.ask(wanted) if self._trimming.filter else wanted

    def select(
        self, proposal: Proposal, known: Collection[str], served: Mapping[str, Observation], wanted: int
    ) -> FilteredProposal:
        numbers = [i for i, candidate in enumerate(proposal.candidates) if candidate.key not in known]
        served = {key: told for i in numbers if (told := served.get(key := proposal.candidates[i].key))}
        numbers = [i for i in numbers if proposal.candidates[i].key not in served]
        hopeless = [i for i in numbers if proposal.rejected and proposal.rejected[i]]
        numbers = [i for i in numbers if i not in hopeless]
        risky, tried = self._risky(proposal, numbers)
        numbers, tried = [i for i in numbers if i not in risky and i not in tried], tried[:wanted]
        scores = [proposal.scores[i] if proposal.scores else None for i in numbers]
        if self._trimming.filter:
            sorted_ = self._filter.sort(scores, wanted - len(tried))
            kept = [numbers[i] for i in sorted_.kept]
            dropped = [numbers[i] for i in sorted_.dropped]
            watched = sorted_.audited
        else:
            kept, dropped, watched = numbers, [], self._filter.doomed(scores)
        self._watched.update(proposal.candidates[numbers[i]].key for i in watched)
        self._scores.update(
            (proposal.candidates[i].key, score)
            for i, score in zip(numbers, scores, strict=True)
            if score is not None and i in kept
        )
        self._dropped += len(dropped) + len(watched)
        left_out = {
            **{i: proposal.rejected[i] or "" for i in hopeless}, **risky, **dict.fromkeys(dropped, FILTERED_DETAIL),
        }  # fmt: skip
        return FilteredProposal(
            tuple(proposal.candidates[i] for i in (*tried, *kept)),
            tuple(proposal.features[i] for i in (*tried, *kept)),
            tuple(served.values()),
            tuple(proposal.candidates[i] for i in left_out),
            tuple(left_out.values()),
            len(dropped),
        )

    def _risky(self, proposal: Proposal, numbers: Sequence[int]) -> tuple[dict[int, str], list[int]]:
        """Return which candidates will probably fail, with why, and a random part of these that is built all the same.
        These are not ranked: a model that has learned of failures would drop them for the same reason."""
        if not self._failing or not self._trimming.filter:
            return {}, []
        found = self._failing.likelihoods([proposal.features[i] for i in numbers]) or [0.0] * len(numbers)
        likely = {i: value for i, value in zip(numbers, found, strict=True) if value > LIKELY}
        tried = [i for i in likely if self._random.random() < self._trimming.audit_share]
        return {i: f"{FAILING_DETAIL} ({100 * likely[i]:.0f} %)" for i in likely if i not in tried}, tried

    def measured(self, key: str, *, helped: bool) -> None:
        if key in self._watched:
            self._audited.add(key)
        if helped:
            self._best = key

    def score_of(self, key: str) -> float | None:
        """What the cost model said of a candidate that is on its way: higher is faster."""
        return self._scores.get(key)

    def learn(self, told: Sequence[Observation]) -> None:
        group = []
        for one in told:
            self.measured(one.candidate.key, helped=False)  # one that did not even build
            score = self._scores.pop(one.candidate.key, None)
            if score is not None:
                good = one.outcome in (Outcome.OK, Outcome.ABANDONED) and one.latency_s
                group.append((score, one.latency_s if good and one.latency_s else math.inf))
        self._filter.learn(group)
