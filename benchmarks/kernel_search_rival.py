"""One of Kernel Tuner's strategies, or of pyATF's, on a recorded space: prints the times that it was told, by seed.

A child of `kernel_search.py`, in an environment that has `kernel_tuner` and `pyatf`, and none of ours.
"""

import contextlib
import importlib
import io
import json
import math
import random
import sys
import warnings
from typing import Any

PYATF = "pyatf:"
MOST_STEPS = 20_000  # a technique that asks only for what it knows ends here


def main(cache: str, strategy: str, evaluations: int, seeds: int) -> None:
    """Print the times that each seed's run was told, in seconds; null for a failure."""
    told = pyatf_runs if strategy.startswith(PYATF) else kernel_tuner_runs
    print(json.dumps(told(cache, strategy.removeprefix(PYATF), evaluations, seeds)))


def pyatf_runs(cache: str, technique: str, evaluations: int, seeds: int) -> list[list[float | None]]:
    """Drive a search technique as pyATF's own tuner does: its coordinates lead down the tree of configurations."""
    with open(cache) as file:  # noqa: PTH123 - a child without anything of ours
        plain = json.load(file)
    names = plain["tune_params_keys"]
    tree: dict[str, Any] = {}
    for entry in plain["cache"].values():
        leaf = tree
        for name in names[:-1]:
            leaf = leaf.setdefault(str(entry[name]), {})
        time = entry["time"]
        leaf[str(entry[names[-1]])] = time * 1e-3 if isinstance(time, int | float) else None
    module = importlib.import_module(f"pyatf.search_techniques.{technique}")
    kind = next(getattr(module, one) for one in dir(module) if one.lower() == technique.replace("_", ""))
    found = []
    for seed in range(seeds):
        random.seed(seed)
        search, steps = kind(), 0
        told: dict[tuple[int, ...], float | None] = {}
        search.initialize(len(names))
        while len(told) < evaluations and steps < MOST_STEPS:
            costs = {}
            for coordinates in sorted(search.get_next_coordinates()):
                node: Any = tree
                places: list[int] = []
                for one in coordinates:
                    places.append(max(0, math.ceil(one * len(node)) - 1))
                    node = list(node.values())[places[-1]]
                told.setdefault(tuple(places), node)
                costs[coordinates] = 1e9 if node is None else node
                steps += 1
            search.report_costs(costs)
        found.append(list(told.values())[:evaluations])
    return found


def kernel_tuner_runs(cache: str, strategy: str, evaluations: int, seeds: int) -> list[list[float | None]]:
    """Run Kernel Tuner itself on its own recording, and note what it reads."""
    import numpy as np
    from kernel_tuner import tune_kernel
    from kernel_tuner.runners import simulation

    with open(cache) as file:  # noqa: PTH123 - a child without anything of ours
        plain = json.load(file)
    recorded = plain["cache"]
    parameters = plain["tune_params"]
    names = plain["tune_params_keys"]
    known = {tuple(str(entry[name]) for name in names) for entry in recorded.values()}

    def allowed(configuration: dict[str, Any]) -> bool:
        return tuple(str(configuration[name]) for name in names) in known

    found = []
    for seed in range(seeds):
        told: list[float | None] = []
        seen: set[str] = set()
        plain_run = simulation.SimulationRunner.run

        def run(self: Any, parameter_space: Any, tuning_options: Any, told=told, seen=seen, plain_run=plain_run) -> Any:  # type: ignore[no-untyped-def]
            elements = list(parameter_space)
            for element in elements:
                key = ",".join(str(i) for i in element)
                if key in recorded and key not in seen:
                    seen.add(key)
                    time = recorded[key]["time"]
                    told.append(time * 1e-3 if isinstance(time, int | float) else None)
            return plain_run(self, iter(elements), tuning_options)

        simulation.SimulationRunner.run = run
        random.seed(seed)
        np.random.seed(seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tune_kernel(
                    plain["kernel_name"], "void none() {}", plain["problem_size"], [], parameters, lang="C",
                    restrictions=allowed, strategy=strategy, strategy_options={"max_fevals": evaluations},
                    simulation_mode=True, cache=cache, quiet=True, verbose=False, seed=seed,
                )  # fmt: skip
        finally:
            simulation.SimulationRunner.run = plain_run
        found.append(told[:evaluations])
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
