"""A file that was judged faster is not replaced by a lesser one of the same network."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from tunery._archive import new_archive
from tunery.delivery.compile import as_before, deliver
from tunery.delivery.files.inspection import better_there
from tunery.domain.request import CompileOptions, CompileReport, Request, Verdict
from tunery.measuring.inputs import VERSION

FASTER = {"ratio": 1.3, "low": 1.25, "high": 1.35, "turns": 12}


def written(path: Path, speed: dict[str, Any] | None, verified: dict[str, Any] | None = None, **more: Any) -> Path:
    verdict = {"onnxruntime_share": 0.0 if speed else 1.0, "delivered": speed, "not_judged": "" if speed else "no time"}
    device = {"name": "a processor", "cores": 2, "fingerprint": "f"}
    origin = {"tunery": "0.1.0", "compiler": "c", "device": device, "rungs": {}, "elsewhere": 0, "verified": verified,
              "verdict": verdict}  # fmt: skip
    whole = {"dialect": "fake", "digest": "d", "threads": 2, "inputs": [["x", [1], "float32"]], "origin": origin}
    with new_archive(path) as archive:
        archive.finish(whole | more)
    return path


@pytest.mark.parametrize(
    ("now", "stays"),
    [
        (None, True),
        (FASTER | {"ratio": 1.1, "low": 1.05, "high": 1.2}, True),
        (FASTER | {"ratio": 1.28, "low": 1.2, "high": 1.3}, False),  # it may be as fast
        (FASTER | {"ratio": 1.5, "low": 1.4, "high": 1.6}, False),
    ],
)
def test_what_was_not_judged_or_is_slower_replaces_no_faster_file(
    now: dict[str, Any] | None, stays: bool, tmp_path: Path
) -> None:
    there, made = written(tmp_path / "n.tunery", FASTER), written(tmp_path / "made", now)
    before, whole = there.read_bytes(), made.read_bytes()
    kept = deliver(made, there, Request("n.onnx"), CompileOptions())
    assert (kept is not None) == stays
    assert there.read_bytes() == (before if stays else whole)
    said = as_before(CompileReport("n", str(there), 1, {}, verdict=Verdict(1.0)), kept)
    assert said.left_as_it_was.startswith("n.tunery is left as it was, 1.30 times as fast") == stays
    assert (said.verdict is not None and said.verdict.delivered is not None) == stays


def test_only_a_file_of_the_same_network_and_device_stays_and_force_replaces_it(tmp_path: Path) -> None:
    made = written(tmp_path / "made", None)
    assert better_there(made, written(tmp_path / "slow", FASTER | {"ratio": 0.9})) is None
    assert better_there(made, written(tmp_path / "other", FASTER, digest="e")) is None
    assert better_there(made, written(tmp_path / "shape", FASTER, inputs=[["x", [2], "float32"]])) is None
    assert better_there(made, tmp_path / "nothing") is None
    (there := tmp_path / "n.tunery").write_bytes(written(tmp_path / "same", FASTER).read_bytes())
    assert better_there(made, there) is not None
    assert deliver(made, there, Request("n.onnx"), CompileOptions(force=True)) is None
    assert zipfile.is_zipfile(there)
    assert better_there(written(tmp_path / "again", None), there) is None


def test_no_file_stays_of_which_it_is_not_known_whether_it_is_right(tmp_path: Path) -> None:
    right = {"against": "o", "outputs": 1, "max_abs_error": 0.0, "inputs": [], "left_out": [], "not_kept": [],
             "optimiser": "", "version": VERSION, "differed": False}  # fmt: skip
    there = written(tmp_path / "n.tunery", FASTER, right)
    assert better_there(written(tmp_path / "unjudged", None), there) is not None
    assert better_there(written(tmp_path / "right", None, right), there) is not None
    assert better_there(written(tmp_path / "wrong", None, right | {"differed": True}), there) is None
    earlier = written(tmp_path / "earlier", FASTER, right | {"version": VERSION - 1})
    assert better_there(written(tmp_path / "new", None, right), earlier) is None
