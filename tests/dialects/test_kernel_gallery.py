"""The example kernels compute what their references compute, by default and at other configurations."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tunery.devices import open_device
from tunery.dialects import file_dialect, get_dialect
from tunery.dialects.kernels import UsersKernels
from tunery.dialects.kernels.opencl import OpenClDialect
from tunery.domain import Candidate
from tunery.measuring.verification import compare, expect
from tunery.testing.dialect_contract import DialectContract

pytestmark = pytest.mark.jobs

GALLERY = Path(__file__).parents[2] / "examples" / "kernels"
NAMES = ("conv2d", "matmul", "nbody", "reduction", "stencil", "transpose")
IN_BRIEF = ("matmul", "reduction")
IN_CUDA = ("matmul_cuda", "matmul_half_cuda", "transpose_cuda")
NO_GCC = "" if shutil.which("gcc") else "needs gcc"


@pytest.fixture(scope="module")
def needs_opencl() -> None:
    """Skip where something is missing; who only collects the tests starts no process."""
    [check] = OpenClDialect().doctor()
    if check.advice:
        pytest.skip(check.advice)


@pytest.mark.parametrize("folder", [GALLERY, GALLERY / "opencl"])
def test_the_gallery_is_whole(folder: Path) -> None:
    found = {path.stem: file_dialect(str(path)) for path in folder.glob("*.toml")}
    here, more = ("kernels", IN_CUDA) if folder == GALLERY else ("opencl", ())
    assert found == dict.fromkeys(NAMES, here) | dict.fromkeys(more, "cuda")


@pytest.mark.skipif(bool(NO_GCC), reason=NO_GCC or "nothing is missing")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_in_c_computes_what_its_reference_computes(name: str, tmp_path: Path) -> None:
    check_example(GALLERY / f"{name}.toml", tmp_path)


@pytest.mark.opencl
@pytest.mark.usefixtures("needs_opencl")
@pytest.mark.parametrize(
    "name", [*IN_BRIEF, *(pytest.param(one, marks=pytest.mark.slow) for one in NAMES if one not in IN_BRIEF)]
)
def test_an_example_in_opencl_computes_what_its_reference_computes(name: str, tmp_path: Path) -> None:
    check_example(GALLERY / "opencl" / f"{name}.toml", tmp_path)


def check_example(path: Path, tmp_path: Path) -> None:
    dialect = get_dialect(file_dialect(str(path)) or "")
    assert isinstance(dialect, UsersKernels)
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    inputs = DialectContract.inputs(task, seed=0)

    def outputs(candidate: Candidate) -> list[np.ndarray]:
        kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device(dialect.device))
        kernel.bind(inputs)
        kernel.poison()
        kernel.run()
        return kernel.outputs()

    expected = expect(task.workload, outputs(dialect.reference(task)))
    for candidate in (dialect.baseline(task), *dialect.open(task, [], None, 0).propose(2)):
        verdict = compare(expected, outputs(candidate))
        assert verdict.passed, f"{candidate.body}: {verdict.detail}"
