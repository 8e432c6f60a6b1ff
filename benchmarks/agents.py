"""How builds scale with hosts, and what a call, a measurement and an idle agent cost.

    python benchmarks/agents.py [--engines agent,ray] [--hosts 1,2,4,8] [--build-s 0.2] [--seconds 8] [--calls 300]
        [--idle 20] [--json FILE]

Each host is on this machine, with one builder of the fake dialect whose builds wait for `--build-s` seconds, so that
few cores bear many hosts: an agent with directories of its own, or a node of a Ray cluster that is started for this
(extra `ray`). Candidates per second are those of all hosts, artifacts included; beside them the share of n times one
host's rate. A call's cost is the median over `--calls`, in turns with the same call in a worker of this host: one that
does nothing, one that is given and gives back a blob of 64 KB, and a measurement whose artifact is there already, with
the right to measure. An idle agent is looked at for `--idle` seconds with nothing to do but its keep-alives.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from ray_cluster import MARK, Cluster
from rich import box
from rich.console import Console
from rich.table import Table

from tunery.blobs import DirectoryBlobs
from tunery.devices.cpu.facts import usable_cores
from tunery.engines import AgentEngine, Engine, JoinedEngine, LocalEngine, Role, WorkerSpec
from tunery.engines.ray.engine import RayEngine
from tunery.runtime.hosts.workers import MEASURER
from tunery.testing.fake_dialect import FakeDialect, fake_network

DEADLINE_S = 120.0
PROBE = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")


def agent(directory: Path) -> str:
    """Return the command of an agent with directories of its own."""
    directory.mkdir()
    places = [f"{name}={directory}" for name in ("TUNERY_CACHE", "TMPDIR")]
    return shlex.join(["env", *places, sys.executable, "-m", "tunery", "agent", "--stdio"])


@contextmanager
def agents(count: int, scratch: Path, blobs: DirectoryBlobs) -> Iterator[tuple[Engine, Sequence[str]]]:
    """Give an engine of so many agents, and their names."""
    names = [f"host{number}" for number in range(count)]
    commands = {name: agent(scratch / f"{count}-{name}") for name in names}
    with JoinedEngine({name: AgentEngine(name, commands[name], blobs) for name in names}) as engine:
        yield engine, names


@contextmanager
def ray_nodes(count: int, scratch: Path, blobs: DirectoryBlobs) -> Iterator[tuple[Engine, Sequence[str]]]:
    """Give an engine of a new Ray cluster with so many nodes beside its head, and their names."""
    with tempfile.TemporaryDirectory(prefix="r") as place, ExitStack() as stack:
        os.environ |= {MARK: place, "PYTHONPATH": os.pathsep.join(sys.path)}
        cluster = Cluster(Path(place))
        stack.callback(cluster.close)
        names = [f"127.0.0.{2 + number}" for number in range(count)]
        for name in names:
            cluster.start_node(name)
        engine = stack.enter_context(RayEngine(cluster.address, scratch, blobs))
        while any(name not in engine.hosts or engine.facts(name) is None for name in names):
            time.sleep(0.05)
        yield engine, names


ENGINES = {"agent": agents, "ray": ray_nodes}


def rate(engine: Engine, hosts: Sequence[str], build_s: float, seconds: float) -> float:
    """Return how many candidates these hosts of an engine build per second."""
    dialect = FakeDialect()
    task = dialect.extract(fake_network(f"fake:agents?build_s={build_s}"), dialect.resolve_target("native", 1))[0]
    candidates = dialect.open(task, (), None, 0).propose(len(hosts))
    settings = {"dialect": "fake", "device": "cpu"}
    specs = [WorkerSpec(Role.BUILDER, "tunery.runtime.services:Builder", settings, host=host) for host in hosts]
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


def actions(engine: Engine, *, far: bool) -> dict[str, Callable[[], None]]:
    """Return what is timed on an engine, by its name."""
    worker = engine.start(PROBE)
    dialect, cores = FakeDialect(), usable_cores()
    task = dialect.extract(fake_network("fake:measured?tasks=1"), dialect.resolve_target("native", 1))[0]
    settings: dict[str, Any] = {"dialect": "fake", "device": "cpu"}
    builder = engine.start(WorkerSpec(Role.BUILDER, "tunery.runtime.services:Builder", settings))
    reference, artifact = (
        ask(engine, builder, "build", task, one) for one in (dialect.reference(task), dialect.baseline(task))
    )
    measurer = engine.start(WorkerSpec(Role.MEASURER, MEASURER, {**settings, "cores": cores, "slot": cores[:1]}))

    def nothing() -> None:
        ask(engine, worker, "count")

    def blob() -> None:
        given = engine.blobs.put(os.urandom(1 << 16), temporary=True)
        made = ask(engine, worker, "reverse", given)
        engine.blobs.get(made)
        engine.blobs.release(given)
        engine.blobs.release(made)

    def measurement() -> None:
        let_go = engine.hold_device().result(DEADLINE_S) if far else lambda: None
        ask(engine, measurer, "race", task, artifact, dialect.baseline(task), None, reference, 1, 0.0)
        let_go()

    return {"does nothing": nothing, "has 64 KB in and out": blob, "measures": measurement}


def ask(engine: Engine, worker: str, method: str, *args: object) -> Any:
    """Make a call and wait for its result."""
    return engine.call(worker, method, *args, deadline_s=DEADLINE_S).result(DEADLINE_S)


def in_turns_ms(one: Callable[[], None], other: Callable[[], None], times: int) -> tuple[float, float, float]:
    """Return the median milliseconds of two actions that are done in turns, and that of the second's surplus."""
    taken: list[list[float]] = []
    for _ in range(times + 1):  # the first time is not counted
        row = []
        for action in (one, other):
            began = time.perf_counter()
            action()
            row.append((time.perf_counter() - began) * 1e3)
        taken.append([*row, row[1] - row[0]])
    here, there, more = (statistics.median(column) for column in zip(*taken[1:], strict=True))
    return here, there, more


