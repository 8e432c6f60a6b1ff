"""How good a model is on tasks it has not seen, per operator kind and device, beside its rivals; and its gate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels.dataset import Group
from tunery.costmodels.metrics import Quality, ndcg, quality
from tunery.costmodels.training.rival import NAME

Floats = npt.NDArray[np.float64]
Ranker = Callable[[Group], Floats]

ALL = "all"
STOCK, IN_USE = "stock", "in use"
RIVALS = {STOCK: NAME, IN_USE: "the model in use"}
# A model that is hardly better than chance would mislead a search that trusts it.
_LEAST_ABOVE_RANDOM, _LEAST_KENDALL = 0.05, 0.1
LEAST_TASKS = 10
"""Fewer tasks say too little of a model, or of a difference between two."""
_Z95 = 1.96


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
        f"NDCG@8 is {-pair.mean:.3f} below that of {RIVALS.get(pair.rival, pair.rival)} on {pair.tasks} tasks (95 % "
        f"interval {-pair.high:.3f} to {-pair.low:.3f})"
        for pair in pairs
        if pair.clearly_worse
    ]
    return Gate(not reasons, tuple(reasons))
