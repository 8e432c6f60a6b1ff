"""How well a ranking of candidates finds the fast ones, within one task."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def ndcg(labels: Floats, scores: Floats, k: int = 8) -> float:
    """Return the normalised discounted cumulative gain of the top `k` by score; labels are gains in [0, 1]."""
    discounts = 1 / np.log2(np.arange(2, min(k, len(labels)) + 2))
    found = labels[_order(scores)[:k]] @ discounts
    ideal = np.sort(labels)[::-1][:k] @ discounts
    return float(found / ideal) if ideal > 0 else 1.0


def best_of_top(labels: Floats, scores: Floats, k: int = 8) -> float:
    best = labels.max()
    return float(labels[_order(scores)[:k]].max() / best) if best > 0 else 1.0


def regret(labels: Floats, scores: Floats, k: int = 1) -> float:
    return 1.0 - best_of_top(labels, scores, k)


def kendall(labels: Floats, scores: Floats) -> float:
    from scipy.stats import kendalltau

    value = float(kendalltau(labels, scores).statistic)
    return 0.0 if np.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over tasks: NDCG@8, the regret of the top 1 and of the top 8, Kendall's tau; `tasks` is their number."""

    tasks: int
    ndcg8: float
    regret1: float
    regret8: float
    kendall: float


def quality(pairs: Sequence[tuple[Floats, Floats]]) -> Quality:
    if not pairs:
        return Quality(0, *(float("nan"),) * 4)
    rows = [(ndcg(y, s), regret(y, s), regret(y, s, 8), kendall(y, s)) for y, s in pairs]
    return Quality(len(pairs), *(float(mean) for mean in np.mean(rows, axis=0)))


def _order(scores: Floats) -> npt.NDArray[np.intp]:
    """Return the indices, best score first; a score that is no number is the worst."""
    return np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
