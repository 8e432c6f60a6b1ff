"""The table of the example kernels: each is tuned once, and one that cannot be tuned costs itself."""

import shutil
from pathlib import Path

import gallery
import pytest
from rows import Kept

from tunery.domain import Budget


def test_every_example_in_c_and_in_opencl_is_in_it_and_gains_are_ratios() -> None:
    assert len(gallery.gallery()) == 12
    row = {
        "kernel": "matmul", "dialect": "kernels", "trials_done": 40, "wall_s": 20.0, "before_s": 3e-3, "after_s": 2e-3,
        "load_per_core": [0.1, 0.2],
    }  # fmt: skip
    text = gallery.table([row, {**row, "dialect": "opencl", "after_s": None}])
    assert "1.50x" in text
    assert "OpenCL" in text


@pytest.mark.slow
@pytest.mark.jobs
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_an_interrupted_table_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, broken = tmp_path / "rows.jsonl", tmp_path / "broken.toml"
    broken.write_text((gallery.KERNELS / "reduction.toml").read_text())
    files = [broken, gallery.KERNELS / "transpose.toml"]
    first = gallery.study(files, Budget(trials=2), Kept(file, gallery.__file__))
    assert [(row["kernel"], row["trials_done"]) for row in first] == [("transpose", 2)]
    assert first[0]["before_s"] >= first[0]["after_s"] > 0
    assert "without broken" in capsys.readouterr().out
    assert gallery.study(files[1:], Budget(trials=2), Kept(file, gallery.__file__)) == first
    assert "transpose" not in capsys.readouterr().out
