"""Models of more weights than an ONNX file can hold: prepared without their values ever being in memory at once."""

import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunery._errors import ModelError
from tunery.blobs import DirectoryBlobs
from tunery.dialects import Array
from tunery.models import _prepare, prepare
from tunery.runtime.services.importer import Preparer

ROWS, COLUMNS, COUNT = 16_384, 12_288, 3
BYTES = ROWS * COLUMNS * 4
WEIGHTS = "weights/data.bin"
SMALL, FULL = (512, 1024), 128
CODE = r"""
import json, re, sys
from dataclasses import asdict
from pathlib import Path
from tunery.models import prepare
network = prepare(sys.argv[1], {}, Path(sys.argv[2]))
peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # not what the parent took
print(json.dumps([network.path, network.weights, network.digest, peak]))
"""


def large(
    folder: Path, *, location: str = WEIGHTS, length: int = BYTES, step: int = BYTES, operator: str = "MatMul"
) -> Path:
    """Write products with three matrices, 2.4 GB in a file of holes but for the first row of each."""
    (folder / "weights").mkdir(parents=True)
    with (folder / WEIGHTS).open("wb") as file:
        file.truncate((COUNT - 1) * step + BYTES)
        for number in range(COUNT):
            file.seek(number * step)
            file.write(np.full(COLUMNS, number + 1, np.float32).tobytes())
    value = helper.make_tensor_value_info
    inputs = [value(f"x{at}", TensorProto.FLOAT, ("batch", ROWS)) for at in range(COUNT)]
    outputs = [value(f"y{at}", TensorProto.FLOAT, ("batch", COLUMNS)) for at in range(COUNT)]
    graph = helper.make_graph([], "large", inputs, outputs)
    for at in range(COUNT):
        weight = graph.initializer.add(name=f"w{at}", data_type=TensorProto.FLOAT, dims=[ROWS, COLUMNS])
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", location), ("offset", str(at * step)), ("length", str(length))):
            weight.external_data.add(key=key, value=text)
        graph.node.append(helper.make_node(operator, [f"x{at}", f"w{at}"], [f"y{at}"]))
    path = folder / "large.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


def prepared(path: Path, place: Path) -> tuple[Path, str, str, int]:
    done = subprocess.run([sys.executable, "-c", CODE, path, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made, weights, digest, peak = json.loads(done.stdout)
    return Path(made), weights, digest, peak


@pytest.mark.slow
def test_a_large_model_is_prepared_in_little_memory(tmp_path: Path) -> None:
    source = large(tmp_path / "model")
    for path in (source, source.parent / WEIGHTS):
        path.chmod(0o400)
    for folder in (source.parent / "weights", source.parent):
        folder.chmod(0o500)
    path, weights, digest, peak = prepared(source, tmp_path / "made")
    assert peak < BYTES
    model, kept = onnx.load(path, load_external_data=False), path.parent / weights
    assert kept.stat().st_blocks * 512 < BYTES, "holes stay holes"
    for number, tensor in enumerate(sorted(model.graph.initializer, key=lambda one: one.name)):
        told = {entry.key: entry.value for entry in tensor.external_data}
        assert told["location"] == weights
        found = np.memmap(kept, np.float32, "r", int(told["offset"]), (ROWS, COLUMNS))
        assert (found[0] == number + 1).all()
        assert not found[1::1000].any()
    (source.parent / WEIGHTS).chmod(0o600)
    with (source.parent / WEIGHTS).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())
    assert prepared(source, tmp_path / "made")[2] != digest


@pytest.mark.slow
def test_weights_with_one_value_are_stored_once_and_a_constant_of_the_same_name_has_its_own(tmp_path: Path) -> None:
    source = large(tmp_path / "model", step=0)
    model = onnx.load(source, load_external_data=False)
    constant = onnx.TensorProto(name="w0", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", WEIGHTS), ("length", "16")):
        constant.external_data.add(key=key, value=text)
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=constant))
    model.graph.node.append(helper.make_node("Identity", ["c"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (4,)))
    source.write_bytes(model.SerializeToString())
    path, weights, _, _ = prepared(source, tmp_path / "made")
    assert (path.parent / weights).stat().st_size == BYTES
    made = onnx.load(path, load_external_data=False)
    [own] = [numpy_helper.to_array(one) for one in made.graph.initializer if list(one.dims) == [4]]
    assert (own == COUNT).all()


@pytest.mark.parametrize(
    "change",
    [
        {"location": "../other.bin"}, {"location": "missing.bin"}, {"length": BYTES - 4},
        {"location": "weights"}, {"operator": "Add"}, {"step": 4096},
    ],
)  # fmt: skip
def test_a_large_model_that_cannot_be_read_is_refused_in_one_sentence(
    change: dict[str, object], tmp_path: Path
) -> None:
    source = large(tmp_path / "model", **change)  # type: ignore[arg-type]
    with (tmp_path / "other.bin").open("wb") as file:
        file.truncate(COUNT * BYTES)
    with pytest.raises(ModelError) as caught:
        prepare(str(source), {}, tmp_path / "made")
    assert "\n" not in str(caught.value)


def refuse(*_: int) -> int:
    raise OSError(errno.EXDEV, "another file system")


def copy_less(source: int, target: int, count: int, at: int, to: int) -> int:
    """Copy some of the bytes, and fail later."""
    if at % 3 == 2:
        refuse()
    return os.pwrite(target, os.pread(source, min(count, 1001), at), to)


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Array]:
    """Give a model of 6 MB where 4 MB are too many, and its three matrices, of which one is mostly a hole."""
    monkeypatch.setattr("tunery.models.onnx._file.MOST_BYTES", 4 << 20)
    rows, columns = SMALL
    matrices = np.random.default_rng(5).standard_normal((3, rows, columns), np.float32)
    matrices[1, FULL:] = 0
    graph = helper.make_graph([], "large", [], [])
    with (tmp_path / "data").open("wb") as file:
        for at, array in enumerate(matrices):
            offset = 100 + at * (array.nbytes + 5000)
            file.seek(offset)
            file.write(array[: FULL if at == 1 else rows].tobytes())
            weight = graph.initializer.add(name=f"w{at}", data_type=TensorProto.FLOAT, dims=SMALL)
            weight.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "data"), ("offset", offset), ("length", array.nbytes)):
                weight.external_data.add(key=key, value=str(value))
            graph.input.append(helper.make_tensor_value_info(f"x{at}", TensorProto.FLOAT, [1, rows]))
            graph.output.append(helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, [1, columns]))
            graph.node.append(helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"y{at}"]))
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path, matrices


