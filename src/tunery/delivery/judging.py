"""ONNX Runtime as the last rung of the ladder: it runs a network whole where what was compiled is slower or wrong."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
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
    FEWEST_TURNS,
    SIDES,
    Contestants,
    Expected,
    ExpectedSet,
    Output,
    Pair,
    checked_error,
    disturbed_by,
    has_rivals,
    quiet_pairs,
    ratios_of,
    share_there,
    speed_of,
    watch_of,
)
from tunery.delivery.linking import LinkedNetwork
from tunery.domain import median_interval
from tunery.domain.request import Speed
from tunery.domain.turns import Turn, in_turns, mean_interval
from tunery.engines import Role
from tunery.measuring.inputs import VERSION
from tunery.runtime.foreign_load import ForeignWatch
from tunery.tuning.work import Work

_TURN_S, LONGEST_S, _PATIENT_S, _LEAST_S = 0.1, 4.0, 12.0, 1.0
"""What a turn of one takes, all of them, and those on a machine that others use: until the job's budget ends."""
_MOST_S = 30.0
"""After which no further input set is tried: a network so slow was not tuned, or the machine is busy."""
_PATIENCE_S = 1.0
"""How long others on the machine are waited for before the first turn."""
_CLEAR, _CHANCE, _NARROW = 1.1, 1.02, 1.15
"""Ratios of times: one that needs no more turns if each shows it, one that may be chance, and a narrow interval's."""
_WRAPPED_S = 2.5e-6
"""What a call of a file that ONNX Runtime runs whole takes beside one of ONNX Runtime itself."""
_OURS, _THEIRS = SIDES
_MOST_TURNS = 24


@dataclass(frozen=True, slots=True)
class Judged:
    """A compiled network beside ONNX Runtime: its largest error, what both take, and why it is not delivered, if so.

    `wrong` says that it computes something else or fails, on the input set `number`; `slower` that ONNX Runtime is
    faster. `turns` are what both take on so many `threads`. `share` is that of its kernels' time that ONNX Runtime
    takes for its segments. `kernels` is what its kernels take by workload, `nodes` what ONNX Runtime takes for its
    nodes by label: both only if it is slower. On a `busy` machine nothing is timed.
    """

    error: float | None
    turns: Sequence[Pair] = ()
    threads: int = 0
    wrong: str = ""
    number: int = 0
    slower: bool = False
    share: float = 0.0
    kernels: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)
    busy: bool = False

    @property
    def speed(self) -> Speed | None:
        return speed_of(self.turns, self.threads) if self.turns else None

    @property
    def theirs_s(self) -> float | None:
        return median(theirs_s for _, theirs_s in self.turns) if self.turns else None

    @property
    def ours_s(self) -> float | None:
        """By the ratio that decided: the median of ours is of other moments."""
        return self.theirs_s * median(ratios_of(self.turns)) if self.theirs_s else None

    @property
    def reason(self) -> str:
        """Why ONNX Runtime is to run the network; "" if it is not."""
        if self.wrong or not self.slower or not self.theirs_s or not self.ours_s:
            return self.wrong
        return f"faster there: {1e3 * self.theirs_s:.3g} ms for the network, {1e3 * self.ours_s:.3g} ms as compiled"


