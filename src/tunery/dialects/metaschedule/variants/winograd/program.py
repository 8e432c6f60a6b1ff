"""Winograd's minimal filtering for 3x3 convolutions of stride 1: F(4x4, 3x3); F(2x2, 3x3) has won no race against it.
Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (arXiv 1509.09308): every tile of m x m outputs
costs (m + 2)^2 multiplications for each pair of channels instead of 9 m^2, so 4 times fewer. Weights are transformed
beforehand. The points of F(4x4) are not the paper's 0, ±1, ±2, whose largest error was 5 times that of an ordinary
convolution in float32 (256 channels), but 0, ±3/4, ±3/2, where it was 1.5 times."""

from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from tunery._errors import DialectError
from tunery.dialects.metaschedule._tvm import tvm, tvm_ffi
from tunery.dialects.metaschedule.loading.preparing import KERNEL, Matrix, matrices
from tunery.dialects.metaschedule.reasons import OtherKindError
from tunery.dialects.metaschedule.variants.rewriting import Fused, fuse, long_of, shape_of

TILE, NAME = 4, "winograd4"
SLACK = 2.0
"""How many times the usual tolerance it is given: the largest share of it that was needed was 1.5."""

_LEAST_CHANNELS = 16


@dataclass(frozen=True)
class WinogradProgram:
    """A convolution's program with Winograd inside: `weight` is the index of the argument that is transformed,
    `channels` the number of input and output channels."""

    module: Any
    weight: int
    channels: tuple[int, int]


def rewrite(module: Any) -> WinogradProgram:
    """Return the module with its convolution computed by Winograd; what surrounds the convolution stays."""
    found = _Convolution(module["main"])
    if not found.constant:
        raise DialectError("the weights are not constant, or too few to be packed")
    return WinogradProgram(fuse(found, _core(found)), found.weight, found.channels)


class _Convolution(Fused):
    channels: tuple[int, int]

    @override
    def operands(self, block: Any) -> tuple[Any, Any, Any]:
        """Return data, weights and output of `out[n,y,x,f] += data[n,y+ry,x+rx,c] * weights[ry,rx,c,f]`."""
        axes = [axis.var for axis in block.iter_vars]
        sums = block.body.value
        if len(axes) != 4 + KERNEL or type(sums).__name__ != "Add" or type(sums.b).__name__ != "Mul":
            raise OtherKindError("the reduction is not a two-dimensional convolution")
        n, y, x, f, ry, rx, c = axes
        data, weights = sums.b.a, sums.b.b
        if not all(isinstance(load, tvm.ir.TensorLoad) for load in (sums.a, data, weights)):
            raise OtherKindError("the reduction is not a convolution of two arrays")
        expected = [n, y + ry, x + rx, c], [ry, rx, c, f], [n, y, x, f]
        given = data.indices, weights.indices, block.body.indices
        for want, have in zip(expected, given, strict=True):
            if len(want) != len(have) or not all(
                tvm_ffi.structural_equal(a, b) for a, b in zip(want, have, strict=True)
            ):
                raise OtherKindError("it is not an ordinary convolution with stride 1 in NHWC")
        return data.source, weights.source, block.body.buffer

    @override
    def check(self, weights: list[int]) -> None:
        batch, height, width, channels = shape_of(self.data)
        if weights[:2] != [KERNEL, KERNEL] or weights[2] != channels:
            raise OtherKindError(f"the weights are {weights}, not 3x3 over all channels")
        out = shape_of(self.output)
        if out != [batch, height - KERNEL + 1, width - KERNEL + 1, weights[3]]:
            raise OtherKindError("the stride is not 1")
        if min(weights[2:]) < _LEAST_CHANNELS:
            raise DialectError(f"fewer than {_LEAST_CHANNELS} channels")
        if any(str(b.ty.dtype) != "float32" for b in (self.data, self.output)):
            raise DialectError("it is not in float32")
        self.channels = (weights[2], weights[3])


def _core(found: _Convolution) -> Any:
    from tvm import te

    tile = TILE
    to_data, _, to_output = matrices(tile)
    size = tile + KERNEL - 1
    batch, padded_height, padded_width, channels_in = shape_of(found.data)
    _, height, width, channels_out = shape_of(found.output)
    rows, columns = -(-height // tile), -(-width // tile)
    data = te.placeholder(long_of(batch, padded_height, padded_width, channels_in), name="data")
    weights = te.placeholder(long_of(size, size, channels_in, channels_out), name="weights")

    def inside(n: Any, h: Any, w: Any, c: Any) -> Any:
        checks = [h < padded_height] if rows * tile + 2 > padded_height else []
        checks += [w < padded_width] if columns * tile + 2 > padded_width else []
        value = data[n, h, w, c]
        return tvm.tirx.if_then_else(tvm.tirx.all(*checks), value, tvm.tirx.const(0, "float32")) if checks else value

    patch = te.compute(
        long_of(batch * rows, columns, size, size, channels_in),
        lambda i, j, r, s, c: inside(i // rows, i % rows * tile + r, j * tile + s, c),
        name="winograd_patch",
    )
    half_in = te.compute(
        long_of(batch * rows, columns, size, size, channels_in),
        lambda i, j, r, nu, c: _row(to_data, nu, lambda s: patch[i, j, r, s, c]),
        name="winograd_half_in",
    )
    packed = te.compute(
        long_of(size, size, batch * rows, columns, channels_in),
        lambda eps, nu, i, j, c: _row(to_data, eps, lambda r: half_in[i, j, r, nu, c]),
        name="winograd_in",
    )
    k = te.reduce_axis((tvm.tirx.IntImm("int64", 0), tvm.tirx.IntImm("int64", channels_in)), name="k")
    product = te.compute(
        long_of(size, size, batch * rows, columns, channels_out),
        lambda eps, nu, i, j, o: te.sum(packed[eps, nu, i, j, k] * weights[eps, nu, k, o], axis=[k]),
        name="winograd_gemm",
    )
    half_out = te.compute(
        long_of(batch * rows, columns, size, tile, channels_out),
        lambda i, j, eps, v, o: _row(to_output, v, lambda nu: product[eps, nu, i, j, o]),
        name="winograd_half_out",
    )
    inverse = te.compute(
        long_of(batch * rows, columns, tile, tile, channels_out),
        lambda i, j, u, v, o: _row(to_output, u, lambda eps: half_out[i, j, eps, v, o]),
        name="winograd_out",
    )
    output = te.compute(
        long_of(batch, height, width, channels_out),
        lambda n, h, w, o: inverse[n * rows + h // tile, w // tile, h % tile, w % tile, o],
        name="winograd_conv",
    )
    return te.create_prim_func([data, weights, output])


def _row(matrix: Matrix, index: Any, load: Any) -> Any:
    sums = [_combination(row, load) for row in matrix]
    chosen = sums[-1]
    for i in range(len(sums) - 2, -1, -1):
        chosen = tvm.tirx.Select(index == i, sums[i], chosen)
    return chosen


def _combination(row: Matrix, load: Any) -> Any:
    total = None
    for k, coefficient in sorted(enumerate(row), key=lambda term: -term[1]):  # a positive one first: no negation
        if coefficient:
            factor = tvm.tirx.const(abs(coefficient), "float32")
            term = load(k) if abs(coefficient) == 1 else load(k) * factor
            if total is None:
                total = term if coefficient > 0 else tvm.tirx.const(0, "float32") - term
            else:
                total = total + term if coefficient > 0 else total - term
    return total
