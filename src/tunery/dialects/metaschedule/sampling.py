"""Drawing candidates from a design space, with the one prior that measuring has borne out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm
from tunery.dialects.metaschedule.program import Space, post_process, replay

# Of 33 convolutions of the zoo, the fastest candidate's innermost channel tile was a power of two from 8 up 23 times,
# another multiple of 8 once. For matrix products no such rule held (docs/decisions/005).
_VECTORS = (8, 16, 32, 64)
_VECTORISED_KINDS = ("conv2d", "depthwise")
_BIASED_SHARE = 0.85
_BLOCK = 512
"""Most elements of a block that is kept in registers, 32 of them with 16 floats: few optima have larger ones."""


class Sampler:
    """Draws schedules at random, post-processing applied."""

    def __init__(self, space: Space, kind: str, seed: int) -> None:
        self._space = space
        self._random = np.random.default_rng(seed)
        biased = kind in _VECTORISED_KINDS
        self._tiles = [_spatial_tiles(design.trace) if biased else () for design in space.designs]

    def draw(self, count: int) -> list[Any]:
        """Return up to `count` schedules; a draw that breaks a limit of the target is left out."""
        drawn = (self._one() for _ in range(count))
        return [schedule for schedule in drawn if schedule is not None]

    def _one(self) -> Any:
        number = int(self._random.integers(len(self._space.designs)))
        design, tiles = self._space.designs[number], self._tiles[number]
        decisions = self._decisions(tiles) if tiles and self._random.random() < _BIASED_SHARE else {}
        schedule = tvm.s_tir.Schedule(self._space.module, seed=int(self._random.integers(1, 2**30)))
        try:
            trace = tvm.s_tir.schedule.Trace(design.trace.insts, decisions)
            trace.apply_to_schedule(schedule, remove_postproc=True)
            accepted = post_process(schedule, self._space)
        except Exception:  # noqa: BLE001 - a draw that cannot be applied is no candidate
            return None
        return schedule if accepted else None

    def _decisions(self, tiles: Sequence[tuple[Any, int]]) -> dict[Any, list[int]]:
        """Return tiles of the spatial axes, innermost a vector of channels, in a block that fits the registers."""
        room, decisions = _BLOCK, {}
        for number, (instruction, extent) in enumerate(tiles):
            inner = [v for v in (_VECTORS if number == 0 else range(1, extent + 1)) if extent % v == 0 and v <= room]
            decisions[instruction] = self._split(extent, int(self._random.choice(inner)))
            room //= decisions[instruction][-1]
        return decisions

    def _split(self, extent: int, innermost: int) -> list[int]:
        """Return four factors of `extent`, in random order but for the innermost."""
        factors, rest = [], extent // innermost
        for _ in range(2):
            factor = int(self._random.choice([d for d in range(1, rest + 1) if rest % d == 0]))
            factors.append(factor)
            rest //= factor
        outer = [*factors, rest]
        self._random.shuffle(outer)
        return [*outer, innermost]


def _spatial_tiles(trace: Any) -> tuple[tuple[Any, int], ...]:
    """Return the instructions that tile the spatial axes with their extents, channels (the last axis) first.

    None where vectors do not fit the channels.
    """
    tiles = [i for i in trace.insts if i.kind.name == "SamplePerfectTile" and int(i.attrs[0]) == 4]
    found = [(tile, int(np.prod([int(factor) for factor in trace.decisions[tile]]))) for tile in reversed(tiles)]
    return tuple(found) if found and found[0][1] % min(_VECTORS) == 0 else ()


def replayed(bodies: Sequence[str], space: Space) -> list[Any]:
    """Return the schedules of earlier candidates; one that does not replay any more is left out."""
    schedules = []
    for body in bodies:
        try:
            schedules.append(replay(space, body))
        except DialectError:
            continue
    return schedules
