"""Every input gets a static shape, or one sentence says how to give it one."""

import shlex

import pytest
from frontend_models import Dims, model
from onnx import TensorProto, helper

from tunery._errors import ModelError
from tunery.cli.console.options import parse_shapes
from tunery.models.onnx._bind import batch_of_one, bind, declared_dims


def adder(**inputs: Dims) -> object:
    names = list(inputs)
    nodes = [helper.make_node("Sum", names, ["y"])]
    return model(nodes, inputs, {"y": ("anything",)})


@pytest.mark.parametrize(
    "batch", ["N", "n", "batch", "batch_size", "Batch", None, "unk__17", "p2o.DynamicDimension.0", "s77"]
)
def test_a_free_batch_is_one(batch: str | None) -> None:
    assert bind(adder(x=(batch, 4)), {}) == {"x": (1, 4)}


@pytest.mark.parametrize(
    ("dims", "shapes", "inputs"),
    [
        ({"x": ("batch", 4)}, {}, ("x",)),
        ({"x": (1, 4)}, {}, ()),
        ({"x": ("batch", 4)}, {"x": (1, 4)}, ()),
        ({"a": ("batch", 4), "b": ("batch", 4)}, {"a": (1, 4)}, ()),
        ({"a": ("batch", 4), "b": (None, 4)}, {"a": (2, 4)}, ("b",)),
        ({"a": ("batch", 4)}, {"batch": (1,)}, ()),
        ({"a": ("batch", "t")}, {"t": (3,)}, ("a",)),
    ],
)
def test_a_batch_that_became_one_is_told(
    dims: dict[str, Dims], shapes: dict[str, tuple[int, ...]], inputs: tuple[str, ...]
) -> None:
    proto = adder(**dims)
    declared = declared_dims(proto)
    assert batch_of_one(declared, bind(proto, shapes), shapes) == inputs


def test_a_given_batch_wins_and_binds_all_inputs_of_that_name() -> None:
    assert bind(adder(a=("batch", 4), b=("batch", 4)), {"a": (3, 4)}) == {"a": (3, 4), "b": (3, 4)}
    assert bind(adder(a=("batch", 4)), {}, batch=5) == {"a": (5, 4)}


def test_a_dimension_is_bound_by_its_name() -> None:
    two = adder(a=("batch", "length"), b=("batch", "length"))
    assert bind(two, {"batch": (3,), "length": (7,)}) == {"a": (3, 7), "b": (3, 7)}
    assert bind(adder(x=("batch", "length")), {"x": (2, 5)}) == {"x": (2, 5)}
    for wrong in ({"other": (3,)}, {"length": (3, 4)}, {"batch": (2,), "a": (3, 4)}):
        with pytest.raises(ModelError) as caught:
            bind(adder(a=("batch", "length")), wrong)
        assert "\n" not in str(caught.value)


def test_a_dimension_is_bound_by_its_place() -> None:
    assert bind(adder(x=("batch", "length"), y=("batch", 4)), {"x:0": (3,), "x:1": (7,)}) == {"x": (3, 7), "y": (3, 4)}
    assert bind(adder(x=(None, "?"), y=(None, 4)), {"x:1": (7,)}) == {"x": (1, 7), "y": (1, 4)}
    assert bind(adder(**{"x:0": (None, 2)}), {"x:0": (3, 2)}) == {"x:0": (3, 2)}
    for wrong in ({"x:1": (3,)}, {"x:2": (3,)}, {"x:0": (3, 3)}, {"x:0": (3,), "batch": (2,)}, {"z:0": (3,)}):
        with pytest.raises(ModelError) as caught:
            bind(adder(x=("batch", 4)), wrong)
        assert "\n" not in str(caught.value)


def test_a_dimension_that_is_a_sum_follows_from_its_parts() -> None:
    graph = adder(x=("batch", "past + 1"), p=("batch", "past"), m=("batch", "past + new"), n=("batch", "new"))
    assert bind(graph, {"past": (16,), "new": (4,)}) == {"x": (1, 17), "p": (1, 16), "m": (1, 20), "n": (1, 4)}


def test_unnamed_dimensions_are_not_one_dimension() -> None:
    assert bind(adder(x=("?", 3, "?", "?")), {"x": (1, 3, 8, 9)}) == {"x": (1, 3, 8, 9)}


def test_a_static_shape_may_be_replaced() -> None:
    assert bind(adder(x=(1, 4)), {"x": (2, 4)}) == {"x": (2, 4)}


def test_dimensions_of_zero_are_bound_one_by_one() -> None:
    assert bind(adder(a=(0, 4), b=(0, 4)), {"a": (2, 4), "b": (3, 4)}) == {"a": (2, 4), "b": (3, 4)}


