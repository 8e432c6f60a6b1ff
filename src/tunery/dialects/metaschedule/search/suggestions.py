"""Candidates for a task that is not going to be measured: winners of like tasks, or the best of few replays. What won
for a like task, fitted to this one's extents, is near what tuning would end with: the cost model chooses among such
(docs/decisions/009). Where there are none it chooses among what a search guided by it finds."""

import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress

from tunery.dialects import Observation, Suggestions
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.dialects.metaschedule.loading.preparing import TILES
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.search.genomes import Genome
from tunery.dialects.metaschedule.search.portfolio import part
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer, TileProposer
from tunery.dialects.metaschedule.search.winners import Winners, place_of, shipped
from tunery.dialects.metaschedule.variants import dots, place_sums, rows
from tunery.dialects.metaschedule.variants.program import space_of, tvm_target, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, with_left_out
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.dialects.metaschedule.variants.winograd import program as winograd
from tunery.domain import Candidate, Task

# Rows were ahead in 59 of 60 tasks (docs/decisions/003); the least of 262,144 numbers takes 10 µs by place-sums, 141
# as it came: they lead with nearly any tile, where winners do not know better.
_TRUSTED, _TRUSTED_LEAD = (rows.NAME, dots.NAME, place_sums.NAME), 0.1
_ROWS_PER_THREAD = 4
_ROUND = 6
# With fewer flop for a byte of transformed weights a core waits for memory longer than it computes directly; what is no
# larger than this may still lie in a cache from the run before.
_LEAST_FLOP_PER_BYTE, _CACHED_BYTES = 10.0, 4 << 20
_MOST_TILES = 4
_LEAST_WINNERS, _MOST_WINNERS = 4, 12  # to choose among without a search, the fewer for small tasks


def suggest(
    task: Task, n: int, cost_model: str, seed: int, features: FeatureCache, *, several_fallbacks: bool = False
) -> Suggestions:
    """Return what up to `n` replays of a tunable task found, the highest score first. Designs of register tiles need no
    score, and winners of like tasks are candidates enough, `n` or not. Fallbacks are of another kind: one, should the
    candidates fail, or several, if wanted. A variant that fails is left out."""

    def opened(names: Sequence[str]) -> tuple[dict[str, SurrogateProposer], dict[str, str]]:
        return searches_of(task, names, (), cost_model, seed, features=features)

    winners, leading = winners_for(task), leader_of_products(task)
    tiles = tuple(TileProposer(task).propose(_MOST_TILES)) if leading else ()
    if leading == TILES:
        return Suggestions(tiles)
    searches, left_out = opened([leading or GENERIC])
    if not leading and (leading := leader(task, searches[GENERIC], winners)) != GENERIC:
        more, left_out = opened([leading])
        searches |= more
    found, origins = list[Candidate](), dict[str, int]()
    if leading in searches:
        count = _count(task, leading, searches[leading], winners, n)
        with leaving(leading, left_out):
            if won := _won(task, leading, searches[leading], winners, count):
                origins = _tried_out(searches[leading], won)
            elif trusted(task, leading):
                searches[leading].explore(_LEAST_WINNERS)
            found = searches[leading].ranked()
    if found:
        fallbacks: Sequence[Candidate] = tiles
        if leading != GENERIC and not tiles:
            with suppress(Exception):  # a spare that cannot be had costs nothing but itself
                fallbacks = _spare(task, searches[GENERIC], winners, count if several_fallbacks else 1)
        candidates = tuple(with_left_out(candidate, left_out) for candidate in found)
        return Suggestions(candidates, fallbacks=tuple(fallbacks), source_ids=origins)
    rest = tiles or _explored(searches[GENERIC], n)
    return Suggestions(tuple(with_left_out(candidate, left_out) for candidate in rest))


def _explored(search: SurrogateProposer, n: int) -> list[Candidate]:
    """Return what `n` replays found; the draft learns from some of them before the next."""
    for done in range(0, n, _ROUND):
        search.explore(min(_ROUND, n - done))
    return search.ranked()


@contextmanager
def leaving(name: str, left_out: dict[str, str]) -> Generator[None]:
    try:
        yield
    except Exception as error:
        if name == GENERIC:
            raise
        left_out[name] = reason_of(error)


