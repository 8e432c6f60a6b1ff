"""How channels, the last axis, are cut into vectors of a target."""

from typing import Any

from tunery.dialects.metaschedule._tvm import tvm

_FLOAT_BITS = 32
_LEAST_LANES = 4
_MOST_VECTORS = 4


def lanes_of(target: Any) -> int:
    return int(tvm.target.codegen.llvm_get_vector_width(target)) // _FLOAT_BITS


def lengths(channels: int, lanes: int, count: int) -> list[int]:
    """Return up to `count` divisors of a number of channels, the best first, to loop over in one operation each.

    A whole vector is best, then half of one: of longer loops that fill no whole vectors the compiler made 3 to 6 times
    slower convolutions. Where neither divides, it is what leaves the fewest instructions for each channel: 58 are taken
    as 16, 16, 16, 8 and 2.

    >>> [lengths(n, 16, 2) for n in (144, 72, 58, 6)]
    [[16], [8], [58, 29], [6]]
    """
    power = channels & -channels
    if power >= lanes // 2:
        return [min(power, lanes)]
    divisors = [n for n in range(1, min(channels, _MOST_VECTORS * lanes) + 1) if channels % n == 0]
    wide = [n for n in divisors if n >= _LEAST_LANES] or divisors
    return sorted(wide, key=lambda n: (_instructions(n, lanes) / n, n))[:count]


def _instructions(length: int, lanes: int) -> int:
    return length // lanes + (length % lanes).bit_count()
