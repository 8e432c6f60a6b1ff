"""Pads that follow from other attributes, written down: compilers, and ONNX's own shapes, differ in what follows."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper

from tunery.models.onnx._file import STANDARD

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
PADDED = _POOLS | {"ConvTranspose"}
_LOWER, _UPPER, _NAMED = b"SAME_LOWER", b"SAME_UPPER", b"NOTSET"


def write_pads(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Change a node in place whose output ONNX Runtime computes in another size than ONNX infers; say if it was.

    A pool that rounds up has no window behind its data; nothing is added to the size that follows from `output_shape`,
    or from being `SAME`, which for pools has no dilations. An odd pad of `SAME_LOWER` comes first.
    """
    pool = node.op_type in _POOLS
    if node.domain not in STANDARD or node.op_type not in PADDED:
        return False
    data, kernel = _sizes(types.get(node.input[0])), [] if pool else _sizes(types.get(node.input[1]))
    if not data or min(data) <= 0:
        return False
    said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    wanted = _of_pool(node, data, said) if pool else _of_transposed(data, kernel, said)
    if not wanted or min(wanted) < 0:
        return False
    _write(node, wanted)
    return True


def _sizes(kind: onnx.TypeProto | None) -> list[int]:
    """Return the sizes of a tensor's sides, after those of its batch and channels."""
    return [dim.dim_value for dim in kind.tensor_type.shape.dim][2:] if kind is not None else []


def _of_pool(node: onnx.NodeProto, sizes: Sequence[int], said: Mapping[str, Any]) -> list[int]:
    """Return the pads of a pool; none where they are written down and no window is lost."""
    one, rank = [1] * len(sizes), len(sizes)
    strides, dilations = said.get("strides") or one, said.get("dilations") or one
    windows = [(width - 1) * d + 1 for width, d in zip(said["kernel_shape"], dilations, strict=True)]
    side, pads = said.get("auto_pad", _NAMED), said.get("pads") or [0] * 2 * rank
    if side == _LOWER or (side == _UPPER and max(dilations) > 1):
        steps = zip(sizes, said["kernel_shape"], strides, strict=True)  # ONNX Runtime's do not count dilations
        return _halves([max(0, (size - 1) // s * s + width - size) for size, width, s in steps], side)
    if not said.get("ceil_mode") or side != _NAMED or (node.op_type == "AveragePool" and said.get("count_include_pad")):
        return []
    first, ends, lost = pads[:rank], [], False
    for size, window, stride, begin, end in zip(sizes, windows, strides, first, pads[rank:], strict=True):
        count = -(-(size + begin + end - window) // stride) + 1
        behind = (count - 1) * stride >= size + begin
        lost = lost or behind
        ends.append(max(0, (count - 1 - behind) * stride + window - size - begin))
    return [*first, *ends] if lost else []


def _of_transposed(sizes: Sequence[int], kernel: Sequence[int], said: Mapping[str, Any]) -> list[int]:
    one, none, side = [1] * len(sizes), [0] * len(sizes), said.get("auto_pad", _NAMED)
    more, wanted = said.get("output_padding") or none, said.get("output_shape")
    if len(kernel) != len(sizes) or not (wanted or side == _LOWER or (side == _UPPER and any(more))):
        return []
    strides, dilations = said.get("strides") or one, said.get("dilations") or one
    wanted = wanted or [size * stride for size, stride in zip(sizes, strides, strict=True)]
    steps = zip(sizes, kernel, strides, dilations, more, wanted[-len(sizes) :], strict=True)
    totals = [(size - 1) * s + extra + (width - 1) * d + 1 - made for size, width, s, d, extra, made in steps]
    return _halves(totals, side)


def _halves(totals: Sequence[int], side: bytes) -> list[int]:
    fewer, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*fewer, *more] if side == _UPPER else [*more, *fewer]


def _write(node: onnx.NodeProto, pads: Sequence[int]) -> None:
    replaced = {"auto_pad", "output_shape", "pads"}
    if not any(one.name == "auto_pad" and one.s != _NAMED for one in node.attribute):
        replaced.add("ceil_mode")  # the pads are those of all windows
    kept = [one for one in node.attribute if one.name not in replaced]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])
