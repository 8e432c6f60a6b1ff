"""Drawing candidates from a design space, with the one prior that measuring has borne out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.program import Space, post_process, replay

# Over 28 convolutions of the zoo, the best candidate whose innermost channel tile is a multiple of the vector width was
# within 4 % of the best of all in the mean, the best of the others 1.5 to 1.7 times slower, though four times as many
# (docs/decisions/005). For matrix products no such rule held.
_VECTOR = 8
_VECTORISED_KINDS = ("conv2d", "depthwise")
_BIASED_SHARE = 0.85
_INNERMOST_LIMIT = 64


class Sampler:
    """Draws schedules at random, post-processing applied."""

    def __init__(self, space: Space, kind: str, seed: int) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)
        biased = kind in _VECTORISED_KINDS
        self._tiles = [_channel_tile(design.trace) if biased else None for design in space.designs]

    def draw(self, count: int) -> list[Any]:
        """Return up to `count` schedules; a draw that breaks a limit of the target is left out."""
        drawn = (self._one() for _ in range(count))
        return [schedule for schedule in drawn if schedule is not None]

    def _one(self) -> Any:
        number = int(self._random.integers(len(self._space.designs)))
        design, tile = self._space.designs[number], self._tiles[number]
        decisions = {}
        if tile is not None and self._random.random() < _BIASED_SHARE:
            decisions[tile[0]] = self._split(tile[1])
        schedule = tvm.s_tir.Schedule(self._space.module, seed=int(self._random.integers(1, 2**30)))
        try:
            trace = tvm.s_tir.schedule.Trace(design.trace.insts, decisions)
            trace.apply_to_schedule(schedule, remove_postproc=True)
            accepted = post_process(schedule, self._space)
        except Exception:  # noqa: BLE001 - a draw that cannot be applied is no candidate
            return None
        return schedule if accepted else None

    def _split(self, extent: int) -> list[int]:
        """Return four factors of `extent`, the innermost a multiple of the vector width."""
        inner = [v for v in range(_VECTOR, min(extent, _INNERMOST_LIMIT) + 1, _VECTOR) if extent % v == 0]
        innermost = int(self._random.choice(inner))
        factors, rest = [], extent // innermost
        for _ in range(2):
            factor = int(self._random.choice([d for d in range(1, rest + 1) if rest % d == 0]))
            factors.append(factor)
            rest //= factor
        outer = [*factors, rest]
        self._random.shuffle(outer)
        return [*outer, innermost]


def _channel_tile(trace: Any) -> tuple[Any, int] | None:
    """Return the instruction that tiles the channels (the last spatial axis) and their number, if vectors fit it."""
    tiles = [i for i in trace.insts if i.kind.name == "SamplePerfectTile" and int(i.attrs[0]) == 4]
    if not tiles:
        return None
    extent = int(np.prod([int(factor) for factor in trace.decisions[tiles[-1]]]))
    return (tiles[-1], extent) if extent % _VECTOR == 0 else None


def replayed(bodies: Sequence[str], space: Space) -> list[Any]:
    """Return the schedules of earlier candidates; one that does not replay any more is left out."""
    schedules = []
    for body in bodies:
        try:
            schedules.append(replay(space, body))
        except DialectError:
            continue
    return schedules
