"""Whole-network latency against rivals, interleaved, with the same thread count."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tunery._errors import (
    DeadlineError,
    EngineError,
    RemoteError,
    TuneryError,
    UsageError,
    WorkError,
    brief,
    lacks_memory,
    told_by_onnxruntime,
)
from tunery._extras import pip_install
from tunery.devices import device_class
from tunery.dialects import Array
from tunery.domain import HERE, SEGMENT, Network
from tunery.domain.request import BUSY, CONTESTANTS, BenchReport, Latency, Progress, Speed, TaskShare, Verdict
from tunery.domain.turns import Turn, in_turns, mean_interval
from tunery.engines import Role, WorkerSpec
from tunery.measuring.inputs import numpy_dtype, set_label
from tunery.measuring.verification import is_float
from tunery.runtime import worker_bytes
from tunery.runtime.foreign_load import ForeignWatch
from tunery.runtime.runtime import Runtime
from tunery.tuning.work import Work

TORCH = {"torch": "TorchContestant", "torch-compiled": "TorchCompiledContestant"}
"""Rivals that need torch, and their services."""
SIDES = ("tunery", "onnxruntime")
RIVALS = ("onnxruntime", "untuned", *TORCH)
_SPARED = ("untuned", *TORCH)  # what may fail and costs the others nothing
_ROUNDS = 7
FEWEST_TURNS = 3
"""Quiet ones, for a verdict."""
_BESIDE_S = 2.0  # a contestant's start, and its first runs, which do not count
_TORCH_COMPILES_S = 45.0
_DEADLINE_S = 900.0
SEED = 17
"""What the inputs are made with that all contestants run on."""
# Of an output's range: rounding in another order stays far below, a wrong kernel does not.
_TOLERANCE, _TINY = 1e-2, 1e-4
_MOST_SETS = 32
_ROUNDINGS, _MOST_ROUNDING = 3.0, 0.1
"""How many times what ONNX Runtime's roundings change a quantised network's ours may, and at most of its range."""

Pair = tuple[float, float]
"""What a compiled network and ONNX Runtime take in one turn, in seconds: medians of a few runs."""
Output = tuple[str, tuple[int, ...], bytes]
"""An output's dtype, shape and bytes; without bytes where it cannot be compared, as it is random."""


@dataclass(frozen=True, slots=True)
class ExpectedSet:
    """What is right for one set of inputs, by its number: one of `SETS`, or behind them one that the user gave.
    `rounding` says of each output how far rounding takes it in a network that quantises, of integers which share of
    them it changes."""

    number: int = 0
    outputs: Sequence[Output] = ()
    rounding: Sequence[float] = ()

    @property
    def label(self) -> str:
        return set_label(self.number)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a model computes as it was read, by sets of inputs, and a worker of ONNX Runtime to time, "" without one.
    `given` is the blob of sets that the user gave. Sets on which ONNX Runtime fails are `left_out`. `optimiser` says
    what its optimiser changes, as far as it does."""

    sets: Sequence[ExpectedSet] = (ExpectedSet(),)
    worker: str = ""
    left_out: Sequence[str] = ()
    optimiser: str = ""
    given: str = ""

    def only(self, number: int) -> "Expected":
        return replace(self, sets=[one for one in self.sets if one.number == number])


class ContestantError(WorkError):
    """A further compiled file cannot be run: `label` says which, `reason` why. Nothing was compared."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(f"{CONTESTANTS.get(label, label)} cannot be run: {reason}")
        self.label = label
        self.reason = reason


def check_rivals(against: Sequence[str]) -> None:
    for name in against:
        if name not in RIVALS:
            raise UsageError(f"unknown rival {name!r}; use {', '.join(RIVALS)}")


def predicted_s(against: Sequence[str], seconds: float) -> float:
    compiling_s = _TORCH_COMPILES_S if "torch-compiled" in against else 0.0
    return (1 + len(set(against) - {"tunery"})) * (seconds + _BESIDE_S) + compiling_s


