"""Cost per decision of the scheduler from 100 to 10,000 jobs on 1,000 devices, and a full simulated run of the largest.

    python benchmarks/scheduler_scale.py [--json FILE] [--strategy NAME] [--quick]

The driver keeps every job at four stages ready or running (propose, build, measure, learn) and times only
`Scheduler.handle`, in process CPU time, until 20,000 stages have started.
"""

import argparse
import json
import random
import time
from heapq import heappop, heappush
from pathlib import Path

from tunery.scheduler import STRATEGIES, JobSubmitted, Run, Scheduler, StageFinished, StageReady, StageRequest

CHAIN = ("propose", "build", "measure", "learn")
SECONDS = {"propose": 1.0, "build": 2.0, "measure": 1.5, "learn": 0.1}
RESOURCES = {"core": 2000, "device:gpu": 1000}
IN_FLIGHT = 4


class Drive:
    """A saturated scheduler and the CPU time that its decisions took."""

    def __init__(self, jobs: int, strategy: str) -> None:
        self.scheduler = Scheduler(RESOURCES, strategy, keep_log=False)
        self.rng = random.Random(jobs)
        self.ends: list[tuple[float, str]] = []
        self.handled_s = 0.0
        self.decisions = 0
        self.count = 0
        for job in range(jobs):
            self.send(JobSubmitted(0.0, f"j{job}", owner=f"o{job % max(1, jobs // 4)}", planned=1000))
            for _ in range(IN_FLIGHT):
                self.send(self.stage(0.0, f"j{job}", 0))

    def stage(self, at_s: float, job: str, step: int) -> StageReady:
        """Return a stage at this step of its job's chain."""
        self.count += 1
        kind = CHAIN[step]
        needs = {"device:gpu": 1} if kind == "measure" else {"core": 1}
        affinity = f"{job}/{self.count % 2}" if kind in ("propose", "learn") else None
        stage_id = f"{job}/{self.count}/{step}"
        return StageReady(at_s, StageRequest(stage_id, job, kind, f"k{self.count % 5}", needs, 16, affinity))

    def send(self, *events: JobSubmitted | StageReady | StageFinished) -> None:
        """Hand events to the scheduler and plan the ends of what it starts."""
        start = time.process_time()
        decisions = self.scheduler.handle(*events)
        self.handled_s += time.process_time() - start
        for decision in decisions:
            assert isinstance(decision, Run)
            self.decisions += 1
            kind = CHAIN[int(decision.stage_id.rsplit("/", 1)[1])]
            end_s = events[-1].at_s + SECONDS[kind] * self.rng.lognormvariate(0.0, 0.3)
            heappush(self.ends, (end_s, decision.stage_id))

    def cost_s(self, decisions: int) -> float:
        """Return seconds per decision in steady state, over this many decisions."""
        self.handled_s, self.decisions = 0.0, 0
        while self.decisions < decisions:
            end_s, stage_id = heappop(self.ends)
            job, _, step = stage_id.split("/")
            self.send(StageFinished(end_s, stage_id), self.stage(end_s, job, (int(step) + 1) % len(CHAIN)))
        return self.handled_s / self.decisions


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the curve here")
    parser.add_argument("--strategy", default="predictive", choices=sorted(STRATEGIES))
    parser.add_argument("--quick", action="store_true", help="fewer decisions per point")
    arguments = parser.parse_args()
    curve = []
    for jobs in (100, 300, 1000, 3000, 10_000):
        cost_us = 1e6 * Drive(jobs, arguments.strategy).cost_s(4_000 if arguments.quick else 20_000)
        curve.append({"jobs": jobs, "us_per_decision": round(cost_us, 1)})
        print(f"{jobs:>6} jobs  {cost_us:7.1f} us per decision", flush=True)
    if arguments.json:
        report = {"strategy": arguments.strategy, "resources": RESOURCES, "in_flight": IN_FLIGHT, "curve": curve}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
