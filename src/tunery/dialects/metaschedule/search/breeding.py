"""New genomes: drawn at random, with the one prior that measuring has borne out, or bred from good ones."""

import math
import random
from collections.abc import Sequence

from tunery.dialects.metaschedule.search.genomes import TILE, Gene, Genome, divisors, tilings

# Of 33 convolutions of the zoo, the fastest candidate's innermost channel tile was a power of two from 8 up 23 times,
# another multiple of 8 once. For matrix products no such rule held (docs/decisions/004).
_VECTORS = (8, 16, 32, 64)
_VECTORISED_KINDS = ("conv2d", "depthwise")
_BIASED_SHARE = 0.85
_BLOCK = 512
"""Most elements of a block that is kept in registers, 32 of them with 16 floats: few optima have larger ones."""
_SPATIAL_LEVELS = 4
_CROSSED_SHARE, _MIGRANT_SHARE, _STEP_SHARE = 0.25, 0.1, 0.6
_CHANGES = (1, 1, 1, 2, 2, 3)


class Breeder:
    """Makes genomes of a space's designs."""

    def __init__(self, designs: Sequence[Sequence[Gene]], kind: str, seed: int) -> None:
        self._designs = [tuple(genes) for genes in designs]
        self._random = random.Random(seed)  # noqa: S311 - a search, no secret
        self._spatial = [_spatial(genes) if kind in _VECTORISED_KINDS else () for genes in self._designs]

    def drawn(self) -> Genome:
        design = self._random.randrange(len(self._designs))
        spatial = self._spatial[design]
        fixed = self._vectorised(design) if spatial and self._random.random() < _BIASED_SHARE else {}
        choices: list[tuple[int, ...]] = []
        for number in range(len(self._designs[design])):
            choices.append(fixed.get(number) or self._choice(design, number, choices))
        return Genome(design, tuple(choices))

    def child(self, parents: Sequence[Genome]) -> Genome:
        """Return a changed copy of one of the parents, perhaps crossed with another, perhaps of another design."""
        parent = self._random.choice(parents)
        luck = self._random.random()
        if luck < _CROSSED_SHARE:
            other = self._random.choice(parents)
            if other.design == parent.design:
                pairs = zip(parent.choices, other.choices, strict=True)
                parent = Genome(parent.design, tuple(self._random.choice(pair) for pair in pairs))
        elif luck < _CROSSED_SHARE + _MIGRANT_SHARE:
            parent = self._moved(parent, self._random.randrange(len(self._designs)))
        choices = list(parent.choices)
        for _ in range(self._random.choice(_CHANGES)):
            number = self._random.randrange(len(choices))
            choices[number] = self._changed(parent.design, number, choices)
        return self._mended(parent.design, choices)

    def _moved(self, genome: Genome, design: int) -> Genome:
        ours, theirs = self._designs[genome.design], self._designs[design]
        choices: list[tuple[int, ...]] = []
        for number, gene in enumerate(theirs):
            same = number < len(ours) and ours[number] == gene
            choices.append(genome.choices[number] if same else self._choice(design, number, choices))
        return Genome(design, tuple(choices))

    def _changed(self, design: int, number: int, choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        gene = self._designs[design][number]
        if gene.kind == TILE and gene.levels > 1 and self._random.random() < _STEP_SHARE:
            return stepped(choices[number], gene.innermost, self._random)
        return self._choice(design, number, choices)

    def _choice(self, design: int, number: int, choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        gene = self._designs[design][number]
        if gene.kind != TILE:
            return (self._random.choice(gene.values),)
        return self._random.choice(tilings(extent_of(gene, choices), gene.levels, gene.innermost))

    def _mended(self, design: int, choices: list[tuple[int, ...]]) -> Genome:
        for number, gene in enumerate(self._designs[design]):
            if gene.source and math.prod(choices[number]) != extent_of(gene, choices):
                choices[number] = self._choice(design, number, choices)
        return Genome(design, tuple(choices))

    def _vectorised(self, design: int) -> dict[int, tuple[int, ...]]:
        """Return tiles of the spatial axes, innermost a vector of channels, in a block that fits the registers."""
        room, tiles = _BLOCK, dict[int, tuple[int, ...]]()
        for number in self._spatial[design]:
            extent = self._designs[design][number].extent
            sizes = range(1, extent + 1) if tiles else _VECTORS
            inner = self._random.choice([size for size in sizes if extent % size == 0 and size <= room])
            outer = self._random.choice(tilings(extent // inner, _SPATIAL_LEVELS - 1, extent))
            tiles[number] = (*outer, inner)
            room //= inner
        return tiles


def _spatial(genes: Sequence[Gene]) -> tuple[int, ...]:
    """Return the genes that tile the spatial axes, channels (the last axis) first; none where vectors do not fit."""
    found = [n for n, gene in enumerate(genes) if gene.kind == TILE and gene.levels == _SPATIAL_LEVELS]
    return tuple(reversed(found)) if found and genes[found[-1]].extent % min(_VECTORS) == 0 else ()


def extent_of(gene: Gene, choices: Sequence[tuple[int, ...]]) -> int:
    if gene.source is None:
        return gene.extent
    other, place, times = gene.source
    return choices[other][place] * times


def stepped(tile: tuple[int, ...], innermost: int, rng: random.Random) -> tuple[int, ...]:
    """Return a tile with one prime factor moved from one level to another, or the same where that is not possible."""
    source, sink = rng.sample(range(len(tile)), 2)
    primes = [p for p in divisors(tile[source]) if p > 1 and len(divisors(p)) == 2]
    if not primes:
        return tile
    prime, changed = rng.choice(primes), list(tile)
    changed[source] //= prime
    changed[sink] *= prime
    return tuple(changed) if changed[-1] <= innermost else tile
