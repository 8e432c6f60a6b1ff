"""Whose time of the machine it is: each second is paid once, however many jobs run."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Part:
    """A job's part of the machine's time; the core-seconds that its stages have held, and those that were charged."""

    time_s: float = 0.0
    held_core_s: float = 0.0
    charged_core_s: float = 0.0

    def add(self, other: "Part") -> None:
        self.time_s += other.time_s
        self.held_core_s += other.held_core_s
        self.charged_core_s += other.charged_core_s


class MachineTime:
    """Divides the time of one machine among the jobs that run; `now` is its clock, in seconds. While jobs hold cores,
    each has a part of the time in proportion to its cores; while no job holds any, all that run have equal parts. So
    the parts add up to the time in which at least one job ran."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._divided_until_s = -math.inf
        self._parts: dict[str, Part] = {}
        self._cores: Counter[str] = Counter()

    @contextmanager
    def running(self, job_id: str, since_s: float = math.inf) -> Iterator[None]:
        """Divide the time among this job too, from now on; where no other job runs, from `since_s` on."""
        self._divide()
        now_s = self._now()
        before_s = 0.0 if self._parts else now_s - max(since_s, self._divided_until_s)
        self._parts[job_id] = Part(max(before_s, 0.0))
        self._divided_until_s = now_s
        try:
            yield
        finally:
            self._divide()
            del self._parts[job_id]

    @contextmanager
    def held(self, job_id: str, cores: int) -> Iterator[None]:
        self._divide()
        self._cores[job_id] += cores
        try:
            yield
        finally:
            self._divide()
            self._cores[job_id] -= cores
            self._cores = +self._cores  # without those that hold none

    def charge(self, job_id: str, core_s: float) -> None:
        if job_id in self._parts:
            self._parts[job_id].charged_core_s += core_s

    def time_s(self, job_id: str) -> float:
        self._divide()
        return self._parts[job_id].time_s if job_id in self._parts else 0.0

    def take(self, job_id: str) -> Part:
        """Return a job's part, which is paid now: from here on it has another."""
        self._divide()
        part = self._parts.get(job_id, Part())
        if job_id in self._parts:
            self._parts[job_id] = Part()
        return part

    def _divide(self) -> None:
        """Divide the time until now; while no job runs, it is nobody's."""
        if not self._parts:
            return
        now_s = self._now()
        passed_s, self._divided_until_s = now_s - self._divided_until_s, now_s
        holding = {job_id: self._cores[job_id] for job_id in self._parts if self._cores[job_id]}
        weights = holding or dict.fromkeys(self._parts, 1)
        for job_id, weight in weights.items():
            held_core_s = passed_s * holding.get(job_id, 0)
            self._parts[job_id].add(Part(passed_s * weight / sum(weights.values()), held_core_s))
