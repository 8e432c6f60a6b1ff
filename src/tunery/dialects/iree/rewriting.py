"""A network with its convolutions and pools of images written as IREE's code is fast for: channels last, no windows.
IREE makes slow code of windows over an image. Here what a window sees becomes slices of the padded image, one for each
place of the window: a depthwise convolution is the sum of their products with the weights, a pool their maximum, and
any other convolution one product of matrices, of all slices side by side, for each group. Strides become a dimension,
so that a slice takes what lies together. Without strides, three to seven places of a row or column take Winograd's
algorithm (1980) in one dimension: of 3x3, 18 products for four results in place of 36. In two dimensions it is not
faster: it has more and smaller dispatches. Convolutions of few channels stay. Whatever is between, element by element,
stays channels last, too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

_Array = npt.NDArray[Any]
_LAST, _FIRST, _WINDOW = (0, 2, 3, 1), (0, 3, 1, 2), (2, 3)
_EACH = frozenset({"Relu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "LeakyRelu", "Elu", "Erf", "Exp",
                   "Sqrt", "Neg", "Abs", "Softplus", "Identity"})  # fmt: skip
_BOTH = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"})
_OLDEST = 13
"""The first version of ONNX's operators that has those written here in this form."""
_AXES_GIVEN = 18
"""The first version in which the axes of a mean are an input."""
_LEAST_CHANNELS = 8
"""With fewer, slices lie channels first: those of the other form are many short pieces."""
_KEPT_CHANNELS = 32
"""With fewer, IREE's own code for windows of several rows copies less than products need."""
_WINOGRAD_CHANNELS, _WINOGRAD_TILES = 16, 8
"""With fewer channels there is more to add than is saved, with fewer tiles more weights to read."""
_LEAST_TAPS, _MOST_TAPS = 3, 7
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
"""Of the polynomials by which Winograd's transforms are made: the first ones make the smallest factors."""
_LARGEST = 10**9
"""Bytes of a model's file: twice as many are the most that one file of ONNX can hold."""
_MOST_PLACES = 64


def rewrite(model: Path, output: Path, *, winograd: bool = True) -> bool:
    """Write a model that computes the same; return whether there is anything to rewrite. Where `winograd` says so,
    large convolutions take Winograd's algorithm, and those of few channels stay. What has inner graphs, or weights
    beside its file, is left as it is."""
    if model.stat().st_size > _LARGEST:
        return False
    whole = onnx.shape_inference.infer_shapes(onnx.load(model, load_external_data=False))
    version = max((one.version for one in whole.opset_import if one.domain in {"", "ai.onnx"}), default=0)
    inner = any(at.HasField("g") or at.graphs for node in whole.graph.node for at in node.attribute)
    beside = any(one.data_location == onnx.TensorProto.EXTERNAL for one in whole.graph.initializer)
    if version < _OLDEST or inner or beside or not _Rewriting(whole.graph, version, winograd=winograd).run():
        return False
    onnx.save(whole, output)
    return True


