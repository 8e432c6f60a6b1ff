"""Operator keys of IREE's dispatches: equal to other importers' for equal operators, none where that is not certain."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunery.dialects.iree.dispatches import dispatches
from tunery.dialects.iree.operators import Convolution, convolutions, operator_of, without_locations
from tunery.domain import operator_key

SIZES = st.integers(1, 512)
LOAD = "iree_tensor_ext.dispatch.tensor.load %arg"


def tensor(shape: tuple[int, ...]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}f32>"


def product(
    m: int, n: int, k: int, *, transposed: bool = False, rows: bool = True, behind: str = "", zero: str = "0.000000e+00"
) -> str:
    """Return an executable that multiplies matrices, or a vector by one, and does `behind` to each element."""
    left, right = (m, k) if rows else (k,), (n, k) if transposed else (k, n)
    out = (m, n) if rows else (n,)
    loops = "d0, d1, d2" if rows else "d1, d2"
    maps = ("d0, d2" if rows else "d2", "d1, d2" if transposed else "d2, d1", "d0, d1" if rows else "d1")
    kinds = ", ".join(['"parallel"'] * len(out) + ['"reduction"'])
    listed = ", ".join(f"affine_map<({loops}) -> ({one})>" for one in maps)
    last = "%5"
    if behind:
        outer = "d0, d1" if rows else "d1"
        each = ", ".join(f"affine_map<({outer}) -> ({one})>" for one in (outer, "d1", outer))
        parallel = ", ".join(['"parallel"'] * len(out))
        behind = f"""\
        %6 = linalg.generic {{indexing_maps = [{each}], iterator_types = [{parallel}]}} \
ins(%5, %2 : {tensor(out)}, {tensor((n,))}) outs(%3 : {tensor(out)}) {{
        ^bb0(%in: f32, %in_0: f32, %out: f32):
{behind}        }} -> {tensor(out)}
"""
        last = "%6"
    return f"""\
        %cst = arith.constant {zero} : f32
        %0 = {LOAD}0, offsets = [0] : !x -> {tensor(left)}
        %1 = {LOAD}1, offsets = [0] : !x -> {tensor(right)}
        %2 = {LOAD}2, offsets = [0] : !x -> {tensor((n,))}
        %3 = tensor.empty() : {tensor(out)}
        %4 = linalg.fill ins(%cst : f32) outs(%3 : {tensor(out)}) -> {tensor(out)}
        %5 = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{kinds}]}} \
