"""Nothing but ModelError comes out of a bad file, and its sentence says what to do next."""

import mmap
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_models import conv_net, model, run, save
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tunery import models as frontends
from tunery._archive import new_archive
from tunery._errors import ModelError
from tunery.domain import Network

GOOD = conv_net((1, 3, 6, 6)).SerializeToString()


@contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Let this process take so much more, so that a test which fails does not fill the machine."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refusal(path: Path | str, directory: Path) -> str:
    with pytest.raises(ModelError) as caught:
        frontends.prepare(str(path), {}, directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (GOOD[: len(GOOD) // 2], "truncated"),
        (b"\xff" * 64, "is not an ONNX model"),
        (b"hello world, this is no model", "is not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"PK\x03\x04....", "zip archive"),
    ],
)
def test_files_that_are_no_model(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert message in refusal(tmp_path / "m.onnx", tmp_path)


@pytest.mark.parametrize("name", ["m.tunery", "m.onnx", "m.pt2"])
def test_a_compiled_network_is_no_model_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"a part")
    with new_archive(tmp_path / "compiled.tunery") as archive:
        archive.add("part", tmp_path / "part")
        archive.finish({"dialect": "fake", "format": "x", "network": "n", "threads": 1, "inputs": [], "outputs": []})
    shutil.move(tmp_path / "compiled.tunery", tmp_path / name)
    assert "compiled network" in refusal(tmp_path / name, tmp_path)
    with pytest.raises(ModelError, match="compiled network"):
        frontends.check(str(tmp_path / name))


def test_a_missing_file_a_directory_and_a_forgotten_prefix(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.onnx", tmp_path)
    assert "is a directory" in refusal(tmp_path, tmp_path)
    assert "write zoo:resnet18@8" in refusal("resnet18@8", tmp_path)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "null.pt2").symlink_to("/dev/zero")
    assert "is a pipe" in refusal(tmp_path / "pipe.onnx", tmp_path)
    for endless in ("/dev/zero", tmp_path / "null.pt2"):
        assert "is a device" in refusal(endless, tmp_path)
        with pytest.raises(ModelError, match="is a device"):
            frontends.check(str(endless))
    with pytest.raises(ModelError, match="File name too long"):
        frontends.check("x" * 5000 + ".onnx")


@pytest.mark.parametrize("name", ["sparse.onnx", "sparse.pt2"])
def test_a_file_that_is_too_large_is_not_read(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(30_000_000_000)
    with memory_limit(1 << 30):
        assert "30 GB" in refusal(tmp_path / name, tmp_path)


def test_external_data_that_is_too_large_or_no_file_is_not_read(tmp_path: Path) -> None:
    proto = conv_net((1, 3, 6, 6))
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    external = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False)
    for tensor in external.graph.initializer:  # without a length, everything is read
        for entry in [entry for entry in tensor.external_data if entry.key == "length"]:
            tensor.external_data.remove(entry)
    save(external, tmp_path / "m.onnx")
    with (tmp_path / "w.bin").open("r+b") as file:
        file.truncate(30_000_000_000)
    with memory_limit(1 << 30):
        assert "2 GB" in refusal(tmp_path / "m.onnx", tmp_path)
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    assert "w.bin" in refusal(tmp_path / "m.onnx", tmp_path)


@pytest.mark.jobs
def test_a_graph_of_very_many_nodes_is_refused_in_a_sentence(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"v{number}"], [f"v{number + 1}"]) for number in range(200_000)]
    path = save(model(nodes, {"v0": (4,)}, {"v200000": (4,)}), tmp_path / "m.onnx")
    assert "200,000" in refusal(path, tmp_path)


