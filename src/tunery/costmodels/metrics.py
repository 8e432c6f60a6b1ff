"""How well a ranking of candidates finds the fast ones, within one task."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def ndcg(labels: Floats, scores: Floats, k: int = 8) -> float:
    """Return the normalised discounted cumulative gain of the top `k` by score; labels are gains in [0, 1]."""
    discounts = 1 / np.log2(np.arange(2, min(k, len(labels)) + 2))
    found = labels[np.argsort(-scores, kind="stable")[:k]] @ discounts
    ideal = np.sort(labels)[::-1][:k] @ discounts
    return float(found / ideal) if ideal > 0 else 1.0


def best_of_top(labels: Floats, scores: Floats, k: int = 8) -> float:
    """Return the speed of the fastest of the top `k` by score, as a share of the fastest of all."""
    best = labels.max()
    return float(labels[np.argsort(-scores, kind="stable")[:k]].max() / best) if best > 0 else 1.0


def kendall(labels: Floats, scores: Floats) -> float:
    """Return Kendall's tau-b between labels and scores, 0 where either is constant."""
    from scipy.stats import kendalltau

    value = float(kendalltau(labels, scores).statistic)
    return 0.0 if np.isnan(value) else value
