"""A kernel in half precision, in any language: the right one where FAULT is 0, and one that is off by a quarter."""

import json
from pathlib import Path

import numpy as np

import tunery
from tunery.domain import Budget, Outcome
from tunery.domain.request import CompileOptions, Request
from tunery.service.session import Session
from tunery.store import open_store


def half_file(source: str, more: str = "", factor: str = "float16") -> str:
    """Return its kernel file: `source` are the lines that name the source; `factor` is the type of its number."""
    return f"""
function = "scale"
{source}
[problem]
N = 3072
[[arguments]]
name = "x"
dtype = "float16"
shape = ["N"]
fill = {{low = 1.0, high = 3.0}}
[[arguments]]
name = "factor"
dtype = "{factor}"
value = 0.5
[[arguments]]
name = "y"
dtype = "float16"
shape = ["N"]
output = true
[parameters]
FAULT = [0, 1]
{more}
[reference]
numpy = "x * factor"
"""


def check_half(path: Path, directory: Path, dialect: str) -> dict[str, str]:
    """Tune it; check what became of either kernel, and what the delivered one computes. Return its texts by ending."""
    request = Request(
        str(path), dialect=dialect, threads=1, budget=Budget.parse("4trials"), store=str(directory / "store.db")
    )
    with Session(request.store) as session:
        session.tune(request)
        compiled, _ = session.compile(request, directory / "scale.tunery", CompileOptions(predict=True))
    with open_store(request.store) as store:
        outcomes = {
            json.loads(one.candidate.body)["parameters"]["FAULT"]: one.measurement.outcome for one in store.records()
        }
    assert outcomes == {0: Outcome.OK, 1: Outcome.WRONG_RESULT}
    x = np.linspace(-2, 2, 3072, dtype=np.float16)
    [found] = tunery.load_compiled(directory / "scale.tunery")(x)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, x * np.float16(0.5))
    return {Path(one).suffix: Path(one).read_text() for one in compiled.texts}
