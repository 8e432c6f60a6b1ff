"""Candidates for a task that is not going to be measured: designs of register tiles, or the best of few replays."""

import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain

from tunery.dialects import Observation, Suggestions
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.dialects.metaschedule.search.portfolio import part
from tunery.dialects.metaschedule.search.proposer import SurrogateProposer, TileProposer
from tunery.dialects.metaschedule.variants import dots, place_sums, rows
from tunery.dialects.metaschedule.variants.program import space_of, tiled, variants
from tunery.dialects.metaschedule.variants.variant import GENERIC, with_left_out
from tunery.domain import Candidate, Task

# Rows were ahead in 59 of 60 tasks (docs/decisions/003); the least of 262,144 numbers takes 10 µs by place-sums, 141
# as it came: these lead with nearly any tile.
_TRUSTED = (rows.NAME, dots.NAME, place_sums.NAME)
_ROWS_PER_THREAD = 4
_ROUND, _FEW = 6, 4
_TILES, _SEVERAL_TILES = 2, 4  # designs of each variant, and where some are going to be measured


def suggest(
    task: Task, n: int, cost_model: str, seed: int, features: FeatureCache, *, several_fallbacks: bool = False
) -> Suggestions:
    """Return what up to `n` replays of a tunable task found, the highest score first. Designs of register tiles need no
    score. Fallbacks are of another kind: one, should the candidates fail, or several, if wanted. A variant that fails
    is left out."""
    if names := tiled(task):
        count, others = (_SEVERAL_TILES, names[1:]) if several_fallbacks else (_TILES, names[1:2])
        fallbacks = (TileProposer(task, [name]).propose(count if several_fallbacks else 1) for name in others)
        return Suggestions(tuple(TileProposer(task, names[:1]).propose(count)), fallbacks=tuple(chain(*fallbacks)))
    leading = leader(task)
    searches, left_out = searches_of(task, {leading, GENERIC}, (), cost_model, seed, features=features)
    if leading in searches and leading != GENERIC:
        spares: Sequence[Candidate] = ()
        with leaving(leading, left_out):
            searches[leading].explore(_FEW)
        if found := searches[leading].ranked():
            with suppress(Exception):  # a spare that cannot be had costs nothing but itself
                searches[GENERIC].explore(_FEW if several_fallbacks else 1)
                spares = searches[GENERIC].ranked()
            return Suggestions(
                tuple(with_left_out(candidate, left_out) for candidate in found), fallbacks=tuple(spares)
            )
    for done in range(0, n, _ROUND):  # the draft learns from some of them before the next
        searches[GENERIC].explore(min(_ROUND, n - done))
    return Suggestions(tuple(with_left_out(candidate, left_out) for candidate in searches[GENERIC].ranked()))


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


def leader(task: Task) -> str:
    """Return the variant that a task without register tiles is computed by first; few rows leave threads of some
    without work."""
    few = math.prod(task.workload.output_specs[0].shape[:-1]) < _ROWS_PER_THREAD * task.target.threads
    names = (name for name in _TRUSTED if name in variants(task).found and not (few and name == rows.NAME))
    return next(names, GENERIC)


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
