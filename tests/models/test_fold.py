"""What preparing computes is what ONNX Runtime computes of the file, unoptimised."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tunery.models import prepare
from tunery.models.onnx._fold import unoptimised


def model(text: str, opset: int = 17, **constants: np.ndarray) -> onnx.ModelProto:
    """Return a model of a graph in ONNX's text form."""
    whole = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')
    whole.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return whole


def of_half(rows: int, scale: float) -> onnx.ModelProto:
    """Return a convolution whose weights are normalised in half precision, where their squares overflow."""
    weight = np.random.default_rng(1).normal(0, scale, (rows, 64, 7)).astype(np.float16)
    return model(
        """g (float16[1, 64, 16] x) => (float16[1, 8, 16] y) {
             length = ReduceL2<axes = [1, 2], keepdims = 1>(v)
             share = Div(one, length) w = Mul(v, share) y = Conv<pads = [3, 3]>(x, w) }""",
        v=weight,
        one=np.ones((1, 1, 1), np.float16),
    )


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "half_weight_norm": lambda: of_half(8, 20.0),
    "half_log_softmax": lambda: model(
        """g (float16[1, 3] x) => (float16[1, 3] y) {
             p = LogSoftmax<axis = -1>(c) h = Cast<to = 10>(p) y = Add(x, h) }""",
        c=np.array([[150.0, 0.0, -40.0]], np.float32),
    ),
    "size_of_a_pool": lambda: model(
        """g (float[1, 4, 4, 4] x) => (float[1, 4] y) {
             p = MaxPool<kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1>(x)
             s = Shape<start = 2>(p) n = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(n)
             t = ReduceSum<keepdims = 0>(p, axes) y = Div(t, f) }""",
        axes=np.array([2, 3]),
    ),
    "pad_before_a_pool": lambda: model(
        """g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) {
             n = Abs(x) m = Neg(n) p = Pad(m, pads) y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p) }""",
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    ),
    "reciprocal": lambda: model(
        "g (float[3] x, float[3] z) => (float[1, 3] y) { r = Div(one, x) y = Mul(r, z) }",
        one=np.ones((1, 1), np.float32),
    ),
    "cast_to_the_same": lambda: model(
        "g (float[2, 3] x) => (float[2, 3] y) { c = Cast<to = 1>(x) d = Div(one, one) y = Mul(c, d) }",
        one=np.float32(1).reshape(()),
    ),
    "clip_in_double": lambda: model(
        "g (double[5] x) => (double[5] y) { r = Relu(x) y = Clip(r, low, high) }",
        low=np.array(-1.0),
        high=np.array(1.0),
    ),
    "scale_wider_than_a_norm": lambda: model(
        """g (float[4, 1] x) => (float[4, 2] y) {
             m = ReduceMean<axes = [-1]>(x) c = Sub(x, m) q = Pow(c, two) v = ReduceMean<axes = [-1]>(q)
             e = Add(v, small) s = Sqrt(e) n = Div(c, s) w = Mul(scale, n) y = Add(w, shift) }""",
        two=np.float32(2).reshape(()), small=np.float32(1e-5).reshape(()),
        scale=np.array([2, 3], np.float32), shift=np.array([1, -1], np.float32),
    ),
    "branch_before_a_pool": lambda: model(
        """g (float[1, 1, 4, 4] x) => (float y) {
             c = Constant<value = bool[1] {1}>()
             i = If (c) < then_branch = t () => (a) { a = Abs(x) }, else_branch = e () => (b) { b = Neg(x) } >
             p = MaxPool<kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1>(i)
             s = Shape(p) n = ReduceProd<keepdims = 0>(s) f = Cast<to = 1>(n) t = ReduceSum<keepdims = 0>(p)
             y = Div(t, f) }"""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_prepared_file_computes_what_the_file_does(name: str, tmp_path: Path) -> None:
    original = CASES[name]()
    onnx.save(original, tmp_path / "m.onnx")
    rng = np.random.default_rng(2)
    feed = {
        one.name: rng.normal(size=[dim.dim_value for dim in one.type.tensor_type.shape.dim]).astype(
            helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
        )
        for one in original.graph.input
    }
    network = prepare(str(tmp_path / "m.onnx"), {}, tmp_path)
    [wanted] = unoptimised(original.SerializeToString()).run(None, feed)
    [found] = unoptimised(Path(network.path).read_bytes()).run(None, feed)
    assert np.count_nonzero(wanted)
    assert np.isfinite(wanted).any()
    tolerance = 5e-3 if wanted.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_what_must_not_be_a_constant_stays(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z, float[300000] big, float[2] q) {
        r = RandomNormal<shape = [2]>() y = Add(x, r) d = DequantizeLinear(w, s) z = Add(x, d)
        huge = ConstantOfShape(n) one = Slice(x, zero, first) big = Add(huge, one) dead = Abs(x)
        a = Mul(d, d) b = Identity(x) q = Add(a, b) }"""
    constants = {"w": np.array([1, 2], np.int8), "s": np.float32(0.5).reshape(()), "n": np.array([300_000])}
    made = model(text, **constants, zero=np.array([0]), first=np.array([1]))
    onnx.save(made, tmp_path / "m.onnx")
    prepared = onnx.load(prepare(str(tmp_path / "m.onnx"), {}, tmp_path).path)
    kinds = [node.op_type for node in prepared.graph.node]
    assert {"RandomNormal", "DequantizeLinear"} <= {*kinds}
    assert "Abs" not in kinds