def without(searches: Mapping[str, SurrogateProposer], left_out: Collection[str]) -> dict[str, SurrogateProposer]:
    return {name: search for name, search in searches.items() if name not in left_out}


def _spare(task: Task, search: SurrogateProposer, winners: Winners, count: int) -> list[Candidate]:
    if not search.try_out(list(_won(task, GENERIC, search, winners, count))):
        search.explore(min(count, _LEAST_WINNERS))
    return search.ranked()


def leader(task: Task, generic: SurrogateProposer, winners: Winners) -> str:
    """Return the variant that like tasks were computed by fastest, as far as it applies to this one."""
    home = place_of(task.workload.kind, GENERIC, generic.outlines)
    leads = {
        name: _TRUSTED_LEAD if lead is None and trusted(task, name) else lead or 0.0
        for name in (winograd.NAME, *_TRUSTED)
        for lead in (winners.lead(home, name, GENERIC),)
        if name != GENERIC and name in variants(task).found and not starved(task, name)
    }
    return max(leads, key=lambda name: leads[name]) if any(lead > 0 for lead in leads.values()) else GENERIC


def leader_of_products(task: Task) -> str:
    """Return whether a product from register tiles is computed directly or by Winograd's; "" if it is none."""
    if TILES not in variants(task).found:
        return ""
    name = winograd.NAME
    return TILES if name not in variants(task).found or starved(task, name) else name


def trusted(task: Task, variant: str) -> bool:
    """Return whether a variant leads where nothing is known of it; few rows leave threads of some without work."""
    few = _ROWS_PER_THREAD * task.target.threads if variant == rows.NAME else 1
    return variant in _TRUSTED and math.prod(task.workload.output_specs[0].shape[:-1]) >= few


def starved(task: Task, variant: str) -> bool:
    """Return whether a variant spends its time on reading weights that it has made larger. Like tasks do not say it:
    with images of half the size there is a quarter of the work, and as many weights."""
    if variant != winograd.NAME:
        return False
    kernel = next((4 * spec.size for spec in task.workload.input_specs if spec.shape[:2] == (3, 3)), 0)
    weights = kernel * ((winograd.TILE + 2) / 3) ** 2
    return weights > _CACHED_BYTES and task.workload.flop < _LEAST_FLOP_PER_BYTE * weights


def welcome_winners(task: Task, searches: Mapping[str, SurrogateProposer], left_out: dict[str, str]) -> None:
    """Let searches of a task's variants propose what won for like tasks before anything else. `left_out` is told of
    those that fail at it."""
    winners = winners_for(task)
    for name, search in searches.items():
        with leaving(name, left_out):
            search.welcome(list(_won(task, name, search, winners, _MOST_WINNERS)))


def winners_for(task: Task) -> Winners:
    return shipped(lanes_of(tvm_target(task.target)))


def _tried_out(search: SurrogateProposer, won: Mapping[Genome, int]) -> dict[str, int]:
    found = {}
    for number in dict.fromkeys(won.values()):
        keys = search.try_out([genome for genome, origin in won.items() if origin == number])
        found.update(dict.fromkeys(keys, number))
    return found


def _count(task: Task, variant: str, search: SurrogateProposer, winners: Winners, n: int) -> int:
    """Return how many winners to choose among; where this very task was tuned, its own are enough."""
    own = winners.know(place_of(task.workload.kind, variant, search.outlines))
    return _LEAST_WINNERS if own else min(_MOST_WINNERS, max(n, _LEAST_WINNERS))


def _won(task: Task, variant: str, search: SurrogateProposer, winners: Winners, count: int) -> dict[Genome, int]:
    return winners.near(place_of(task.workload.kind, variant, search.outlines), search.designs, count)


def searches_of(
    task: Task,
    names: Iterable[str],
    history: Sequence[Observation],
    cost_model: str | None,
    seed: int,
    *,
    features: FeatureCache,
) -> tuple[dict[str, SurrogateProposer], dict[str, str]]:
    """Return the searches of the named variants, and why there is none of another than the generic one."""
    found, left_out = {}, {}
    for name in names:
        mine = part(history, name)
        try:
            search = SurrogateProposer(task, space_of(task, name), mine, cost_model, seed, features=features)
            _ = search.outlines  # a design that cannot be chosen for is to show now
            found[name] = search
        except Exception as error:
            if name == GENERIC:
                raise
            left_out[name] = reason_of(error)
    return found, left_out
