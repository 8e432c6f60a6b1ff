"""What of a proposal is built: not what is known, not what cannot win, and not what the filter drops."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tunery.dialects import Observation
from tunery.domain import Candidate, Measurement, Outcome, Record, Task, digest
from tunery.domain.request import Trimming
from tunery.runtime.services import Proposal
from tunery.tuning.allocation.failing import LIKELY, FailureModel
from tunery.tuning.allocation.trimming import Audit, CandidateFilter
from tunery.tuning.context import Context

FILTERED_DETAIL = "ranked low by the cost model"
FAILING_DETAIL = "likely to fail to build or run"


@dataclass(frozen=True, slots=True)
class FilteredProposal:
    """A proposal's fresh candidates: to `build` with their feature rows, `served` from the store, and the rest.

    `dropped` are not built, each for the reason in `reasons`; `outranked` of them for their rank alone.
    """

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
        """Return a job's records of what is not built."""
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
        """Return what is known of the filter's errors by now; `winner` is the task's best by its finals, if held."""
        won = (winner or self._best) in self._audited
        return Audit(self._dropped, len(self._audited), int(won))

    def ask(self, wanted: int) -> int:
        """Return how many candidates to ask the proposer for."""
        return self._filter.ask(wanted) if self._trimming.filter else wanted

    def sift(
        self, proposal: Proposal, known: Collection[str], served: Mapping[str, Observation], wanted: int
    ) -> FilteredProposal:
        """Choose at most `wanted` candidates to build: none that is `known`, or `served` from what others measured."""
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

        These are not ranked: a model that has learned of failures would drop them for the same reason.
        """
        if not self._failing or not self._trimming.filter:
            return {}, []
        found = self._failing.likelihoods([proposal.features[i] for i in numbers]) or [0.0] * len(numbers)
        likely = {i: value for i, value in zip(numbers, found, strict=True) if value > LIKELY}
        tried = [i for i in likely if self._random.random() < self._trimming.audit_share]
        return {i: f"{FAILING_DETAIL} ({100 * likely[i]:.0f} %)" for i in likely if i not in tried}, tried

    def measured(self, key: str, *, helped: bool) -> None:
        """Hear that a candidate was measured, and whether it was the best so far."""
        if key in self._watched:
            self._audited.add(key)
        if helped:
            self._best = key

    def learn(self, told: Sequence[Observation]) -> None:
        """Take in the results of one proposal: how well had the model ranked it?"""
        group = []
        for one in told:
            self.measured(one.candidate.key, helped=False)  # one that did not even build
            score = self._scores.pop(one.candidate.key, None)
            if score is not None:
                good = one.outcome in (Outcome.OK, Outcome.ABANDONED) and one.latency_s
                group.append((score, one.latency_s if good and one.latency_s else math.inf))
        self._filter.learn(group)
