"""The zoo: complete without a download, the same in every process, alive in its numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tunery import models as frontends
from tunery._errors import ModelError
from tunery.models import zoo
from tunery.models.onnx._bind import bind

_PRINT_WEIGHTS = """
import hashlib
from tunery.models import zoo
from tunery.models.onnx import _file
model = _file.parse(zoo.graph("squeezenet1_1"), "zoo")
zoo.fill(model, "squeezenet1_1")
print(hashlib.sha256(b"".join(tensor.raw_data for tensor in model.graph.initializer)).hexdigest())
"""


def test_a_network_runs_with_finite_varied_outputs(tmp_path: Path) -> None:
    network = frontends.prepare("zoo:squeezenet1_1@2", {"input": (2, 3, 64, 64)}, tmp_path)
    assert network.name == "squeezenet1_1@2"
    session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal(network.inputs[0].shape).astype("float32")
    output = session.run(None, {"input": x})[0]
    assert output.shape == (2, 1000) == network.outputs[0].shape
    assert np.isfinite(output).all()
    assert output.std() > 1e-3
    assert np.abs(output[0] - output[1]).max() > 1e-4


@pytest.mark.jobs
def test_weights_and_digest_are_the_same_in_every_process(tmp_path: Path) -> None:
    runs = {
        subprocess.run([sys.executable, "-c", _PRINT_WEIGHTS], capture_output=True, check=True).stdout for _ in "ab"
    }
    assert len(runs) == 1
    digests = {frontends.prepare("zoo:mlp-mnist", {}, tmp_path / name).digest for name in "ab"}
    assert len(digests) == 1
    assert frontends.prepare("zoo:mlp-mnist@2", {}, tmp_path).digest not in digests


def test_filled_weights_lie_in_their_range_and_differ() -> None:
    values = zoo._uniform("seed", 10_001, -0.5, 0.25)
    assert values.dtype == np.float32
    assert -0.5 <= values.min() < -0.49
    assert 0.24 < values.max() <= 0.25
    assert abs(float(values.mean()) + 0.125) < 0.01
    assert not np.array_equal(values, zoo._uniform("other", 10_001, -0.5, 0.25))


@pytest.mark.parametrize("entry", zoo.names(), ids=lambda entry: entry.name)
def test_every_graph_binds_to_a_batch_and_carries_no_traces(entry: zoo.ZooEntry) -> None:
    data = zoo.graph(entry.name)
    model = onnx.load_model_from_string(data)
    packed = len(zoo._graphs().joinpath(f"{entry.name}.onnx.gz").read_bytes())
    assert packed < 100_000, "weights of a megabyte and more are not shipped"
    assert entry.parameters > 0
    assert all(value.type.tensor_type.shape.dim[0].dim_param == "batch" for value in model.graph.input)
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    assert b"site-packages" not in data


@pytest.mark.jobs
@pytest.mark.parametrize("entry", zoo.names(), ids=lambda entry: entry.name)
def test_every_graph_is_valid_and_has_shapes_at_both_batches(entry: zoo.ZooEntry) -> None:
    for batch in (1, 8):
        model = onnx.load_model_from_string(zoo.graph(entry.name))
        _weights_as_inputs(model)
        onnx.checker.check_model(model)
        bind(model, {}, batch)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        shape = inferred.graph.output[0].type.tensor_type.shape
        assert shape.dim[0].dim_value in (batch, 0), "0: computed by a Reshape, which takes folding to tell"


def _weights_as_inputs(model: onnx.ModelProto) -> None:
    """Make weights without numbers inputs: the checker wants an initialiser's numbers."""
    missing = [tensor for tensor in model.graph.initializer if tensor.doc_string.startswith("fill:")]
    for tensor in missing:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)


def test_the_index_and_the_files_agree() -> None:
    files = {path.name.removesuffix(".onnx.gz") for path in Path(str(zoo._graphs())).glob("*.gz")}
    assert files == {entry.name for entry in zoo.names()}
    assert {"resnet18", "mobilenet_v2", "bert-small", "gpt2-4L", "vit_b_32"} <= files


@pytest.mark.parametrize(("name", "message"), [("resnet81", "did you mean resnet18"), ("xyzzy!", "`tunery zoo list`")])
def test_unknown_names_suggest_near_ones(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        frontends.prepare(f"zoo:{name}", {}, tmp_path)


@pytest.mark.parametrize("amount", ["0", "-1", "x", ""])
def test_a_batch_is_a_positive_number(amount: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="zoo:resnet18@8"):
        frontends.prepare(f"zoo:resnet18@{amount}", {}, tmp_path)
