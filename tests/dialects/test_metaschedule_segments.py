"""Networks of which TVM takes only a part: the rest runs in ONNX Runtime, in one file, with the same results."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tunery._errors import UsageError
from tunery.delivery.files.loading import load_compiled
from tunery.dialects import CompiledNetwork, Dialect
from tunery.dialects.metaschedule.importing import lowering
from tunery.dialects.metaschedule.importing.segments.foreign import foreign_nodes
from tunery.dialects.metaschedule.importing.segments.graph import Graph, groups, split
from tunery.domain import WHOLE, Network, Target
from tunery.domain.request import CompileReport
from tunery.models import prepare
from tunery.reports.text import failed_rules

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def written(
    directory: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int]]],
    outputs: dict[str, tuple[int, list[int | None]]],
    constants: dict[str, np.ndarray] | None = None,
    domains: Sequence[str] = ("",),
) -> str:
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    versions = [helper.make_opsetid(domain, 1 if domain else 18) for domain in domains]
    path = directory / "parts.onnx"
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=9), path)
    return str(path)


def convolution(made: str, read: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [read, "w"], [made], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def weights(channels: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"w": (rng.standard_normal((channels, channels, 3, 3)) / channels).astype(np.float32)}


def branch(name: str, operator: str) -> onnx.GraphProto:
    """A branch that reads a value of the graph around it."""
    nodes = [helper.make_node(operator, ["c"], [f"{name}_y"])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", FLOAT, [1, 8, 6, 6])])


def conditional(directory: Path) -> str:
    nodes = [
        convolution("c", "x"),
        helper.make_node("If", ["flag"], ["i"], then_branch=branch("then", "Relu"), else_branch=branch("other", "Neg")),
        convolution("y", "i"),
    ]
    inputs = {"x": (FLOAT, [1, 8, 6, 6]), "flag": (BOOL, [])}
    return written(directory, nodes, inputs, {"y": (FLOAT, [1, 8, 6, 6])}, weights())


def custom(directory: Path) -> str:
    nodes = [
        convolution("c", "x"),
        helper.make_node("FusedConv", ["c", "w"], ["f"], domain="com.microsoft", activation="Clip",
                         activation_params=[-1.0, 1.0],
                         kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        convolution("y", "f"),
    ]  # fmt: skip
    domains = ("", "com.microsoft")
    return written(directory, nodes, {"x": (FLOAT, [1, 8, 6, 6])}, {"y": (FLOAT, [1, 8, 6, 6])}, weights(), domains)


def dynamic(directory: Path) -> str:
    """How many places are not zero depends on the data; the sum of what is there has a fixed size again."""
    nodes = [
        convolution("c", "x"),
        helper.make_node("NonZero", ["c"], ["places"]),
        helper.make_node("Cast", ["places"], ["cast"], to=FLOAT),
        helper.make_node("ReduceSum", ["cast", "axes"], ["total"], keepdims=0),
        helper.make_node("MatMul", ["total", "m"], ["y"]),
    ]
    constants = weights() | {"axes": np.array([1]), "m": np.ones((4, 3), np.float32)}
    outputs: dict[str, tuple[int, list[int | None]]] = {"y": (FLOAT, [3]), "places": (INT64, [4, None])}
    return written(directory, nodes, {"x": (FLOAT, [1, 8, 6, 6])}, outputs, constants)


def refused_alone(directory: Path) -> str:
    """No rule knows that TVM has no program for this one."""
    nodes = [
        convolution("c", "x"),
        helper.make_node("LSTM", ["s", "wi", "wh"], ["l"], hidden_size=4, clip=1.0),
        helper.make_node("ReduceMean", ["l"], ["mean"], keepdims=0),
        helper.make_node("Add", ["c", "mean"], ["y"]),
    ]
    rng = np.random.default_rng(2)
    constants = weights() | {
        "wi": rng.standard_normal((1, 16, 5)).astype(np.float32),
        "wh": rng.standard_normal((1, 16, 4)).astype(np.float32),
    }
    inputs = {"x": (FLOAT, [1, 8, 6, 6]), "s": (FLOAT, [3, 1, 5])}
    return written(directory, nodes, inputs, {"y": (FLOAT, [1, 8, 6, 6])}, constants)


def whole(directory: Path) -> str:
    node = helper.make_node("Trilu", ["x"], ["y"], domain="com.microsoft")
    return written(directory, [node], {"x": (FLOAT, [7, 7])}, {"y": (FLOAT, [7, 7])})


def masked(directory: Path) -> str:
    """A row that is all minus infinity has no softmax: NaN, which the model replaces."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["p"]),
        helper.make_node("Add", ["p", "mask"], ["m"]),
        helper.make_node("Softmax", ["m"], ["s"], axis=-1),
        helper.make_node("IsNaN", ["s"], ["bad"]),
        helper.make_node("Where", ["bad", "zero", "s"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
    ]
    inputs = {name: (FLOAT, [4, 4]) for name in ("q", "k", "v")}
    mask = np.zeros((4, 4), np.float32)
    mask[1] = -np.inf
    constants = {"mask": mask, "zero": np.zeros((), np.float32)}
    return written(directory, nodes, inputs, {"y": (FLOAT, [4, 4])}, constants)


def prepared(model: Callable[[Path], str], directory: Path) -> Network:
    return prepare(model(directory), {}, directory)


def arrays(network: Network, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        np.array(bool(seed % 2)) if spec.dtype == "bool" else rng.standard_normal(spec.shape).astype(spec.dtype)
        for spec in network.inputs
    ]


def agree(network: Network, compiled: CompiledNetwork, seed: int) -> None:
    session = onnxruntime.InferenceSession(network.source, providers=["CPUExecutionProvider"])
    inputs = arrays(network, seed)
    expected = session.run(None, {spec.name: one for spec, one in zip(network.inputs, inputs, strict=True)})
    for found, wanted in zip(compiled(*inputs), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("model", "operators"),
    [
        (conditional, {"If"}),
        (custom, {"FusedConv"}),
        (dynamic, {"NonZero", "Cast", "ReduceSum"}),
        (refused_alone, {"LSTM"}),
        (whole, {"Trilu"}),
    ],
)
def test_what_tvm_does_not_take_runs_in_onnx_runtime(
    model: Callable[[Path], str], operators: set[str], dialect: Dialect, target: Target, tmp_path: Path
) -> None:
    network = prepared(model, tmp_path)
    tasks = dialect.extract(network, target)
    told = dialect.elsewhere(network, target)
    assert operators <= {node.partition(" ")[0] for node in told}
    assert "Conv" not in {node.partition(" ")[0] for node in told}
    assert bool(tasks) == (model is not whole)
    made = dialect.compile(network, target, {}, tmp_path / "parts.tunery")
    assert made.elsewhere == told
    compiled = load_compiled(tmp_path / "parts.tunery")
    for seed in range(3):  # also with other memory, and sizes, than in the call before
        agree(network, compiled, seed)
    assert compiled.time(arrays(network, 0), 3) > 0
    profile = compiled.profile(arrays(network, 1))
    assert any(name.startswith("tunery.segment.") for name in profile)


@pytest.mark.tvm
def test_a_row_of_which_all_is_masked_is_native_and_right(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    network = prepared(masked, tmp_path)
    made = dialect.compile(network, target, {}, tmp_path / "masked.tunery")
    assert not made.elsewhere
    agree(network, load_compiled(tmp_path / "masked.tunery"), 0)


@pytest.mark.tvm
def test_two_networks_with_segments_do_not_mix(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    networks = []
    for name, model in (("one", conditional), ("two", custom)):
        (tmp_path / name).mkdir()
        network = prepared(model, tmp_path / name)
        dialect.compile(network, target, {}, tmp_path / f"{name}.tunery")
        networks.append((network, load_compiled(tmp_path / f"{name}.tunery", 2)))
    for seed in range(2):
        for network, compiled in networks:
            agree(network, compiled, seed)


@pytest.mark.tvm
def test_a_segment_that_was_changed_is_noticed(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    dialect.compile(prepared(whole, tmp_path), target, {}, tmp_path / "parts.tunery")
    data = (tmp_path / "parts.tunery").read_bytes()
    assert data.count(b"Trilu") == 1
    (tmp_path / "parts.tunery").write_bytes(data.replace(b"Trilu", b"Celus"))
    with pytest.raises(UsageError):
        load_compiled(tmp_path / "parts.tunery")


def chain(kinds: Sequence[bool], edges: Sequence[tuple[int, int]]) -> Graph:
    """A graph of nodes that add what they read; `edges` go from earlier to later ones."""
    nodes = []
    for at in range(len(kinds)):
        read = [f"v{before}" for before, after in edges if after == at] or ["x"]
        nodes.append(helper.make_node("Sum", read, [f"v{at}"], name=f"n{at}"))
    values = [helper.make_tensor_value_info(f"v{at}", FLOAT, [2]) for at in range(len(kinds))]
    x = helper.make_tensor_value_info("x", FLOAT, [2])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], values[-1:], value_info=values[:-1]))
    return Graph(model)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, set[int]]:
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=12))
    edges = [(before, after) for after in range(1, len(kinds)) for before in range(after) if draw(st.booleans())]
    return chain(kinds, edges), {at for at, away in enumerate(kinds) if away}


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_segments_are_convex_and_compute_what_the_whole_does(made: tuple[Graph, set[int]]) -> None:
    graph, elsewhere = made
    found = groups(graph, elsewhere)
    assert sorted(at for group in found for at in group) == sorted(elsewhere)
    main, segments = split(graph, elsewhere)
    assert len(segments) == len(found)
    values: dict[str, np.ndarray] = {"x": np.array([1.0, -2.0])}
    for node in main.graph.node:  # each comes after what it reads, so no segment waits for what needs it
        nodes = [node]
        if node.domain:
            [number] = (one.i for one in node.attribute)
            nodes = list(onnx.load_from_string(segments[number].model).graph.node)
        for each in nodes:
            values[each.output[0]] = sum((values[name] for name in each.input), np.zeros(2))
    for at, node in enumerate(graph.nodes):
        wanted = sum((values[name] for name in node.input), np.zeros(2))
        np.testing.assert_array_equal(values[f"v{at}"], wanted)


