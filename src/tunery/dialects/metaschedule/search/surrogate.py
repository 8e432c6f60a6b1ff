"""A draft score of candidates from their decisions alone: a Gaussian process over what this search has learned.

Prediction costs microseconds, where a replay with its features costs 15 ms or more, and it says how sure it is, so that
few replays can be spent where they may help most.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

from tunery.dialects.metaschedule.search.genomes import TILE, Gene, Genome

Floats = npt.NDArray[np.float64]

LENGTHS = (0.4, 0.8, 1.6)
_LINEAR = 0.3
_LEAST_VARIANCE = 1e-6
_SHORTLIST = 96


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


class GaussianProcess:
    """Gaussian process regression (Rasmussen and Williams 2006, algorithm 2.1) with a linear and a Matern 5/2 part.

    The length scale is the one with the highest marginal likelihood of those given.
    """

    def __init__(
        self, rows: Floats, targets: Floats, noise: Floats, background: Floats, lengths: Sequence[float] = LENGTHS
    ) -> None:
        spread = background.std(axis=0)
        self._used = spread > 0
        self._centre, self._scale = background.mean(axis=0)[self._used], spread[self._used]
        self._rows = self._standard(rows)
        self._mean, self._spread = float(targets.mean()), max(float(targets.std()), 0.05)
        wanted, doubt = (targets - self._mean) / self._spread, noise / self._spread**2
        best = -np.inf
        for length in lengths:
            covariance = self._kernel(self._rows, self._rows, length)
            lower = cholesky(covariance + np.diag(doubt + 1e-6), lower=True)
            weights = cho_solve((lower, True), wanted)
            likelihood = -0.5 * float(wanted @ weights) - float(np.log(np.diag(lower)).sum())
            if likelihood > best:
                best, self.length, self._lower, self._weights = likelihood, length, lower, weights

    def predict(self, rows: Floats) -> Floats:
        """Return the expected target of each row."""
        cross = self._kernel(self._standard(rows), self._rows, self.length)
        return np.asarray(self._mean + self._spread * (cross @ self._weights))

    def pick(self, rows: Floats, count: int, optimism: float) -> list[int]:
        """Return `count` rows worth a look, each the most promising if those before it turn out as expected."""
        near = self._standard(rows)
        cross = self._kernel(near, self._rows, self.length)
        mean = cross @ self._weights
        reduced = solve_triangular(self._lower, cross.T, lower=True)
        variance = np.maximum(_LINEAR * (near**2).mean(axis=1) + 1.0 - (reduced**2).sum(axis=0), _LEAST_VARIANCE)
        short = np.argsort(-(mean + optimism * np.sqrt(variance)), kind="stable")[: max(_SHORTLIST, 2 * count)]
        covariance = self._kernel(near[short], near[short], self.length) - reduced[:, short].T @ reduced[:, short]
        chosen: list[int] = []
        open_ = np.ones(len(short), dtype=bool)
        while len(chosen) < min(count, len(short)):
            bound = mean[short] + optimism * np.sqrt(np.maximum(np.diag(covariance), _LEAST_VARIANCE))
            best = int(np.argmax(np.where(open_, bound, -np.inf)))
            chosen.append(int(short[best]))
            open_[best] = False
            column = covariance[:, best] / np.sqrt(covariance[best, best] + 1e-2)
            covariance = covariance - np.outer(column, column)
        return chosen

    def _standard(self, rows: Floats) -> Floats:
        return np.asarray((rows[:, self._used] - self._centre) / self._scale)

    def _kernel(self, a: Floats, b: Floats, length: float) -> Floats:
        width = max(a.shape[1], 1)
        products = a @ b.T / width
        squares = (a**2).mean(axis=1)[:, None] + (b**2).mean(axis=1)[None, :] - 2 * products
        distance = np.sqrt(5 * np.maximum(squares, 0.0)) / length
        return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance) + _LINEAR * products)
