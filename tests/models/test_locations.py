"""Where a model keeps its weights is found as onnx itself says it, without that package."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from base_install import WITHOUT
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tunery._errors import ModelError
from tunery.models.onnx._locations import weights_beside

NAMES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), max_size=4, unique=True)


def outside(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("offset", "0"), ("location", location), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def model(names: list[str]) -> onnx.ModelProto:
    """Return a model with weights in files of these names, one of them also in a branch of an If."""
    weights = [outside(f"w{number}", name) for number, name in enumerate(names)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    branch = helper.make_graph([helper.make_node("Identity", [f"w{len(weights) - 1}"], ["b"])], "branch", [], [],
                               weights[-1:])  # fmt: skip
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("If", ["c"], ["b"], then_branch=branch)]
    made = helper.make_model(helper.make_graph(nodes, "net", [x], [y], weights))
    made.metadata_props.add(key="location", value="no weights")
    return made


@given(NAMES)
def test_every_file_is_found_once_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    path.write_bytes(model(names).SerializeToString())
    assert sorted(weights_beside(path)) == sorted(names)


@pytest.mark.parametrize("data", [b"", b"no model", b"\x6a\x20\x0a\x08location\x12"])
def test_what_is_no_model_has_no_weights(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "net.onnx").write_bytes(data)
    assert weights_beside(tmp_path / "net.onnx") == ()


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        weights_beside(tmp_path / "net.onnx")


def test_it_needs_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(model(["w.data"]).SerializeToString())
    code = f"{WITHOUT}from pathlib import Path\nfrom tunery.models.onnx._locations import weights_beside\n"
    command = [sys.executable, "-c", f"{code}print(weights_beside(Path(sys.argv[1])))", str(tmp_path / "net.onnx")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "('w.data',)\n"