@pytest.mark.parametrize("copy", [None, refuse, copy_less, lambda *_: 0], ids=["whole", "refused", "in part", "none"])
def test_large_weights_are_copied_however_the_system_copies(
    copy: Callable[..., int] | None, few: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, matrices = few
    if copy:
        monkeypatch.setattr("os.copy_file_range", copy)
    made = prepare(str(path), {}, tmp_path / "made")
    kept = Path(made.path).parent / made.weights
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == made.weights
    assert kept.stat().st_blocks * 512 < matrices.nbytes - (1 << 20), "holes stay holes"
    for tensor in onnx.load(made.path).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), matrices[int(tensor.name[1:])])


def test_large_weights_are_copied_where_the_file_system_does_not_tell_of_holes(
    few: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr("os.lseek", refused)
    made = prepare(str(few[0]), {}, tmp_path / "made")
    kept = Path(made.path).parent / made.weights
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == made.weights


def test_of_a_model_that_is_known_the_weights_alone_are_copied_again(
    few: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(few[0])
    with DirectoryBlobs(tmp_path / "blobs") as blobs:
        first = Preparer(blobs).load(source, {})
        assert Preparer(blobs).load(source, {}) == first
    monkeypatch.setattr(_prepare, "simplify", lambda *_: pytest.fail("it was prepared before"))
    with DirectoryBlobs(tmp_path / "blobs") as blobs:
        assert not blobs.has(first.weights)
        assert Preparer(blobs).load(source, {}) == first
        assert len(onnx.load(blobs.get(first.blob)).graph.initializer) == len(few[1])
        assert blobs.get(first.weights, verify=True)


def test_weights_that_change_while_they_are_copied_are_not_kept(
    few: tuple[Path, Array], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_to_it(*_: int) -> int:
        with (tmp_path / "data").open("r+b") as file:
            file.write(b"other")
        return 0

    with monkeypatch.context() as patched:
        patched.setattr("os.copy_file_range", write_to_it)
        with pytest.raises(ModelError, match="has changed"):
            prepare(str(few[0]), {}, tmp_path / "made")
    made = prepare(str(few[0]), {}, tmp_path / "made")
    kept = Path(made.path).parent / made.weights
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == made.weights


def test_a_full_disk_is_said_in_a_sentence_and_leaves_no_half_file(few: tuple[Path, Array], tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(ModelError, match="cannot be written"):
            prepare(str(few[0]), {}, tmp_path / "made")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.suffix for path in (tmp_path / "made").rglob("*")} <= {".onnx"}
    made = prepare(str(few[0]), {}, tmp_path / "made")
    kept = Path(made.path).parent / made.weights
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == made.weights
