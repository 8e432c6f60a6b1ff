"""A Gaussian process over rows of numbers: what a search has measured so far, with how sure that is."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import ndtr

Floats = npt.NDArray[np.float64]

LENGTHS = (0.4, 0.8, 1.6)
_LINEAR = 0.3
_LEAST_VARIANCE = 1e-6
_SHORTLIST = 96


class GaussianProcess:
    """Gaussian process regression (Rasmussen and Williams 2006, algorithm 2.1) with a linear and a Matern 5/2 part. The
    length scale is the one with the highest marginal likelihood of those given. `relevance` says of each column by how
    much its differences count more or less than others'."""

    def __init__(  # noqa: PLR0917 - all but the last two are the data
        self,
        rows: Floats,
        targets: Floats,
        noise: Floats,
        background: Floats,
        lengths: Sequence[float] = LENGTHS,
        relevance: Floats | None = None,
    ) -> None:
        spread = background.std(axis=0)
        self._used = spread > 0
        self._centre, self._scale = background.mean(axis=0)[self._used], spread[self._used]
        if relevance is not None:
            self._scale /= relevance[self._used]
        self._rows = self._standard(rows)
        self._mean, self._spread = float(targets.mean()), max(float(targets.std()), 0.05)
        wanted, doubt = (targets - self._mean) / self._spread, noise / self._spread**2
        self.likelihood, self._best = -np.inf, float(wanted.max())
        for length in lengths:
            covariance = self._kernel(self._rows, self._rows, length)
            lower = cholesky(covariance + np.diag(doubt + 1e-6), lower=True)
            weights = cho_solve((lower, True), wanted)
            likelihood = -0.5 * float(wanted @ weights) - float(np.log(np.diag(lower)).sum())
            if likelihood > self.likelihood:
                self.likelihood, self.length, self._lower, self._weights = likelihood, length, lower, weights

    def predict(self, rows: Floats) -> Floats:
        cross = self._kernel(self._standard(rows), self._rows, self.length)
        return np.asarray(self._mean + self._spread * (cross @ self._weights))

    def pick(self, rows: Floats, count: int, optimism: float | None = None) -> list[int]:
        """Return `count` rows worth a look, each the most promising if those before it turn out as expected: the one
        with the highest mean and `optimism` deviations; without it, with the highest expected improvement (Jones et al.
        1998, equation 15)."""
        near = self._standard(rows)
        cross = self._kernel(near, self._rows, self.length)
        mean = cross @ self._weights
        reduced = solve_triangular(self._lower, cross.T, lower=True)
        variance = np.maximum(_LINEAR * (near**2).mean(axis=1) + 1.0 - (reduced**2).sum(axis=0), _LEAST_VARIANCE)
        worth = self._worth(mean, variance, optimism, self._best)
        short = np.argsort(-worth, kind="stable")[: max(_SHORTLIST, 2 * count)]
        covariance = self._kernel(near[short], near[short], self.length) - reduced[:, short].T @ reduced[:, short]
        chosen: list[int] = []
        open_ = np.ones(len(short), dtype=bool)
        highest = self._best
        while len(chosen) < min(count, len(short)):
            worth = self._worth(mean[short], np.maximum(np.diag(covariance), _LEAST_VARIANCE), optimism, highest)
            best = int(np.argmax(np.where(open_, worth, -np.inf)))
            chosen.append(int(short[best]))
            highest = max(highest, float(mean[short[best]]))
            open_[best] = False
            column = covariance[:, best] / np.sqrt(covariance[best, best] + 1e-2)
            covariance = covariance - np.outer(column, column)
        return chosen

    @staticmethod
    def _worth(mean: Floats, variance: Floats, optimism: float | None, highest: float) -> Floats:
        deviation = np.sqrt(variance)
        if optimism is not None:
            return np.asarray(mean + optimism * deviation)
        above = (mean - highest) / deviation
        density = np.exp(-0.5 * above**2) / np.sqrt(2 * np.pi)
        return np.asarray((mean - highest) * ndtr(above) + deviation * density)

    def _standard(self, rows: Floats) -> Floats:
        return np.asarray((rows[:, self._used] - self._centre) / self._scale)

    def _kernel(self, a: Floats, b: Floats, length: float) -> Floats:
        width = max(a.shape[1], 1)
        products = a @ b.T / width
        squares = (a**2).mean(axis=1)[:, None] + (b**2).mean(axis=1)[None, :] - 2 * products
        distance = np.sqrt(5 * np.maximum(squares, 0.0)) / length
        return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance) + _LINEAR * products)
