"""A rewritten network computes what it did before: ONNX Runtime runs both; IREE itself is not needed."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tunery.dialects.iree.rewriting import rewrite

RNG = np.random.default_rng(0)
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    image: tuple[int, ...],
    weights: Mapping[str, tuple[int, ...]],
    version: int = 17,
) -> Path:
    """Write a model from an image `x` to `y`, with random weights of these shapes."""
    arrays = [
        numpy_helper.from_array((RNG.standard_normal(shape) ** (2 if name == "variance" else 1)).astype("f4"), name)
        for name, shape in weights.items()
    ]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", values, results, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def kinds(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def check(path: Path, *, winograd: bool = True) -> Path:
    """Rewrite a model, and compare what it computes; return the other one."""
    other = path.with_name("other.onnx")
    assert rewrite(path, other, winograd=winograd)
    onnx.checker.check_model(onnx.load(other), full_check=True)
    shape = [dim.dim_value for dim in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    image = RNG.standard_normal(shape).astype("f4")
    before, after = (onnxruntime.InferenceSession(str(one)).run(None, {"x": image})[0] for one in (path, other))
    np.testing.assert_allclose(after, before, 1e-3, 1e-4)
    return other


@FEW
@given(st.data())
def test_any_convolution_of_images_is_the_same_without_windows(tmp_path: Path, data: st.DataObject) -> None:
    draw, small = data.draw, st.integers(1, 3)
    size, steps = draw(st.tuples(st.integers(1, 5), st.integers(1, 5))), draw(st.tuples(small, small))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    height, width = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    assume(height + pads[0] + pads[2] >= size[0] and width + pads[1] + pads[3] >= size[1])
    groups, bias = draw(st.sampled_from([1, 1, 2, 3, 0])), draw(st.booleans())
    each, batch = draw(st.integers(1, 12) if groups == 1 else st.integers(8, 10)), draw(st.integers(1, 2))
    channels, kernels = each * max(groups, 1), draw(st.integers(1, 5)) * max(groups, 1)
    weights = {"w": (kernels, each, *size) if groups else (channels, 1, *size)}
    if bias:
        weights["b"] = weights["w"][:1]
    node = helper.make_node("Conv", ["x", *weights], ["y"], strides=steps, pads=pads, group=groups or channels)
    model = saved(tmp_path / "model.onnx", [node], (batch, channels, height, width), weights)
    check(model)
    assert "Conv" not in kinds(check(model, winograd=False))


@FEW
@given(
    st.tuples(*[st.integers(7, 13)] * 2), st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from([(32, 19), (35, 16)]),
    st.sampled_from([(3, 3), (1, 7), (7, 1), (5, 5), (1, 3), (4, 2), (2, 6)]), st.integers(1, 2), st.booleans(),
)  # fmt: skip
def test_three_places_in_a_row_or_column_take_fewer_products(
    tmp_path: Path,
    image: tuple[int, int],
    pads: tuple[int, ...],
    sizes: tuple[int, int],
    window: tuple[int, int],
    batch: int,
    bias: bool,
) -> None:
    """Along the longer side of a window; along the other one, windows may jump."""
    long = 0 if window[0] > window[1] else 1
    steps = (1, 1) if bias else (1, 2) if long == 0 else (2, 1)
    out = [(had + pads[i] + pads[i + 2] - window[i]) // steps[i] + 1 for i, had in enumerate(image)]
    results = min(4, 9 - window[long])
    assume(batch * -(-out[long] // results) * out[1 - long] >= 8)
    weights = {"w": (sizes[1], sizes[0], *window), **({"b": (sizes[1],)} if bias else {})}
    node = helper.make_node("Conv", ["x", *weights], ["y"], pads=pads, strides=steps)
    model = saved(tmp_path / "model.onnx", [node], (batch, sizes[0], *image), weights)
    shapes = [tuple(one.dims) for one in onnx.load(check(model)).graph.initializer]
    assert (window[long] + results - 1, window[1 - long] * sizes[0], sizes[1]) in shapes, "a product for each point"
    shapes = [tuple(one.dims) for one in onnx.load(check(model, winograd=False)).graph.initializer]
    assert (math.prod(window) * sizes[0], sizes[1]) in shapes


@FEW
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(5, 11), st.booleans(),
    st.sampled_from([{}, {"count_include_pad": 0}, {"count_include_pad": 1}]),
)  # fmt: skip
def test_a_pool_is_the_same_as_maxima_or_sums_of_slices(
    tmp_path: Path, size: int, step: int, pad: int, width: int, ceil: bool, average: dict[str, int]
) -> None:
    pad = min(pad, size - 1)
    kind = "AveragePool" if average else "MaxPool"
    assume(not (ceil and average.get("count_include_pad")))  # tools do not agree on what is counted there
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(kind, ["c"], ["y"], kernel_shape=[size, size], strides=[step, step], pads=[pad] * 4,
                         ceil_mode=int(ceil), **average),
    ]  # fmt: skip
    other = check(saved(tmp_path / "model.onnx", nodes, (1, 8, 9, width), {"w": (4, 8, 1, 1)}))
    assert ceil or kind not in kinds(other)


@FEW
@given(st.sampled_from([13, 17, 18, 20]))
def test_what_is_between_convolutions_stays_channels_last(tmp_path: Path, version: int) -> None:
    """A residual block with attention over channels, a scale, a concatenation; the last pool knows one layout."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Clip", ["c2", "low", ""], ["k2"]),
        helper.make_node("GlobalAveragePool", ["k2"], ["mean"]),
        helper.make_node("Conv", ["mean", "w3"], ["c3"]),
        helper.make_node("Sigmoid", ["c3"], ["gate"]),
        helper.make_node("Mul", ["k2", "gate"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["s"]),
        helper.make_node("Add", ["s", "x"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "b1", "b1", "b1", "variance"], ["n"]),
        helper.make_node("Concat", ["n", "r1"], ["all"], axis=1),
        helper.make_node("LpPool", ["all"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    weights = {
        "w1": (8, 8, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "low": (), "scale": (8, 1, 1),
        "variance": (8,),
    }  # fmt: skip
    other = check(saved(tmp_path / "model.onnx", nodes, (2, 8, 6, 5), weights, version), winograd=False)
    assert [node.op_type for node in onnx.load(other).graph.node].count("Transpose") == 2, "one to it, one behind it"


def test_what_is_no_convolution_of_images_or_has_gaps_is_left_as_it_is(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    assert not rewrite(saved(tmp_path / "a.onnx", [product], (4, 8), {"w": (8, 2)}), tmp_path / "other.onnx")
    line = helper.make_node("Conv", ["x", "w"], ["y"])
    assert not rewrite(saved(tmp_path / "b.onnx", [line], (1, 8, 9), {"w": (2, 8, 3)}), tmp_path / "other.onnx")
    dilated = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2, 2])
    wide, kernel = (1, 8, 9, 9), {"w": (2, 8, 3, 3)}
    assert not rewrite(saved(tmp_path / "c.onnx", [dilated], wide, kernel), tmp_path / "other.onnx")
    plain = helper.make_node("Conv", ["x", "w"], ["y"])
    assert not rewrite(saved(tmp_path / "d.onnx", [plain], wide, kernel, version=12), tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()