async def judge(work: Work, made: LinkedNetwork, expected: Expected, *, timed: bool = True) -> Judged:
    """Compare a compiled network's outputs with ONNX Runtime's, then time both in turns, for a second or a few.

    Turns that others disturbed do not count: that hits the two unequally. If too few are left, it is `busy`.
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
                most_s = _MOST_S if work.until is None else min(max(work.until - began, _LEAST_S), _MOST_S)
                for one in expected.sets:
                    number = one.number
                    error = max(error, await _error_of(contestants, network.name, one))
                    if time.monotonic() - began > most_s:
                        break
                if number != expected.sets[0].number:
                    await contestants.ask(_OURS, "use", expected.sets[0].number)
                if not timed or not has_rivals(work.runtime):
                    return Judged(error)
                patient_s = _PATIENT_S if work.until is None else max(work.until - time.monotonic(), _LEAST_S)
                turns = await time_in_turns(contestants, watch_of(work), min(patient_s, _PATIENT_S))
                slower = bool(turns) and is_slower([(ours_s, theirs_s + _WRAPPED_S) for ours_s, theirs_s in turns])
                kernels = await contestants.profile(_OURS) if slower or network.elsewhere else {}
                nodes = await contestants.profile(_THEIRS) if slower else {}
            except BlobNotFoundError:  # of the host
                raise
            except WorkError as wrong:
                return Judged(None, wrong=f"since {wrong}", number=number)
    return Judged(
        error, turns, work.runtime.threads, slower=slower, share=share_there(kernels), kernels=kernels, nodes=nodes,
        busy=not turns,
    )  # fmt: skip


async def judge_once(work: Work, made: LinkedNetwork, expected: Expected) -> Judged:
    """Return a network's verdict, that of before where the same file was found right and not slower on this device."""
    runtime, network = work.runtime, made.network
    versions, device = [version(name) for name in ("tunery", "onnxruntime")], await runtime.device()
    file, sets = network.original or network.blob, (VERSION, expected.given, len(expected.sets))
    key = " ".join(map(str, ("judged", *versions, device.fingerprint, runtime.threads, made.blob, file, *sets)))
    if (note := runtime.blobs.find(key)) is not None:
        return Judged(**json.loads(runtime.blobs.get(note).read_text()))
    judged = await judge(work, made, expected)
    if judged.turns and not judged.slower:
        runtime.blobs.remember(key, runtime.blobs.put(json.dumps(asdict(judged)).encode()))
    return judged


async def judge_again(work: Work, made: LinkedNetwork, expected: Expected, first: Judged) -> Judged:
    """Return the verdict on a network that was slower once, by another moment as well, and a third if these disagree.

    What slows down one moment slows all its turns: they agree, and are wrong together.
    """
    moments = [first]
    while len(moments) < 2 or (moments[0].slower != moments[-1].slower and len(moments) < 3):
        again = await judge(work, made, expected.only(expected.sets[0].number))
        if not again.turns:
            return replace(first, turns=(), slower=False, wrong=again.wrong, busy=again.busy)
        moments.append(again)
    slower = sum(one.slower for one in moments) > 1
    turns = [turn for one in moments if one.slower == slower for turn in one.turns]
    return replace(first, turns=turns, slower=slower)


async def _error_of(contestants: Contestants, network: str, expected: ExpectedSet) -> float:
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
    return not (await judge(work, made, expected, timed=False)).wrong


async def time_in_turns(
    contestants: Contestants, watch: ForeignWatch | None = None, patient_s: float = LONGEST_S
) -> list[Pair]:
    """Return what both take in short turns, until it is decided which is slower, or time is up.

    With a `watch` only turns count in which nobody else used the cores. While there are too few of them, it goes on for
    `patient_s`, and for twice as many turns where that is up early, as for long calls; then there are none.
    """
    turns: list[Turn[str, list[float]]] = []
    began = time.monotonic()

    def are_enough(turns: list[Turn[str, list[float]]]) -> bool:
        gone_s, pairs = time.monotonic() - began, quiet_pairs(turns)
        if len(pairs) < FEWEST_TURNS:
            return gone_s > patient_s and len(turns) >= 2 * FEWEST_TURNS
        return gone_s > LONGEST_S or len(pairs) >= _MOST_TURNS or _are_decided(pairs)

    for turn, side in in_turns(turns, lambda: SIDES, are_enough, disturbed_by(watch)):
        turn.taken[side] = await contestants.ask(side, "samples", _TURN_S, 1)
    pairs = quiet_pairs(turns)
    return pairs if len(pairs) >= FEWEST_TURNS else []


def is_slower(turns: Sequence[Pair]) -> bool:
    """Return whether the first of both is slower by more than chance, by the median of the turns' ratios.

    >>> is_slower([(2.0, 1.0), (0.9, 1.0), (1.1, 1.0)]), is_slower([(2.0, 1.0), (0.9, 1.0), (1.0, 1.0)])
    (True, False)
    """
    return median(ratios_of(turns)) > _CHANCE


def _are_decided(turns: Sequence[Pair]) -> bool:
    """Return whether more turns would hardly change the verdict: all are faster by far, or a 95 % confidence interval
    is on one side of chance: that of the mean, or that of the median, which takes six turns and bears some that are far
    off. That it is slower takes a narrow one."""
    ratios = ratios_of(turns)
    intervals = [mean_interval(ratios), median_interval(ratios) or (0.0, math.inf)]
    if max(ratios) < 1 / _CLEAR or any(high < _CHANCE for _, high in intervals):
        return True
    return any(low > _CHANCE and high < _NARROW * low for low, high in intervals)
