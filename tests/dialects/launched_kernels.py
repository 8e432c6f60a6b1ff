"""What the tests of kernels in OpenCL and in CUDA share: two kernel files, and a tuning among kernels that cheat."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from square_kernel import square_file

import tunery
from tunery.blobs import DirectoryBlobs
from tunery.devices import open_device
from tunery.dialects import store_built
from tunery.dialects.configurations import candidate_of
from tunery.dialects.kernels import UsersKernels
from tunery.domain import Budget, Measurement, Origin, Outcome
from tunery.domain.request import CompileOptions, Request
from tunery.measuring.service import Measurer
from tunery.service.session import Session
from tunery.store import open_store


def product_file(language: str, ending: str, flag: str) -> str:
    """A matrix product in tiles; the tile of 64 is larger than the matrices."""
    return f"""
function = "product"
language = "{language}"
source = "product.{ending}"
flop = "2 * N**3"
restrictions = ["TILE <= N"]
flags = ["{flag}"]
[problem]
N = 32
[[arguments]]
name = "a"
shape = ["N", "N"]
[[arguments]]
name = "b"
shape = ["N", "N"]
[[arguments]]
name = "n"
dtype = "int32"
value = "N"
[[arguments]]
name = "c"
shape = ["N", "N"]
output = true
[parameters]
TILE = [2, 4, 8, 16, 32, 64]
[launch]
global = ["N", "N"]
local = ["TILE", "TILE"]
[default]
TILE = 4
[reference]
numpy = "a @ b"
"""


def faulty_file(language: str, ending: str, faults: Mapping[int, str], more: str = "") -> str:
    """The square of 5000 numbers; each value of FAULT is another kernel."""
    return square_file(
        f'language = "{language}"\nsource = "square.{ending}"\n{more}',
        5000,
        f"""
[parameters]
FAULT = {[0, 1, *faults]}
[launch]
global = ["N"]
local = [50]
[default]
FAULT = 0
""",
    )


def written(directory: Path, source: str, file: str) -> Path:
    name, _, ending = file.split('source = "')[1].partition('"')[0].partition(".")
    (directory / f"{name}.{ending}").write_text(source)
    path = directory / f"{name}.toml"
    path.write_text(file)
    return path


def check_that_no_cheat_wins(path: Path, directory: Path, dialect: str, ending: str, faults: Mapping[int, str]) -> None:
    """Tune a faulty file, and check what became of each kernel, and what is delivered: number 1.

    One that cheats may be given up as slow before it is seen through; `measured_alone` shows that it would be.
    """
    request = Request(
        str(path), dialect=dialect, threads=1, budget=Budget.parse("30trials"), store=str(directory / "store.db")
    )
    with Session(request.store) as session:
        report = session.tune(request)
        compiled, _ = session.compile(request, directory / "square.tunery", CompileOptions(predict=True))
    with open_store(request.store) as store:
        records = store.records()
    outcomes = {json.loads(one.candidate.body)["parameters"]["FAULT"]: one.measurement.outcome for one in records}
    assert outcomes.keys() == {0, 1, *faults}, "the space is exhausted"
    assert outcomes[0] in {Outcome.OK, Outcome.ABANDONED}
    assert outcomes[1] is Outcome.OK
    assert [why for fault, why in faults.items() if outcomes[fault] is Outcome.OK] == []
    [state] = report.job.tasks
    [best] = [one for one in records if one.candidate.key == state.best_candidate][-1:]
    assert json.loads(best.candidate.body)["parameters"] == {"FAULT": 1}
    x = np.linspace(-1, 1, 5000, dtype=np.float32)
    np.testing.assert_allclose(tunery.load_compiled(directory / "square.tunery")(x)[0], x * x, rtol=1e-5)
    texts = {Path(one).suffix: Path(one).read_text() for one in compiled.texts}
    assert "#define FAULT 1\n" in texts[f".{ending}"]
    assert json.loads(texts[".json"])["parameters"] == {"FAULT": 1}
    assert "SQUARE_LOCAL_SIZE {50}" in texts[".h"]


def measured_alone(path: Path, directory: Path, dialect: UsersKernels, fault: int) -> Measurement:
    """Measure one kernel of a faulty file with no incumbent, so that it is not given up however slow it is."""
    blobs = DirectoryBlobs(directory / "blobs")
    [task] = dialect.extract(dialect.own_network(str(path)), dialect.resolve_target("native", 1))
    one = candidate_of(task, json.dumps({"parameters": {"FAULT": fault}}), Origin.SEARCH)
    artifact, reference = (
        store_built(blobs, dialect.build(task, each, directory)) for each in (one, dialect.reference(task))
    )
    return Measurer(dialect, open_device(dialect.device), blobs).race(task, artifact, one, None, reference)