async def compare(
    work: Work, compiled: Mapping[str, str], against: Sequence[str], seconds: float, given: str = ""
) -> BenchReport:
    """Time all of `compiled` (label to blob), and ONNX Runtime and torch if asked for, in turns of a few runs each.
    `seconds` is the time per contestant; they run on the first set of inputs in the blob `given`, if any. The error is
    measured against ONNX Runtime in any case. The job's progress is whose turn it is. The untuned network, and torch's,
    are absent from the report where they fail."""
    began, network = time.monotonic(), work.model_read.network

    def tell(current: str, left_s: float) -> None:
        work.notify(Progress("", "comparing", time.monotonic() - began, left_s, 0, None, None, None, current))

    tell("outputs", predicted_s(against, seconds))
    expected = await start_onnxruntime(work.runtime, network, most=1, given=given)
    theirs = expected.sets[0]
    contestants = Contestants.start(work.runtime, network, compiled, expected)
    outputs: dict[str, list[Output]] = {
        label: await contestants.ask(label, "outputs", theirs.number) for label in compiled
    }
    error = checked_error(network.name, outputs["tunery"], theirs)
    wrong = list[str]()
    for label in [one for one in compiled if one in contestants.workers]:
        try:
            checked_error(network.name, outputs[label], theirs)
        except WorkError:
            wrong.append(label)
    await _add_torch(contestants, work, against, theirs.outputs, given)
    if "onnxruntime" not in against:
        contestants.end("onnxruntime")
    turns = await _in_turns(contestants, seconds, tell, watch_of(work))
    kernels = await contestants.profile("tunery")
    latency_s = {label: spread(list(chain(*(turn.taken[label] for turn in turns)))) for label in contestants.workers}
    return BenchReport(
        network.name, work.runtime.threads, latency_s, error, kernels_s=sum(kernels.values()) if kernels else None,
        wrong=tuple(wrong), absent=contestants.absent, kernels=kernels, batch_of_one=network.batch_of_one,
        verdict=_verdict(turns, kernels, work.runtime.threads),
    )  # fmt: skip


def _verdict(turns: Sequence[Turn[str, list[float]]], kernels: Mapping[str, float], threads: int) -> Verdict | None:
    if "onnxruntime" not in turns[0].taken:
        return None
    share = share_there(kernels)
    if share == 1.0:  # both are ONNX Runtime
        return Verdict(share)
    pairs = quiet_pairs(turns)
    return Verdict(share, speed_of(pairs, threads)) if len(pairs) >= FEWEST_TURNS else Verdict(share, not_judged=BUSY)


def share_there(kernels: Mapping[str, float]) -> float:
    there_s = sum(seconds for name, seconds in kernels.items() if name.startswith(SEGMENT))
    return there_s / sum(kernels.values()) if there_s else 0.0


def quiet_pairs(turns: Sequence[Turn[str, list[float]]]) -> list[Pair]:
    ours, theirs = ([statistics.median(turn.taken[side]) for turn in turns if turn.quiet] for side in SIDES)
    return list(zip(ours, theirs, strict=True))


def speed_of(pairs: Sequence[Pair], threads: int) -> Speed:
    ratios = ratios_of(pairs)
    low, high = mean_interval(ratios) if len(ratios) >= FEWEST_TURNS else (min(ratios), max(ratios))
    ratio = statistics.median(ratios)
    return Speed(1 / ratio, 1 / max(high, ratio), 1 / min(low, ratio), len(pairs), threads)


def ratios_of(pairs: Sequence[Pair]) -> list[float]:
    return [ours_s / theirs_s for ours_s, theirs_s in pairs]


