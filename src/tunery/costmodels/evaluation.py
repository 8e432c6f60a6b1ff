"""How good a model is on tasks it has not seen, per operator kind and device, beside its rivals; and its gate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tunery._errors import UsageError
from tunery.costmodels.dataset import Group
from tunery.costmodels.metrics import Quality, quality

Floats = npt.NDArray[np.float64]
Ranker = Callable[[Group], Floats]

ALL = "all"
# A model that is hardly better than chance would mislead a search that trusts it.
_LEAST_ABOVE_RANDOM, _LEAST_KENDALL = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """The quality of one ranking on the tasks of one kind and one device (`all`: of any)."""

    kind: str
    device: str
    ranking: str
    quality: Quality


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a model may be used, and if not, why."""

    passed: bool
    reasons: tuple[str, ...] = field(default=())


def evaluate(groups: Sequence[Group], rankers: Mapping[str, Ranker]) -> list[Row]:
    """Return each ranker's quality over all groups, per operator kind, and per device where there are several."""
    scored = {name: [(group, ranker(group)) for group in groups] for name, ranker in rankers.items()}
    kinds = [ALL, *sorted({group.kind for group in groups})]
    devices = sorted({group.device for group in groups})
    rows = []
    for kind in kinds:
        for name, pairs in scored.items():
            chosen = [(g.gains, s) for g, s in pairs if kind in {ALL, g.kind}]
            rows.append(Row(kind, ALL, name, quality(chosen)))
    for device in devices if len(devices) > 1 else ():
        for name, pairs in scored.items():
            rows.append(Row(ALL, device, name, quality([(g.gains, s) for g, s in pairs if g.device == device])))
    return rows


def random_ranker(seed: int = 0) -> Ranker:
    """Return a ranking by chance."""
    rng = np.random.default_rng(seed)
    return lambda group: rng.random(len(group.latencies))


def gate(rows: Sequence[Row]) -> Gate:
    """Judge a model by its rows: it must rank held-out tasks better than chance, and no worse than a rival there.

    Raises:
        UsageError: there is nothing to judge by.
    """
    overall = {row.ranking: row.quality for row in rows if row.kind == ALL and row.device == ALL}
    if "model" not in overall or not overall["model"].tasks:
        raise UsageError("no task is left to judge the model by; collect from more networks, or hold out others")
    mine, chance = overall["model"], overall["random"]
    reasons = []
    if not mine.ndcg8 >= chance.ndcg8 + _LEAST_ABOVE_RANDOM:
        reasons.append(f"NDCG@8 {mine.ndcg8:.3f} is not {_LEAST_ABOVE_RANDOM} above chance ({chance.ndcg8:.3f})")
    if not mine.kendall >= _LEAST_KENDALL:
        reasons.append(f"Kendall's tau {mine.kendall:.3f} is below {_LEAST_KENDALL}")
    stock = overall.get("stock")
    if stock is not None and mine.ndcg8 < stock.ndcg8:
        reasons.append(f"NDCG@8 {mine.ndcg8:.3f} is below that of MetaSchedule's own model ({stock.ndcg8:.3f})")
    return Gate(not reasons, tuple(reasons))
