"""What a new device costs: how many of its own records bring an old device's model to what all of them would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunery._errors import UsageError
from tunery.costmodels.boosted import BoostedModel, Recipe
from tunery.costmodels.dataset import Dataset, Group
from tunery.costmodels.metrics import ndcg
from tunery.costmodels.training.splits import by_network

_STEPS = (0, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CLOSE = 0.01


@dataclass(frozen=True, slots=True)
class Transfer:
    """NDCG@8 on held-out networks of a device, by how many of its records were learned: on top of the other devices'
    model, and from nothing (None: there was no order to learn from). `needed` is the least number that comes within
    0.01 of the best; the best itself does.
    """

    device: str
    records: tuple[int, ...]
    transferred: tuple[float, ...]
    from_nothing: tuple[float | None, ...]
    needed: int


def transfer(groups: Sequence[Group], device: str, recipe: Recipe, seed: int = 0, threads: int = 1) -> Transfer | None:
    """Return how a model of all other devices does on `device`, with more and more of its records. The tasks it is
    judged on have left the training of every device."""
    own = [group for group in groups if group.device == device]
    folds = by_network(own, 3, seed)
    if not folds:
        return None
    learn, judge = folds[0]
    held = {group.workload_key for group in judge}
    others = [g for g in groups if g.device != device and g.workload_key not in held]
    if not others:
        return None
    base = BoostedModel.train([(g.inputs, g.gains) for g in others], recipe, threads)
    rows = [(g, inputs, i) for g in learn for inputs in (g.inputs,) for i in range(len(g.keys))]
    order = np.random.default_rng(seed).permutation(len(rows))
    steps = [step for step in _STEPS if step < len(rows)] + [len(rows)]
    transferred: list[float] = []
    alone: list[float | None] = []
    for step in steps:
        data = Dataset(rows[0][1].layout)
        for group, inputs, i in (rows[n] for n in order[:step]):
            data.add(group.task_key, group.keys[i], inputs.values[i], float(group.latencies[i]))
        grown, new = _learned(data, base)
        transferred.append(_score(grown, judge))
        alone.append(_score(new, judge) if new else None)
    best = max(transferred)
    needed = next(step for step, score in zip(steps, transferred, strict=True) if score >= best - _CLOSE)
    return Transfer(device, tuple(steps), tuple(transferred), tuple(alone), needed)


def _learned(data: Dataset, base: BoostedModel) -> tuple[BoostedModel, BoostedModel | None]:
    """Return what the rows make of `base`, and of nothing. A few rows drawn over many tasks may hold no two of one
    task."""
    try:
        return BoostedModel.fit(data, base), BoostedModel.fit(data)
    except UsageError:
        return base, None


def _score(model: BoostedModel, judge: Sequence[Group]) -> float:
    return float(np.mean([ndcg(group.gains, model.predict(group.inputs)) for group in judge]))