def functions(calls: dict[str, list[str]]) -> onnx.ModelProto:
    """Return a model that calls the last of these functions, which call others one after the other."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    made = []
    for name, called in calls.items():
        nodes = [
            helper.make_node(other, [f"v{at}"], [f"v{at + 1}"], domain="" if other == "Relu" else "own")
            for at, other in enumerate(called)
        ]
        made.append(helper.make_function("own", name, ["v0"], [f"v{len(called)}"], nodes, opsets))
    proto = model([helper.make_node(name, ["x"], ["y"], domain="own")], {"x": (4,)}, {"y": (4,)})
    proto.opset_import.append(opsets[1])
    proto.functions.extend(made)
    return proto


def test_functions_count_wherever_they_are_called(tmp_path: Path) -> None:
    doubling = {"f0": ["Relu"]} | {f"f{depth}": [f"f{depth - 1}"] * 2 for depth in range(1, 41)}
    assert "1,099,511,627,776" in refusal(save(functions(doubling), tmp_path / "m.onnx"), tmp_path)
    circle = {"f0": ["f1"], "f1": ["f0"]}
    assert "calls itself" in refusal(save(functions(circle), tmp_path / "c.onnx"), tmp_path)
    deep = {"f0": ["Relu"]} | {f"f{depth}": [f"f{depth - 1}"] for depth in range(1, 5000)}
    assert "\n" not in refusal(save(functions(deep), tmp_path / "d.onnx"), tmp_path)
    few = save(functions({"f0": ["Relu"], "f1": ["f0", "f0"]}), tmp_path / "few.onnx")
    assert frontends.prepare(few, {}, tmp_path).outputs[0].shape == (4,)


@pytest.mark.parametrize("ask", [bytearray, partial(mmap.mmap, -1)])
def test_what_needs_more_memory_than_there_is_is_said(
    ask: Callable[[int], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(*_: object) -> None:
        ask(1 << 40)

    monkeypatch.setattr("tunery.models._prepare.simplify", hungry)
    with memory_limit(1 << 30):
        assert "memory" in refusal(save(conv_net((1, 3, 6, 6)), tmp_path / "m.onnx"), tmp_path)


def test_a_full_cache_is_not_the_models_fault(tmp_path: Path) -> None:
    path = save(conv_net((1, 3, 6, 6)), tmp_path / "m.onnx")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, before[1]))
    try:
        said = refusal(path, tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"cannot be written to {str(tmp_path / 'cache')!r}" in said


def test_missing_external_data_names_the_file(tmp_path: Path) -> None:
    onnx.save(
        conv_net((1, 3, 6, 6)), str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (tmp_path / "w.bin").unlink()
    assert "w.bin" in refusal(tmp_path / "m.onnx", tmp_path)


def test_external_data_outside_the_models_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    (tmp_path / "in").mkdir()
    onnx.save(
        conv_net((1, 3, 6, 6)),
        str(tmp_path / "in" / "m.onnx"),
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    proto = onnx.load(str(tmp_path / "in" / "m.onnx"), load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "../secret.bin"
    assert "cannot be read" in refusal(save(proto, tmp_path / "in" / "m.onnx"), tmp_path)


def outside(name: str, location: str) -> TensorProto:
    found = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "16")):
        found.external_data.add(key=key, value=value)
    return found


def reading(place: str, location: str) -> onnx.ModelProto:
    """Return a model that adds a file's content to its input, which it names in one of the places for tensors."""
    weight = outside("k", location)
    zeros = onnx.SparseTensorProto(dims=[4], values=weight)
    zeros.indices.CopyFrom(onnx.numpy_helper.from_array(np.arange(4), "k_places"))
    constant = helper.make_node("Constant", [], ["k"], value=weight)
    add = helper.make_node("Add", ["x", "k"], ["y"])
    value = helper.make_tensor_value_info
    if place == "initializer":
        found = model([add], {"x": (4,)}, {"y": (4,)})
        found.graph.initializer.append(weight)
    elif place == "sparse initializer":
        found = model([add], {"x": (4,)}, {"y": (4,)})
        found.graph.sparse_initializer.append(zeros)
    elif place == "sparse constant":
        found = model([helper.make_node("Constant", [], ["k"], sparse_value=zeros), add], {"x": (4,)}, {"y": (4,)})
    elif place == "branch":
        inner = helper.make_graph([add], "inner", [], [value("y", TensorProto.FLOAT, [4])], [weight])
        true = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
        choice = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        found = model([true, choice], {"x": (4,)}, {"y": (4,)})
    else:
        opsets = [helper.make_opsetid("", 18)]
        body = [constant, add]
        if place == "branch in a function":
            inner = helper.make_graph(body, "inner", [], [value("y", TensorProto.FLOAT, [4])])
            true = helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.array(True)))
            body = [true, helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
        function = helper.make_function("own", "F", ["x"], ["y"], body, opsets)
        found = model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": (4,)}, {"y": (4,)})
        found.opset_import.append(helper.make_opsetid("own", 1))
        found.functions.append(function)
    return found


PLACES = ("initializer", "sparse initializer", "sparse constant", "branch", "function", "branch in a function")


@pytest.mark.parametrize("place", PLACES)
def test_a_model_names_no_file_but_those_beside_it(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in the model the tensor is, and whatever lies in the directory that the user happens to be in."""
    home, folder = tmp_path / "home", tmp_path / "models"
    home.mkdir()
    folder.mkdir()
    (home / "key").write_bytes(np.arange(4, dtype="float32").tobytes())
    monkeypatch.chdir(home)
    for location in ("key", "../home/key", str(home / "key")):
        assert "cannot be read" in refusal(save(reading(place, location), folder / "m.onnx"), tmp_path / "cache")


@pytest.mark.parametrize("place", [place for place in PLACES if "sparse" not in place])
def test_a_file_beside_the_model_is_read_wherever_it_is_named(tmp_path: Path, place: str) -> None:
    path = save(reading(place, "w.bin"), tmp_path / "m.onnx")
    digests = set()
    for weights in (np.arange(4, dtype="float32"), np.ones(4, "float32")):
        (tmp_path / "w.bin").write_bytes(weights.tobytes())
        network = frontends.prepare(path, {}, tmp_path / "cache")
        np.testing.assert_array_equal(run(network.path, {"x": np.zeros(4, "float32")})[0], weights)
        digests.add(network.digest)
    assert len(digests) == 2


def test_a_future_opset_says_which_is_known(tmp_path: Path) -> None:
    proto = conv_net((1, 3, 6, 6))
    proto.opset_import[0].version = 9999
    message = refusal(save(proto, tmp_path / "m.onnx"), tmp_path)
    assert "opset 9999" in message
    assert "opset 18" in message


def test_unknown_operators_are_named(tmp_path: Path) -> None:
    proto = model([helper.make_node("Frobnicate", ["x"], ["y"])], {"x": (1,)}, {"y": (1,)})
    assert "Frobnicate" in refusal(save(proto, tmp_path / "m.onnx"), tmp_path)


def test_an_operator_with_a_name_of_megabytes_is_refused_in_a_short_sentence(tmp_path: Path) -> None:
    proto = model([helper.make_node("R" * 2_000_000, ["x"], ["y"])], {"x": (1,)}, {"y": (1,)})
    assert len(refusal(save(proto, tmp_path / "m.onnx"), tmp_path)) < 1000


def test_a_graph_that_uses_what_nobody_makes(tmp_path: Path) -> None:
    proto = model([helper.make_node("Add", ["x", "ghost"], ["y"])], {"x": (1,)}, {"y": (1,)})
    assert "ghost" in refusal(save(proto, tmp_path / "m.onnx"), tmp_path)


def test_shapes_that_do_not_fit_are_the_users_mistake(tmp_path: Path) -> None:
    path = save(
        model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": ("a", "b")},
            {"y": (1,)},
            {"w": np.ones((4, 2), "float32")},
        ),
        tmp_path / "m.onnx",
    )
    with pytest.raises(ModelError) as caught:
        frontends.prepare(path, {"x": (2, 5)}, tmp_path)
    assert str(caught.value) == (
        "input 'x' cannot have the shape 2x5: the model declares it [a, b], and its operators do not fit these sizes "
        "(Node () Op (MatMul) [ShapeInferenceError] Incompatible dimensions for matrix multiplication); give others "
        "with --shape"
    )


def test_a_size_in_place_of_one_that_the_model_needs_is_named_with_the_models_own(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 2), "float32")}
    product = helper.make_node("MatMul", ["x", "w"], ["xw"])
    nodes = [product, helper.make_node("Add", ["xw", "z"], ["y"])]
    path = save(model(nodes, {"x": ("n", 4), "z": ("n", 2)}, {"y": ("n", 2)}, weights), tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        frontends.prepare(path, {"x": (3, 5), "z": (3, 2)}, tmp_path)
    assert str(caught.value) == (
        "input 'x' cannot have the shape 3x5: the model declares it [n, 4]; write --shape x=3x4, "
        "or export the model with other sizes"
    )
    with pytest.raises(ModelError, match=r"1x4x6x6.*\[N, 3, H, W\].*x=1x3x6x6"):
        frontends.prepare(save(conv_net(), tmp_path / "conv.onnx"), {"x": (1, 4, 6, 6)}, tmp_path)
    corrupt = save(model([product], {"x": (3, 5)}, {"xw": (3, 2)}, weights), tmp_path / "c.onnx")
    assert "or is corrupt" in refusal(corrupt, tmp_path), "nobody gave a shape"


def test_outputs_whose_size_depends_on_the_data(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Cast", ["at"], ["y"], to=1)]
    path = save(model(nodes, {"x": (4,)}, {"y": (1, "found")}), tmp_path / "m.onnx")
    [output] = frontends.prepare(str(path), {}, tmp_path).outputs
    assert output.shape == (1, -1)


def test_outputs_whose_number_of_dimensions_depends_on_the_data(tmp_path: Path) -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=nodes[-1].output[0])])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["flag"]),
        helper.make_node(
            "If", ["flag"], ["y"],
            then_branch=branch("one", helper.make_node("Identity", ["x"], ["same"])),
            else_branch=branch("other", helper.make_node("Identity", ["most"], ["scalar"])),
        ),
    ]  # fmt: skip
    proto = model(nodes, {"x": (4,)}, {}, {"zero": np.array(0, "float32")})
    proto.graph.output.add(name="y").type.tensor_type.elem_type = TensorProto.FLOAT
    assert "'y'" in refusal(save(proto, tmp_path / "m.onnx"), tmp_path)


def test_an_output_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    proto = model([helper.make_node("SequenceConstruct", ["x"], ["all"])], {"x": (4,)}, {})
    proto.graph.output.add(name="all").type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [4]))
    )
    assert "'all'" in refusal(save(proto, tmp_path / "m.onnx"), tmp_path)


def test_an_output_that_is_empty(tmp_path: Path) -> None:
    nodes = [helper.make_node("Slice", ["x", "at", "at"], ["y"])]
    path = save(model(nodes, {"x": (4,)}, {"y": ("none",)}, {"at": np.array([0], "int64")}), tmp_path / "m.onnx")
    assert "'y'" in refusal(path, tmp_path)


def test_two_outputs_of_one_name(tmp_path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1,)}, {"y": (1,)})
    proto.graph.output.append(proto.graph.output[0])
    assert "'y'" in refusal(save(proto, tmp_path / "m.onnx"), tmp_path)


def test_an_empty_graph(tmp_path: Path) -> None:
    assert "holds no computation" in refusal(save(model([], {"x": (1,)}, {}), tmp_path / "m.onnx"), tmp_path)


def test_a_torch_program_without_torch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunery.models.torch._export_process._NEEDED", ("a_torch_nobody_has",))
    (tmp_path / "m.pt2").write_bytes(b"PK\x03\x04")
    assert "pip install torch==" in refusal(tmp_path / "m.pt2", tmp_path)
    assert "there is no file" in refusal(tmp_path / "none.pt2", tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, len(GOOD)),
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=8),
)
@example(cut=len(GOOD), changes=[])
def test_mutated_bytes_give_a_network_or_a_model_error(
    cut: int, changes: list[tuple[int, int]], tmp_path: Path
) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    path = tmp_path / "fuzz.onnx"
    path.write_bytes(bytes(data[:cut]))
    try:
        network = frontends.prepare(str(path), {}, tmp_path / "out")
    except ModelError as error:
        message = str(error)
    else:
        message = ""
        assert isinstance(network, Network)
        assert all(size > 0 for spec in (*network.inputs, *network.outputs) for size in spec.shape)
    assert "\n" not in message
