"""The examples run as their first lines say."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.models import prepare

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(*words: object) -> str:
    """Return what an example prints."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("name", "model", "lines"),
    [
        ("run", "mlp-mnist", 3),
        ("image_classification", "squeezenet1_1", 5),
        ("bert_encoder", "bert-tiny", 3),
        pytest.param(
            "torch_module", "squeezenet1_1", 1,
            marks=pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
        ),
    ],
)  # fmt: skip
def test_an_example_runs_a_compiled_file(name: str, model: str, lines: int, tmp_path: Path) -> None:
    dialect = OnnxRuntimeDialect()
    (tmp_path / "model").mkdir()
    network = prepare(f"zoo:{model}", {}, tmp_path / "model")
    dialect.compile(network, dialect.resolve_target("native", 1), {}, tmp_path / "file.tunery")
    assert len(ran(EXAMPLES / f"{name}.py", tmp_path / "file.tunery").splitlines()) == lines


@pytest.mark.tvm
@pytest.mark.slow
def test_a_decoder_is_compiled_and_its_loop_runs() -> None:
    assert "48 tokens" in ran(EXAMPLES / "decoder_loop.py")


def test_all_examples_are_listed() -> None:
    said = ran(EXAMPLES / "run.py").splitlines()
    assert len(said) == sum(one.is_file() for one in EXAMPLES.iterdir())
    assert all(len(line.split()) > 3 for line in said)