@dataclass(frozen=True, slots=True)
class Contestants:
    """Who takes part: the workers by contestant, and why one could not, or not to the end; `lent` outlives them."""

    runtime: Runtime
    workers: dict[str, str]
    absent: dict[str, str] = field(default_factory=dict)
    lent: str = ""

    @classmethod
    def start(
        cls,
        runtime: Runtime,
        network: Network,
        compiled: Mapping[str, str],
        expected: Expected | None = None,
        threads: int = 0,
    ) -> Self:
        """Start compiled files of a network, by label, and ONNX Runtime if `expected` has no worker of it. They use so
        many `threads`, 0: as many as kernels do."""
        more: dict[str, object] = {"threads": threads} if threads else {}
        if expected and expected.given:
            more["given"] = expected.given
        lent = expected.worker if expected else ""
        started = cls(runtime, {}, lent=lent)
        try:
            for label, blob in compiled.items():
                started.workers[label] = _start(runtime, "CompiledContestant", blob, network, **more)
            started.workers["onnxruntime"] = lent or _start(
                runtime, "OnnxRuntimeContestant", network.blob, network, **more
            )
        except BaseException:
            started.close()
            raise
        return started

    def end(self, label: str) -> None:
        self.runtime.engine.kill(self.workers.pop(label))

    def close(self) -> None:
        for label, worker in tuple(self.workers.items()):
            if worker != self.lent:
                self.end(label)

    async def ask(self, label: str, method: str, *args: object) -> Any:
        """Call a method; [] from one that may fail and does: it leaves."""
        try:
            return await _call(self.runtime, self.workers[label], method, *args)
        except TuneryError as error:
            if label in ("tunery", "onnxruntime"):
                raise
            reason = brief(error)
            if label not in _SPARED:
                raise ContestantError(label, reason) from error
            self.leave(label, reason)
            return []

    def leave(self, label: str, reason: str) -> None:
        self.absent[label] = reason
        self.end(label)

    async def profile(self, label: str) -> dict[str, float]:
        """Return what parts of a network take in one execution; nothing where that cannot be told."""
        try:
            found: dict[str, float] = await _call(self.runtime, self.workers[label], "profile")
        except TuneryError:
            return {}
        return found


async def _in_turns(
    contestants: Contestants, seconds: float, tell: Callable[[str, float], None], watch: ForeignWatch | None
) -> list[Turn[str, list[float]]]:
    turns: list[Turn[str, list[float]]] = []
    began = time.monotonic()
    sides = in_turns(turns, lambda: list(contestants.workers), lambda done: len(done) == _ROUNDS, disturbed_by(watch))
    for done, (turn, label) in enumerate(sides):
        each_s = (time.monotonic() - began) / done if done else seconds / _ROUNDS
        left = _ROUNDS * len(contestants.workers) - done
        tell(f"{CONTESTANTS.get(label, label)}, turn {len(turns) + 1} of {_ROUNDS}", left * each_s)
        turn.taken[label] = await contestants.ask(label, "samples", seconds / _ROUNDS, 1 if turns else 3)
    return turns


def disturbed_by(watch: ForeignWatch | None) -> Callable[[float, float], bool]:
    return watch.disturbed if watch is not None else lambda _began_s, _ended_s: False


async def _add_torch(
    contestants: Contestants, work: Work, against: Sequence[str], expected: Sequence[Output], given: str
) -> None:
    """Start the torch contestants that are asked for: their weights are others, but not the shape of their outputs."""
    network = work.model_read.network
    for label in (name for name in TORCH if name in against):
        if absent := why_no_torch(network):
            contestants.absent[label] = absent
            continue
        contestants.workers[label] = _start(
            contestants.runtime,
            TORCH[label],
            Path(network.source),
            network,
            trust=work.request.trust,
            given=given,
        )
        for _, shape, _ in (await contestants.ask(label, "outputs"))[:1]:
            if tuple(shape) != tuple(expected[0][1]):
                contestants.leave(label, f"its output has shape {list(shape)}, not {list(expected[0][1])}")


