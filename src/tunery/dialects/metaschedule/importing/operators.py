"""ONNX operators that are imported by our own rules, because TVM's lack them or give other values than ONNX Runtime.
Each rule is a converter as TVM's importer has them, by ONNX's name; the definitions are ONNX's operator
specification."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from onnx.external_data_helper import uses_external_data

from tunery.dialects.metaschedule._tvm import relax, replaceable, tvm
from tunery.dialects.metaschedule.importing.integers import four_bits, quantised
from tunery.dialects.metaschedule.importing.mapped import tensor_of
from tunery.dialects.metaschedule.importing.rules import (
    arrays,
    attention,
    convolutions,
    elements,
    norms,
    products,
    resizing,
)
from tunery.dialects.metaschedule.importing.rules.common import Convert, emit
from tunery.dialects.metaschedule.importing.segments.graph import OPERATOR, Segment
from tunery.domain import SEGMENT, TensorSpec


@contextmanager
def own_operators(segments: Sequence[Segment] = ()) -> Iterator[None]:
    """Have TVM's ONNX importer use our own rules, also for calls of `segments`, until the context ends."""
    from tvm.relax.frontend.onnx import onnx_frontend

    importer: Any = onnx_frontend.ONNXGraphImporter
    theirs = replaceable(onnx_frontend, "_get_convert_map")
    read = replaceable(importer, "_parse_array", "self", "tensor_proto")
    own = {**_RULES, OPERATOR: _segment_call(segments), quantised.PRODUCT: quantised.product}
    rules = {**theirs(), **{name: _converter(rule) for name, rule in own.items()}}
    rules |= {name: _converter(rule, rules[name]) for name, rule in _SPECIAL_RULES.items()}
    rules |= {name: _bounded_pool(name, rules[name]) for name in ("MaxPool", "GlobalMaxPool")}
    onnx_frontend._get_convert_map = lambda: rules
    importer._parse_array = lambda self, tensor_proto: (
        tensor_of(tensor_proto) if uses_external_data(tensor_proto) else read(self, tensor_proto)
    )
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = theirs
        importer._parse_array = read


def _converter(rule: Convert, otherwise: Any = None) -> type:
    """Return the converter of a rule, which returns None for what it leaves to another converter."""

    class Converter:
        @staticmethod
        def get_converter(opset: int) -> Callable[..., Any]:
            def convert(builder: Any, inputs: Any, attributes: dict[str, Any], parameters: Any) -> Any:
                made = rule(builder, list(inputs), attributes)
                if made is not None or otherwise is None:
                    return made
                return otherwise.get_converter(opset)(builder, inputs, attributes, parameters)

            return convert

    return Converter


def _bounded_pool(operator: str, unbounded: Any) -> type:
    class Converter:
        @staticmethod
        def get_converter(opset: int) -> Callable[..., Any]:
            def convert(builder: Any, inputs: Any, attributes: dict[str, Any], parameters: Any) -> Any:
                x = arrays.as_pooled(builder, inputs[0], operator, attributes)
                return unbounded.get_converter(opset)(builder, [x], attributes, parameters)

            return convert

    return Converter


