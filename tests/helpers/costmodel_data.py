"""A made-up world in which candidates of all tasks follow one law, with networks that share workloads."""

import numpy as np

from tunery.costmodels import FeatureRows, Group, Layout, Table
from tunery.costmodels.columns import DEVICE_COLUMNS
from tunery.costmodels.registry import Version, starting

OWN = Layout("made-up", 1, tuple(f"x{i}" for i in range(7)))
LAYOUT = OWN.with_columns(DEVICE_COLUMNS)
KINDS = ("conv2d", "matmul")


def table(networks: int = 8, per_network: int = 3, rows: int = 40, seed: int = 0, shared: bool = True) -> Table:
    """Networks n0.. of some tasks each; with `shared` the last task of each is the first of the next, too."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(networks * per_network):
        x = rng.random((rows, len(LAYOUT.columns))).astype(np.float32)
        latencies = np.exp(3 * (x[:, 0] - 0.5) ** 2 + 2 * x[:, 1]).astype(np.float64) * 10.0 ** -(number % 4)
        latencies[0] = np.inf
        owners = {f"n{number // per_network}"}
        if shared and number % per_network == 0 and number:
            owners.add(f"n{number // per_network - 1}")
        groups.append(
            Group(
                f"task{number}", f"work{number}", f"op{number}", KINDS[number % 2], "device", "fake 1.0",
                tuple(sorted(owners)), tuple(f"c{i}" for i in range(rows)), FeatureRows(x, LAYOUT), latencies,
                0.1 + x[:, 2].astype(float),
                tuple(np.stack([row, 2 * row]) for row in x),
            )
        )  # fmt: skip
    return Table(tuple(groups), "fake", "fake 1.0", "fake", {})


def in_use(dialect: str, compiler: str = "") -> Version | None:
    """Return the card of the model that jobs of a dialect, for a target of the same name, start from."""
    found = starting(dialect, dialect, compiler=compiler)
    return found[0] if found else None
