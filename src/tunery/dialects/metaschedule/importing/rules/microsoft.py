"""Operators of com.microsoft, as ONNX Runtime's optimiser saves them: which are imported natively, and in what form."""

import math
from typing import Any

import onnx
from onnx import helper

from tunery.dialects.metaschedule.importing.segments.graph import Graph

DOMAIN = "com.microsoft"
OPERATORS = frozenset(
    {
        "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "FusedGemm", "FusedMatMul", "Gelu",
        "GroupQueryAttention", "MatMulNBits", "MultiHeadAttention", "RotaryEmbedding", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip
_KINDS = frozenset({onnx.TensorProto.FLOAT})
_SHARED_BUFFER, _CACHE = 6, (8, 9)  # inputs
_PLAIN_QUERY_INPUTS = 12
_GROUPED = 4  # the input that puts 4-bit weights in another order
_GATES = frozenset({"", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})


def objection(graph: Graph, node: onnx.NodeProto) -> str:
    """Return why an operator of com.microsoft is not imported natively; empty where it is, and for all others."""
    if node.domain != DOMAIN or node.op_type not in OPERATORS:
        return ""
    check = _CHECKS.get(node.op_type)
    kinds = {graph.element_type(name) for name in node.output[:1]}
    if check is not None and not kinds <= _KINDS:
        return "TVM computes it in single precision only"
    return "" if check is None else check(graph, node, {a.name: helper.get_attribute_value(a) for a in node.attribute})


def _given(node: onnx.NodeProto, *places: int) -> bool:
    return any(len(node.input) > at and node.input[at] for at in places)


def _attention(graph: Graph, node: onnx.NodeProto, attributes: dict[str, object]) -> str:
    if attributes.get("do_rotary") or attributes.get("past_present_share_buffer") or _given(node, _SHARED_BUFFER):
        return "TVM does not know its form of a cache"
    batch, steps, _ = graph.shape(node.input[0]) or (0, 0, 0)
    past = graph.shape(node.input[4]) if _given(node, 4) else None
    return _mask(graph, node, 3, (batch, steps, steps + (past[3] if past else 0)))


def _multi_head(graph: Graph, node: onnx.NodeProto, attributes: dict[str, object]) -> str:
    if _given(node, *_CACHE) or any(node.output[3:]):
        return "TVM does not know its form of a cache"
    query = graph.shape(node.input[0]) or ()
    key = graph.shape(node.input[1]) if _given(node, 1) else query
    apart = key is not None and len(key) == 4  # keys are as in a cache
    if len(query) != 3 or not key or (apart and _given(node, 3, 6)):
        return "TVM does not know its form of a cache"
    if attributes.get("unidirectional") and key[2 if apart else 1] != query[1]:
        return "TVM does not know which of other keys are earlier"
    past = graph.shape(node.input[6]) if _given(node, 6) else None
    return _mask(graph, node, 4, (query[0], query[1], key[2 if apart else 1] + (past[2] if past else 0)))


def _mask(graph: Graph, node: onnx.NodeProto, at: int, sizes: tuple[int, int, int]) -> str:
    if not _given(node, at):
        return ""
    batch, steps, total = sizes
    known = {(batch,), (2 * batch,), (batch, total), (batch, steps, total)}
    return "" if graph.shape(node.input[at]) in known else "TVM does not know its form of a mask"


def _grouped(graph: Graph, node: onnx.NodeProto, attributes: dict[str, object]) -> str:
    if len(node.input) > _PLAIN_QUERY_INPUTS and any(node.input[_PLAIN_QUERY_INPUTS:]):
        return "TVM does not know its form of a cache"
    odd = ("qk_output", "kv_cache_bit_width", "sliding_window_cache")
    if any(attributes.get(name) for name in odd) or not attributes.get("causal", 1) or any(node.output[3:]):
        return "TVM does not know its form of a cache"
    return "" if node.input[6] in graph.constants else "the number of its keys is not constant"


def _rotary(graph: Graph, node: onnx.NodeProto, attributes: dict[str, object]) -> str:
    if attributes.get("is_packed_batching") or attributes.get("scale", 1.0) != 1:
        return "TVM does not know its packed form"
    shape, table = graph.shape(node.input[0]) or (), graph.shape(node.input[2]) or (0, 0)
    if len(shape) == 3 and attributes.get("rotary_embedding_dim") and not attributes.get("num_heads"):
        return "the number of its heads is not known"
    return "" if math.prod(shape) and math.prod(table) else "its sizes are not known"


def _gemm(_: Graph, __: onnx.NodeProto, attributes: dict[str, object]) -> str:
    kind = attributes.get("activation", b"")
    name = kind.decode() if isinstance(kind, bytes) else str(kind)
    return "" if name in _GATES else f"TVM does not know its {name[:40]}"


def _four_bits(graph: Graph, node: onnx.NodeProto, attributes: dict[str, Any]) -> str:
    if attributes.get("bits", 4) != 4 or attributes["K"] % attributes["block_size"] or _given(node, _GROUPED):
        return "TVM does not know its form of weights"
    if any(name and name not in graph.constants for name in node.input[1:_GROUPED]):
        return "its weights are not constant"
    if _given(node, 3) and graph.element_type(node.input[3]) != onnx.TensorProto.UINT8:
        return "TVM does not know its form of zero points"
    return ""


_CHECKS = {
    "Attention": _attention,
    "FusedGemm": _gemm,
    "GroupQueryAttention": _grouped,
    "MatMulNBits": _four_bits,
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
}
