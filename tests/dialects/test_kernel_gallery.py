"""The example kernels compute what their references compute, by default and at other configurations."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tunery.devices import open_device
from tunery.dialects.contract import DialectContract
from tunery.dialects.kernels import KernelsDialect
from tunery.domain import Candidate
from tunery.measuring.verification import compare, expect

GALLERY = Path(__file__).parents[2] / "examples" / "kernels"
NAMES = ("conv2d", "matmul", "nbody", "reduction", "stencil", "transpose")
IN_CUDA = ("matmul_cuda", "transpose_cuda")

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def test_the_gallery_is_whole() -> None:
    assert sorted(path.stem for path in GALLERY.glob("*.toml")) == sorted(NAMES + IN_CUDA)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_computes_what_its_reference_computes(name: str, tmp_path: Path) -> None:
    dialect = KernelsDialect()
    network = dialect.own_network(str(GALLERY / f"{name}.toml"))
    [task] = dialect.extract(network, dialect.resolve_target("native", 1))
    inputs = DialectContract.inputs(task, seed=0)

    def outputs(candidate: Candidate) -> list[np.ndarray]:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        return kernel.outputs()

    expected = expect(task.workload, outputs(dialect.reference(task)))
    for candidate in (dialect.baseline(task), *dialect.open(task, [], None, 0).propose(2)):
        verdict = compare(expected, outputs(candidate))
        assert verdict.passed, f"{candidate.body}: {verdict.detail}"