def _segment_call(segments: Sequence[Segment]) -> Convert:
    """Return the rule of the node that stands for a segment: a call of a function that is there when it runs."""

    def rule(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        number = int(attributes["number"])
        segment = segments[number]
        given = [emit(builder, one) for one in inputs]
        if segment.is_static:  # its outputs are given to it, in memory that is planned as that of kernels is
            kinds = [relax.TensorType(spec.shape, spec.dtype) for spec in segment.outputs]
            made = relax.op.call_dps_packed(
                f"{SEGMENT}{number}", relax.Tuple(given), kinds[0] if len(kinds) == 1 else kinds
            )
        else:
            kinds = [_type(spec, ranked=known) for spec, known in zip(segment.outputs, segment.ranked, strict=True)]
            kind = kinds[0] if len(kinds) == 1 else relax.TupleType(kinds)
            made = relax.op.call_pure_packed(f"{SEGMENT}{number}", *given, ty_args=kind)
        return emit(builder, made)

    return rule


def _type(spec: TensorSpec, *, ranked: bool) -> Any:
    if ranked and -1 not in spec.shape:
        return relax.TensorType(spec.shape, spec.dtype)
    return relax.TensorType(dtype=spec.dtype, ndim=len(spec.shape) if ranked else -1)


_RULES: dict[str, Convert] = {
    "Celu": elements.celu,
    "Selu": elements.selu,
    "Clip": elements.clip,
    "Sum": elements.chain(relax.op.add),
    "Max": elements.extreme(relax.op.maximum, relax.op.greater),
    "Min": elements.extreme(relax.op.minimum, relax.op.less),
    "Mean": elements.mean_of_many,
    "IsInf": elements.is_inf,
    "IsNaN": elements.is_nan,
    "BitCast": elements.bit_cast,
    "ThresholdedRelu": elements.thresholded,
    "LpNormalization": norms.lp_norm,
    "LayerNormalization": norms.layer_norm,
    "SimplifiedLayerNormalization": norms.simplified,
    "SkipLayerNormalization": norms.skip_layer_norm,
    "SkipSimplifiedLayerNormalization": norms.skip_simplified,
    "EmbedLayerNormalization": norms.embed_layer_norm,
    "GroupNormalization": norms.group_norm,
    "InstanceNormalization": norms.instance_norm,
    "MeanVarianceNormalization": norms.mean_variance_norm,
    "Tile": arrays.tile,
    "Col2Im": arrays.column_to_image,
    "Det": arrays.determinant,
    "CumProd": arrays.cumulative(tvm.topi.cumprod),
    "CumSum": arrays.cumulative(tvm.topi.cumsum),
    "Dropout": arrays.dropout,
    "TensorScatter": arrays.tensor_scatter,
    "QLinearMatMul": products.quantised_matmul,
    "FusedMatMul": products.fused_matmul,
    **dict.fromkeys(("Gemm", "FusedGemm"), products.fused_gemm),
    "Attention": attention.attention,
    "MultiHeadAttention": attention.multi_head_attention,
    "GroupQueryAttention": attention.group_query_attention,
    "RotaryEmbedding": attention.rotary,
    "MatMulNBits": four_bits.product,
    "DynamicQuantizeLinear": products.quantise_dynamically,
    "ConvInteger": products.integer_convolution,
    "EyeLike": arrays.eye_like,
    "Upsample": arrays.upsample,
    "ArgMax": arrays.place_of_extreme(largest=True),
    "ArgMin": arrays.place_of_extreme(largest=False),
    "Hardmax": arrays.hardmax,
}

_SPECIAL_RULES: dict[str, Convert] = {
    "Conv": convolutions.convolution,
    "ConvTranspose": convolutions.transposed_as_one_row,
    "QuantizeLinear": quantised.quantise,
    "DequantizeLinear": quantised.dequantise,
    "Cast": elements.cast,
    "CastLike": elements.cast,
    "Softplus": elements.softplus,
    "Mish": elements.mish,
    "Pow": elements.power,
    "Sign": elements.sign,
    "OneHot": arrays.one_hot,
    "ReduceMax": arrays.extreme_of_truths(relax.op.max),
    "ReduceMin": arrays.extreme_of_truths(relax.op.min),
    "ReduceLogSumExp": arrays.log_sum_exp,
    "Concat": arrays.concatenation,
    "Slice": arrays.old_slice,
    "Unsqueeze": arrays.unsqueeze,
    "Reshape": arrays.reshaped_back,
    "Resize": resizing.resize,
    "MatMulInteger": products.integer_matmul,
    "RMSNormalization": norms.rms_norm,
}

OWN_OPERATORS = frozenset(_RULES)
