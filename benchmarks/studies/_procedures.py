"""What the study of measurement does with one task's candidates, and what each way of timing them led to."""

import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from statistics import median
from typing import Any

from studies._subjects import Subject
from studies._timing import as_race, device_s
from tunery._errors import EngineError
from tunery.domain import Calibration, Measurement, Outcome, Provenance, Record, Task, best_first, interval
from tunery.domain.measurement import Contender
from tunery.measuring.calibration import agreement, bound_of, starting_degree
from tunery.measuring.degree import BOUND
from tunery.measuring.finals import LOOK
from tunery.measuring.selection import finalists, winner
from tunery.runtime.calibrate import Entrant, Pass, SlotWorkers
from tunery.tuning.search.finals import FINALISTS, ROUNDS

TRUTH_ROUNDS = 100
_FINALS_DEADLINE_S = 300.0
_SPIN_S = 1.0
_RESULTS = ("tau", "repeated", "truth_s", "rounds")
_NOWHERE = Provenance("", "", "", "")
_SPIN = "import time\nend = time.time() + 600\nwhile time.time() < end:\n    pass\n"


@dataclass
class Procedure:
    """One way of timing all candidates: what it cost, and whom it named; latencies are medians in seconds."""

    name: str
    device_s: float
    wall_s: float
    latencies: dict[str, float]
    winner: str
    degree: int = 1
    finals: bool = True
    contaminated: int = 0
    truth_s: float = math.nan


