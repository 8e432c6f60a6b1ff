"""What is held out of training, and how good a model is on it: per operator kind and device, with its gate. The same
convolution occurs in many networks. A held-out network is unseen only if every workload that occurs in it has left
training, on all devices, whichever other networks hold it too."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels.dataset import Group

Floats = npt.NDArray[np.float64]
Ranker = Callable[[Group], Floats]

ALL = "all"
IN_USE = "in use"
# A model that is hardly better than chance would mislead a search that trusts it.
_LEAST_ABOVE_RANDOM, _LEAST_KENDALL = 0.05, 0.1
LEAST_TASKS = 10
"""Fewer tasks say too little of a model, or of a difference between two."""
_Z95 = 1.96
Fold = tuple[tuple[Group, ...], tuple[Group, ...]]
"""What to train on, and what to judge by."""


def hold_out_networks(groups: Sequence[Group], networks: Sequence[str]) -> Fold:
    wanted = set(networks)
    held = {group.workload_key for group in groups if wanted.intersection(group.networks)}
    train = tuple(group for group in groups if group.workload_key not in held)
    return train, tuple(group for group in groups if group.workload_key in held)


def by_network(groups: Sequence[Group], folds: int = 4, seed: int = 0) -> list[Fold]:
    """Return folds that hold out whole networks; a task of no known network counts as a network of its own. A workload
    is judged once, in the first fold that holds out one of its networks, and leaves training in all of them."""
    owners = sorted({name for group in groups for name in _owners(group)})
    order = np.random.default_rng(seed).permutation(len(owners))
    found: list[Fold] = []
    judged: set[str] = set()
    for part in range(min(folds, len(owners))):
        chosen = {owners[i] for i in order[part::folds]}
        held = {group.workload_key for group in groups if chosen.intersection(_owners(group))}
        train = tuple(group for group in groups if group.workload_key not in held)
        test = tuple(group for group in groups if group.workload_key in held - judged)
        judged |= held
        if train and test:
            found.append((train, test))
    return found


def _owners(group: Group) -> tuple[str, ...]:
    return group.networks or (f"task {group.workload_key}",)


def ndcg(labels: Floats, scores: Floats, k: int = 8) -> float:
    """Return the normalised discounted cumulative gain of the top `k` by score; labels are gains in [0, 1]."""
    discounts = 1 / np.log2(np.arange(2, min(k, len(labels)) + 2))
    found = labels[_order(scores)[:k]] @ discounts
    ideal = np.sort(labels)[::-1][:k] @ discounts
    return float(found / ideal) if ideal > 0 else 1.0


def regret(labels: Floats, scores: Floats, k: int = 1) -> float:
    """Return by how much the best of the top `k` by score falls short of the best of all."""
    best = labels.max()
    return 1.0 - float(labels[_order(scores)[:k]].max() / best) if best > 0 else 0.0


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


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The quality of one ranking on the tasks of one kind and one device (`all`: of any)."""

    kind: str
    device: str
    ranking: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class Paired:
    """A model's NDCG@8 less a rival's on the same tasks: the mean difference and its 95 % interval."""

    rival: str
    tasks: int
    mean: float
    low: float
    high: float

    @property
    def clearly_worse(self) -> bool:
        """Whether the whole interval is below 0: less may be luck."""
        return self.high < 0


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a model may be used, and if not, why."""

    passed: bool
    reasons: tuple[str, ...] = field(default=())


def evaluate(groups: Sequence[Group], rankers: Mapping[str, Ranker]) -> list[EvaluationRow]:
    scored = {name: [(group, ranker(group)) for group in groups] for name, ranker in rankers.items()}
    kinds = [ALL, *sorted({group.kind for group in groups})]
    devices = sorted({group.device for group in groups})
    rows = []
    for kind in kinds:
        for name, pairs in scored.items():
            chosen = [(g.gains, s) for g, s in pairs if kind in {ALL, g.kind}]
            rows.append(EvaluationRow(kind, ALL, name, quality(chosen)))
    for device in devices if len(devices) > 1 else ():
        for name, pairs in scored.items():
            rows.append(
                EvaluationRow(ALL, device, name, quality([(g.gains, s) for g, s in pairs if g.device == device]))
            )
    return rows


def random_ranker(seed: int = 0) -> Ranker:
    rng = np.random.default_rng(seed)
    return lambda group: rng.random(len(group.latencies))


def paired(groups: Sequence[Group], model: Ranker, rival: Ranker, name: str) -> Paired:
    differences = [ndcg(g.gains, model(g)) - ndcg(g.gains, rival(g)) for g in groups]
    mean = float(np.mean(differences))
    half = _Z95 * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return Paired(name, len(differences), mean, mean - half, mean + half)


def gate(rows: Sequence[EvaluationRow], pairs: Sequence[Paired] = ()) -> Gate:
    """Judge a model by its rows: it must rank enough held-out tasks better than chance, and no rival clearly better."""
    overall = {row.ranking: row.quality for row in rows if row.kind == ALL and row.device == ALL}
    if "model" not in overall or not overall["model"].tasks:
        raise UsageError("no task is left to judge the model by; collect from more networks, or hold out others")
    mine, chance = overall["model"], overall["random"]
    reasons = []
    if mine.tasks < LEAST_TASKS:
        reasons.append(
            f"it was judged on {mine.tasks} tasks, and {LEAST_TASKS} are needed; collect from more networks, or hold "
            "more of them out"
        )
    if not mine.ndcg8 >= chance.ndcg8 + _LEAST_ABOVE_RANDOM:
        reasons.append(f"NDCG@8 {mine.ndcg8:.3f} is not {_LEAST_ABOVE_RANDOM} above chance ({chance.ndcg8:.3f})")
    if not mine.kendall >= _LEAST_KENDALL:
        reasons.append(f"Kendall's tau {mine.kendall:.3f} is below {_LEAST_KENDALL}")
    reasons += [
        f"NDCG@8 is {-pair.mean:.3f} below that of the model {pair.rival} on {pair.tasks} tasks (95 % "
        f"interval {-pair.high:.3f} to {-pair.low:.3f})"
        for pair in pairs
        if pair.clearly_worse
    ]
    return Gate(not reasons, tuple(reasons))
