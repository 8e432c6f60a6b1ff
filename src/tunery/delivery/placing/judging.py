"""ONNX Runtime as the last rung of the ladder: it runs a network whole where what was compiled is slower or wrong."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from tunery._errors import (
    BlobError,
    BlobNotFoundError,
    CrashError,
    DeadlineError,
    LostWorkerError,
    RemoteError,
    TemporaryDirectoryError,
    UsageError,
    WorkError,
    lacks_memory,
)
from tunery.delivery.comparing.compare import (
    Contestants,
    Expected,
    ExpectedSet,
    Output,
    checked_error,
    has_rivals,
    watch_of,
)
from tunery.delivery.comparing.speed import FEWEST_TURNS, MOST_TURNS, Turn, mean_interval, ratios_of, speed_of
from tunery.delivery.linking import LinkedNetwork
from tunery.domain import SEGMENT, median_interval
from tunery.domain.request import Speed
from tunery.engines import Role
from tunery.runtime.foreign_load import ForeignWatch
from tunery.tuning.work import Work

_TURN_S, _LONGEST_S, _PATIENT_S, _LEAST_S = 0.1, 4.0, 12.0, 1.0
"""What a turn of one takes, all of them, and those on a machine that others use: until the job's budget ends."""
_MOST_S = 30.0
"""After which no further input set is tried: a network so slow was not tuned, or the machine is busy."""
_PATIENCE_S = 1.0
"""How long others on the machine are waited for before the first turn."""
_CLEAR, _CHANCE = 1.1, 1.02
"""Ratios of times: one that needs no more turns if each shows it, and one that may be chance."""
_WRAPPED_S = 2.5e-6
"""What a call of a file that ONNX Runtime runs whole takes beside one of ONNX Runtime itself."""
_OURS, _THEIRS = "tunery", "onnxruntime"


@dataclass(frozen=True, slots=True)
class Judged:
    """A compiled network beside ONNX Runtime: its largest error, what both take, and why it is not delivered, if so.

    `wrong` says that it computes something else or fails, on the input set `number`; `slower` that ONNX Runtime is
    faster. `share` is that of its kernels' time that ONNX Runtime takes for its segments. `kernels` is what its kernels
    take by workload, `nodes` what ONNX Runtime takes for its nodes by label: both only if it is slower. On a `busy`
    machine nothing is timed.
    """

    error: float | None
    ours_s: float | None = None
    theirs_s: float | None = None
    speed: Speed | None = None
    wrong: str = ""
    number: int = 0
    slower: str = ""
    share: float = 0.0
    kernels: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)
    busy: bool = False


async def judge(work: Work, made: LinkedNetwork, expected: Expected) -> Judged:
    """Compare a compiled network's outputs with ONNX Runtime's, then time both in turns, for a second or a few.

    While others use the machine, a kernel of several threads waits in each parallel region for the one that does not
    run, which hits the two unequally. So turns that others disturbed do not count. If too few are left, nothing is
    said of its speed.
    """
    network = made.network
    if work.runtime.foreign is not None:
        work.runtime.foreign.foreign.limit_patience(_PATIENCE_S)
    async with work.stage("check", Role.MEASURER):
        with ExitStack() as ends:
            contestants = Contestants.start(work.runtime, network, {_OURS: made.blob}, expected)
            ends.callback(contestants.close)
            try:
                error, began = 0.0, time.monotonic()
                for one in expected.sets:
                    number = one.number
                    error = max(error, await _error_of(contestants, network.name, one))
                    if time.monotonic() - began > _MOST_S:
                        break
                if number != expected.sets[0].number:
                    await contestants.ask(_OURS, "use", expected.sets[0].number)
                if not has_rivals(work.runtime):
                    return Judged(error)
                patient_s = _PATIENT_S if work.until is None else max(work.until - time.monotonic(), _LEAST_S)
                turns = await time_in_turns(contestants, watch_of(work), min(patient_s, _PATIENT_S))
                slow = bool(turns) and is_slower([(ours_s, theirs_s + _WRAPPED_S) for ours_s, theirs_s in turns])
                kernels = await contestants.profile(_OURS) if slow or network.elsewhere else {}
                nodes = await contestants.profile(_THEIRS) if slow else {}
            except BlobNotFoundError:  # of the host
                raise
            except WorkError as wrong:
                return Judged(None, wrong=f"since {wrong}", number=number)
    there_s = sum(seconds for name, seconds in kernels.items() if name.startswith(SEGMENT))
    share = there_s / sum(kernels.values()) if kernels else 0.0
    if not turns:
        return Judged(error, share=share, busy=True)
    theirs_s = median(theirs_s for _, theirs_s in turns)
    ours_s = theirs_s * median(
        ratios_of(turns)
    )  # not the median of ours, of other moments: what is said is what decided
    slower = f"faster there: {1e3 * theirs_s:.3g} ms for the network, {1e3 * ours_s:.3g} ms as compiled" if slow else ""
    return Judged(
        error,
        ours_s,
        theirs_s,
        speed_of(turns, work.runtime.threads),
        slower=slower,
        share=share,
        kernels=kernels,
        nodes=nodes,
    )