@dataclass(frozen=True)
class _Windows:
    """Windows over an image that is called `name`: `pads` are those before it, `out` is how many windows there are."""

    name: str
    size: tuple[int, ...]
    steps: tuple[int, ...]
    pads: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def whole(self) -> list[int]:
        return [(n + (k - 1) // step) * step for n, k, step in zip(self.out, self.size, self.steps, strict=True)]


class _Rewriting:
    """A graph on its way: `lasts` has the channels-last form of a value; those in `missing` have no other form yet."""

    def __init__(self, graph: onnx.GraphProto, version: int, *, winograd: bool) -> None:
        self._graph, self._version, self._has_winograd = graph, version, winograd
        self._constants = {one.name: one for one in graph.initializer}
        self._shapes = {one.name: tuple(one.dims) for one in graph.initializer}
        for one in (*graph.value_info, *graph.input, *graph.output):
            kind = one.type.tensor_type
            sizes = tuple(dim.dim_value for dim in kind.shape.dim)
            if kind.elem_type == onnx.TensorProto.FLOAT and all(sizes):
                self._shapes[one.name] = sizes
        self._nodes: list[onnx.NodeProto] = []
        self._lasts: dict[str, str] = {}
        self._missing: set[str] = set()
        self._count = 0

    def run(self) -> bool:
        convolutions = 0
        for node in list(self._graph.node):
            made = self._made(node)
            if made is None:
                for name in node.input:
                    self._first(name)
                self._nodes.append(node)
                continue
            convolutions += node.op_type == "Conv"
            self._lasts[node.output[0]] = made
            self._missing.add(node.output[0])
        for one in self._graph.output:
            self._first(one.name)
        used = {name for node in self._nodes for name in node.input}
        kept = [one for one in self._constants.values() if one.name in used]
        for field, values in (("node", self._nodes), ("initializer", kept), ("value_info", ())):
            self._graph.ClearField(field)
            getattr(self._graph, field).extend(values)
        return convolutions > 0

    def _made(self, node: onnx.NodeProto) -> str | None:
        if len(node.output) != 1 or node.domain not in {"", "ai.onnx"} or not self._is_image(node.output[0]):
            return None
        if node.op_type in {"Conv", "MaxPool"}:
            return self._convolution(node) if node.op_type == "Conv" else self._pool(node)
        return self._between(node) if any(name in self._lasts for name in node.input) else None

    def _between(self, node: onnx.NodeProto) -> str | None:
        """Write what is between convolutions, of images of which one is channels last at least."""
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        made, inputs = None, list(node.input)
        if node.op_type in _EACH:
            made = self._add(node.op_type, [self._last(inputs[0]), *inputs[1:]], **given)
        elif node.op_type in _BOTH:
            operands = [self._operand(name) for name in inputs]
            made = None if None in operands else self._add(node.op_type, [one for one in operands if one], **given)
        elif node.op_type == "Concat" and given["axis"] in {1, -3}:
            made = self._add("Concat", [self._last(name) for name in inputs], axis=3)
        elif node.op_type == "BatchNormalization" and set(inputs[1:]) <= self._constants.keys():
            scale, shift, mean, variance = (numpy_helper.to_array(self._constants[name]) for name in inputs[1:])
            factors = scale / np.sqrt(variance + given.get("epsilon", 1e-5))
            made = self._add("Mul", [self._last(inputs[0]), self._constant(factors.astype(np.float32))])
            made = self._add("Add", [made, self._constant((shift - mean * factors).astype(np.float32))])
        elif node.op_type == "AveragePool":
            made = self._average(node, given)
        elif node.op_type == "GlobalAveragePool":
            axes = {"axes": [1, 2]} if self._version < _AXES_GIVEN else {}
            more = [] if axes else [self._constant(np.array([1, 2]))]
            made = self._add("ReduceMean", [self._last(inputs[0]), *more], keepdims=1, **axes)
        return made

    def _is_image(self, name: str) -> bool:
        return len(self._shapes.get(name, ())) == len(_LAST)

    # -- forms of a value -----------------------------------------------------------------------------------------

    def _last(self, name: str) -> str:
        if name not in self._lasts:
            known = self._constants.get(name)
            self._lasts[name] = (
                self._add("Transpose", [name], perm=_LAST) if known is None
                else self._constant(numpy_helper.to_array(known).transpose(_LAST))
            )  # fmt: skip
        return self._lasts[name]

    def _first(self, name: str) -> None:
        if name in self._missing:
            self._missing.remove(name)
            self._nodes.append(helper.make_node("Transpose", [self._lasts[name]], [name], perm=_FIRST))

    def _operand(self, name: str) -> str | None:
        if self._is_image(name):
            return self._last(name)
        shape = self._shapes.get(name)
        if shape is None or name not in self._constants:
            return None
        if math.prod(shape) == 1:
            return self._constant(numpy_helper.to_array(self._constants[name]).reshape(()))
        if len(shape) == len(_LAST) - 1:
            return self._constant(numpy_helper.to_array(self._constants[name]).transpose(1, 2, 0))
        return None

    def _add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        self._count += 1
        name = f"tunery/{self._count}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def _constant(self, array: _Array) -> str:
        self._count += 1
        name = f"tunery/{self._count}"
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    # -- windows --------------------------------------------------------------------------------------------------

    def _convolution(self, node: onnx.NodeProto) -> str | None:
        windows, (name, *others) = self._windows(node), node.input
        if windows is None or others[0] not in self._constants or not set(others[1:]) <= self._constants.keys():
            return None
        weights = numpy_helper.to_array(self._constants[others[0]])
        groups = next((one.i for one in node.attribute if one.name == "group"), 1)
        if groups == weights.shape[0] == self._shapes[name][1] > 1:
            return self._depthwise(windows, weights, others[1:])
        if groups > 1:
            return self._grouped(windows, weights, others[1:], groups) if weights.shape[1] >= _LEAST_CHANNELS else None
        return self._whole(windows, weights, others[1:], node)

    def _whole(self, windows: "_Windows", weights: _Array, bias: Sequence[str], node: onnx.NodeProto) -> str:
        """Return a convolution without groups."""
        if weights.shape[1] < _LEAST_CHANNELS:
            return self._product(windows, self._rows(windows), weights, bias)
        if self._has_winograd and weights.shape[1] < _KEPT_CHANNELS and min(windows.size) > 1:
            return self._kept(windows, node)
        if self._has_winograd and (axis := self._axis(windows, weights)) is not None:
            return self._winograd(windows, weights, bias, axis)
        places = self._places(windows, 0.0)
        side = self._add("Concat", places, axis=-1) if len(places) > 1 else places[0]
        return self._product(windows, side, weights, bias)

    def _pool(self, node: onnx.NodeProto) -> str | None:
        windows = self._windows(node)
        if windows is None:
            return None
        # Of a window that would see nothing of the image, tools do not agree whether it is one.
        last = [(n - 1) * step - pad for n, step, pad in zip(windows.out, windows.steps, windows.pads, strict=True)]
        inside = all(at < had for at, had in zip(last, self._shapes[windows.name][2:], strict=True))
        if not inside:
            return None
        batch, channels = self._shapes[windows.name][:2]
        return self._reshaped(self._add("Max", self._places(windows, -np.inf)), (batch, *windows.out, channels))

    def _average(self, node: onnx.NodeProto, given: Mapping[str, Any]) -> str | None:
        windows, padded = self._windows(node), bool(given.get("count_include_pad"))
        if windows is None or (padded and given.get("ceil_mode")):
            return None
        sizes = self._shapes[windows.name]
        seen = []
        for n, k, step, pad, had in zip(windows.out, windows.size, windows.steps, windows.pads, sizes[2:], strict=True):
            begins = np.arange(n) * step - pad
            seen.append(np.minimum(begins + k, had) - np.maximum(begins, 0))
        if min(one.min() for one in seen) < 1:
            return None
        shares = 1 / (math.prod(windows.size) * np.ones(windows.out) if padded else np.outer(*seen))
        total, *others = self._places(windows, 0.0)
        for place in others:
            total = self._add("Add", [total, place])
        total = self._reshaped(total, (sizes[0], *windows.out, sizes[1]))
        return self._add("Mul", [total, self._constant(shares.astype(np.float32)[:, :, None])])

    def _windows(self, node: onnx.NodeProto) -> "_Windows | None":
        """Return what a node's windows are, None where they are none of an image, or have gaps."""
        given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        size = tuple(given.get("kernel_shape") or self._shapes.get(node.input[1], ())[2:])
        plain = given.get("auto_pad", b"NOTSET") == b"NOTSET" and set(given.get("dilations", ())) <= {1}
        if (
            not plain
            or not self._is_image(node.input[0])
            or len(size) != len(_WINDOW)
            or math.prod(size) > _MOST_PLACES
        ):
            return None
        steps, pads = tuple(given.get("strides", (1, 1))), tuple(given.get("pads", (0, 0, 0, 0))[:2])
        return _Windows(node.input[0], size, steps, pads, self._shapes[node.output[0]][2:])

    def _depthwise(self, windows: "_Windows", weights: _Array, bias: Sequence[str]) -> str:
        total = ""
        for number, place in enumerate(self._places(windows, 0.0)):
            i, j = divmod(number, weights.shape[3])
            term = self._add("Mul", [place, self._constant(weights[:, 0, i, j])])
            total = self._add("Add", [total, term]) if total else term
        total = self._add("Add", [total, *bias]) if bias else total
        return self._reshaped(total, (self._shapes[windows.name][0], *windows.out, weights.shape[0]))

    def _product(self, windows: "_Windows", side: str, weights: _Array, bias: Sequence[str]) -> str:
        matrix = weights.transpose(2, 3, 1, 0).reshape(-1, weights.shape[0])
        made = self._add("MatMul", [self._reshaped(side, (-1, matrix.shape[0])), self._constant(matrix)])
        made = self._add("Add", [made, *bias]) if bias else made
        return self._reshaped(made, (self._shapes[windows.name][0], *windows.out, weights.shape[0]))

    def _grouped(self, windows: "_Windows", weights: _Array, bias: Sequence[str], groups: int) -> str:
        kernels, channels, batch = *weights.shape[:2], self._shapes[windows.name][0]
        count = batch * math.prod(windows.out)
        parts = [
            self._add("Transpose", [self._reshaped(place, (count, groups, channels))], perm=(1, 0, 2))
            for place in self._places(windows, 0.0)
        ]
        side = self._add("Concat", parts, axis=2) if len(parts) > 1 else parts[0]
        parted = weights.reshape(groups, kernels // groups, channels, -1).transpose(0, 3, 2, 1)
        matrix = self._constant(parted.reshape(groups, -1, kernels // groups))
        made = self._add("Transpose", [self._add("MatMul", [side, matrix])], perm=(1, 0, 2))
        made = self._reshaped(made, (batch, *windows.out, kernels))
        return self._add("Add", [made, *bias]) if bias else made

    def _rows(self, windows: "_Windows") -> str:
        """Return what all windows see, side by side, made of a row for each place and channel."""
        batch, channels = self._shapes[windows.name][:2]
        steps = windows.steps
        rows, columns = (n // step for n, step in zip(windows.whole, steps, strict=True))
        image = self._reshaped(self._padded(windows, 0.0), (batch, rows, steps[0], columns, steps[1], channels))
        image = self._add("Transpose", [image], perm=(2, 4, 5, 0, 1, 3))
        found = []
        for i, j in np.ndindex(*windows.size):
            begins = [i % steps[0], j % steps[1], i // steps[0], j // steps[1]]
            ends = [at + size for at, size in zip(begins, (1, 1, *windows.out), strict=True)]
            part = self._sliced(image, begins, ends, (0, 1, 4, 5))
            found.append(self._reshaped(part, (channels, batch * math.prod(windows.out))))
        side = self._add("Concat", found, axis=0) if len(found) > 1 else found[0]
        return self._add("Transpose", [side], perm=(1, 0))

    def _kept(self, windows: "_Windows", node: onnx.NodeProto) -> str:
        """Return a convolution as ONNX has it, between two transpositions that IREE takes away again."""
        image = self._add("Transpose", [self._padded(windows, 0.0)], perm=_FIRST)
        made = self._add("Conv", [image, *node.input[1:]], strides=windows.steps)
        return self._add("Transpose", [made], perm=_LAST)

    # -- Winograd's algorithm -------------------------------------------------------------------------------------

    def _axis(self, windows: "_Windows", weights: _Array) -> int | None:
        """Return along which axis Winograd's algorithm is to go, None where there is none or it gains nothing."""
        if min(weights.shape[:2]) < _WINOGRAD_CHANNELS:
            return None
        axis = 1 if windows.size[1] >= windows.size[0] else 0
        if windows.steps[axis] > 1 or not _LEAST_TAPS <= windows.size[axis] <= _MOST_TAPS:
            return None
        tiles = -(-windows.out[axis] // _results(windows.size[axis])) * windows.out[1 - axis]
        return axis if self._shapes[windows.name][0] * tiles >= _WINOGRAD_TILES else None

    def _winograd(self, windows: "_Windows", weights: _Array, bias: Sequence[str], axis: int) -> str:
        """Return a convolution by Winograd's algorithm along one axis; what is seen along the other lies together."""
        count, other = _results(windows.size[axis]), 1 - axis
        into, factors, back = _transforms(count, windows.size[axis])
        tiles, planes, kernels = -(-windows.out[axis] // count), len(into), weights.shape[0]
        grid = replace(
            windows,
            size=_with(windows.size, axis, planes),
            steps=_with(windows.steps, axis, count),
            out=_with(windows.out, axis, tiles),
        )
        batch, channels = self._shapes[windows.name][:2]
        shape = [batch, *grid.whole, channels]
        lines = self._along(self._padded(grid, 0.0), shape, axis, grid)
        image = self._add("Concat", [self._sum(lines, row) for row in into], axis=0)
        shape[0], shape[1 + axis] = planes * batch, tiles
        parts = self._along(image, shape, other, windows)
        side = self._add("Concat", parts, axis=3) if len(parts) > 1 else parts[0]
        taps = weights.astype(np.float64).transpose(2 + axis, 2 + other, 1, 0)
        matrices = np.tensordot(factors, taps, 1).reshape(planes, -1, kernels).astype(np.float32)
        side = self._reshaped(side, (planes, -1, matrices.shape[1]))
        products = self._add("MatMul", [side, self._constant(matrices)])
        several = [self._sliced(products, [at], [at + 1], (0,)) for at in range(planes)]
        made = self._add("Concat", [self._sum(several, row) for row in back], axis=0)
        order = [1, 2, 3, 4]
        order.insert(2 + axis, 0)
        made = self._reshaped(made, (count, batch, *grid.out, kernels))
        made = self._add("Transpose", [made], perm=order)
        made = self._reshaped(made, (batch, *_with(windows.out, axis, tiles * count), kernels))
        made = self._add("Add", [made, *bias]) if bias else made
        return made if tiles * count == windows.out[axis] else self._sliced(made, [0, 0], windows.out)

    def _along(self, image: str, shape: Sequence[int], axis: int, windows: "_Windows") -> list[str]:
        before, behind = shape[: 1 + axis], shape[2 + axis :]
        step, out = windows.steps[axis], windows.out[axis]
        image = self._reshaped(image, (*before, shape[1 + axis] // step, step, *behind))
        found = []
        for at in range(windows.size[axis]):
            begins, ends = [at // step, at % step], [at // step + out, at % step + 1]
            part = self._sliced(image, begins, ends, (1 + axis, 2 + axis))
            found.append(self._reshaped(part, (*before, out, *behind)))
        return found

    def _sum(self, terms: Sequence[str], factors: _Array) -> str:
        used = sorted(zip(factors.tolist(), terms, strict=True), key=lambda one: -one[0])
        total = ""
        for factor, term in used:
            if not factor:
                continue
            size = abs(factor) if total else factor
            scaled = term if size == 1 else self._add("Mul", [term, self._constant(np.array(size, np.float32))])
            total = self._add("Add" if factor > 0 else "Sub", [total, scaled]) if total else scaled
        return total

    def _places(self, windows: "_Windows", filled: float) -> list[str]:
        """Return what each place of a window sees, channels last, with more axes where windows jump."""
        batch, channels = self._shapes[windows.name][:2]
        image, steps, jumps = self._padded(windows, filled), windows.steps, max(windows.steps) > 1
        if jumps:
            rows, columns = (n // step for n, step in zip(windows.whole, steps, strict=True))
            image = self._reshaped(image, (batch, rows, steps[0], columns, steps[1], channels))
        found = []
        for i, j in np.ndindex(*windows.size):
            begins = [i // steps[0], i % steps[0], j // steps[1], j % steps[1]] if jumps else [i, j]
            sizes = [windows.out[0], 1, windows.out[1], 1] if jumps else windows.out
            found.append(self._sliced(image, begins, [at + size for at, size in zip(begins, sizes, strict=True)]))
        return found

    def _padded(self, windows: "_Windows", filled: float) -> str:
        """Return an image, channels last, that is as large as all windows with their steps are."""
        sizes, image = self._shapes[windows.name][2:], self._last(windows.name)
        more = [n - had - before for n, had, before in zip(windows.whole, sizes, windows.pads, strict=True)]
        if min(more) < 0:
            image = self._sliced(image, [0, 0], [had + min(n, 0) for had, n in zip(sizes, more, strict=True)])
        behind = [max(n, 0) for n in more]
        if any((*windows.pads, *behind)):
            wide = np.array([0, *windows.pads, 0, 0, *behind, 0])
            image = self._add("Pad", [image, self._constant(wide), self._constant(np.array(filled, np.float32))])
        return image

    def _sliced(self, image: str, begins: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None) -> str:
        bounds = [self._constant(np.array(one)) for one in (begins, ends, axes or range(1, 1 + len(begins)))]
        return self._add("Slice", [image, *bounds])

    def _reshaped(self, image: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [image, self._constant(np.array(shape))])


def _with(sizes: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return tuple(size if at == axis else one for at, one in enumerate(sizes))


def _results(taps: int) -> int:
    """Return how many results Winograd's algorithm makes at once: more of them take points that round too much."""
    return min(4, len(_POINTS) + 2 - taps)


def _transforms(count: int, taps: int) -> tuple[_Array, _Array, _Array]:
    """Return Winograd's transforms of an image, of weights, and of products to `count` results. They are those of Toom
    and Cook's product of polynomials, transposed: points, and infinity."""
    points = np.array(_POINTS[: count + taps - 2])
    rest = [np.delete(points, at) for at in range(len(points))]
    into = [np.append(np.poly(one)[::-1], 0) for one in rest] + [np.poly(points)[::-1]]
    last = np.eye(1, taps, taps - 1)[0], np.eye(1, count, count - 1)[0]
    weights = [point ** np.arange(taps) / np.prod(point - one) for point, one in zip(points, rest, strict=True)]
    back = [point ** np.arange(count) for point in points]
    return np.array(into), np.array([*weights, last[0]]), np.array([*back, last[1]]).T
