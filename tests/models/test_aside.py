"""Large weights go round the steps of simplifying, and come out as if they had gone through them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_models import model, save
from onnx import helper, numpy_helper

from tunery import models as frontends
from tunery._errors import ModelError
from tunery.models.onnx import _detached as _aside
from tunery.models.onnx._detached import detach_weights, serialised

SIZE = 260  # more than 65,536 elements, and no length that fits one byte


def weight(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or (SIZE, SIZE)).astype("float32")


def products(*nodes: tuple[str, list[str], str], **weights: np.ndarray) -> onnx.ModelProto:
    made = [helper.make_node(kind, names, [to]) for kind, names, to in nodes]
    return model(made, {"x": (4, SIZE)}, {"y": (4, SIZE)}, weights)


def chain() -> onnx.ModelProto:
    return products(
        ("MatMul", ["x", "a"], "p"), ("Gemm", ["p", "b", "bias"], "q"), ("MatMul", ["q", "a"], "y"),
        a=weight(1), b=weight(2), bias=weight(3, SIZE), unused=weight(4),
    )  # fmt: skip


def test_what_only_meets_data_is_set_aside_and_told_from_the_rest_by_value_alone() -> None:
    proto = chain()
    values = detach_weights(proto)
    assert values.keys() == {"a", "b"}
    whole = onnx.ModelProto.FromString(b"".join(serialised(proto, values)))
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    assert found.keys() == {"a", "b", "bias", "unused"}
    for seed, name in enumerate(("a", "b"), 1):
        np.testing.assert_array_equal(found[name], weight(seed))


@pytest.mark.parametrize(
    "proto",
    [
        products(("MatMul", ["a", "b"], "c"), ("MatMul", ["x", "c"], "y"), a=weight(1), b=weight(2)),
        products(("Transpose", ["a"], "b"), ("MatMul", ["x", "b"], "y"), a=weight(1)),
        products(("MatMul", ["x", "a"], "p"), ("Add", ["p", "b"], "y"), a=weight(1, 8, 8), b=weight(2)),
        products(
            ("MatMul", ["x", "a"], "p"), ("BatchNormalization", ["p", "s", "s", "s", "s"], "y"),
            a=weight(1), s=np.ones(SIZE, "float32"),
        ),
        products(
            ("MatMul", ["x", "a"], "p"), ("Transpose", ["p"], "q"),
            ("BatchNormalization", ["q", "s", "s", "s", "s"], "y"),
            a=weight(1), s=np.ones(SIZE, "float32"),
        ),
    ],
    ids=["product of constants", "changed before", "small, and added", "normalised", "moved and normalised"],
)  # fmt: skip
def test_what_a_step_may_change_stays(proto: onnx.ModelProto) -> None:
    assert not detach_weights(proto)


def test_the_normal_form_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(chain(), tmp_path / "chain.onnx")
    aside = onnx.load(frontends.prepare(path, {}, tmp_path / "aside").path)
    monkeypatch.setattr(_aside, "_LARGE", SIZE**2)
    through = onnx.load(frontends.prepare(path, {}, tmp_path / "through").path)
    weights = [
        {tensor.name: (tuple(tensor.dims), tensor.raw_data) for tensor in one.graph.initializer}
        for one in (aside, through)
    ]
    assert weights[0] == weights[1]
    assert {"a", "b"} <= weights[0].keys()
    for one in (aside, through):
        del one.graph.initializer[:], one.metadata_props[:]
    assert aside == through


def test_what_is_set_aside_counts_for_the_size_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(chain(), tmp_path / "chain.onnx")
    monkeypatch.setattr("tunery.models.onnx._simplify.MOST_BYTES", 2 * 4 * SIZE**2)
    with pytest.raises(ModelError, match="more than 2 GB"):
        frontends.prepare(path, {}, tmp_path)
