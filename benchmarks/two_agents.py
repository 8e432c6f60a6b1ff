"""Two agents of one core each against one host with two cores: the same winners, in as much time?

    python benchmarks/two_agents.py [--network zoo:resnet18] [--trials 200] [--seed 0] [--turns 2] [--json FILE]

Real MetaSchedule, cold stores, one thread per kernel. Either arm has the first two cores of this machine. In the arm
`agents` each agent has one of them, the coordinator, which builds nothing, shares the first one's, and the second one
measures. The arms run in turns. Shown: the seconds of each run, its sum of tasks, and for each pair of runs how many
tasks have the same winner and the geometric mean of the latencies of their winners. Timings decide what a search
proposes next, so two runs of one arm differ as well: their pair says how far. Nothing else should run.
"""

import argparse
import itertools
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tunery.devices.cpu.facts import usable_cores
from tunery.domain import Mode, Outcome
from tunery.store import open_store

LIMIT_S = 7200.0
AGENTS = ("first", "second")


@dataclass(frozen=True)
class Found:
    """One run: its wall seconds, the sum of its tasks, and each task's winner with its latency in seconds."""

    arm: str
    wall_s: float
    network_s: float
    winners: dict[str, tuple[str, float]]


def run(arm: str, place: Path, network: str, trials: int, seed: int) -> Found:
    """Tune in a process of its own."""
    cores = usable_cores()[:2]
    places = {name: str(place) for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    environment = {**os.environ, **places, "TUNERY_STORE": str(place / "tunery.db"), "TUNERY_BUILD_HERE": "off",
                   "TUNERY_LOAD_WATCH": "off"}  # fmt: skip
    tunery = [sys.executable, "-m", "tunery"]
    words = ["tune", network, "--threads", "1", "--budget", f"{trials}trials", "--seed", str(seed), "--json"]
    place.mkdir()
    if arm == "agents":
        for name, core in zip(AGENTS, cores, strict=True):
            own = [f"{variable}={place / name}" for variable in places]
            agent = ["taskset", "-c", str(core), "env", *own, *tunery, "agent", "--stdio"]
            add = ["hosts", "add", name, "--connect", shlex.join(agent)]
            subprocess.run([*tunery, *add], env=environment, check=True, capture_output=True)
        words += ["--on", AGENTS[1]]
        cores = cores[:1]
    pinned = ["taskset", "-c", ",".join(map(str, cores)), *tunery, *words]
    began = time.perf_counter()
    done = subprocess.run(pinned, env=environment, check=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
    wall_s = time.perf_counter() - began
    winners: dict[str, tuple[str, float]] = {}
    with open_store(str(place / "tunery.db")) as store:
        for record in store.records(modes=(Mode.FINAL,)):
            candidate, latency_s = record.candidate, record.measurement.latency_s
            known = winners.get(candidate.task_key)
            if record.measurement.outcome is Outcome.OK and latency_s and (known is None or latency_s < known[1]):
                winners[candidate.task_key] = candidate.key, latency_s
    return Found(arm, wall_s, json.loads(done.stdout)["network"]["after_s"], winners)


def compare(one: Found, other: Found) -> str:
    """Say how two runs' winners differ."""
    tasks = one.winners.keys() & other.winners.keys()
    same = sum(one.winners[task][0] == other.winners[task][0] for task in tasks)
    ratios = [other.winners[task][1] / one.winners[task][1] for task in tasks]
    mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
    return (f"{other.arm} against {one.arm}: {same} of {len(tasks)} winners are the same candidate; winners' latency "
            f"{mean:.3f} times, sum of tasks {other.network_s / one.network_s:.3f} times, "
            f"wall time {other.wall_s / one.wall_s:.3f} times")  # fmt: skip


def main() -> None:
    """Run both arms in turns and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="zoo:resnet18")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="tunery-two-") as directory:
        for turn, arm in itertools.product(range(chosen.turns), ("one host", "agents")):
            place = Path(directory, f"{turn}-{arm.split()[0]}")
            found.append(run(arm, place, chosen.network, chosen.trials, chosen.seed))
            print(f"{arm}: {found[-1].wall_s:.0f} s, sum of tasks {found[-1].network_s * 1e3:.3f} ms", flush=True)
    for one, other in itertools.combinations(found, 2):
        print(compare(one, other))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(each) for each in found], indent=1))


if __name__ == "__main__":
    main()
