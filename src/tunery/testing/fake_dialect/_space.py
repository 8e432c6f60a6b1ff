"""The candidates of a task: which there are, how fast each is, and what is wrong with it."""

import json
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tunery._errors import DialectError
from tunery.domain import Candidate, Origin, Task, canonical_json, digest
from tunery.testing.fake_dialect._script import WRONG, FakeProgram, TaskScript

DEFAULT, REFERENCE, TILED = "default", "reference", "tiled"
_AXES = ("tile_x", "tile_y", "unroll")
_WRONG_SPEEDUP = 10.0
_REFERENCE_SLOWDOWN = 10.0


class FakeSpace:
    """All that is known about a task's candidates; `fault`, `latency_s` and `features` are pure functions of a body."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.program = FakeProgram.parse(task.workload.program)
        self.script = self.program.script
        self.size = int(np.prod(self.script.axes)) if task.tunable else 0

    def candidate(self, index: int, score: float | None = None) -> Candidate:
        position = np.unravel_index(index, self.script.axes)
        body = {name: int(value) + 1 for name, value in zip(_AXES, position, strict=True)}
        return self._candidate({"schedule": TILED, **body}, Origin.SEARCH, score)

    def named(self, schedule: str, origin: Origin) -> Candidate:
        return self._candidate({"schedule": schedule}, origin, None)

    def _candidate(self, body: dict[str, str | int], origin: Origin, score: float | None) -> Candidate:
        text = canonical_json(body)
        return Candidate(digest(self.task.workload.key, text), self.task.key, text, origin, score)

    def identified(self, body: str) -> Candidate:
        """Return the candidate of a body from elsewhere."""
        self.index(body)
        return self._candidate(json.loads(body), Origin.SEARCH, None)

    def index(self, body: str) -> int | None:
        """Return a config's index, None for the default and the reference schedule."""
        try:
            data = json.loads(body)
            if data in ({"schedule": DEFAULT}, {"schedule": REFERENCE}):
                return None
            if data["schedule"] != TILED or len(data) != len(_AXES) + 1 or not self.size:
                raise ValueError("no such schedule")  # noqa: TRY301 - one message for all mistakes
            return int(np.ravel_multi_index([int(data[name]) - 1 for name in _AXES], self.script.axes))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DialectError(f"{body[:200]!r} is no schedule of task {self.task.workload.name}: {error}") from error

    def fault(self, body: str) -> str | None:
        """Return what is wrong with a candidate, None for a healthy one."""
        index = self.index(body)
        if index is not None:
            return _fault(self.script, self.program.index, index)
        faults = {DEFAULT: self.script.baseline_fault, REFERENCE: self.script.reference_fault}
        return faults[json.loads(body)["schedule"]] or None

    def absurd(self, body: str) -> bool:
        draw = int(digest("absurd", self.task.workload.key, body), 16) / 2.0**64
        return self.index(body) is not None and draw < self.script.absurd

    def latency_s(self, body: str) -> float:
        """Return the true latency in seconds; the one of a candidate with wrong results looks very good."""
        index = self.index(body)
        best_s = self._scale_s()
        if self.fault(body) in WRONG:
            return best_s / _WRONG_SPEEDUP
        if index is not None:
            return best_s * float(self._landscape()[index])
        slow = self.script.baseline * (1.0 if json.loads(body)["schedule"] == DEFAULT else _REFERENCE_SLOWDOWN)
        return best_s * slow

    def healthy(self) -> Iterator[int]:
        """Yield the configs without a fault, fastest first; ties in order of their index."""
        for index in np.argsort(self._landscape(), kind="stable"):
            if _fault(self.script, self.program.index, int(index)) is None:
                yield int(index)

    def features(self, body: str) -> list[float]:
        index = self.index(body)
        position = np.unravel_index(index or 0, self.script.axes)
        u, v, w = (int(p) / max(1, n - 1) for p, n in zip(position, self.script.axes, strict=True))
        work = float(np.log1p(self.task.workload.flop))
        fixed = float(index is None)
        return [fixed, u, v, w, u * u, v * v, w * w, u * v, u * w, v * w, work, float(self.task.target.threads)]

    def _scale_s(self) -> float:
        speed = float(self.task.target.config.get("speed", 1.0)) * self.task.target.threads
        return self.script.best_us * 1e-6 * (self.program.index + 1) / speed

    def _landscape(self) -> npt.NDArray[np.float64]:
        script = self.script
        # The target decides where the optimum lies, so a record served to the wrong target shows up as a slow kernel.
        seed = digest(str(script.seed), str(self.program.index), self.task.target.key)
        return _landscape(seed, script.axes, script.spread, script.levels)


def check_schedule(body: str) -> None:
    """Check that a body is a schedule, of whatever task."""
    try:
        data = json.loads(body)
        named = data in ({"schedule": DEFAULT}, {"schedule": REFERENCE})
        if not named and not (data.keys() == {"schedule", *_AXES} and data["schedule"] == TILED):
            raise ValueError("no such schedule")  # noqa: TRY301 - one message for all mistakes
        if not all(isinstance(data[axis], int) for axis in data.keys() & set(_AXES)):
            raise ValueError("tiles are whole numbers")  # noqa: TRY301 - as above
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DialectError(f"{body[:200]!r} is no schedule: {error}") from error


FEATURE_NAMES = (
    "fixed",
    "x",
    "y",
    "unroll",
    "x*x",
    "y*y",
    "unroll*unroll",
    "x*y",
    "x*unroll",
    "y*unroll",
    "work",
    "threads",
)
FEATURES = len(FEATURE_NAMES)


@lru_cache(maxsize=256)
def _landscape(seed: str, axes: tuple[int, int, int], spread: float, levels: int) -> npt.NDArray[np.float64]:
    """Return all latencies over the fastest: a bowl with ripples (local optima) in steps (ties), in log scale."""
    rng = np.random.default_rng(int(seed, 16))
    grid = np.meshgrid(*(np.linspace(0, 1, n) for n in axes), indexing="ij")
    height = np.zeros(axes)
    for axis in grid:
        offset = axis - rng.uniform(0.2, 0.8)
        height += rng.uniform(0.5, 1.0) * offset**2
        height += 0.04 * (1 - np.cos(rng.uniform(15, 25) * offset))
    height -= height.min()
    height /= height.max() or 1.0
    steps: npt.NDArray[np.float64] = spread ** (np.round(height * levels) / levels)
    return steps.ravel()


@lru_cache(maxsize=65536)
def _fault(script: TaskScript, task: int, index: int) -> str | None:
    draw = int(digest("fault", str(script.seed), str(task), str(index)), 16) / 2.0**64
    shares = []
    for fault, value in script.faults:
        if "." in value:
            shares.append((fault, float(value)))
        elif str(index) in value.split(","):
            return fault
    for fault, share in shares:
        if draw < share:
            return fault
        draw -= share
    return None
