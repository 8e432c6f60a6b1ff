"""One of Kernel Tuner's strategies on a recorded space: prints the times that it was told, by seed.

A child of `kernel_search.py`, in an environment that has `kernel_tuner` and none of ours.
"""

import contextlib
import io
import json
import random
import sys
import warnings
from typing import Any


def main(cache: str, strategy: str, evaluations: int, seeds: int) -> None:
    """Print the times that each seed's run was told, in seconds; null for a failure."""
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
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