async def _error_of(contestants: Contestants, network: str, expected: ExpectedSet) -> float:
    """Return how far a compiled network's outputs are from what is right."""
    try:
        ours: list[Output] = await contestants.ask(_OURS, "outputs", expected.number)
    except (BlobError, TemporaryDirectoryError, LostWorkerError):  # of the host
        raise
    except (UsageError, CrashError, DeadlineError, RemoteError) as error:
        if lacks_memory(error):
            raise
        raise WorkError(f"{network} as compiled cannot run: {error}") from error
    try:
        return checked_error(network, ours, expected)
    except WorkError as error:
        raise WorkError(f"{error}, on {expected.label} inputs") if expected.number else error from None


async def is_right(work: Work, made: LinkedNetwork, expected: Expected) -> bool:
    """Return whether a compiled network computes what ONNX Runtime does."""
    async with work.stage("check", Role.MEASURER):
        contestants = Contestants.start(work.runtime, made.network, {_OURS: made.blob}, expected)
        try:
            for one in expected.sets:
                await _error_of(contestants, made.network.name, one)
        except BlobNotFoundError:  # of the host
            raise
        except WorkError:
            return False
        finally:
            contestants.close()
    return True


async def time_in_turns(
    contestants: Contestants, watch: ForeignWatch | None = None, patient_s: float = _LONGEST_S
) -> list[Turn]:
    """Return what both take in short turns, until it is decided which is slower, or time is up.

    With a `watch` only turns count in which nobody else used the cores. While there are too few of them, it goes on for
    `patient_s`, and for twice as many turns where that is up early, as for long calls; then there are none.
    """
    turns: list[Turn] = []
    began = time.monotonic()
    for turn in count():
        order = (_OURS, _THEIRS) if turn % 2 else (_THEIRS, _OURS)
        began_turn = time.monotonic()
        taken = {label: median(await contestants.ask(label, "samples", _TURN_S, 1)) for label in order}
        if watch is None or not watch.disturbed(began_turn, time.monotonic()):
            turns.append((taken[_OURS], taken[_THEIRS]))
        gone_s = time.monotonic() - began
        if len(turns) >= FEWEST_TURNS:
            if gone_s > _LONGEST_S or len(turns) >= MOST_TURNS or _are_decided(turns):
                return turns
        elif gone_s > patient_s and turn + 1 >= 2 * FEWEST_TURNS:
            return []
    raise AssertionError("turns never end")


def is_slower(turns: Sequence[Turn]) -> bool:
    """Return whether the first of both is slower by more than chance, by the median of the turns' ratios.

    One turn in which it happened to be faster is no excuse: others on the machine slow down now the one, now the other.

    >>> is_slower([(2.0, 1.0), (0.9, 1.0), (1.1, 1.0)]), is_slower([(2.0, 1.0), (0.9, 1.0), (1.0, 1.0)])
    (True, False)
    """
    return median(ratios_of(turns)) > _CHANCE


def _are_decided(turns: Sequence[Turn]) -> bool:
    """Return whether more turns would hardly change the verdict.

    All turns agree by far, or a 95 % confidence interval is on one side of chance: that of the ratios' geometric mean,
    by Student's t, or that of their median, which takes six turns and bears some that are far off. As each turn is
    looked at, the verdict is wrong more often than that says, on a noisy machine.
    """
    ratios = ratios_of(turns)
    if min(ratios) > _CLEAR or max(ratios) < 1 / _CLEAR:
        return True
    intervals = [mean_interval(ratios), median_interval(ratios) or (0.0, math.inf)]
    return any(low > _CHANCE or high < _CHANCE for low, high in intervals)
