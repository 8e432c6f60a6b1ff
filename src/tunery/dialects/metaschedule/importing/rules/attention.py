"""Attention of com.microsoft, as ONNX Runtime's optimiser and its model builder save it: products and a softmax. What a
rule does not compute is left out by `microsoft.objection`. Letters of shapes: batch B, heads N, queries S, keys T, of
which P are past, and the size of a head H."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from tunery.dialects.metaschedule._tvm import relax, tvm
from tunery.dialects.metaschedule.importing.rules.common import const_like, dtype_of, emitter, shape_of

_FILTER = -10_000.0
Run = Callable[[Any], Any]


def attention(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the rule of Attention, which makes queries, keys and values of one input by one product."""
    x, weights, bias, mask, past, addend = (*inputs, *[None] * 4)[:6]
    run, heads = emitter(builder), int(attributes["num_heads"])
    total = shape_of(weights, "Attention")[1]
    sizes = [int(size) for size in attributes.get("qkv_hidden_sizes", [total // 3] * 3)]
    made = run(relax.op.matmul(x, weights))
    made = made if bias is None else run(relax.op.add(made, bias))
    query, key, value = (_apart(run, part, heads) for part in _slices(run, made, sizes))
    present = [key, value]
    if past is not None:
        before = [
            run(relax.op.reshape(one, shape_of(past, "Attention")[1:])) for one in _slices(run, past, [1, 1], axis=0)
        ]
        key, value = present = [run(relax.op.concat([b, n], 2)) for b, n in zip(before, present, strict=True)]
    scores = _scores(run, query, key, attributes)
    padding = _padding(run, mask, scores, attributes)
    held = 0 if past is None else shape_of(past, "Attention")[3]
    y = _weighted(run, _masked(run, scores, [padding, addend], held, attributes), value)
    if _outputs(attributes) == 1:
        return y
    alike = [run(relax.op.reshape(one, [1, *shape_of(one, "Attention")])) for one in present]
    return relax.Tuple([y, run(relax.op.concat(alike, 0))])  # no layout can be found past a stack


def multi_head_attention(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the rule of MultiHeadAttention, which is given queries, keys and values, or all in one tensor."""
    query, key, value, bias, mask, addend, past_key, past_value = (*inputs, *[None] * 7)[:8]
    run, heads, operator = emitter(builder), int(attributes["num_heads"]), "MultiHeadAttention"
    given = [query, key, value]
    if bias is not None:
        sizes = [_width(one, operator) for one in given]
        parts = _slices(run, bias, sizes, axis=0)
        given = [run(relax.op.add(one, part)) for one, part in zip(given, parts, strict=True)]
    query, key, value = (_apart(run, one, heads) for one in given)
    if past_key is not None:
        key, value = (run(relax.op.concat([before, new], 2)) for before, new in ((past_key, key), (past_value, value)))
    scores = _scores(run, query, key, attributes)
    padding = _padding(run, mask, scores, attributes)
    held = 0 if past_key is None else shape_of(past_key, operator)[2]
    y = _weighted(run, _masked(run, scores, [padding, addend], held, attributes), value)
    return y if _outputs(attributes) == 1 else relax.Tuple([y, key, value])


def group_query_attention(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the rule of GroupQueryAttention: several heads of queries for each of keys, and a cache."""
    query, key, value, past_key, past_value, last, whole, cos, sin, places, addend, sink = (*inputs, *[None] * 7)[:12]
    run, operator = emitter(builder), "GroupQueryAttention"
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    if key is None:
        size = shape_of(query, operator)[2] // (heads + 2 * groups)
        query, key, value = _slices(run, query, [heads * size, groups * size, groups * size])
    batch, steps, _ = shape_of(query, operator)
    total = int(whole.value.numpy().reshape(-1)[0])
    held = 0 if past_key is None else shape_of(past_key, operator)[2]
    end = run(relax.op.add(run(relax.op.reshape(last, [batch, 1])), const_like(1, last)))  # of the valid
    before = const_like(np.zeros((batch, 1)), last)
    if total > steps:
        before = run(relax.op.subtract(end, const_like(steps, last)))
    query, key, value = (
        run(relax.op.reshape(one, [batch, steps, count, shape_of(one, operator)[2] // count]))
        for one, count in ((query, heads), (key, groups), (value, groups))
    )
    if attributes.get("do_rotary", 0):
        if places is None:
            places = run(relax.op.add(before, const_like(np.arange(steps)[None], last)))
        interleaved = bool(attributes.get("rotary_interleaved", 0))
        query, key = (_rotated(builder, one, places, (cos, sin), 2, interleaved=interleaved) for one in (query, key))
    query, key, value = (run(relax.op.permute_dims(one, [0, 2, 1, 3])) for one in (query, key, value))
    size = max(total, held)
    key, value = (_cached(builder, past, new, before, size) for past, new in ((past_key, key), (past_value, value)))
    keys, values = ((one if size == total else _slices(run, one, [total], axis=2)[0]) for one in (key, value))
    rows = [batch, groups, heads // groups * steps, -1]
    scores = _scores(run, run(relax.op.reshape(query, [*rows[:3], shape_of(query, operator)[3]])), keys, attributes)
    scores = run(relax.op.reshape(scores, [batch, heads, steps, total]))
    if cap := float(attributes.get("softcap", 0.0)):
        small = run(relax.op.tanh(run(relax.op.divide(scores, const_like(cap, scores)))))
        scores = run(relax.op.multiply(small, const_like(cap, scores)))
    if addend is not None:
        scores = run(relax.op.add(scores, addend))
    at = run(relax.op.reshape(before, [batch, 1, 1, 1]))
    distance = run(relax.op.subtract(const_like(np.arange(total) - np.arange(steps)[:, None], last), at))
    seen = run(relax.op.less_equal(distance, const_like(0, last)))
    if total == steps:  # of prompts of several lengths
        real = run(relax.op.less(const_like(np.arange(total), last), run(relax.op.reshape(end, [batch, 1, 1, 1]))))
        seen = run(relax.op.logical_and(seen, real))
    if (window := int(attributes.get("local_window_size", -1))) >= 0:
        near = run(relax.op.greater(distance, const_like(-window, last)))
        seen = run(relax.op.logical_and(seen, near))
    scores = run(relax.op.where(seen, scores, _lowest(scores)))
    if sink is not None or int(attributes.get("smooth_softmax", 0)) > 0:
        sink = const_like(np.zeros(heads), scores) if sink is None else sink
        shares = _with_sink(run, scores, run(relax.op.reshape(sink, [1, heads, 1, 1])))
    else:
        shares = run(relax.op.nn.softmax(scores, axis=-1))
    made = run(relax.op.matmul(run(relax.op.reshape(shares, [*rows[:3], total])), values))
    y = _together(run, run(relax.op.reshape(made, [batch, heads, steps, shape_of(values, operator)[3]])))
    return y if _outputs(attributes) == 1 else relax.Tuple([y, key, value])


def rotary(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the rule of RotaryEmbedding of com.microsoft: B x S x NH or B x N x S x H."""
    x, places, cos, sin = inputs
    run, shape = emitter(builder), shape_of(x, "RotaryEmbedding")
    interleaved = bool(attributes.get("interleaved", 0))
    apart = len(shape) == 4
    batch, steps = shape[0], shape[2 if apart else 1]
    if shape_of(places, "RotaryEmbedding") == [1] and steps * batch > 1:
        places = run(relax.op.add(places, const_like(np.arange(steps), places)))
        places = run(relax.op.broadcast_to(run(relax.op.reshape(places, [1, steps])), [batch, steps]))
    places = run(relax.op.reshape(places, [batch, steps]))
    if apart:
        return _rotated(builder, x, places, (cos, sin), 1, interleaved=interleaved)
    width = int(attributes.get("num_heads", 0))
    heads = width or shape[2] // (2 * shape_of(cos, "RotaryEmbedding")[1])
    wide = run(relax.op.reshape(x, [batch, steps, heads, shape[2] // heads]))
    return relax.op.reshape(_rotated(builder, wide, places, (cos, sin), 2, interleaved=interleaved), shape)


def _outputs(attributes: dict[str, Any]) -> int:
    return int(attributes.get("tvm_custom", {}).get("num_outputs", 1))


def _slices(run: Run, value: Any, sizes: list[int], axis: int = -1) -> list[Any]:
    ends = np.cumsum([0, *sizes]).tolist()
    at = axis % len(shape_of(value, "attention"))
    return [run(relax.op.strided_slice(value, [at], [b], [e])) for b, e in pairwise(ends)]


def _width(value: Any, operator: str) -> int:
    return math.prod(shape_of(value, operator)[2:])


def _apart(run: Run, value: Any, heads: int) -> Any:
    """Return B x S x NH as B x N x S x H; what is so already as it is."""
    shape = shape_of(value, "attention")
    if len(shape) == 4:
        return value
    batch, steps, width = shape
    return run(relax.op.permute_dims(run(relax.op.reshape(value, [batch, steps, heads, width // heads])), [0, 2, 1, 3]))


def _together(run: Run, value: Any) -> Any:
    batch, heads, steps, size = shape_of(value, "attention")
    return run(relax.op.reshape(run(relax.op.permute_dims(value, [0, 2, 1, 3])), [batch, steps, heads * size]))


def _scores(run: Run, query: Any, key: Any, attributes: dict[str, Any]) -> Any:
    size = shape_of(query, "attention")[3]
    scale = float(attributes.get("scale", 0.0)) or 1 / math.sqrt(size)
    scaled = run(relax.op.multiply(query, const_like(scale, query)))
    return run(relax.op.matmul(scaled, run(relax.op.permute_dims(key, [0, 1, 3, 2]))))


def _lowest(like: Any) -> Any:
    return const_like(np.finfo(dtype_of(like)).min, like)


def _padding(run: Run, mask: Any, scores: Any, attributes: dict[str, Any]) -> Any:
    """Return what is added to the scores for keys that are padding: 0, or a large negative number; None without."""
    if mask is None:
        return None
    batch, _, steps, total = shape_of(scores, "attention")
    shape = shape_of(mask, "attention")
    if len(shape) == 1:
        places = const_like(np.arange(total)[None], mask)
        ends = run(relax.op.reshape(_slices(run, mask, [batch])[0], [batch, 1]))
        kept = run(relax.op.less(places, ends))
        if shape[0] == 2 * batch:
            starts = run(relax.op.reshape(_slices(run, mask, [batch, batch])[1], [batch, 1]))
            kept = run(relax.op.logical_and(kept, run(relax.op.greater_equal(places, starts))))
    else:
        kept = run(relax.op.greater(mask, const_like(0, mask)))
    kept = run(relax.op.reshape(kept, [batch, 1, steps if len(shape) == 3 else 1, total]))
    off = float(attributes.get("mask_filter_value", _FILTER))
    return run(relax.op.where(kept, const_like(0, scores), const_like(off, scores)))


def _masked(run: Run, scores: Any, addends: list[Any], held: int, attributes: dict[str, Any]) -> Any:
    """Return the scores with what is added to them; of those after the `held` only earlier ones, if asked."""
    steps, total = shape_of(scores, "attention")[2:]
    for one in addends:
        scores = scores if one is None else run(relax.op.add(scores, one))
    if not attributes.get("unidirectional", 0):
        return scores
    seen = np.arange(total) <= np.arange(steps)[:, None] + held
    return run(relax.op.where(relax.const(seen), scores, _lowest(scores)))


def _weighted(run: Run, scores: Any, value: Any) -> Any:
    return _together(run, run(relax.op.matmul(run(relax.op.nn.softmax(scores, axis=-1)), value)))


def _with_sink(run: Run, scores: Any, sink: Any) -> Any:
    most = run(relax.op.maximum(run(relax.op.max(scores, [-1], keepdims=True)), sink))
    powers = run(relax.op.exp(run(relax.op.subtract(scores, most))))
    rest = run(relax.op.exp(run(relax.op.subtract(sink, most))))
    return run(relax.op.divide(powers, run(relax.op.add(run(relax.op.sum(powers, [-1], keepdims=True)), rest))))


def _rotated(builder: Any, x: Any, places: Any, tables: tuple[Any, Any], heads: int, *, interleaved: bool) -> Any:
    """Rotate pairs of a head's numbers by the angles at their places (B x S); `heads` is the axis of the heads. A pair
    is two neighbours where it is `interleaved`, else one of the first half and one of the second."""
    cos, sin = tables
    rows, half = shape_of(cos, "rotary embedding")

    def rotated(given: Any, at: Any, cosines: Any, sines: Any) -> Any:
        def element(b: Any, i: Any, j: Any, h: Any) -> Any:
            step = i if heads == 2 else j
            row = tvm.tirx.max(tvm.tirx.min(at(b, step).astype("int32"), rows - 1), 0)
            if interleaved:
                pair, second, other = h // 2, h % 2 == 1, tvm.tirx.Select(h % 2 == 1, h - 1, h + 1)
            else:
                second = h >= half
                pair, other = tvm.tirx.Select(second, h - half, h), tvm.tirx.Select(second, h - half, h + half)
            turn = given(b, i, j, other) * sines(row, pair)
            moved = given(b, i, j, h) * cosines(row, pair) + tvm.tirx.Select(second, turn, -turn)
            return moved if 2 * half == size else tvm.tirx.if_then_else(h < 2 * half, moved, given(b, i, j, h))

        size = shape_of(x, "rotary embedding")[3]
        return tvm.te.compute(given.shape, element, "rotary")

    return builder.normalize(builder.call_te(rotated, x, places, cos, sin, primfunc_name_hint="rotary"))


def _cached(builder: Any, past: Any, new: Any, before: Any, size: int) -> Any:
    """Return `size` keys or values: those `before` the new ones (B x 1), the new ones, and zeros."""
    batch, heads, steps, width = shape_of(new, "GroupQueryAttention")
    if past is None and size == steps:
        return new
    given = [new, before] if past is None else [new, before, past]

    def joined(fresh: Any, valid: Any, *old: Any) -> Any:
        def element(b: Any, n: Any, t: Any, h: Any) -> Any:
            at = t - valid(b, 0).astype("int64")
            found = tvm.tirx.if_then_else(tvm.tirx.all(at >= 0, at < steps), fresh(b, n, at, h), zero)
            if not old:
                return found
            held = shape_of(past, "GroupQueryAttention")[2]
            return tvm.tirx.if_then_else(tvm.tirx.all(at < 0, t < held), old[0](b, n, t, h), found)

        zero = tvm.tirx.const(0, dtype_of(new))
        return tvm.te.compute((batch, heads, size, width), element, "cached")

    return builder.normalize(builder.call_te(joined, *given, primfunc_name_hint="cached"))
