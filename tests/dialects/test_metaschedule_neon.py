"""Every rule writes code for ARM's vectors, too: nothing of it can run here, so the code itself is looked at."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("tvm")

from byte_products import write_product
from metaschedule_models import convolution_network

from tunery.dialects import get_dialect
from tunery.dialects.metaschedule._tvm import open_target, tvm
from tunery.dialects.metaschedule.variants.program import open_variant, parsed, replay, trace_body
from tunery.dialects.metaschedule.variants.variant import Variant, variants_of, write_body
from tunery.dialects.metaschedule.variants.vectors import lanes_of
from tunery.domain import DeviceDescription, Task
from tunery.models import prepare

pytestmark = pytest.mark.tvm

NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 2}
_SEEDS = 9
_FUSED = re.compile(r"\bfml[as]\s+v\d+\.4s")
"""A multiplication and addition of four floats at once."""


@pytest.fixture(scope="module")
def target() -> object:
    return open_target(NEON)


def heavy(directory: Path, **options: object) -> Task:
    dialect = get_dialect("metaschedule")
    network = convolution_network(directory, **options)  # type: ignore[arg-type]
    tasks = dialect.extract(network, dialect.resolve_target("native", 1))
    return max(tasks, key=lambda task: task.workload.flop)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"channels": (32, 32)}, {"generic", "winograd4", "tiles"}),
        ({"channels": (34, 34), "kernel": 1, "padding": 0}, {"generic", "tiles"}),
        ({"channels": (32, 32), "groups": 32}, {"generic", "tiles"}),
    ],
)
def test_each_rule_makes_vectors_of_four(
    options: dict[str, object], names: set[str], target: object, tmp_path: Path
) -> None:
    assert lanes_of(target) == 4
    workload = heavy(tmp_path, **options).workload
    found = variants_of(parsed(workload.key, workload.program), target).found
    assert names <= found.keys()
    for name in names:
        assert any(_FUSED.search(code_of(found[name], seed, target)) for seed in range(1, _SEEDS)), name


@pytest.mark.parametrize(
    ("features", "instruction"),
    [(["dotprod"], r"\bsdot\s+v\d+\.4s"), (["dotprod", "i8mm"], r"\busdot\s+v\d+\.4s"), ([], None)],
)
def test_products_of_bytes_are_dot_products_where_there_are_such(
    features: list[str], instruction: str | None, tmp_path: Path
) -> None:
    config = NEON | {"mcpu": "generic", "mattr": [f"+{name}" for name in ("neon", *features)]}
    board = DeviceDescription("cpu", "a board", (0,), {"arch": "aarch64", "vector": ["asimd", "asimddp", "i8mm"]})
    dialect = get_dialect("metaschedule")
    network = prepare(str(write_product(tmp_path / "n.onnx", "uint8")), {}, tmp_path)
    tasks = dialect.extract(network, dialect.resolve_target_of(json.dumps(config), 1, board))
    opened = open_target(config)
    [workload] = [task.workload for task in tasks if task.workload.kind == "matmul"]
    variant = variants_of(parsed(workload.key, workload.program), opened).found.get("dots")
    found = variant and re.search(instruction or "", code_of(variant, 1, opened))
    assert bool(found) == (instruction is not None)


def code_of(variant: Variant, seed: int, target: object) -> str:
    """Return the assembly of a random candidate."""
    space = open_variant(variant, target, seed=seed)
    tile = variant.tiles and write_body(variant.name, variant.tiles[0])
    candidate = replay(space, tile or trace_body(space.designs[-1].trace, space))
    return str(tvm.compile(candidate.mod, target).mod.inspect_source("asm"))
