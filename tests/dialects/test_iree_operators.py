"""Operator keys of IREE's dispatches: equal to other importers' for equal products, none where that is not certain."""

from hypothesis import given
from hypothesis import strategies as st

from tunery.dialects.iree.operators import operator_of
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