def test_a_network_that_tvm_takes_has_no_segments() -> None:
    graph = chain([False, False], [(0, 1)])
    assert foreign_nodes(graph) == {}


def test_a_segment_of_another_type_than_the_network_has_is_not_run(tmp_path: Path) -> None:
    """It would write past the end: a session takes an address for what its own model says."""
    from tunery.dialects.metaschedule.loading import library
    from tunery.dialects.metaschedule.loading.network import SegmentCalls

    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)
    path = written(tmp_path, [node], {"x": (FLOAT, [4])}, {"y": (TensorProto.DOUBLE, [4])})
    calls = SegmentCalls([Path(path).read_bytes()], 1)
    x, narrow, wide = (library.tensor(np.ones(4, dtype)) for dtype in ("float32", "float32", "float64"))
    with pytest.raises(ValueError, match="float64"):
        calls.run(0, [x, narrow])
    with pytest.raises(ValueError, match="float32"):
        calls.run(0, [wide, wide])
    calls.run(0, [x, wide])
    assert (wide.numpy() == 1).all()


@pytest.mark.parametrize(("count", "foreign"), [(96, False), (200, True)])
def test_a_concatenation_of_many_arrays_runs_in_onnx_runtime(count: int, foreign: bool, tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(count)]
    inputs = {name: (FLOAT, [2, 1]) for name in names}
    node = helper.make_node("Concat", names, ["y"], axis=1)
    graph = Graph(onnx.load(written(tmp_path, [node], inputs, {"y": (FLOAT, [2, count])})))
    assert bool(foreign_nodes(graph)) == foreign


