"""Attention and normalisations as ONNX Runtime saves them are computed natively, as ONNX Runtime computes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from side_by_side import Node, compare

from tunery.dialects import Dialect
from tunery.domain import Target

pytestmark = pytest.mark.tvm
RNG = np.random.default_rng(0)
BATCH, STEPS, HEADS, SIZE, KEYS = 2, 5, 4, 16, 7
WIDTH, GROUPS, PAST = HEADS * SIZE, 2, 3


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def mask(*shape: int) -> np.ndarray:
    return (RNG.random(shape) > 0.4).astype(np.int32)


X, WEIGHTS, BIAS = real(BATCH, STEPS, WIDTH), real(WIDTH, 3 * WIDTH) / 5, real(3 * WIDTH)
QUERY, KEY, VALUE = real(BATCH, STEPS, WIDTH), real(BATCH, KEYS, WIDTH), real(BATCH, KEYS, HEADS * 6)
CACHE = [real(BATCH, HEADS, PAST, SIZE) for _ in range(2)]
TABLES = [np.cos(angles := real(20, SIZE // 2)), np.sin(angles)]
ALL, BACK = {"num_heads": HEADS}, {"num_heads": HEADS, "unidirectional": 1}


def grouped(batch: int, steps: int, held: int, total: int, last: list[int], *more: Any, **attributes: Any) -> Node:
    """Return a node with a cache of `held` keys, of which, with the new ones, those up to each `last` are valid."""
    new = [real(batch, steps, count * SIZE) for count in (HEADS, GROUPS, GROUPS)]
    past = [real(batch, GROUPS, held, SIZE) if held else None for _ in range(2)]
    tables = [[one] for one in TABLES] if "do_rotary" in attributes else [None, None]
    given = [*new, *past, ints(*last), [np.array(total, np.int32)], *tables, *more]
    return "GroupQueryAttention", given, {"num_heads": HEADS, "kv_num_heads": GROUPS, **attributes}, 3


NATIVE: dict[str, list[Node]] = {
    "Attention": [
        ("Attention", [X, [WEIGHTS], [BIAS]], ALL, 1),
        ("Attention", [X, [WEIGHTS], [BIAS], ints(3, 5, 1, 0)], {**ALL, "scale": 0.7, "mask_filter_value": -3.0}, 1),
        ("Attention", [X, [WEIGHTS], [BIAS], mask(BATCH, STEPS) * 3 - 1, None, real(1, 1, STEPS, STEPS)], ALL, 1),
        ("Attention", [X, [WEIGHTS], [BIAS], mask(BATCH, STEPS, STEPS)], BACK, 1),
        ("Attention", [X, [WEIGHTS], [BIAS], mask(BATCH, PAST + STEPS), np.stack(CACHE)], BACK, 2),
        ("Attention", [X, [real(WIDTH, 2 * WIDTH + 16)], [real(2 * WIDTH + 16)]],
         {**ALL, "qkv_hidden_sizes": [WIDTH, WIDTH, 16]}, 1),
    ],
    "MultiHeadAttention": [
        ("MultiHeadAttention", [QUERY, KEY, VALUE, [real(2 * WIDTH + 24)], ints(4, 7)], ALL, 1),
        ("MultiHeadAttention", [QUERY, KEY, VALUE, None, mask(BATCH, STEPS, KEYS), real(1, 1, STEPS, KEYS)], ALL, 1),
        ("MultiHeadAttention", [QUERY, X, X, None, mask(BATCH, PAST + STEPS), None, *CACHE], BACK, 3),
        ("MultiHeadAttention", [QUERY, real(BATCH, HEADS, KEYS, SIZE), real(BATCH, HEADS, KEYS, SIZE)], ALL, 1),
    ],
    "GroupQueryAttention": [
        grouped(2, 5, 0, 5, [2, 4]),
        grouped(2, 5, 9, 5, [4, 4], do_rotary=1, local_window_size=2),
        grouped(2, 1, 6, 7, [4, 6], softcap=2.0),
        grouped(2, 1, 12, 7, [3, 6], np.array([[2], [5]]), do_rotary=1, rotary_interleaved=1, smooth_softmax=1),
        grouped(1, 3, 12, 9, [8], None, real(1, 1, 3, 9), real(HEADS), do_rotary=1),
    ],
    "the rest": [
        ("RotaryEmbedding", [X, np.array([3]), *([one] for one in TABLES)], {}, 1),
        ("RotaryEmbedding", [CACHE[0], RNG.integers(0, 20, (BATCH, PAST)), *([one] for one in TABLES)],
         {"interleaved": 1}, 1),
        ("RotaryEmbedding", [X, RNG.integers(0, 20, (BATCH, STEPS)), *([one[:, :2]] for one in TABLES)],
         {"num_heads": HEADS, "rotary_embedding_dim": 4}, 1),
        ("SkipLayerNormalization", [X, QUERY[0], [real(WIDTH)]], {}, 4),
        ("SkipLayerNormalization", [X, QUERY, [real(WIDTH)], [real(WIDTH)], [real(WIDTH)]], {"epsilon": 1e-3}, 1),
        ("SkipSimplifiedLayerNormalization", [X, QUERY, [real(WIDTH)], [real(WIDTH)]], {}, 1),
        ("EmbedLayerNormalization", [mask(BATCH, STEPS), mask(BATCH, STEPS), *([real(8, WIDTH)] for _ in range(3)),
                                     [real(WIDTH)], [real(WIDTH)], mask(BATCH, STEPS)], {}, 3),
        ("FusedGemm", [real(3, 4), [real(5, 4)], [real(5)]], {"transB": 1, "beta": 2.0, "activation": "Tanh"}, 1),
        ("SimplifiedLayerNormalization", [X, [real(WIDTH)]], {"axis": -1}, 2),
    ],
}  # fmt: skip
ELSEWHERE: list[Node] = [
    ("Attention", [X, [WEIGHTS], [BIAS], np.ones((1, 1), np.int32)], ALL, 1),
    ("MultiHeadAttention", [QUERY, KEY, VALUE], BACK, 1),
    ("MultiHeadAttention", [QUERY, KEY, VALUE, None, ints(4, 7, 0, 5, 10, 0, 7, 14)], ALL, 1),
    ("RotaryEmbedding", [X, np.array([3]), *([one] for one in TABLES)], {"scale": 2.0}, 1),
]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] if one == "MultiHeadAttention" else []) for one in NATIVE]
)
def test_it_computes_what_onnx_runtime_does(name: str, dialect: Dialect, target: Target, tmp_path: Path) -> None:
    assert not compare(NATIVE[name], dialect, target, tmp_path)


def test_forms_that_are_not_known_stay_in_onnx_runtime(dialect: Dialect, target: Target, tmp_path: Path) -> None:
    assert compare(ELSEWHERE, dialect, target, tmp_path) == len(ELSEWHERE)
