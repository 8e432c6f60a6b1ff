"""Candidates for a task that is not going to be measured: the best of few replays, by the cost model alone.

Tasks of one network resemble one another, and often two have the same convolution with other operators fused to it. So
what scored best for one is tried first for the next, with its tiles fitted to the other extents.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunery.dialects._base import Told
from tunery.dialects.metaschedule import depthwise, padded, place_sums, winograd
from tunery.dialects.metaschedule.breeding import extent_of
from tunery.dialects.metaschedule.expressions import GENERIC, with_left_out
from tunery.dialects.metaschedule.features import FeatureCache
from tunery.dialects.metaschedule.genomes import LOCATION, ROOT, TILE, Gene, Genome, divisors
from tunery.dialects.metaschedule.portfolio import part
from tunery.dialects.metaschedule.program import expressions, space_of
from tunery.dialects.metaschedule.proposer import DraftedProposer
from tunery.dialects.metaschedule.reasons import reason_of
from tunery.domain import Candidate, Task, digest

# F(2x2) has won no race against F(4x4), and another search costs as much to prepare as ten replays.
_EXPRESSIONS = (GENERIC, winograd.name_of(max(winograd.TILES)), padded.NAME, depthwise.NAME, place_sums.NAME)
_LEAST_FOR_ALTERNATIVES = 12
# Replays of an expression before the best so far says which one gets the rest.
_ALTERNATIVE, _ALTERNATIVE_SHARE = 4, 0.25
_ROUND = 6
_SEEDS, _KEPT = 4, 2
_SPARED = 0.5  # of the replays, where there are seeds
_BEHIND, _GIVEN_UP = 0.8, 2  # an expression this far behind, this many times in a row, is not prepared again

Designs = Sequence[Sequence[Gene]]


@dataclass(frozen=True, slots=True)
class _Memory:
    """The best genomes of a task's search, with the extents of its tiles."""

    extents: tuple[int, ...]
    genomes: tuple[Genome, ...]


class Foresight:
    """Finds candidates by the cost model, and keeps what was best for the tasks that follow.

    `lesson` is what the latest task taught; another instance, in any process, may be given it.
    """

    def __init__(self, lessons: Sequence[str] = ()) -> None:
        self.lesson = ""
        self._memories: dict[str, list[_Memory]] = {}
        self._losses: Counter[str] = Counter()  # in a row
        for lesson in lessons:
            self._learn(lesson)

    def candidates(self, task: Task, n: int, cost_model: str, seed: int, features: FeatureCache) -> list[Candidate]:
        """Return what up to `n` replays of a tunable task found, the highest score first."""
        names = self._worthwhile(task, n)
        searches, left_out = searches_of(task, names, (), cost_model, seed, features=features)
        left, fair = n, max(_ALTERNATIVE, round(_ALTERNATIVE_SHARE * n))
        for name, search in searches.items():
            seeds = self._seeds(task, name, search)
            if seeds and name == GENERIC:
                left = max(_ALTERNATIVE, round(_SPARED * n))
            search.try_out(seeds)
            first = max(min(_ROUND, n) if name == GENERIC else fair, len(seeds)) - len(seeds)
            for count in rounds_of(first):
                search.explore(count)
            left -= first + len(seeds)
        best = max(searches, key=lambda name: searches[name].best_score())
        limit = _BEHIND * searches[best].best_score()
        behind = {name: search.best_score() < limit for name, search in searches.items()}
        for count in rounds_of(left):
            searches[best].explore(count)
        memories = [
            (_structure(task, name, each.designs), _extents(each.designs), each.best_genomes(_KEPT))
            for name, each in searches.items()
        ]
        self.lesson = json.dumps([behind, [[*kept, [[g.design, g.choices] for g in best]] for *kept, best in memories]])
        self._learn(self.lesson)
        ranked = [candidate for search in searches.values() for candidate in search.ranked()]
        found = [with_left_out(candidate, left_out) for candidate in ranked]
        return sorted(found, key=lambda candidate: -(candidate.score or 0.0))

    def _learn(self, lesson: str) -> None:
        behind, memories = json.loads(lesson)
        for name, lost in behind.items():
            self._losses[name] = self._losses[name] + 1 if lost else 0
        for structure, extents, best in memories:
            genomes = tuple(Genome(design, tuple(map(tuple, choices))) for design, choices in best)
            self._memories.setdefault(structure, []).append(_Memory(tuple(extents), genomes))

    def _worthwhile(self, task: Task, n: int) -> list[str]:
        """Return the expressions that `n` replays are enough for, without those that keep losing."""
        names = _EXPRESSIONS if n >= _LEAST_FOR_ALTERNATIVES else (GENERIC,)
        open_ = [name for name in names if name == GENERIC or self._losses[name] < _GIVEN_UP]
        return [name for name in open_ if name in expressions(task).found]

    def _seeds(self, task: Task, name: str, search: DraftedProposer) -> list[Genome]:
        """Return the best of the tasks that are most like this one, fitted to it."""
        designs = search.designs
        extents = _extents(designs)
        known = self._memories.get(_structure(task, name, designs), [])
        near = sorted(known, key=lambda memory: _distance(memory.extents, extents))
        found = [fitted(genome, designs[genome.design]) for memory in near for genome in memory.genomes]
        return list(dict.fromkeys(found))[:_SEEDS]


