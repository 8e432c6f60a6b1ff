"""Operator keys are equal for equal operators, however they are told, and different for different ones."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery.domain import OperatorKey, OperatorKeyError, OperatorPattern, operator_key
from tunery.domain.operator_key import number

SIZES = st.integers(1, 4096)
DTYPES = st.sampled_from(["float32", "float16", "int8"])
STEPS = st.lists(st.sampled_from(["relu", "add=1x8x1x1", "clip=0,6", "multiply=$0", "gelu"]), max_size=3)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, object]:
    """What a convolution is, each attribute told."""
    groups = draw(st.sampled_from([1, 2, 4]))
    channels, kernels = groups * draw(st.integers(1, 64)), groups * draw(st.integers(1, 64))
    height, width = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    twice = st.tuples(st.integers(1, 3), st.integers(1, 3))
    return {
        "x": (draw(st.integers(1, 8)), channels, draw(SIZES), draw(SIZES)),
        "w": (kernels, channels // groups, height, width), "strides": draw(twice), "dilations": draw(twice),
        "pads": draw(st.tuples(*[st.integers(0, 3)] * 4)), "groups": groups, "dtype": draw(DTYPES),
        "fused": tuple(draw(STEPS)),
    }  # fmt: skip


DEFAULTS = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}


def key_of(told: Mapping[str, object], order: random.Random | None = None, *, bare: bool = False) -> str:
    """Return the key from attributes in some order, those at their defaults left out if it is `bare`."""
    dtype = str(told["dtype"])
    attributes = {name: told[name] for name in DEFAULTS if not (bare and told[name] == DEFAULTS[name])}
    tensors = {name: (told[name], dtype) for name in ("x", "w")}
    if order:
        attributes, tensors = (dict(order.sample(list(parts.items()), len(parts))) for parts in (attributes, tensors))
    return operator_key("conv2d", tensors, attributes, told["fused"])  # type: ignore[arg-type]


@given(convolutions(), st.randoms(use_true_random=False))
def test_the_order_of_parts_and_defaults_that_are_told_change_no_key(
    told: dict[str, object], order: random.Random
) -> None:
    key = key_of(told)
    assert key_of(told, order) == key_of(told, bare=True) == key
    assert str(OperatorKey.parse(key)) == key, "a key is its own text"
    spaced = key.replace(",", " , ").replace("+", " + ").upper()
    assert str(OperatorKey.parse(spaced)) == key


@given(convolutions(), convolutions())
def test_keys_are_equal_only_for_equal_operators(one: dict[str, object], other: dict[str, object]) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@given(convolutions(), st.data())
def test_any_change_is_another_key(told: dict[str, object], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["x", "w", "strides", "dilations", "pads", "groups", "dtype", "fused"]))
    value = told[name]
    other: object
    if isinstance(value, int):
        other = value + 1
    elif isinstance(value, str):
        other = data.draw(DTYPES.filter(lambda dtype: dtype != value))
    elif name == "fused":
        other = (*value, "tanh")  # type: ignore[misc]
    else:
        place = data.draw(st.integers(0, len(value) - 1))  # type: ignore[arg-type]
        other = tuple(size + (i == place) for i, size in enumerate(value))  # type: ignore[arg-type, var-annotated]
    assert key_of(told) != key_of({**told, name: other})


@given(convolutions(), convolutions(), st.data())
def test_a_part_of_a_key_matches_it_and_no_operator_of_another_part(
    told: dict[str, object], other: dict[str, object], data: st.DataObject
) -> None:
    key, another = OperatorKey.parse(key_of(told)), OperatorKey.parse(key_of(other))
    names = data.draw(st.lists(st.sampled_from(["w", "strides", "dilations", "pads", "groups"]), unique=True))
    texts = {
        name: str(told[name]) if isinstance(told[name], int) else "x".join(map(str, told[name]))  # type: ignore[call-overload]
        for name in names
    }
    pattern = OperatorPattern.parse("conv2d:" + ",".join(f"{name}={text}" for name, text in texts.items()))
    assert pattern.matches(key)
    assert pattern.matches(another) == all(told[name] == other[name] for name in names)
    whole = str(key)
    cut = data.draw(st.sampled_from([i + 1 for i, one in enumerate(whole) if one.isdigit() and "=" in whole[:i]]))
    assert OperatorPattern.parse(whole[:cut]).matches(key)
    assert OperatorPattern.parse(whole).matches(key)


@pytest.mark.parametrize("kind", ["conv2d", "softmax", "matmul"])
def test_a_kind_names_its_operators_and_no_others(kind: str) -> None:
    keys = ["conv2d:x=1x3x8x8:float32,w=4x3x3x3", "conv2d_transpose:x=1x3x8x8:float32,w=3x4x3x3:float32",
            "softmax:x=8x8:float32", "matmul:a=8x8:float32,b=8x8"]  # fmt: skip
    found = [key for key in keys if OperatorPattern.parse(f"{kind}:").matches(OperatorKey.parse(key))]
    assert [key.partition(":")[0] for key in found] == [kind]


@given(st.permutations(["size=8", "n=4x4:float32", "b=3:int8", "order=up"]))
def test_of_an_operator_that_is_not_known_the_order_does_not_count_either(parts: list[str]) -> None:
    assert str(OperatorKey.parse("nbody:" + ",".join(parts))) == "nbody:b=3:int8,n=4x4:float32,order=up,size=8"


@given(st.text(alphabet="convmatul2d:x=1,+$w;float32 -.%\n", max_size=60))
def test_any_text_is_a_key_or_refused(text: str) -> None:
    try:
        found = OperatorKey.parse(text)
    except OperatorKeyError:
        return
    key = str(found)
    assert str(OperatorKey.parse(key)) == key
    assert OperatorPattern.parse(key).matches(found)


def test_a_number_is_told_to_its_last_digit_that_counts() -> None:
    assert number(2147483647, "int32") == "2147483647"
    assert number(2147483647.0, "float64") == "2147483647"
    assert number(0.1 + 2e-17, "float32") == "0.1"


@pytest.mark.parametrize(
    "text",
    ["", "conv2d", "conv2d:", "conv2d:x=1x3x8x8", "conv2d:x=1x3x8x8:float32", "conv2d:x=8:float32,x=8:float32,w=8",
     "matmul:a=8x8:float32,b=8x8,size=3", "matmul:a=8xfloat32:float32,b=8x8", "matmul:a=8x8:float32,b=8x8+",
     "softmax:x=8:float32" + "+relu" * 1000, "nbody:n=3", "matmul:a=8x8:float32,b=8x8:"],
)  # fmt: skip
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(OperatorKeyError):
        OperatorKey.parse(text)