def idle(scratch: Path, blobs: DirectoryBlobs, seconds: float) -> dict[str, float]:
    """Return the memory in MB and the share of a core of an agent that has nothing to do, by what it has used."""
    with AgentEngine("idle", agent(scratch / "idle"), blobs) as engine:
        engine.wait(DEADLINE_S)
        time.sleep(1.0)
        [process] = [each for each in psutil.Process().children(recursive=True) if "agent" in each.cmdline()]
        family = [process, *process.children(recursive=True)]
        spent_s = sum(map(run_s, family))
        time.sleep(seconds)
        used_s = sum(map(run_s, family)) - spent_s
        return {"memory_mb": sum(one.memory_info().rss for one in family) / 1e6, "core_share": used_s / seconds}


def run_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process's threads, to the nanosecond (its CPU times count hundredths)."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def measure(
    engines: Sequence[str], hosts: Sequence[int], build_s: float, seconds: float, calls: int, idle_s: float
) -> dict[str, Any]:
    """Return all figures."""
    found: dict[str, Any] = {"build_s": build_s, "hosts": [], "calls": {}}
    with tempfile.TemporaryDirectory() as scratch, DirectoryBlobs(Path(scratch, "blobs")) as blobs:
        for name in engines:
            rows: list[dict[str, Any]] = []
            for count in hosts:
                with ENGINES[name](count, Path(scratch), blobs) as (engine, names):
                    rows.append({"engine": name, "hosts": count, "per_s": rate(engine, names, build_s, seconds)})
            one = rows[0]["per_s"] / rows[0]["hosts"]
            found["hosts"] += [{**row, "share": row["per_s"] / (one * row["hosts"])} for row in rows]
        with (
            AgentEngine("far", agent(Path(scratch, "far")), blobs) as far,
            LocalEngine(Path(scratch, "logs"), blobs=blobs) as near,
        ):
            theirs = actions(far, far=True)
            for what, ours in actions(near, far=False).items():
                here_ms, there_ms, more_ms = in_turns_ms(ours, theirs[what], calls)
                found["calls"][what] = {"here_ms": here_ms, "there_ms": there_ms, "more_ms": more_ms}
        found["idle"] = idle(Path(scratch), blobs, idle_s)
    return found


def show(found: dict[str, Any]) -> None:
    """Print the figures as tables of Markdown."""
    scale = Table("engine", "hosts", "candidates/s", "of n times one", box=box.MARKDOWN)
    for row in found["hosts"]:
        scale.add_row(row["engine"], str(row["hosts"]), f"{row['per_s']:.1f}", f"{row['share']:.2f}")
    cost = Table("a call that", "here", "behind an agent", "more, of a pair", box=box.MARKDOWN)
    for what, each in found["calls"].items():
        cost.add_row(what, *(f"{each[key]:.2f} ms" for key in ("here_ms", "there_ms", "more_ms")))
    for table in (scale, cost):
        Console().print(table)
    Console().print(f"an idle agent: {found['idle']['memory_mb']:.0f} MB, {found['idle']['core_share']:.2%} of a core")


def main() -> None:
    """Measure, print, and keep the figures where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="agent", help=f"of {', '.join(ENGINES)}, with commas")
    parser.add_argument("--hosts", default="1,2,4,8")
    parser.add_argument("--build-s", type=float, default=0.2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    hosts = [int(n) for n in chosen.hosts.split(",")]
    found = measure(chosen.engines.split(","), hosts, chosen.build_s, chosen.seconds, chosen.calls, chosen.idle)
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