def test_an_input_of_unknown_rank_takes_the_given_shape() -> None:
    proto = adder(x=(1,))
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert bind(proto, {"x": (2, 3)}) == {"x": (2, 3)}
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="unknown rank"):
        bind(proto, {})


@pytest.mark.parametrize(
    ("inputs", "shapes", "message"),
    [
        (
            {"x": ("N", 3, "H", "W")},
            {},
            r"'x' is \[N, 3, H, W\]. .*for example with --shape H=224 --shape W=224",
        ),
        ({"x": ("N", "?", "?", "?")}, {}, "--shape x=1x3x224x224"),
        ({"ids": ("batch", "sequence")}, {}, "--shape sequence=128"),
        ({"audio": (1, "samples")}, {}, "--shape samples=16000"),
        ({"sample": ("batch", 4), "timestep": ("s48",)}, {}, r"--shape timestep=1(?!\d)"),
        ({"h": (1, 3, "frames", 160)}, {}, "--shape frames=128"),
        ({"a": (1, "s"), "b": (1, "t")}, {"a": (1, 2)}, r"unknown size: 'b' is \[1, t\]\. .*--shape t=128"),
        ({"x": (1, 4)}, {"z": (1, 4)}, "no input 'z'; its inputs are 'x'"),
        ({"x": (1, 4)}, {"x": (1, 4, 1)}, r"'x' has 2 dimensions \[1, 4\], not the 3 of 1x4x1; .*--shape x=1x4"),
        ({"x": (1, 4)}, {"x": (0, 4)}, "cannot have the shape 0x4"),
        ({"x": ("N", 8)}, {"N": (10**9,)}, "'x' would have 8,000,000,000 elements"),
        ({"x": (0, 4)}, {}, r"'x' is \[0, 4\], and a dimension of 0 holds nothing. .*--shape x=1x4"),
        ({"a": ("s", 4), "b": ("s", 4)}, {"a": (2, 4), "b": (3, 4)}, "'s' cannot be both 2 and 3"),
    ],
)
def test_what_cannot_be_bound_says_what_to_write(inputs: dict, shapes: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        bind(adder(**inputs), shapes)


def test_a_batch_given_twice_must_agree() -> None:
    with pytest.raises(ModelError, match="batch of 2, but @8"):
        bind(adder(x=("batch", 4)), {"x": (2, 4)}, batch=8)


def test_inputs_that_are_not_numbers_are_refused() -> None:
    proto = adder(x=(1,))
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(ModelError, match="holds text"):
        bind(proto, {})
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="no tensor"):
        bind(proto, {})


def test_a_suggested_option_is_quoted_for_a_shell() -> None:
    hostile = "x;$(touch marker) 'y'"
    with pytest.raises(ModelError) as caught:
        bind(adder(**{hostile: ("?", hostile)}), {})
    words = shlex.split(str(caught.value).rpartition("for example with ")[2])
    assert words == ["--shape", f"{hostile}=128"]


@pytest.mark.parametrize("mask", ["past_sequence_length + 1", "past_sequence_length + sequence_length",
                                  "total_sequence_length"])  # fmt: skip
def test_what_is_suggested_for_dimensions_that_depend_on_each_other_fits(mask: str) -> None:
    """As exporters write a decoder with a cache: the mask is as long as what is past and what is new."""
    new = 1 if mask.endswith("1") else "sequence_length"
    inputs = {"ids": ("batch", new), "mask": ("batch", mask), "past": ("batch", 2, "past_sequence_length", 8)}
    with pytest.raises(ModelError) as caught:
        bind(adder(**inputs), {})
    flags = shlex.split(str(caught.value).rpartition("for example with ")[2])[1::2]
    [shapes] = parse_shapes(flags)
    bound = bind(adder(**inputs), shapes)
    assert bound["mask"][1] == bound["past"][2] + bound["ids"][1]


def test_a_mask_whose_length_torch_named_anew_is_as_long_as_the_cache_that_comes_back() -> None:
    proto = adder(ids=("s27", 1), attention_mask=("s5", "s41"), past=("s27", 2, "s25", 8))
    output = proto.graph.output[0].type.tensor_type.shape
    del output.dim[:]
    for dim in ("s27", "s25 + 1"):
        output.dim.add().dim_param = dim
    with pytest.raises(ModelError) as caught:
        bind(proto, {})
    [shapes] = parse_shapes(shlex.split(str(caught.value).rpartition("for example with ")[2])[1::2])
    assert bind(proto, shapes)["attention_mask"] == (1, 129)
