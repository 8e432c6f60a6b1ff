"""The candidate filter: which proposals are not worth building, judged by a cost model as far as it has earned trust.
Trust is what the model has shown: of the pairs of candidates of this task that were proposed together, measured, and
differ, the share it had put in the right order before (Kendall's tau, less one standard error). A model that was
trained before the job begins with half of what it has shown on tasks it had not seen; any other one drops nothing until
it is proven. A random part of what would be dropped is measured all the same: that is the search's exploration, and the
only way to know how often the filter is wrong."""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST = 0.5
"""The largest share that is dropped, however well the model ranks."""
ENOUGH = 0.25
"""Kendall's tau from which on it is dropped. A proposed candidate costs a fifth (a convolution) to a tenth (a dense
layer) of one that is built and raced: asking for four times as many found more for a network's core-seconds, but made
the trials of a convolution a third dearer (decision 011)."""
_PROVEN_AT = 12
_WITHIN_PROPOSALS = 0.5
"""How much of the tau that a model has shown over random candidates is left within a proposal, which evolution has
chosen by the same model (decision 011)."""
_PRIOR_COUNT = 48
"""As many candidates of the task itself outweigh what the model has shown on others."""
_MEMORY = 48
_EQUAL = 0.03
"""Latencies this close say nothing about the order."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What is known of a filter's errors: of `dropped` candidates `audited` were measured all the same, and `winners`
    of these are their task's best in the end."""

    dropped: int = 0
    audited: int = 0
    winners: int = 0

    def interval(self) -> tuple[float, float]:
        """Return the bounds of the winners' share with 95 % confidence (Clopper and Pearson 1934)."""
        from scipy.special import betaincinv

        k, n = self.winners, self.audited
        low = float(betaincinv(k, n - k + 1, 0.025)) if k > 0 else 0.0
        high = float(betaincinv(k + 1, n - k, 0.975)) if k < n else 1.0
        return low, high


@dataclass(frozen=True, slots=True)
class Sorted:
    """A proposal's candidates by number: `kept` are built, of these `audited` would else be `dropped`."""

    kept: tuple[int, ...]
    audited: tuple[int, ...]
    dropped: tuple[int, ...]


class CandidateFilter:
    """The filter of one task, and what it has learned of the model's ranking of it. `prior_tau` is what the model has
    shown on tasks it had not seen, None for one that was not trained before."""

    def __init__(self, audit_share: float, seed: int, prior_tau: float | None = None) -> None:
        self._audit_share, self._prior_tau = audit_share, prior_tau
        self._random = random.Random(seed)  # noqa: S311 - a sample, keeps no secret
        self._groups: deque[list[tuple[float, float]]] = deque()

    def tau(self) -> tuple[float, int]:
        agree = differ = 0
        for group in self._groups:
            for i, (score, latency_s) in enumerate(group):
                for other_score, other_s in group[:i]:
                    if min(latency_s, other_s) * (1 + _EQUAL) >= max(latency_s, other_s) or score == other_score:
                        continue
                    right = (score > other_score) == (latency_s < other_s)
                    agree, differ = agree + right, differ + (not right)
        count = sum(len(group) for group in self._groups)
        return ((agree - differ) / (agree + differ) if agree + differ else 0.0), count

    def share(self) -> float:
        tau, count = self.tau()
        if self._prior_tau is not None:
            prior = _WITHIN_PROPOSALS * self._prior_tau
            tau = (count * tau + _PRIOR_COUNT * prior) / (count + _PRIOR_COUNT)
            count += _PRIOR_COUNT
        if count < _PROVEN_AT:
            return 0.0
        error = math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))
        return MOST * min(max((tau - error) / ENOUGH, 0.0), 1.0)

    def ask(self, wanted: int) -> int:
        return math.ceil(wanted / (1 - self.share()) - 1e-9)

    def sort(self, scores: Sequence[float | None], wanted: int) -> Sorted:
        """Keep at most `wanted`, the audited among them; what the proposer gave too little is dropped too little. Each
        that is not among the best has the same chance to be audited."""
        keep = min(wanted, len(scores) - int(self.share() * len(scores) + 1e-9))
        ranked = sorted(range(len(scores)), key=lambda i: -math.inf if (score := scores[i]) is None else -score)
        if keep == len(scores):
            return Sorted(tuple(range(len(scores))), (), ())
        count = sum(self._random.random() < self._audit_share for _ in range(keep))
        rest = sorted(i for i in ranked[keep - count :] if scores[i] is not None)
        audited = set(self._random.sample(rest, min(count, len(rest))))
        best = [i for i in ranked if i not in audited][: keep - len(audited)]
        chosen = {*best, *audited}
        return Sorted(
            tuple(sorted(chosen)), tuple(sorted(audited)), tuple(i for i in range(len(scores)) if i not in chosen)
        )  # fmt: skip

    def doomed(self, scores: Sequence[float | None]) -> tuple[int, ...]:
        scored = sorted((score, i) for i, score in enumerate(scores) if score is not None)
        return tuple(sorted(i for _, i in scored[: int(self.share() * len(scores) + 1e-9)]))

    def learn(self, group: Sequence[tuple[float, float]]) -> None:
        if len(group) > 1:
            self._groups.append(list(group))
        while len(self._groups) > 1 and sum(len(one) for one in self._groups) - len(self._groups[0]) >= _MEMORY:
            self._groups.popleft()
