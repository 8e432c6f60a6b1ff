"""A search over a workload's variants: each has its own search, and what it found decides its share of proposals."""

from collections.abc import Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager

from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects import Observation, Proposer
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.variants.variant import GENERIC, read_body
from tunery.domain import Candidate, Outcome

# The weight of a variant is (fastest / its best) to a power that grows with its trials: after few, being slower
# says more about the search than about the variant. In the end one that is 10 % slower gets half the share of the
# fastest, one that is 40 % slower the least, which it keeps, since it may still catch up.
_TRIALS_PER_POWER = 6
_HIGHEST_POWER = 8
_LEAST_WEIGHT = 1 / 16
_FAIR_TRIALS = 8


class PortfolioProposer(Proposer):
    """Splits proposals over the variants' searches. All get the same until each has `_FAIR_TRIALS` results, or has no
    more to propose. A search that fails, unless it is the generic one, leaves; `left_out` is told why."""

    def __init__(
        self,
        searches: Mapping[str, Proposer],
        history: Sequence[Observation],
        left_out: MutableMapping[str, str] | None = None,
    ) -> None:
        self._searches = dict(searches)
        self._left_out = {} if left_out is None else left_out
        self._best_s: dict[str, float] = {}
        self._heard = dict.fromkeys(self._searches, 0)
        self._credit = dict.fromkeys(self._searches, 0.0)
        self._exhausted: set[str] = set()
        self._empty: set[str] = set()
        self._note(history)

    @override
    def propose(self, n: int) -> list[Candidate]:
        chosen: list[Candidate] = []
        shares = self.shares()
        open_searches = {name: share for name, share in shares.items() if name not in self._empty} or shares
        while len(chosen) < n and open_searches:
            for name, count in self._split(n - len(chosen), open_searches).items():
                proposed = self._proposed(name, count)
                chosen += proposed
                if not proposed:
                    self._empty.add(name)  # asked again only where all are
                if len(proposed) < count:  # the others take its place
                    self._exhausted.add(name)
                    del open_searches[name]
        return chosen

    def _proposed(self, name: str, count: int) -> list[Candidate]:
        with self._leaving_if_it_fails(name):
            return self._searches[name].propose(count)
        return []

    @contextmanager
    def _leaving_if_it_fails(self, name: str) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if name == GENERIC:
                raise
            self._left_out[name] = reason_of(error)
            self._searches[name] = Ended()

    @override
    def refused(self) -> list[tuple[Candidate, str]]:
        return [one for search in self._searches.values() for one in search.refused()]

    def shares(self) -> dict[str, float]:
        """Return each variant's share of the next proposals; they sum to 1."""
        weights = dict.fromkeys(self._searches, 1.0)
        tried = {name for name, heard in self._heard.items() if heard >= _FAIR_TRIALS}
        if self._best_s and tried | self._exhausted == self._heard.keys():
            fastest = min(self._best_s.values())
            for name in weights:
                best_s = self._best_s.get(name)
                power = min(_HIGHEST_POWER, self._heard[name] / _TRIALS_PER_POWER)
                weights[name] = max(_LEAST_WEIGHT, (fastest / best_s) ** power if best_s else 0.0)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def _split(self, n: int, shares: Mapping[str, float]) -> dict[str, int]:
        """Return whole numbers that sum to `n`; what a share is owed is carried to the next batch."""
        total = sum(shares.values())
        for name, share in shares.items():
            self._credit[name] += n * share / total
        counts = dict.fromkeys(shares, 0)
        for _ in range(n):
            owed = max(shares, key=lambda name: self._credit[name])
            counts[owed] += 1
            self._credit[owed] -= 1
        return {name: count for name, count in counts.items() if count}

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        self._note(results)
        for name, search in tuple(self._searches.items()):
            mine = part(results, name)
            if mine:
                with self._leaving_if_it_fails(name):
                    search.observe(mine)

    def _note(self, results: Sequence[Observation]) -> None:
        for told in results:
            name = _variant(told)
            if name is None or name not in self._heard or told.outcome is Outcome.FILTERED:
                continue  # what was filtered is told after a resumption only, so it must not count
            self._heard[name] += 1
            if told.latency_s is not None and told.latency_s > 0:
                self._best_s[name] = min(self._best_s.get(name, told.latency_s), told.latency_s)

    @override
    def learn(self, cost_model: str) -> None:
        for name, search in tuple(self._searches.items()):
            with self._leaving_if_it_fails(name):
                search.learn(cost_model)


class Ended(Proposer):
    """A search that has no more to propose."""

    @override
    def propose(self, n: int) -> list[Candidate]:
        return []

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        pass


def part(history: Sequence[Observation], variant: str) -> list[Observation]:
    """Return what concerns one variant's search: its own candidates, and the unscheduled program."""
    return [told for told in history if _variant(told) in (variant, None)]


def _variant(told: Observation) -> str | None:
    if not told.candidate.body:
        return None
    try:
        return read_body(told.candidate.body)[0]
    except DialectError:
        return None