ins(%0, %1 : {tensor(left)}, {tensor(right)}) outs(%4 : {tensor(out)}) {{
        ^bb0(%in: f32, %in_0: f32, %out: f32):
          %7 = arith.mulf %in, %in_0 : f32
          %8 = arith.addf %out, %7 : f32
          linalg.yield %8 : f32
        }} -> {tensor(out)}
{behind}        iree_tensor_ext.dispatch.tensor.store {last}, %arg3, offsets = [0] : {tensor(out)} -> !x
"""


BIAS = "          %7 = arith.addf %in, %in_0 : f32\n"
RELU = "          %8 = arith.cmpf ugt, %7, %cst : f32\n          %9 = arith.select %8, %7, %cst : f32\n"


def done(value: str) -> str:
    return f"          linalg.yield {value} : f32\n"


@given(SIZES, SIZES, SIZES, st.booleans())
def test_a_product_has_the_key_that_other_importers_give_it(m: int, n: int, k: int, rows: bool) -> None:
    m = m if rows else 1
    tensors = {"a": ((m, k), "float32"), "b": ((k, n), "float32")}
    assert operator_of(product(m, n, k, rows=rows)) == operator_key("matmul", tensors)
    assert operator_of(product(m, n, k, rows=rows, behind=BIAS + done("%7"))) == operator_key(
        "matmul", tensors, {}, [f"add=1x{n}"]
    )
    assert operator_of(product(m, n, k, rows=rows, behind=BIAS + RELU + done("%9"))) == operator_key(
        "matmul", tensors, {}, [f"add=1x{n}", "relu"]
    )


@given(st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES))
def test_keys_of_other_products_differ(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (operator_of(product(*one)) == operator_of(product(*other))) == (one == other)


def test_a_transposed_operand_is_the_compilers_own_affair_only_if_it_is_constant() -> None:
    assert operator_of(product(4, 5, 6, transposed=True)) is None
    assert operator_of(product(4, 5, 6, transposed=True), {1}) == operator_of(product(4, 5, 6))


def test_what_is_not_certain_has_no_key() -> None:
    assert operator_of(product(4, 5, 6, zero="1.000000e+00")) is None, "it begins with ones"
    root = "          %8 = math.sqrt %7 : f32\n"
    assert operator_of(product(4, 5, 6, behind=BIAS + root + done("%8"))) is None
    maximum = product(4, 5, 6).replace("arith.addf %out", "arith.maximumf %out")
    assert operator_of(maximum) is None
    doubled = product(4, 5, 6).replace("arith.mulf %in, %in_0", "arith.mulf %in, %in")
    assert operator_of(doubled) is None
    assert operator_of("") is None


@st.composite
def points(draw: st.DrawFn) -> Convolution:
    """A convolution whose windows are single places."""
    channels, kernels = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    out, strides = draw(st.tuples(*[st.integers(2, 32)] * 2)), draw(st.sampled_from([(1, 1), (2, 2), (1, 3)]))
    image = tuple((size - 1) * step + 1 for size, step in zip(out, strides, strict=True))
    return Convolution((1, channels, *image), (kernels, channels, 1, 1), (1, kernels, *out), draw(st.booleans()), 1, (),
                       strides)  # fmt: skip


def dispatch_of(convolution: Convolution, behind: str = "", operand: tuple[int, ...] = (), begin: str = "%2") -> str:
    """Return what IREE makes of such a convolution: places and channels, or with strides, channels and places.

    `behind` is what is done to each element, with an `operand` of that shape beside it.
    """
    _, c, *image = convolution.image
    _, k, *out = convolution.result
    if max(convolution.strides) > 1:
        shapes, outer, inner = ((*image, c), (k, c), (k, *out)), "d0, d1, d2", "d0, d3"
        rows = [f"d{at + 1} * {step}" if step > 1 else f"d{at + 1}" for at, step in enumerate(convolution.strides)]
        maps, loops = (f"{', '.join(rows)}, d3", inner, outer), f"{outer}, d3"
        channel = "d0"
    else:
        places = out[0] * out[1]
        shapes, outer, loops = ((places, c), (k, c), (places, k)), "d0, d1", "d0, d1, d2"
        maps, channel = ("d0, d2", "d1, d2", outer), "d1"
    result = tensor(shapes[2])
    begun = "%4" if not convolution.has_bias else begin
    more, last = "", "%5"
    if behind:
        listed = (outer, channel if len(operand) == 1 else outer, outer)
        each = ", ".join(f"affine_map<({outer}) -> ({one})>" for one in listed)
        kinds = ", ".join(['"parallel"'] * len(shapes[2]))
        more, last = (
            f"""\
        %6 = linalg.generic {{indexing_maps = [{each}], iterator_types = [{kinds}]}} \
ins(%5, %3 : {result}, {tensor(operand)}) outs(%9 : {result}) {{
        ^bb0(%in: f32, %in_0: f32, %out: f32):
{behind}        }} -> {result}
""",
            "%6",
        )
    listed = ", ".join(f"affine_map<({loops}) -> ({one})>" for one in maps)
    kinds = ", ".join(['"parallel"'] * len(shapes[2]) + ['"reduction"'])
    return f"""\
        %cst = arith.constant 0.000000e+00 : f32
        %six = arith.constant 6.000000e+00 : f32
        %0 = {LOAD}0, offsets = [0] : !x -> {tensor(shapes[0])}
        %1 = {LOAD}1, offsets = [0] : !x -> {tensor(shapes[1])}
        %2 = {LOAD}2, offsets = [0] : !x -> {result}
        %3 = {LOAD}3, offsets = [0] : !x -> {tensor(operand)}
        %9 = tensor.empty() : {result}
        %4 = linalg.fill ins(%cst : f32) outs(%9 : {result}) -> {result}
        %5 = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{kinds}]}} \