@dataclass
class Findings:
    """All that was found about one task."""

    subject: Subject
    degree: int
    procedures: list[Procedure] = field(default_factory=list)
    tau: dict[str, float] = field(default_factory=dict)
    repeated: list[tuple[str, float, bool]] = field(default_factory=list)
    truth_s: dict[str, float] = field(default_factory=dict)
    rounds: list[tuple[float, float]] = field(default_factory=list)
    """By alternation of alone and beside others: how many times as many candidates a second were timed, and how many
    times as often a second one bare kernel ran in all, with a copy on each slot."""

    @property
    def gain(self) -> float:
        """The median of how many times as many candidates a second were timed beside others; NaN: not measured."""
        return median(gain for gain, _ in self.rounds) if self.rounds else math.nan

    def procedure(self, name: str) -> Procedure:
        """Return one by its name."""
        return next(one for one in self.procedures if one.name == name)

    def plain(self) -> dict[str, Any]:
        """Return what was found as plain data, for `restore`."""
        return {**{name: getattr(self, name) for name in _RESULTS}, "procedures": [asdict(p) for p in self.procedures]}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take over what was found before."""
        for name in _RESULTS:
            setattr(self, name, plain[name])
        self.repeated = [(winner, latency_s, same) for winner, latency_s, same in plain["repeated"]]
        self.rounds = [(gain, scaling) for gain, scaling in plain["rounds"]]
        self.procedures = [Procedure(**one) for one in plain["procedures"]]

    def loss(self, name: str, rival: str) -> float:
        """Return by which share the winner of `name` is truly slower than that of `rival`."""
        return self.procedure(name).truth_s / self.procedure(rival).truth_s - 1


class Bench:
    """Runs procedures for one subject on the device's slots."""

    def __init__(
        self, workers: SlotWorkers, subject: Subject, calibration: Calibration, say: Callable[[str], None]
    ) -> None:
        self.found = Findings(subject, starting_degree(subject.task, calibration))
        self._workers, self._subject, self._calibration, self._say = workers, subject, calibration, say

    @property
    def beside(self) -> int:
        """How many are measured at once: as calibration says, and two at least, to show what that costs."""
        return max(self.found.degree, min(2, len(self._workers.slots)))

    def open(self) -> None:
        """Let every measurer compute the reference's outputs before anything counts."""
        subject = self._subject
        for degree in range(1, self.beside + 1):
            self._workers.race(subject.task, subject.entrants[:degree], subject.reference[1], degree=degree)

    def learn(self, degree: int) -> None:
        """Race all candidates so, and note nothing: the measurers know the noise from here on."""
        self._say(f"{self._subject.name}: {degree} at once, to learn")
        self._pass("race", degree)

    def run(self, name: str, method: str, *, degree: int = 1, finals: bool = True) -> Procedure:
        """Time all candidates one way, hold the finals unless told not to, and note the winner."""
        self._say(f"{self._subject.name}: {name}")
        done = self._pass(method, degree)
        kept = [m for m in done.measurements if m.latency_s and m.outcome is Outcome.OK]
        one = Procedure(
            name,
            sum(map(device_s, done.measurements)),
            done.wall_s,
            {str(m.context["candidate"]): m.latency_s or math.nan for m in kept},
            "",
            degree,
            finals,
            sum(bool(m.context.get("contaminated")) for m in done.measurements),
        )
        one.winner = self._final_winner(done.measurements)[0] if finals else _fastest(one.latencies)
        self.found.procedures.append(one)
        return one

    def without_finals(self, name: str, of: Procedure) -> None:
        """Note whom a procedure would name if its own timings were trusted."""
        named = _fastest(of.latencies)
        copy = Procedure(name, of.device_s, of.wall_s, of.latencies, named, of.degree, False, of.contaminated)
        self.found.procedures.append(copy)

    def agreements(self, degree: int, times: int) -> None:
        """Time all candidates fully, alone and beside others in turns; note how ranks agree, of all and the best half.

        Medians over all pairs of passes: one pass differs from the next by what strangers take.
        """
        self._say(f"{self._subject.name}: rank agreement, alone and {degree} at once, {times} times")
        alone, shared = [], []
        for _ in range(times):
            alone.append(_by_key(self._pass("fixed", 1)))
            shared += [_by_key(self._pass("fixed", degree))] if degree > 1 else []
        ordered = sorted(alone[0], key=alone[0].__getitem__)
        for part, keys in (("all", ordered), ("best half", ordered[: max(2, len(ordered) // 2)])):
            cut = [{key: one[key] for key in keys if key in one} for one in alone]
            self.found.tau[f"alone, {part}"] = median(agreement(*pair) for pair in combinations(cut, 2))
            if shared:
                self.found.tau[f"shared, {part}"] = median(agreement(*pair) for pair in product(cut, shared))
        if shared:
            moved = [median(s[key] for s in shared if key in s) / median(a[key] for a in alone if key in a) - 1
                     for key in ordered if any(key in s for s in shared)]  # fmt: skip
            self.found.tau["deviation"] = median(moved)

    def throughput(self, degree: int, times: int) -> None:
        """Alternate between racing all candidates alone and beside others, and note what is gained.

        Each time one bare kernel is run likewise: no way of measuring gains more than that, and strangers on the
        machine's physical cores take from both.
        """
        if degree == 1:
            return
        self._say(f"{self._subject.name}: throughput, alone and {degree} at once, {times} times")
        for _ in range(times):
            alone_s, bare = self._pass("race", 1).wall_s, self._rate(1)
            shared_s, beside = self._pass("race", degree).wall_s, self._rate(degree)
            self.found.rounds.append((alone_s / shared_s, beside / bare))

    def _rate(self, among: int) -> float:
        """Return how often a second one kernel runs in all, with a copy on each of so many slots."""
        workers, subject = self._workers, self._subject
        artifact = self._entrant(_fastest(self.found.procedures[-1].latencies))[1]
        work = subject.task, artifact, subject.reference[1], _SPIN_S
        calls = [workers.engine.call(w, "spin", *work, deadline_s=_FINALS_DEADLINE_S) for w in workers.workers[:among]]
        rates: list[float] = [call.result() for call in calls]
        return sum(rates)

    def repeat(self, times: int) -> None:
        """Hold the finals of the same races again and again; note the winner, its latency, and whether it is a tie."""
        self._say(f"{self._subject.name}: the same finals {times} times")
        done = self._pass("race", 1)
        first = ""
        for _ in range(times):
            named, results = self._final_winner(done.measurements)
            first = first or named
            held = {str(m.context["candidate"]): m for m in results if m.samples_s}
            same = named == first or _tied(held, first)
            self.found.repeated.append((named, held[named].latency_s or math.nan, same))

    def truths(self, times: int) -> None:
        """Time every winner there was, alone, interleaved and long, so many times: what each choice is really worth."""
        self._say(f"{self._subject.name}: the winners' true latencies, {times} times")
        keys = sorted({one.winner for one in self.found.procedures if one.winner})
        turns = [[m.paced_s for m in self._finals(keys, TRUTH_ROUNDS, look=0)] for _ in range(times)]
        for key, *taken in zip(keys, *turns, strict=True):
            held = [median(samples) for samples in taken if samples]
            self.found.truth_s[key] = median(held) if held else math.nan
        for one in self.found.procedures:
            one.truth_s = self.found.truth_s.get(one.winner, math.nan)

    def _pass(self, method: str, degree: int) -> Pass:
        subject = self._subject
        return self._workers.race(
            subject.task, subject.entrants, subject.reference[1],
            degree=degree, deviation=expected_deviation(subject.task, self._calibration, degree),
            against_best=method in {"race", "blind"}, method=method,
        )  # fmt: skip

    def _final_winner(self, raced: Sequence[Measurement]) -> tuple[str, list[Measurement]]:
        entrants = self._subject.entrants
        records = [Record(c, as_race(m), _NOWHERE) for (c, _), m in zip(entrants, raced, strict=True)]
        keys = [candidate.key for candidate in finalists(records, FINALISTS)]
        results = self._finals(keys, ROUNDS)
        chosen = winner([self._entrant(key)[0] for key in keys], results)
        return ("" if chosen is None else keys[chosen]), results

    def _finals(self, keys: Sequence[str], rounds: int, look: int = LOOK) -> list[Measurement]:
        entrants = [self._entrant(key) for key in keys]
        subject = self._subject
        results: list[Measurement] = self._workers.call(
            0, "finals", subject.task, [a for _, a in entrants], [c for c, _ in entrants], subject.reference[1],
            rounds, look, deadline_s=_FINALS_DEADLINE_S,
        )  # fmt: skip
        return results

    def _entrant(self, key: str) -> Entrant:
        return next(entrant for entrant in self._subject.entrants if entrant[0].key == key)


@contextmanager
def hog(cores: Sequence[int]) -> Iterator[None]:
    """Keep a busy process on these cores meanwhile."""
    command = "import os\nos.sched_setaffinity(0, " + repr(set(cores)) + ")\n" + _SPIN
    process = subprocess.Popen([sys.executable, "-c", command])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def rival(workers: SlotWorkers, subject: Subject, spare: str) -> Iterator[None]:
    """Let the measurer `spare`, as of a second tuning process without our lock, time candidates on the same cores."""
    order = random.Random(0)
    entrants = list(subject.entrants)
    order.shuffle(entrants)
    calls = [
        workers.engine.call(spare, "fixed", subject.task, a, c, None, subject.reference[1], 1, 0.0, deadline_s=600.0)
        for c, a in entrants * 5
    ]
    try:
        yield
    finally:
        for call in calls:
            call.cancel()
        workers.engine.kill(spare)
        for call in calls:
            with suppress(EngineError):
                if not call.cancelled():
                    call.exception()


def _by_key(done: Pass) -> dict[str, float]:
    return {str(m.context["candidate"]): m.latency_s for m in done.measurements if m.latency_s}


def _fastest(latencies: dict[str, float]) -> str:
    return min(latencies, key=lambda key: (latencies[key], key), default="")


def _tied(held: dict[str, Measurement], key: str) -> bool:
    """Whether a candidate's interval reaches down to the fastest one's of the same finals."""
    if key not in held:
        return False
    keys = sorted(held)
    order = best_first([Contender(k, held[k].paced_s) for k in keys])
    fastest = min((interval(held[keys[i]].paced_s) for i in order), key=lambda found: found[1])
    return interval(held[key].paced_s)[0] <= fastest[2]


def expected_deviation(task: Task, calibration: Calibration, degree: int) -> float:
    """Return by which share calibration saw kernels of a task's kind slowed at a degree, between 0 and the bound."""
    if degree == 1:
        return 0.0
    kind = bound_of(task, calibration)
    seen = [one.deviation for one in calibration.points if (one.kind, one.degree) == (kind, degree)]
    return min(max(0.0, *seen), BOUND) if seen else BOUND
