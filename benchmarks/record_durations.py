"""Record how long the stages of real tuning take, as the data that the simulated scheduling study draws from.

    python benchmarks/record_durations.py zoo:resnet18 zoo:bert-mini --budget 40s -o durations.json

Each network is tuned on this machine with a store of its own, and the scheduler's log gives, for each sort of operator,
the seconds per candidate of each stage (propose, build, measure) and of the job's training (learn). At most 60 values
of each are kept, evenly over the run. Run it on a quiet machine.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mock_jobs import recorded_unit_s

from tunery.domain import Budget
from tunery.domain.request import Request
from tunery.runtime import opening
from tunery.runtime.runtime import Runtime
from tunery.service.session import tune

KINDS = ("propose", "build", "measure")
MOST = 60


def recorded(model: str, budget: str, store: str) -> dict[str, dict[str, list[float]]]:
    """Tune a network and return its stages' seconds per candidate, by task kind and stage kind."""
    made: list[Runtime] = []

    def make(*args: Any, **more: Any) -> Runtime:
        made.append(Runtime(*args, **more))
        return made[-1]

    with patch.object(opening, "Runtime", make):
        tune(Request(model, budget=Budget.parse(budget), store=store))
    return recorded_unit_s(made[-1].dispatch.scheduler.log)


def thinned(values: Sequence[float]) -> list[float]:
    """Return at most MOST of the values, evenly over their order, in steps of 10 µs."""
    step = max(1.0, len(values) / MOST)
    return [round(values[int(i * step)], 5) for i in range(min(len(values), MOST))]


def sorts(model: str, unit_s: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Return the sorts of tasks of which enough was seen, each with the job's training."""
    learn = thinned(unit_s.get("", {}).get("learn", ()))
    return [
        {"network": model, "task_kind": kind, **{k: thinned(stages[k]) for k in KINDS}, "learn": learn or [0.0]}
        for kind, stages in sorted(unit_s.items())
        if kind and all(len(stages.get(k, ())) >= 3 for k in KINDS)
    ]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--store", default="", help="a store to use again, for example one that knows the tasks")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in arguments.models:
            unit_s = recorded(model, arguments.budget, arguments.store or f"{directory}/store.db")
            found += sorts(model, unit_s)
            print(f"{model}: {', '.join(one['task_kind'] for one in found if one['network'] == model)}", flush=True)
    document = {
        "made_by": f"benchmarks/record_durations.py {' '.join(arguments.models)} --budget {arguments.budget}",
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "unit": "seconds per candidate",
        "sorts": found,
    }
    arguments.output.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{arguments.output}: {len(found)} sorts of tasks, {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