def why_no_torch(network: Network) -> str:
    if not network.source.startswith("zoo:") and not network.source.endswith(".pt2"):
        return (
            f"torch has no program of {Path(network.source).name}; it runs .pt2 files and the zoo's networks (zoo:NAME)"
        )
    if find_spec("torch") is None:
        return f"torch is not installed; install it with `{pip_install('torch')}`"
    return ""


def with_tasks(report: BenchReport, tasks: Sequence[TaskShare]) -> BenchReport:
    inside = tuple(task.inside(report.kernels) for task in tasks)
    known = [task.weight * task.known_s for task in inside if task.known_s is not None]
    return replace(report, tasks=inside, tasks_s=sum(known) if inside and len(known) == len(inside) else None)


async def start_onnxruntime(runtime: Runtime, network: Network, most: int = _MOST_SETS, given: str = "") -> Expected:
    """Return what is right on up to `most` sets of inputs, first those `given`; nothing for a network without a file.
    The worker of ONNX Runtime goes on until the caller ends it."""
    if not network.blob:
        return Expected()
    more = {"given": given} if given else {}
    # Others work beside it, and a thread that waits for theirs costs as much as one at work.
    reference = _start(runtime, "OriginalModel", network.original or network.blob, network, threads=1, **more)
    worker = _start(runtime, "OnnxRuntimeContestant", network.blob, network, **more)
    try:
        found = await _call(runtime, reference, "expected", most)
        sets = [ExpectedSet(number, outputs, rounding) for number, outputs, rounding, why in found if not why]
        left_out = [why for *_, why in found if why]
        if sets:
            return Expected(sets, worker, left_out, await _changed(runtime, worker, network.name, sets), given)
    except BaseException as error:
        runtime.engine.kill(worker)
        if isinstance(error, EngineError):
            raise WorkError(f"ONNX Runtime cannot run {network.name}: {_why(error)}") from error
        raise
    finally:
        runtime.engine.kill(reference)
    runtime.engine.kill(worker)
    why = told_by_onnxruntime(left_out[0]) or left_out[0]
    raise WorkError(
        f"tunery finds no inputs that ONNX Runtime runs {network.name} on: {why}; give it others by --inputs or --shape"
    )


async def _changed(runtime: Runtime, worker: str, network: str, sets: Sequence[ExpectedSet]) -> str:
    """Return what ONNX Runtime's optimiser changes; the worker goes on with the first of these sets."""
    changed = ""
    for one in reversed(sets):
        try:
            checked_error(network, await _call(runtime, worker, "outputs", one.number), one)
        except (WorkError, RemoteError) as error:
            changed = f"{one.label} inputs: {error}"
    return changed


def _why(error: EngineError) -> str:
    if lacks_memory(error):
        limit = worker_bytes(Role.MEASURER) / 1e9
        return f"it needs more than the {limit:.3g} GB that a worker may take here; use a machine with more memory"
    if isinstance(error, DeadlineError):
        return f"one call of it takes longer than {_DEADLINE_S:.0f} s; give it smaller inputs, or fewer iterations"
    said, _, _ = told_by_onnxruntime(str(error)).partition("; its log ends")
    return f"{said}; check the model with onnx.checker, or export it again"


def _start(runtime: Runtime, service: str, file: Path | str, network: Network, **more: object) -> str:
    source = {"path": file} if isinstance(file, Path) else {"blob": file}
    settings: dict[str, Any] = {
        **source, "threads": runtime.threads, "inputs": list(network.inputs), "ranges": dict(network.ranges),
        "seed": SEED, **more
    }  # fmt: skip
    torch = service in TORCH.values()
    compiled = service == "CompiledContestant"
    there = compiled or has_rivals(runtime)
    environment = runtime.pools.measuring_environment if compiled else runtime.pools.environment
    return runtime.engine.start(
        WorkerSpec(
            Role.MEASURER,
            f"tunery.delivery.comparing.contestants:{service}",
            settings,
            cores=runtime.measure_cores if there else (),
            host=runtime.measure_host if there else HERE,
            threads=settings["threads"],
            memory_bytes=worker_bytes(Role.MEASURER),
            environment=environment.counterpart() if torch else environment,
        )
    )


