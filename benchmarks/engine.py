"""What an engine's border costs: round trips, payloads, fresh workers.

Run: python benchmarks/engine.py [--tvm]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from tunery.dialects import get_dialect
from tunery.domain import Environment
from tunery.engines import Engine, LocalEngine, Role, WorkerSpec
from tunery.testing.inline_engine import InlineEngine

PROBE = WorkerSpec(Role.BUILDER, "tunery.testing.engine_probe:Probe")


def spread_ms(action: Callable[[], object], times: int) -> dict[str, float]:
    """Return median and deciles of an action's wall time, in milliseconds."""
    samples = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        samples.append((time.perf_counter() - began) * 1e3)
    cuts = statistics.quantiles(samples, n=10)
    return {"median": round(statistics.median(samples), 3), "p10": round(cuts[0], 3), "p90": round(cuts[-1], 3)}


def measure(engine: Engine, environment: Environment) -> dict[str, dict[str, float]]:
    """Return every figure of one engine."""
    began = time.perf_counter()
    worker = engine.start(replace(PROBE, environment=environment))
    engine.call(worker, "count", deadline_s=60).result()
    first_ms = round((time.perf_counter() - began) * 1e3, 1)

    def ask(method: str, *args: object) -> object:
        return engine.call(worker, method, *args, deadline_s=60).result()

    def stream() -> None:
        for future in [engine.call(worker, "count", deadline_s=60) for _ in range(100)]:
            future.result()

    def renew() -> None:
        engine.kill(worker)
        ask("count")

    small, large = bytes(50_000), bytes(5_000_000)
    queued = spread_ms(stream, 20)
    return {
        "first worker, ms": {"once": first_ms},
        "round trip, ms": spread_ms(lambda: ask("count"), 1000),
        "round trip with 50 KB each way, ms": spread_ms(lambda: ask("echo_bytes", small), 300),
        "round trip with 5 MB each way, ms": spread_ms(lambda: ask("echo_bytes", large), 10),
        "one of 100 queued calls, ms": {name: round(value / 100, 3) for name, value in queued.items()},
        "kill and a fresh worker's first answer, ms": spread_ms(renew, 30),
    }


def main() -> None:
    """Print the figures of both engines as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tvm", action="store_true", help="preload TVM, as tuning does")
    environment = get_dialect("metaschedule").environment() if parser.parse_args().tvm else Environment()
    with LocalEngine() as local, InlineEngine() as inline:
        figures = {"local": measure(local, environment), "inline": measure(inline, environment)}
    print(json.dumps(figures | {"preload": environment.preload}, indent=2))


if __name__ == "__main__":
    main()
