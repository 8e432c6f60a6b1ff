"""Files of the dialect that runs whole networks in ONNX Runtime, honest and not."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tunery
from tunery._archive import new_archive
from tunery._errors import UsageError

SOUND: dict[str, Any] = {
    "dialect": "onnxruntime", "format": "onnxruntime-1", "network": "net", "digest": "d", "threads": 1,
    "optimised": True, "inputs": [["x", [2, 3], "float32"]], "outputs": [["y", [2, 3], "float32"]],
}  # fmt: skip


def model(weight: onnx.TensorProto | None = None) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    weights = [weight or onnx.numpy_helper.from_array(np.ones((2, 3), "float32"), "k")]
    x, y = value("x", TensorProto.FLOAT, [2, 3]), value("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "k"], ["y"])], "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def file_of(directory: Path, network: onnx.ModelProto | None = None, **changed: Any) -> Path:
    onnx.save(network or model(), directory / "net.onnx")
    path = directory / "net.tunery"
    path.unlink(missing_ok=True)
    with new_archive(path) as archive:
        archive.add("network.onnx", directory / "net.onnx")
        archive.finish({**SOUND, **changed})
    return path


def test_a_sound_file_runs(tmp_path: Path) -> None:
    [y] = tunery.load_compiled(file_of(tmp_path))(np.zeros((2, 3), "float32"))
    assert (y == 1).all()


@pytest.mark.parametrize(
    "lie",
    [
        {"inputs": []}, {"inputs": [["z", [2, 3], "float32"]]}, {"inputs": [["x", [3, 2], "float32"]]},
        {"inputs": [["x", [2], "float32"]]}, {"inputs": [["x", [2, 3], "float64"]]},
        {"inputs": [["x", [2, 2**40], "float32"]]}, {"inputs": [["x", [2, -3], "float32"]]}, {"inputs": [["x"]]},
        {"outputs": []}, {"outputs": [["y", [2, 4], "float32"]]}, {"outputs": [["y", [2, 3], "int64"]]},
        {"threads": 0}, {"threads": 10**7}, {"threads": "2"}, {"threads": 1.5}, {"threads": True}, {"threads": None},
    ],
)  # fmt: skip
def test_a_file_that_lies_about_its_network_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tunery.load_compiled(file_of(tmp_path, **lie))


def test_a_file_of_a_larger_machine_takes_the_cores_that_there_are(tmp_path: Path) -> None:
    assert tunery.load_compiled(file_of(tmp_path, threads=4000)).threads == os.cpu_count()


def test_a_network_in_a_file_reads_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(np.ones(6, "float32").tobytes())
    weight = TensorProto(name="k", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="key")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        tunery.load_compiled(file_of(tmp_path, model(weight)))
