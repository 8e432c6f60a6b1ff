"""How much faster a task may still become: a model of remaining gain, with its uncertainty.

The logarithm of a task's best latency falls with the logarithm of its trials, in jumps: most batches bring nothing,
some bring much. We take it as a gamma process over doublings of trials, with `SHAPE` a doubling and an unknown scale,
whose inverse has a gamma prior. That is conjugate: after improvements of x in all over t doublings, the improvement
over d more doublings is distributed as (prior_x + x) times a beta-prime variable of parameters (SHAPE·d, prior_a +
SHAPE·t). What was seen long ago counts less: by half with each doubling since.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

SHAPE = 0.5
_PRIOR_A, _PRIOR_X = 12.0, 1.5
"""Seven per cent a doubling, and many doublings to outweigh it: tasks that had gained in their last one won 3 to 9 % in
the next, and those that had not 5 to 11 % (decision 011)."""
_MEMORY = 0.5


@dataclass(frozen=True, slots=True)
class Gain:
    """What is believed of one task: `trials` spent, `best_s` reached, and the posterior's two parameters.

    `limit` bounds the improvement (a natural logarithm): no program runs faster than the machine.
    """

    trials: int
    best_s: float
    a: float
    x: float
    limit: float = math.inf

    def doublings(self, more: float) -> float:
        return math.log2(1 + more / max(self.trials, 1))

    def expected(self, more: float) -> float:
        """Return the expected logarithm of the speed-up by `more` trials, which closes in on the limit."""
        mean = SHAPE * self.doublings(more) * self.x / (self.a - 1)
        return mean if math.isinf(self.limit) else self.limit * -math.expm1(-mean / self.limit)

    def expected_s(self, more: float) -> float:
        """Return the seconds that `more` trials are expected to take off the latency."""
        return self.best_s * -math.expm1(-self.expected(more))

    def draw(self, more: float, count: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
        if more <= 0:
            return np.full(count, self.best_s)
        part = random.beta(SHAPE * self.doublings(more), self.a, count)
        improvement: npt.NDArray[np.float64] = np.minimum(self.x * part / np.maximum(1 - part, 1e-12), self.limit)
        return self.best_s * np.exp(-improvement)


def believe(trials: Sequence[int], best_s: Sequence[float | None], floor_s: float = 0.0) -> Gain | None:
    """Return the belief after batches of `trials` each, with `best_s` after each; None before anything valid.

    `floor_s` is the least latency thinkable (0: unknown); even at the floor 2 % are left, for it is only believed.
    """
    counts = np.cumsum(np.maximum(trials, 1))
    seen = [(int(n), best) for n, best in zip(counts, best_s, strict=True) if best is not None and best > 0]
    if not seen:
        return None
    now, best = seen[-1]
    x = t = 0.0
    for (before, was), (after, became) in pairwise(seen):
        weight = _MEMORY ** math.log2(now / after)
        t += weight * math.log2(after / before)
        x += weight * max(math.log(was / became), 0.0)
    limit = max(math.log(best / floor_s), 0.02) if floor_s > 0 else math.inf
    return Gain(now, best, _PRIOR_A + SHAPE * t, _PRIOR_X + x, limit)
