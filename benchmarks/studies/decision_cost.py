"""What one decision of the scheduler costs, from few jobs to ten thousand on a thousand devices."""

import gc
import math
import random
import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from tunery.scheduling import JobSubmitted, Run, Scheduler, StageFinished, StageReady, StageRequest

CHAIN = ("propose", "build", "measure", "learn")
SECONDS = {"propose": 1.0, "build": 2.0, "measure": 1.5, "learn": 0.1}
RESOURCES = {"core": 2000, "device:gpu": 1000}
JOBS = (100, 300, 1000, 3000, 10_000)
HOSTS = 1000
MOST_US = 100.0
_IN_FLIGHT = 4


class Drive:
    """A saturated scheduler, each job with four stages ready or running, and the CPU time that its decisions took.

    With `hosts` the same resources are those of so many hosts, and a job's stages need those of one.
    """

    def __init__(self, jobs: int, strategy: str, hosts: int = 0) -> None:
        places = [f"host{number}/" for number in range(hosts)] or [""]
        self.hosts = hosts
        resources = {f"{at}{name}": amount // len(places) for name, amount in RESOURCES.items() for at in places}
        self.scheduler = Scheduler(resources, strategy, keep_log=False)
        self.rng = random.Random(jobs)
        self.ends: list[tuple[float, str]] = []
        self.handled_s = 0.0
        self.decisions = 0
        self.count = 0
        for job in range(jobs):
            self._send(JobSubmitted(0.0, f"j{job}", owner=f"o{job % max(1, jobs // 4)}", planned=1000))
            for _ in range(_IN_FLIGHT):
                self._send(self._stage(0.0, f"j{job}", 0))

    def cost_s(self, decisions: int) -> float:
        """Return CPU seconds per decision in steady state, over this many decisions."""
        # Python's full collection of what the set-up made takes as long as there are jobs, and is no decision's doing.
        gc.collect()
        self.handled_s, self.decisions = 0.0, 0
        while self.decisions < decisions:
            end_s, stage_id = heappop(self.ends)
            job, _, step = stage_id.split("/")
            self._send(StageFinished(end_s, stage_id), self._stage(end_s, job, (int(step) + 1) % len(CHAIN)))
        return self.handled_s / self.decisions

    def _stage(self, at_s: float, job: str, step: int) -> StageReady:
        self.count += 1
        kind = CHAIN[step]
        at = f"host{int(job[1:]) % self.hosts}/" if self.hosts else ""
        needs = {f"{at}device:gpu": 1} if kind == "measure" else {f"{at}core": 1}
        affinity = f"{job}/{self.count % 2}" if kind in ("propose", "learn") else None
        stage_id = f"{job}/{self.count}/{step}"
        return StageReady(at_s, StageRequest(stage_id, job, kind, f"k{self.count % 5}", needs, 16, affinity))

    def _send(self, *events: JobSubmitted | StageReady | StageFinished) -> None:
        start = time.process_time()
        decisions = self.scheduler.handle(*events)
        self.handled_s += time.process_time() - start
        for decision in decisions:
            assert isinstance(decision, Run)
            self.decisions += 1
            kind = CHAIN[int(decision.stage_id.rsplit("/", 1)[1])]
            end_s = events[-1].at_s + SECONDS[kind] * self.rng.lognormvariate(0.0, 0.3)
            heappush(self.ends, (end_s, decision.stage_id))


def cost_curve(strategy: str, decisions: int) -> list[tuple[int, float]]:
    """Return, for each number of jobs in JOBS, the microseconds of CPU time per decision."""
    return [(count, 1e6 * Drive(count, strategy).cost_s(decisions)) for count in JOBS]


def cost_over_hosts_us(strategy: str, decisions: int) -> float:
    """Return the microseconds of CPU time per decision where `HOSTS` jobs use a host each."""
    return 1e6 * Drive(HOSTS, strategy, HOSTS).cost_s(decisions)


def growth_exponent(curve: Sequence[tuple[int, float]]) -> float:
    """Return p of the best fit cost = a · (ln jobs)^p: 1 is logarithmic, linear growth would be about 8."""
    points = [(math.log(math.log(jobs)), math.log(cost)) for jobs, cost in curve]
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return float(sum((x - x_mean) * (y - y_mean) for x, y in points) / spread)


def draw_curve(figure: Any, curve: Sequence[tuple[int, float]], strategy: str) -> None:
    """Draw the cost over the number of jobs, on a logarithmic axis: a straight line is logarithmic growth."""
    axes = figure.subplots()
    axes.plot([jobs for jobs, _ in curve], [cost for _, cost in curve], "o-", label=strategy)
    axes.axhline(MOST_US, color="grey", linestyle="--", label=f"bound: {MOST_US:g} µs")
    axes.set(xscale="log", xlabel="jobs", ylabel="CPU µs per decision", ylim=(0, None))
    axes.set_title(f"{RESOURCES['device:gpu']} devices, {RESOURCES['core']} cores")
    axes.legend()
