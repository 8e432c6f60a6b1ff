"""What design spaces of our own have in common: a program's blocks around its one reduction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunery.dialects.metaschedule.variants.rewriting import shape_of

Designs: TypeAlias = Callable[[Any], list[Any]]
"""Turns a schedule into the designs of a space."""

_REDUCED = 2  # TVM's IterVar type


@dataclass(frozen=True)
class Around:
    """A schedule's blocks `before` its one reduction and `after` it; the extents of the reduction's axes by kind."""

    before: Sequence[Any]
    reduction: Any
    after: Sequence[Any]
    spatial: Sequence[int]
    reduced: Sequence[int]
    read: Sequence[Sequence[int]]
    """The shapes of the arrays that the reduction reads."""


def reductions(schedule: Any) -> list[int]:
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [place for place, block in enumerate(blocks) if extents_of(schedule.get(block), reduced=True)]


def around_reduction(schedule: Any) -> Around:
    [place] = reductions(schedule)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    found = schedule.get(blocks[place])
    read = [shape_of(region.source) for region in found.reads]
    extents = extents_of(found, reduced=False), extents_of(found, reduced=True)
    return Around(blocks[:place], blocks[place], blocks[place + 1 :], *extents, read)


def result_of(schedule: Any, around: Around) -> Any:
    """Return the block that writes the result, with all others that follow the reduction inlined. Where the reduction
    itself writes it, what copies it there from registers."""
    if not around.after:
        return schedule.cache_write(around.reduction, 0, "global")
    for block in around.after[:-1]:
        schedule.compute_inline(block)
    return around.after[-1]


def unroll(schedule: Any, *loops: Any) -> None:
    for loop in loops:
        schedule.unroll(loop)


def extents_of(block: Any, *, reduced: bool) -> list[int]:
    return [int(axis.dom.extent) for axis in block.iter_vars if (int(axis.iter_type) == _REDUCED) == reduced]
