"""ONNX Runtime as the last rung of the ladder: it runs a network whole where what was compiled is slower or wrong."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunery._errors import WorkError
from tunery.delivery.compare import Contestants, Output, checked_error, spread
from tunery.delivery.work import Work
from tunery.domain import Network
from tunery.domain.request import Latency
from tunery.engines import Role

_TURN_S, _FEWEST_TURNS, _MOST_TURNS, _LONGEST_S = 0.1, 3, 7, 4.0
_PATIENCE_S = 1.0
"""Others on the machine disturb both alike, so it is hardly waited for."""
_CLEAR = 1.1
"""A ratio of medians that needs no more turns."""
_OURS, _THEIRS = "tunery", "onnxruntime"


@dataclass(frozen=True, slots=True)
class Judged:
    """A compiled network beside ONNX Runtime: its largest error, both latencies, and why it is not delivered, if so."""

    error: float | None
    ours: Latency | None = None
    theirs: Latency | None = None
    reason: str = ""


async def judge(work: Work, network: Network, blob: str, expected: Sequence[Output]) -> Judged:
    """Compare a compiled network's outputs with ONNX Runtime's, then time both in turns, for about a second."""
    if work.runtime.foreign is not None:
        work.runtime.foreign.foreign.hurry(_PATIENCE_S)
    async with work.stage("check", Role.MEASURER):
        contestants = Contestants.start(work.runtime, network, {_OURS: blob})
        try:
            error = checked_error(network.name, await contestants.ask(_OURS, "outputs"), expected)
            samples = await time_in_turns(contestants)
        except WorkError as wrong:
            return Judged(None, reason=f"since {wrong}")
        finally:
            contestants.end()
    ours, theirs = spread(samples[_OURS]), spread(samples[_THEIRS])
    slower = ours.median > theirs.median and not ours.covers(theirs) and not theirs.covers(ours)
    reason = (
        f"faster there: {1e3 * theirs.median:.3g} ms for the network, {1e3 * ours.median:.3g} ms with tunery's kernels"
        if slower
        else ""
    )
    return Judged(error, ours, theirs, reason)


async def time_in_turns(contestants: Contestants) -> dict[str, list[float]]:
    """Return samples of both in seconds, from short turns until the difference is clear."""
    samples: dict[str, list[float]] = {_OURS: [], _THEIRS: []}
    began = time.monotonic()
    for turn in range(_MOST_TURNS):
        for label in (_OURS, _THEIRS) if turn % 2 else (_THEIRS, _OURS):
            samples[label] += await contestants.ask(label, "samples", _TURN_S, 1)
        if turn + 1 >= _FEWEST_TURNS and (_is_clear(samples) or time.monotonic() - began > _LONGEST_S):
            break
    return samples


def _is_clear(samples: Mapping[str, Sequence[float]]) -> bool:
    ours, theirs = (spread(samples[label]).median for label in (_OURS, _THEIRS))
    return max(ours, theirs) > _CLEAR * min(ours, theirs)
