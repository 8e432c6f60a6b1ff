"""How builds scale with hosts behind agents, and what a call to one costs.

    python benchmarks/agents.py [--hosts 1,2,4,8] [--build-s 0.2] [--seconds 8] [--calls 300] [--json FILE]

Each host is an agent on this machine with directories of its own and one builder of the fake dialect, whose builds wait
for `--build-s` seconds, so that few cores bear many hosts. Candidates per second are those of all hosts, artifacts
included; beside them the share of n times one host's rate. A call's cost is the median over `--calls` of a call that
does nothing, of one that is given and gives back a blob of 64 KB, and of both in a worker of this host.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tunery.blobs import DirectoryBlobs
from tunery.dialects.fake import FakeDialect, fake_network
from tunery.engines import AgentEngine, Engine, JoinedEngine, LocalEngine, Role, WorkerSpec

DEADLINE_S = 120.0
PROBE = WorkerSpec(Role.BUILDER, "tunery.engines._probe:Probe")


def agent(directory: Path) -> str:
    """Return the command of an agent with directories of its own."""
    directory.mkdir()
    places = [f"{name}={directory}" for name in ("TUNERY_CACHE", "TMPDIR")]
    return shlex.join(["env", *places, sys.executable, "-m", "tunery", "agent", "--stdio"])


def rate(engine: Engine, build_s: float, seconds: float) -> float:
    """Return how many candidates all hosts of an engine build per second."""
    dialect = FakeDialect()
    task = dialect.extract(fake_network(f"fake:agents?build_s={build_s}"), dialect.resolve_target("native", 1))[0]
    candidates = dialect.open(task, (), None, 0).propose(len(engine.hosts))
    settings = {"dialect": "fake", "device": "cpu"}
    specs = [WorkerSpec(Role.BUILDER, "tunery.runtime.services:Builder", settings, host=host) for host in engine.hosts]
    workers = [engine.start(spec) for spec in specs]

    def build(worker: str) -> Any:
        candidate = candidates[workers.index(worker) % len(candidates)]
        return engine.call(worker, "build", task, candidate, deadline_s=DEADLINE_S)

    for ready in [build(worker) for worker in workers]:
        ready.result(DEADLINE_S)
    began, built = time.perf_counter(), 0
    running = {build(worker): worker for worker in workers}
    while running:
        for call in wait(running, return_when=FIRST_COMPLETED).done:
            worker = running.pop(call)
            engine.blobs.release(call.result().blob)  # the next build's artifact has to cross again
            built += 1
            if time.perf_counter() - began < seconds:
                running[build(worker)] = worker
    return built / (time.perf_counter() - began)


def call_ms(engine: Engine, calls: int) -> dict[str, float]:
    """Return the milliseconds of a call that does nothing, and of one with a blob in each direction."""
    worker = engine.start(PROBE)

    def nothing() -> None:
        engine.call(worker, "count", deadline_s=DEADLINE_S).result(DEADLINE_S)

    def blob() -> None:
        given = engine.blobs.put(os.urandom(1 << 16), temporary=True)
        made = engine.call(worker, "reverse", given, deadline_s=DEADLINE_S).result(DEADLINE_S)
        engine.blobs.get(made)
        engine.blobs.release(given)
        engine.blobs.release(made)

    return {"call_ms": _median_ms(nothing, calls), "blob_ms": _median_ms(blob, calls)}


def _median_ms(action: Callable[[], None], calls: int) -> float:
    action()
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        action()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def measure(hosts: Sequence[int], build_s: float, seconds: float, calls: int) -> dict[str, Any]:
    """Return all figures."""
    found: dict[str, Any] = {"build_s": build_s, "hosts": []}
    with tempfile.TemporaryDirectory() as scratch, DirectoryBlobs(Path(scratch, "blobs")) as blobs:
        for count in hosts:
            names = [f"host{number}" for number in range(count)]
            commands = {name: agent(Path(scratch, f"{count}-{name}")) for name in names}
            with JoinedEngine({name: AgentEngine(name, commands[name], blobs) for name in names}) as engine:
                found["hosts"].append({"hosts": count, "per_s": rate(engine, build_s, seconds)})
        with AgentEngine("far", agent(Path(scratch, "far")), blobs) as far:
            found["agent"] = call_ms(far, calls)
        with LocalEngine(Path(scratch, "logs"), blobs=blobs) as here:
            found["here"] = call_ms(here, calls)
    one = found["hosts"][0]["per_s"] / found["hosts"][0]["hosts"]
    for row in found["hosts"]:
        row["share"] = row["per_s"] / (one * row["hosts"])
    return found


def show(found: dict[str, Any]) -> None:
    """Print the figures as tables."""
    scale, cost = Table("hosts", "candidates/s", "of n times one"), Table("a call", "here", "an agent", "more")
    for row in found["hosts"]:
        scale.add_row(str(row["hosts"]), f"{row['per_s']:.2f}", f"{row['share']:.2f}")
    for key, name in (("call_ms", "that does nothing"), ("blob_ms", "with 64 KB in and out")):
        here, far = found["here"][key], found["agent"][key]
        cost.add_row(name, f"{here:.2f} ms", f"{far:.2f} ms", f"{far - here:.2f} ms")
    for table in (scale, cost):
        Console().print(table)


def main() -> None:
    """Measure, print, and keep the figures where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="1,2,4,8")
    parser.add_argument("--build-s", type=float, default=0.2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = measure([int(n) for n in chosen.hosts.split(",")], chosen.build_s, chosen.seconds, chosen.calls)
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