ins(%0, %1 : {tensor(shapes[0])}, {tensor(shapes[1])}) outs({begun} : {result}) {{
        ^bb0(%in: f32, %in_0: f32, %out: f32):
          %7 = arith.mulf %in, %in_0 : f32
          %8 = arith.addf %out, %7 : f32
          linalg.yield %8 : f32
        }} -> {result}
{more}        iree_tensor_ext.dispatch.tensor.store {last}, %arg4, offsets = [0] : {result} -> !x
"""


FIXED = {1, 2}  # the weights, and where it is there the bias
SIX = (
    "          %10 = arith.cmpf ult, %7, %cst : f32\n          %11 = arith.select %10, %cst, %7 : f32\n"
    "          %12 = arith.cmpf ugt, %11, %six : f32\n          %13 = arith.select %12, %six, %11 : f32\n"
)


def told(convolution: Convolution, *steps: str) -> str:
    """Return the key that other importers give it."""
    bias = [f"add=1x{convolution.weights[0]}x1x1"] * convolution.has_bias
    tensors = {"x": (convolution.image, "float32"), "w": (convolution.weights, "float32")}
    return operator_key("conv2d", tensors, {"strides": convolution.strides}, [*bias, *steps])


@given(points())
def test_a_convolution_that_is_one_product_has_the_key_that_other_importers_give_it(one: Convolution) -> None:
    assert operator_of(dispatch_of(one), FIXED, one) == told(one)
    _, k, rows, columns = one.result
    whole = (k, rows, columns) if max(one.strides) > 1 else (rows * columns, k)
    residual = dispatch_of(one, BIAS + RELU + done("%9"), whole)
    assert operator_of(residual, FIXED, one) == told(one, f"add=1x{k}x{rows}x{columns}", "relu")
    # Its bias may be added behind it.
    clipped = dispatch_of(replace(one, has_bias=False), BIAS + SIX + done("%13"), (k,))
    one = replace(one, has_bias=True)
    assert operator_of(clipped, FIXED, one) == told(one, "clip=0,6")


@given(points(), points())
def test_keys_of_other_convolutions_differ(one: Convolution, other: Convolution) -> None:
    keys = [operator_of(dispatch_of(each), FIXED, each) for each in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assume(one.weights != other.weights)
    assert operator_of(dispatch_of(one), FIXED, other) != told(other), "a dispatch of another convolution"


@given(points())
def test_a_part_of_a_convolution_is_none(one: Convolution) -> None:
    """Padding and windows are other dispatches; what begins with numbers that vary is more than a convolution."""
    for other in (
        replace(one, pads=(1, 1, 1, 1)), replace(one, groups=2), replace(one, has_bias=not one.has_bias),
        replace(one, weights=(*one.weights[:2], 3, 3)), replace(one, strides=(4, 4)),
        replace(one, image=(2, *one.image[1:])),
    ):  # fmt: skip
        assert "conv" not in (operator_of(dispatch_of(one), FIXED, other) or "")
    begun = dispatch_of(replace(one, has_bias=True))
    assert "conv" not in (operator_of(begun, {1}, replace(one, has_bias=True)) or "")


@pytest.mark.parametrize("pad", ["", ', torch.onnx.auto_pad = "NOTSET"'])
def test_what_an_importer_writes_of_a_convolution_is_read(pad: str, tmp_path: Path) -> None:
    line = (
        '    %44 = torch.operator "onnx.Conv"(%arg0, %0, %22) {torch.onnx.group = 1 : si64, torch.onnx.strides = '
        f"[2 : si64, 1 : si64]{pad}}} : (!torch.vtensor<[1,3,9,8],f32>, !torch.vtensor<[4,3,1,1],f32>, "
        "!torch.vtensor<[4],f32>) -> !torch.vtensor<[1,4,5,8],f32> \n"
    )
    half, same = line.replace("f32", "f16"), line.replace("{", '{torch.onnx.auto_pad = "SAME_UPPER", ')
    (tmp_path / "network.mlir").write_text(f"module {{\n{line}{half}{same}}}\n{{-#\n{line}")
    expected = Convolution((1, 3, 9, 8), (4, 3, 1, 1), (1, 4, 5, 8), True, 1, (), (2, 1))
    assert convolutions(tmp_path / "network.mlir") == {2: expected}


def test_locations_are_told_by_line_and_leave_a_module_as_it_was() -> None:
    text = 'module {\n  %0 = f(%1) : x loc("a (b).mlir":7:11)\n  g loc(unknown)\n  h loc(fused["a":1:2, "a":3:4])\n}\n'
    plain, lines = without_locations(text)
    assert plain == "module {\n  %0 = f(%1) : x\n  g\n  h\n}\n"
    assert lines == [frozenset(), {7}, frozenset(), {1, 3}, frozenset()]


@pytest.mark.parametrize("other", [1, 2])
def test_a_dispatch_of_two_different_convolutions_is_of_neither(other: int) -> None:
    """IREE has one dispatch for products of the same sizes, of whatever convolutions they are."""
    one = Convolution((1, 8, 4, 6), (16, 8, 1, 1), (1, 16, 4, 6), False, 1, (), (1, 1))
    longer = replace(one, image=(1, 8, 2, 12), result=(1, 16, 2, 12))
    body = dispatch_of(one).replace("} -> tensor<24x16xf32>", '} -> tensor<24x16xf32> loc("m":1:1)')
    call = "flow.dispatch @d::@e(%a, %__constant_w) : (tensor<24x8xf32>, tensor<16x8xf32>) -> tensor<24x16xf32>"
    flow = (
        f"  flow.executable private @d {{\n    flow.executable.export public @e\n{body}  }}\n"
        f'  util.func public @main() {{\n    %1 = {call} loc("m":1:1)\n    %2 = {call} loc("m":{other}:1)\n  }}\n'
    )
    [found] = dispatches(flow, {1: one, 2: longer})
    assert (found.operator == told(one)) == (other == 1)