def searches_of(
    task: Task,
    names: Iterable[str],
    history: Sequence[Told],
    cost_model: str | None,
    seed: int,
    *,
    features: FeatureCache,
) -> tuple[dict[str, DraftedProposer], dict[str, str]]:
    """Return the searches of the named expressions, and why there is none of another than the generic one.

    Raises:
        Exception: of whatever kind, where the generic program cannot be searched.
    """
    found, left_out = {}, {}
    for name in names:
        mine = part(history, name)
        try:
            found[name] = DraftedProposer(task, space_of(task, name), mine, cost_model, seed, features=features)
        except Exception as error:
            if name == GENERIC:
                raise
            left_out[name] = reason_of(error)
    return found, left_out


def rounds_of(count: int) -> list[int]:
    """Return numbers of replays that sum to `count`: the draft learns from each round before the next.

    >>> rounds_of(8), rounds_of(-1)
    ([6, 2], [])
    """
    return [min(_ROUND, count - done) for done in range(0, count, _ROUND)]


def _structure(task: Task, expression: str, designs: Designs) -> str:
    """Return what two searches have in common if a genome of one can be fitted to the other."""
    shape = tuple(tuple((gene.kind, gene.levels, gene.source) for gene in genes) for genes in designs)
    return digest(task.workload.kind, expression, repr(shape))


def _extents(designs: Designs) -> tuple[int, ...]:
    return tuple(gene.extent for genes in designs for gene in genes if gene.kind == TILE)


def _distance(a: Sequence[int], b: Sequence[int]) -> float:
    return sum(abs(math.log(x / y)) for x, y in zip(a, b, strict=True))


def fitted(genome: Genome, genes: Sequence[Gene]) -> Genome:
    """Return a genome of another task with its tiles fitted to these extents, its other choices where they exist."""
    choices: list[tuple[int, ...]] = []
    for gene, choice in zip(genes, genome.choices, strict=True):
        if gene.kind == TILE:
            choices.append(fitted_tile(choice, extent_of(gene, choices), gene.innermost))
        elif choice[0] in gene.values:
            choices.append(choice)
        else:
            choices.append((ROOT if gene.kind == LOCATION else gene.values[-1],))
    return Genome(genome.design, tuple(choices))


def fitted_tile(factors: Sequence[int], extent: int, innermost: int) -> tuple[int, ...]:
    """Return factors of `extent` near the given ones, the inner ones first; the outermost takes what is left.

    >>> fitted_tile((7, 1, 2, 4), 28, 64)
    (7, 1, 1, 4)
    """
    left, inner = extent, []
    for place, factor in enumerate(reversed(factors[1:])):
        fitting = [d for d in divisors(left) if place or d <= innermost]
        inner.append(min(fitting, key=lambda d: abs(math.log(d / factor))))
        left //= inner[-1]
    return (left, *reversed(inner))
