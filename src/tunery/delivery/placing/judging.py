"""ONNX Runtime as the last rung of the ladder: it runs a network whole where what was compiled is slower or wrong."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from tunery._errors import TuneryError, WorkError
from tunery.delivery.comparing.compare import Contestants, Expected, checked_error, has_rivals
from tunery.delivery.work import Work
from tunery.domain import SEGMENT, Network, median_interval
from tunery.engines import Role

_TURN_S, _FEWEST_TURNS, _MOST_TURNS, _LONGEST_S = 0.1, 3, 24, 4.0
_PATIENCE_S = 1.0
"""Others on the machine disturb both alike, so it is hardly waited for."""
_CLEAR, _CHANCE = 1.1, 1.02
"""Ratios of times: one that needs no more turns if each shows it, and one that may be chance."""
_WRAPPED_S = 2.5e-6
"""What a call of a file that ONNX Runtime runs whole takes beside one of ONNX Runtime itself."""
_OURS, _THEIRS = "tunery", "onnxruntime"
Turn = tuple[float, float]
"""What a compiled network and ONNX Runtime take in one turn, in seconds: medians of a few runs."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A compiled network beside ONNX Runtime: its largest error, what both take, and why it is not delivered, if so.

    `wrong` says that it computes something else or fails, `slower` that ONNX Runtime is faster. `share` is that of its
    kernels' time that ONNX Runtime takes for its segments. `kernels` is what its kernels take by workload, `nodes`
    what ONNX Runtime takes for its nodes by label: both only if it is slower.
    """

    error: float | None
    ours_s: float | None = None
    theirs_s: float | None = None
    wrong: str = ""
    slower: str = ""
    share: float = 0.0
    kernels: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times as fast as ONNX Runtime it is."""
        return self.theirs_s / self.ours_s if self.ours_s and self.theirs_s else 0.0


async def judge(work: Work, network: Network, blob: str, expected: Expected) -> Judged:
    """Compare a compiled network's outputs with ONNX Runtime's, then time both in turns, for a second or a few."""
    if work.runtime.foreign is not None:
        work.runtime.foreign.foreign.hurry(_PATIENCE_S)
    async with work.stage("check", Role.MEASURER):
        contestants = Contestants.start(work.runtime, network, {_OURS: blob}, expected)
        try:
            error = checked_error(
                network.name, await contestants.ask(_OURS, "outputs"), expected.outputs, expected.rounding
            )
            if not has_rivals(work.runtime):
                return Judged(error)
            turns = await time_in_turns(contestants)
            slow = is_slower([(ours_s, theirs_s + _WRAPPED_S) for ours_s, theirs_s in turns])
            kernels = await contestants.profile(_OURS) if slow or network.elsewhere else {}
            nodes = await contestants.profile(_THEIRS) if slow else {}
        except WorkError as wrong:
            return Judged(None, wrong=f"since {wrong}")
        finally:
            contestants.close()
    theirs_s = median(theirs_s for _, theirs_s in turns)
    ours_s = theirs_s * median(_ratios(turns))  # not the median of ours, of other moments: what is said is what decided
    slower = f"faster there: {1e3 * theirs_s:.3g} ms for the network, {1e3 * ours_s:.3g} ms as compiled" if slow else ""
    there_s = sum(seconds for name, seconds in kernels.items() if name.startswith(SEGMENT))
    share = there_s / sum(kernels.values()) if kernels else 0.0
    return Judged(error, ours_s, theirs_s, slower=slower, share=share, kernels=kernels, nodes=nodes)


async def is_right(work: Work, network: Network, blob: str, expected: Expected) -> bool:
    """Return whether a compiled network computes what ONNX Runtime does."""
    async with work.stage("check", Role.MEASURER):
        contestants = Contestants.start(work.runtime, network, {_OURS: blob}, expected)
        try:
            checked_error(network.name, await contestants.ask(_OURS, "outputs"), expected.outputs, expected.rounding)
        except TuneryError:
            return False
        finally:
            contestants.close()
    return True


async def time_in_turns(contestants: Contestants) -> list[Turn]:
    """Return what both take in short turns, until it is decided which is slower, or time is up."""
    turns: list[Turn] = []
    began = time.monotonic()
    for turn in range(_MOST_TURNS):
        order = (_OURS, _THEIRS) if turn % 2 else (_THEIRS, _OURS)
        found = {label: median(await contestants.ask(label, "samples", _TURN_S, 1)) for label in order}
        turns.append((found[_OURS], found[_THEIRS]))
        if len(turns) >= _FEWEST_TURNS and (_are_decided(turns) or time.monotonic() - began > _LONGEST_S):
            break
    return turns


def is_slower(turns: Sequence[Turn]) -> bool:
    """Return whether the first of both is slower by more than chance, by the median of the turns' ratios.

    One turn in which it happened to be faster is no excuse: others on the machine slow down now the one, now the other.

    >>> is_slower([(2.0, 1.0), (0.9, 1.0), (1.1, 1.0)]), is_slower([(2.0, 1.0), (0.9, 1.0), (1.0, 1.0)])
    (True, False)
    """
    return median(_ratios(turns)) > _CHANCE


def _are_decided(turns: Sequence[Turn]) -> bool:
    """Return whether more turns would hardly change the verdict.

    All turns agree by far, or the 95 % confidence interval of the ratios' median is on one side of what may be chance.
    """
    ratios = _ratios(turns)
    if min(ratios) > _CLEAR or max(ratios) < 1 / _CLEAR:
        return True
    low, high = median_interval(ratios) or (0.0, math.inf)
    return low > _CHANCE or high < _CHANCE


def _ratios(turns: Sequence[Turn]) -> list[float]:
    return [ours_s / theirs_s for ours_s, theirs_s in turns]