@pytest.mark.tvm
def test_a_long_chain_becomes_programs_of_a_bounded_size(target: Target, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"v{number}"], [f"v{number + 1}"]) for number in range(200)]
    path = written(tmp_path, nodes, {"v0": (FLOAT, [2, 4])}, {"v200": (FLOAT, [2, 4])})
    lowered = lowering.lower(prepare(path, {}, tmp_path), target)
    assert len(lowered.functions) == 2  # equal ones once
    assert sum(lowered.calls.values()) == 7


@pytest.mark.tvm
def test_a_rule_that_fails_is_named_and_leaves_the_file_right(
    dialect: Dialect,
    target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def scale_and_shift(module: object) -> None:
        raise RuntimeError("no such operand")

    monkeypatch.setattr(lowering, "scale_and_shift", scale_and_shift)
    monkeypatch.setattr(lowering, "_kept", {})
    network = prepared(masked, tmp_path)
    compiled = dialect.compile(network, target, {}, tmp_path / "made.tunery")
    assert compiled.left_out == {WHOLE: {"scale_and_shift": "RuntimeError: no such operand"}}
    report = CompileReport("masked", "", 0, {}, left_out=compiled.left_out)
    assert failed_rules(report) == ["left out    the whole network: scale_and_shift (RuntimeError: no such operand)"]
    agree(network, load_compiled(tmp_path / "made.tunery"), 0)
    assert caplog.text.count("the rule scale_and_shift fails") == 1
    caplog.clear()
