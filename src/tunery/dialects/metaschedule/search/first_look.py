"""A task's search over its variants; the first look is at the one that leads, and at no other. Preparing a
search costs as much as some ten candidates, and a 3x3 convolution has four variants. A network is as slow as the tasks
that nobody has looked at yet, so what is not proposed at once is prepared with the next proposal."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from typing_extensions import override

from tunery.dialects import Observation, Proposer
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.dialects.metaschedule.search.portfolio import PortfolioProposer, part
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer, TileProposer
from tunery.dialects.metaschedule.search.suggestions import leader, leaving, searches_of, without
from tunery.dialects.metaschedule.variants.program import tiled, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, ReducedProposer
from tunery.domain import Candidate, Task

_FIRST_LOOK = 8  # candidates at most: who asks for more has few tasks


class FirstLook(Proposer):
    """Proposes from `leading` alone once, and from then on from what `whole` makes of what was told until then.
    Register tiles lead for as long as they have designs, which are few and need no preparation. A leading search that
    fails is left to `whole`, which asks all."""

    def __init__(self, leading: Proposer, whole: Callable[[Sequence[Observation]], Proposer]) -> None:
        self._search = leading
        self._whole: Callable[[Sequence[Observation]], Proposer] | None = whole
        self._told: list[Observation] = []
        self._model = ""
        self._looked = False

    @override
    def propose(self, n: int) -> list[Candidate]:
        if self._looked or n > _FIRST_LOOK:
            return self._widened().propose(n)
        try:
            found = self._search.propose(n)
        except Exception:  # noqa: BLE001 - as in the portfolio, which will say so of it
            found = []
        self._looked = len(found) < n or not isinstance(self._search, TileProposer)
        return found if len(found) == n else found + self._widened().propose(n - len(found))

    def _widened(self) -> Proposer:
        if self._whole is not None:
            self._search, self._whole = self._whole(self._told), None
            if self._model:
                self._search.learn(self._model)
        return self._search

    @override
    def refused(self) -> list[tuple[Candidate, str]]:
        return self._search.refused()

    @override
    def observe(self, results: Sequence[Observation]) -> None:
        self._told += results if self._whole is not None else ()
        with self._widening_if_it_fails():
            self._search.observe(results)

    @override
    def learn(self, cost_model: str) -> None:
        self._model = cost_model
        with self._widening_if_it_fails():
            self._search.learn(cost_model)

    @contextmanager
    def _widening_if_it_fails(self) -> Generator[None]:
        try:
            yield
        except Exception:
            if self._whole is None:
                raise
            self._looked = True  # the next proposal asks all


def open_search(
    task: Task,
    history: Sequence[Observation],
    cost_model: str | None,
    seed: int,
    features: FeatureCache,
    *,
    warm_start: bool,
    generic_only_reason: str | None = None,
) -> Proposer:
    """Return the search of a tunable task; `warm_start` begins with what leads. With a
    `generic_only_reason` it has the generic variant only, and its candidates say of the others that they were left out
    for it."""
    ready: dict[str, SurrogateProposer] = {}
    written = tiled(task)
    tiles = {name: TileProposer(task, [name], history) for name in written}

    def opened(names: Sequence[str], told: Sequence[Observation]) -> Mapping[str, str]:
        """Prepare the named searches that are not ready, and return why there is none of some."""
        missing = [name for name in names if name not in ready and name not in written]
        more, left_out = searches_of(task, missing, told, cost_model, seed, features=features)
        ready.update(without(more, left_out))
        return left_out

    def whole(told: Sequence[Observation]) -> Proposer:
        failed = dict[str, str]()
        for name, known in ready.items():  # what others measured meanwhile
            with leaving(name, failed):
                known.observe(part(told, name))
        for name in failed:
            del ready[name]
        left_out = {**opened([name for name in variants(task).found if name not in failed], told), **failed}
        searches: dict[str, Proposer] = {**ready, **tiles}
        search = PortfolioProposer(searches, told, left_out) if len(searches) > 1 else next(iter(searches.values()))
        return ReducedProposer(search, left_out)

    if generic_only_reason is not None:
        searches, _ = searches_of(task, [GENERIC], history, cost_model, seed, features=features)
        others = [name for name in variants(task).found if name != GENERIC]
        return ReducedProposer(PortfolioProposer(searches, history), dict.fromkeys(others, generic_only_reason))
    if not warm_start or len(variants(task).found) == 1 or any(told.candidate.body for told in history):
        return whole(history)
    first: Proposer | None = tiles[written[0]] if written else None
    if not written:
        leading = leader(task)
        opened([leading], history)
        first = ready.get(leading) if leading != GENERIC else None
    return FirstLook(first, lambda told: whole([*history, *told])) if first else whole(history)