def has_rivals(runtime: Runtime) -> bool:
    """Return whether ONNX Runtime is where kernels are measured: else it says here what is right, and nobody's time."""
    return runtime.host_facts is None or "onnxruntime" in runtime.host_facts.packages


def check_rivals_there(runtime: Runtime, against: Sequence[str]) -> None:
    needed = {"torch" if name in TORCH else name for name in against} & {"onnxruntime", "torch"}
    missing = sorted(needed - runtime.host_facts.packages.keys()) if runtime.host_facts else []
    if missing:
        raise UsageError(
            f"host {runtime.measure_host} has no {missing[0]} to compare with; install it there, or write "
            "--against untuned"
        )


def watch_of(work: Work) -> ForeignWatch | None:
    """Return what sees others on the cores that kernels run on; None where they run on none of the host's."""
    return work.runtime.foreign if device_class(work.runtime.spec.device).uses_host_cores else None


async def _call(runtime: Runtime, worker: str, method: str, *args: object) -> Any:
    return await runtime.call(worker, method, *args, deadline_s=_DEADLINE_S)


def spread(samples: Sequence[float]) -> Latency:
    low, high = np.quantile(samples, [0.1, 0.9])
    return Latency(statistics.median(samples), float(low), float(high), len(samples))


def checked_error(network: str, ours: Sequence[Output], expected: ExpectedSet) -> float:
    worst, theirs, rounding = 0.0, expected.outputs, expected.rounding
    for index, ((dtype, shape, data), (other_dtype, other_shape, other)) in enumerate(zip(ours, theirs, strict=True)):
        a, b = np.frombuffer(data, numpy_dtype(dtype)), np.frombuffer(other, numpy_dtype(other_dtype))
        random = not other and math.prod(other_shape) > 0  # how large it is may hang on its numbers, too
        same = len(shape) == len(other_shape) if random else tuple(shape) == tuple(other_shape)
        if not same or is_float(a.dtype) != is_float(b.dtype):
            raise _differs(network, f"output {index} has another shape or type")
        if not other:
            continue
        if is_float(b.dtype):
            own = _ROUNDINGS * rounding[index]
            worst = max(worst, _float_error(network, index, (a.astype(np.float64), b.astype(np.float64)), own))
        elif (unequal := _unequal(a, b, exactly=not rounding[index])) > rounding[index] * b.size:
            raise _differs(network, f"output {index} has {unequal} of {b.size} integers unequal")
    return worst


def _unequal(a: Array, b: Array, *, exactly: bool) -> int:
    different = a != b
    if b.dtype.kind in "iu" and b.dtype.itemsize == 1 and not exactly:
        steps: Array = a.astype(np.int64) - b.astype(np.int64)
        different = np.abs(steps) > 1
    return int(np.count_nonzero(different))


def _float_error(
    network: str, index: int, both: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], rounding: float
) -> float:
    a, b = both
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        raise _differs(network, f"output {index} is not finite in the same places")
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise _differs(network, f"output {index} has another infinity, or NaN in its place")
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    largest = max(float(np.abs(b[finite]).max(initial=0.0)), _TINY)
    allowed = max(_TOLERANCE * largest, min(rounding, _MOST_ROUNDING * largest))
    if error > allowed:
        raise _differs(network, f"output {index} is off by {error:.2g}, more than {allowed:.2g}")
    return error


def _differs(network: str, how: str) -> WorkError:
    return WorkError(
        f"the compiled {network} does not compute what ONNX Runtime computes ({how}); please report it with the model"
    )
