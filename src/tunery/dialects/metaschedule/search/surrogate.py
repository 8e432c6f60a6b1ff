"""Genomes as rows of numbers, for a draft score of candidates from their decisions alone. A Gaussian process over what
this search has learned gives it. That costs microseconds, where a replay with its features costs 15 ms or more, and it
says how sure it is, so that few replays can be spent where they may help most."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunery.dialects.metaschedule.search.genomes import TILE, Gene, Genome

Floats = npt.NDArray[np.float64]


class Encoder:
    """Turns genomes into rows of numbers; the same gene has the same columns in all designs."""

    def __init__(self, designs: Sequence[Sequence[Gene]]) -> None:
        self._designs = [tuple(genes) for genes in designs]
        self._columns: dict[tuple[object, ...], slice] = {}
        self._width = len(designs)
        for genes in self._designs:
            for number, gene in enumerate(genes):
                self._reserve((number, gene.kind, gene.levels, gene.values), _width(gene))
                if gene.kind == TILE:
                    self._reserve(("sum", gene.levels), 2 * gene.levels - 2)

    def _reserve(self, name: tuple[object, ...], width: int) -> None:
        if name not in self._columns:
            self._columns[name] = slice(self._width, self._width + width)
            self._width += width

    def rows(self, genomes: Sequence[Genome]) -> Floats:
        """Return one row per genome: logarithms of tiles and their partial products, marks of the other choices."""
        result = np.zeros((len(genomes), self._width))
        for design, genes in enumerate(self._designs):
            mine = [i for i, genome in enumerate(genomes) if genome.design == design]
            if not mine:
                continue
            part = np.zeros((len(mine), self._width))
            part[:, design] = 1.0
            for number, gene in enumerate(genes):
                values = np.array([genomes[i].choices[number] for i in mine], dtype=np.int64)
                numbers = _encoded(gene, values)
                part[:, self._columns[number, gene.kind, gene.levels, gene.values]] = numbers
                if gene.kind == TILE:
                    part[:, self._columns["sum", gene.levels]] += numbers[:, :-1]
            result[mine] = part
        return result


def _width(gene: Gene) -> int:
    return 2 * gene.levels - 1 if gene.kind == TILE else len(gene.values)


def _encoded(gene: Gene, values: npt.NDArray[np.int64]) -> Floats:
    if gene.kind != TILE:
        return np.asarray(values == np.array(gene.values), dtype=np.float64)
    logs = np.log2(values.astype(np.float64))
    inner = np.cumsum(logs[:, ::-1], axis=1)[:, ::-1]
    whole = np.minimum(values[:, -1:] & -values[:, -1:], 16)  # vectors that the innermost loop fills
    return np.concatenate([logs, inner[:, 1:-1], np.log2(whole)], axis=1)
