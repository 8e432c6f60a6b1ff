"""How fast the service answers: `GET /v1/jobs/{id}` with many stored jobs, while others follow jobs.

    python benchmarks/service.py --jobs 10000 --streams 100 --calls 2000 -o out/service.json

The service runs in a process of its own and is asked over TCP on this machine, one call after the other, each for a job
at random. Prints the percentiles of the time of a call and the server's CPU time for one (with what the streams take
meanwhile), and writes them as JSON with `-o`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from tunery.domain import JobState, Spend, TaskState
from tunery.reports.format import as_text, new_table
from tunery.store import Store, open_store

TASKS = 30
PERCENTILES = (50, 90, 99, 99.9)


def fill(store: Store, count: int) -> list[str]:
    """Store so many jobs that are done, and return their ids."""
    tasks = tuple(
        TaskState(f"{n:016x}", f"{n:016x}", f"conv2d_{n}", "conv2d", 1, True, 1e-3, 5e-4, "c", measured=20,
                  outcomes={"ok": 18, "build-failed": 2}) for n in range(TASKS)
    )  # fmt: skip
    made = []
    for number in range(count):
        request = {"model": f"zoo:net{number % 50}", "name": "net", "kind": "tune", "queue_owner": "admin"}
        status = store.create_job_once(request, f"{number:012x}")[0]
        store.save_job(replace(status, state=JobState.DONE, tasks=tasks, spend=Spend(wall_s=60.0, trials=600)))
        made.append(status.job_id)
    return made


def follow(url: str, headers: dict[str, str], job_id: str, opened: threading.Semaphore, over: threading.Event) -> None:
    """Keep an event stream open until it is `over`."""
    with httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", headers=headers, timeout=None) as answer:
        opened.release()
        for _ in answer.iter_lines():
            if over.is_set():
                return


def measure(
    url: str, headers: dict[str, str], jobs: list[str], calls: int, server: psutil.Process
) -> tuple[list[float], float]:
    """Return how many seconds each call took, in ascending order, and the server's CPU seconds for one."""
    chance, taken, before_s = random.Random(0), [], cpu_s(server)
    with httpx.Client(base_url=url, headers=headers) as client:
        for _ in range(calls):
            job_id = chance.choice(jobs)
            began = time.perf_counter()
            client.get(f"/v1/jobs/{job_id}").raise_for_status()
            taken.append(time.perf_counter() - began)
    return sorted(taken), (cpu_s(server) - before_s) / calls


def serve(environment: Mapping[str, str]) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start a service of accounts, and return it with what it tells as it is ready."""
    command = [sys.executable, "-m", "tunery", "serve", "--listen", "127.0.0.1:0", "--json"]
    server = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"the service ended with {server.wait()} before it was ready")
        text += line
    return server, json.loads(text)


def cpu_s(server: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    used = server.cpu_times()
    return float(used.user + used.system)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, open_store(f"{directory}/store.db") as store:
        environment = os.environ | {"TUNERY_STORE": f"{directory}/store.db", "TUNERY_CACHE": f"{directory}/cache"}
        jobs = fill(store, asked.jobs)
        followed = [store.create_job({"model": "zoo:net"}).job_id for _ in range(asked.streams)]
        for job_id in followed:
            store.acquire_job(job_id)  # at work, in this process
        began = time.perf_counter()
        server, told = serve(environment)
        started_s, over = time.perf_counter() - began, threading.Event()
        headers, opened = {"Authorization": f"Bearer {told['token']}"}, threading.Semaphore(0)
        process = psutil.Process(server.pid)
        try:
            alone, alone_s = measure(told["url"], headers, jobs, asked.calls, process)
            for job_id in followed:
                threading.Thread(target=follow, args=(told["url"], headers, job_id, opened, over), daemon=True).start()
            for _ in followed:
                opened.acquire()
            beside, beside_s = measure(told["url"], headers, jobs, asked.calls, process)
        finally:
            over.set()
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    found = {
        "jobs": asked.jobs, "streams": asked.streams, "calls": asked.calls, "start_s": started_s,
        "alone_ms": {str(p): 1e3 * at(alone, p) for p in PERCENTILES},
        "with_streams_ms": {str(p): 1e3 * at(beside, p) for p in PERCENTILES},
        "cpu_ms": {"alone": 1e3 * alone_s, "with_streams": 1e3 * beside_s},
    }  # fmt: skip
    table = new_table("GET /v1/jobs/{id}", *(f"#p{p:g} ms" for p in PERCENTILES), "#CPU ms")
    for name, values, used_s in (("no streams", alone, alone_s), (f"{asked.streams} streams", beside, beside_s)):
        table.add_row(name, *(f"{1e3 * at(values, p):.2f}" for p in PERCENTILES), f"{1e3 * used_s:.2f}")
    print(as_text(table, None))
    if asked.output:
        asked.output.parent.mkdir(parents=True, exist_ok=True)
        asked.output.write_text(json.dumps(found, indent=2) + "\n")


def at(values: list[float], percentile: float) -> float:
    """Return a percentile of sorted values."""
    return values[min(int(len(values) * percentile / 100), len(values) - 1)]


if __name__ == "__main__":
    main()
