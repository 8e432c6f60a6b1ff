"""Every operator of single elements, and of rows, keeps the special values that the table says it keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tunery._archive import Archive
from tunery.dialects import Dialect
from tunery.dialects.metaschedule.importing.segments.graph import Graph
from tunery.dialects.metaschedule.importing.special import NOT_KEPT, Special, lost_by
from tunery.domain import Target
from tunery.models import prepare

pytestmark = pytest.mark.tvm

SHAPE = (3, 7)
UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Elu", "Erf",
    "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "LogSoftmax", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]
ROWS = [
    "ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare",
    "ArgMax", "ArgMin",
]  # fmt: skip
WHOLE, WHOLE_32 = ["Add", "Sub", "Mul", "Equal", "Less", "Greater"], ["Max", "Min", "Div"]
"""Of integers; the second of 32 bits, as ONNX Runtime's of 64 are not exact."""
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-39, -1e-42, 20.0, -20.0, 88.0, -95.0, 1e10, -1e20, 3e38, -3e38]
SPECIAL = [*FLOATS, np.inf, -np.inf, np.nan]
INTEGERS = {
    kind: [0, 1, -1, 7, -7, np.iinfo(kind).max, np.iinfo(kind).min, 2**16, 46341] for kind in ("int32", "int64")
}


def _nodes() -> list[onnx.NodeProto]:
    node, nodes = helper.make_node, list[onnx.NodeProto]()

    def of(operator: str, inputs: list[str], **attributes: Any) -> None:
        lost = NOT_KEPT.get(operator, Special(0))
        suffix = "_numbers" if Special.NAN in lost else ""
        names = [f"{name}{suffix}" if name == "x" else name for name in inputs]
        nodes.append(node(operator, names, [f"out{len(nodes)}_{operator}"], **attributes))

    for operator in UNARY:
        of(operator, ["x"])
    for operator in BINARY:
        of(operator, ["x", "y"])
        of(operator, ["x", "x"])
    for operator in ROWS:
        of(operator, ["x"], **({"axis": 1} if operator.startswith("Arg") else {"keepdims": 0}))
        if not operator.startswith("Arg"):
            nodes[-1].input.append("axes")
    for constant in ("zero", "nan", "inf"):
        for operator in ("Mul", "Div", "Max", "Min", "Add"):
            of(operator, ["x", constant])
    for kind in INTEGERS:
        for operator in WHOLE + (WHOLE_32 if kind == "int32" else []):
            of(operator, [f"i_{kind}", f"j_{kind}"])
        nodes.append(node("Add", [f"i_{kind}", f"one_{kind}"], [f"sum_{kind}"]))
        of("Greater", [f"sum_{kind}", f"i_{kind}"])
        nodes.append(node("Mul", [f"i_{kind}", f"two_{kind}"], [f"double_{kind}"]))
        of("Div", [f"double_{kind}", f"two_{kind}"])
    nodes += [node("Less", ["x", "y"], ["less"]), node("Equal", ["x", "x"], ["same"])]
    nodes += [node("GreaterOrEqual", ["x", "y"], ["not_less"])]
    of("Not", ["less"])
    of("Or", ["less", "not_less"])
    of("Where", ["same", "x", "zero"])
    return nodes


def _model() -> onnx.ModelProto:
    nodes = _nodes()
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "y", "x_numbers")]
    inputs += [info(f"{name}_{kind}", getattr(TensorProto, kind.upper()), SHAPE) for kind in INTEGERS for name in "ij"]
    constants = {"zero": np.float32(0), "nan": np.float32(np.nan), "inf": np.float32(np.inf), "axes": np.array([1])}
    for kind in INTEGERS:
        constants |= {f"one_{kind}": np.array(1, kind), f"two_{kind}": np.array(2, kind)}
    outputs = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output if name.startswith("out")]
    weights = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "special", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def _rows(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    size = SHAPE[0] * SHAPE[1]
    return st.one_of(
        st.lists(st.sampled_from(values), min_size=size, max_size=size),
        st.sampled_from(values).map(lambda one: [one] * size),
    )


def _agree(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype, name
    if theirs.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        return
    # Sums of numbers whose squares, or some of which, are infinite are so in one order only.
    large = (
        np.abs(np.where(np.isfinite(theirs), theirs, np.inf)) > 1e37
        if "Reduce" in name
        else np.zeros(theirs.shape, bool)
    )
    near = np.isclose(ours, theirs, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert (near | (large & ~np.isnan(theirs) & ~np.isnan(ours))).all(), (name, ours[~near], theirs[~near])


def test_special_values_are_those_of_onnx_runtime(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    model = _model()
    onnx.save(model, tmp_path / "special.onnx")
    network = prepare(str(tmp_path / "special.onnx"), {}, tmp_path)
    made = dialect.compile(network, target, {}, tmp_path / "special.tunery")
    assert not made.elsewhere
    with Archive(tmp_path / "special.tunery") as archive:
        compiled = dialect.load_network(archive)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(_rows(SPECIAL), _rows(SPECIAL), _rows(INTEGERS["int32"]), _rows(INTEGERS["int64"]))
    @example([-np.inf] * 21, [np.nan] * 21, [2**31 - 1] * 21, [2**63 - 1] * 21)
    def hold(x: list[float], y: list[float], i: list[int], j: list[int]) -> None:
        feed = {
            "x": x,
            "y": y,
            "x_numbers": np.nan_to_num(x, posinf=np.inf, neginf=-np.inf),
            "i_int32": i,
            "i_int64": j,
        }
        feed |= {"y_numbers": y, "j_int32": np.where(np.isin(i[::-1], (0, -1)), 3, i[::-1]), "j_int64": j[::-1]}
        given_ = {
            one.name: np.array(feed[one.name]).reshape(SHAPE).astype(_kind(one.name)) for one in session.get_inputs()
        }
        theirs = dict(zip(names, session.run(None, given_), strict=True))
        ours = compiled(*(given_[spec.name] for spec in network.inputs))
        for spec, one in zip(network.outputs, ours, strict=True):
            _agree(spec.name, one, theirs[spec.name])

    hold()


def test_what_is_not_kept_is_in_the_limits() -> None:
    limits = Path(__file__, "../../../docs/limits.md").resolve().read_text()
    assert all(operator in limits for operator in NOT_KEPT)


def _kind(name: str) -> str:
    return name.split("_")[1] if "int" in name else "float32"


def test_what_is_not_kept_is_told_where_the_network_itself_makes_such_values() -> None:
    text = """
    <ir_version: 9, opset_import: ["": 20]>
    told (float[1, 2, 4, 4] x, float[4] s) => (float[1, 2, 2, 2] usual, float[1, 2, 2, 2] made, float[1, 2, 4, 4] slope)
    <float[1, 2, 4, 4] root, float[4] infinite = {inf, 1, 1, 1}>
    {
        half = Relu(x)
        usual = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (half)
        root = Sqrt(x)
        made = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (root)
        slope = PRelu(x, infinite)
    }
    """
    graph = Graph(onnx.parser.parse_model(text))
    assert lost_by(graph, ()) == ("NaN may be lost by MaxPool", "an infinity may be lost by PRelu")
    assert lost_by(graph, (3, 4)) == ()
