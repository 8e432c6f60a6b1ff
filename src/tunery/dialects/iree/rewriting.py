"""A network with its convolutions and pools of images written as IREE's code is fast for: channels last, no windows.

IREE makes slow code of windows over an image. Here what a window sees becomes slices of the padded image, one for each
place of the window: a depthwise convolution is the sum of their products with the weights, a pool their maximum, and
any other convolution one product of matrices, of all slices side by side, for each group. Strides become a dimension,
so that a slice takes what lies together. Convolutions of 3x3 without strides take Winograd's algorithm (Lavin and Gray,
2016): 16 products for 2x2 results in place of 36. Its larger tiles have too many small dispatches. Whatever is between,
element by element, stays channels last, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_WINOGRAD_CHANNELS, _WINOGRAD_TILES = 16, 8
"""With fewer channels there is more to add than is saved, with fewer tiles more weights to read."""
_INTO = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_WEIGHTS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_BACK = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
"""Winograd's transforms of four numbers of an image, of three weights, and of four products to two results."""
_LARGEST = 10**9
"""Bytes of a model's file: twice as many are the most that one file of ONNX can hold."""
_MOST_PLACES = 64


def rewrite(model: Path, output: Path, *, winograd: bool = True) -> bool:
    """Write a model that computes the same, to `output`; return whether there is anything to rewrite.

    Large convolutions of 3x3 take Winograd's algorithm where `winograd` says so.
    What has inner graphs, or weights beside its file, is left as it is.
    """
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
        """The size of an image in which all windows lie, a multiple of their steps."""
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
        """Rewrite the graph in place; return whether a convolution is written in another way now."""
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
        """Write what computes a node's output channels last; return its name, None where the node is to stay."""
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
        """Return the channels-last form of a value."""
        if name not in self._lasts:
            known = self._constants.get(name)
            self._lasts[name] = (
                self._add("Transpose", [name], perm=_LAST) if known is None
                else self._constant(numpy_helper.to_array(known).transpose(_LAST))
            )  # fmt: skip
        return self._lasts[name]

    def _first(self, name: str) -> None:
        """See to it that a value is there in the form that the model has it in."""
        if name in self._missing:
            self._missing.remove(name)
            self._nodes.append(helper.make_node("Transpose", [self._lasts[name]], [name], perm=_FIRST))

    def _operand(self, name: str) -> str | None:
        """Return what stands for an operand beside images that are channels last, None where that is not known."""
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
        if weights.shape[1] < _LEAST_CHANNELS:
            return self._product(windows, self._rows(windows), weights, others[1:])
        if windows.size == (3, 3) and windows.steps == (1, 1) and self._is_large(windows, weights):
            return self._winograd(windows, weights, others[1:])
        places = self._places(windows, 0.0)
        side = self._add("Concat", places, axis=-1) if len(places) > 1 else places[0]
        return self._product(windows, side, weights, others[1:])

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
        """Return the product of the weights and what all windows see, side by side."""
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

    # -- Winograd's algorithm -------------------------------------------------------------------------------------

    def _is_large(self, windows: "_Windows", weights: _Array) -> bool:
        tiles: int = self._shapes[windows.name][0] * math.prod(-(-n // 2) for n in windows.out)
        return self._has_winograd and tiles >= _WINOGRAD_TILES and min(*weights.shape[:2]) >= _WINOGRAD_CHANNELS

    def _winograd(self, windows: "_Windows", weights: _Array, bias: Sequence[str]) -> str:
        (batch, channels), kernels = self._shapes[windows.name][:2], weights.shape[0]
        rows, columns = (-(-n // 2) for n in windows.out)
        tiles = _Windows(windows.name, (4, 4), (2, 2), windows.pads, (rows, columns))
        planes = self._add("Concat", self._transformed(self._places(tiles, 0.0), _INTO), axis=0)
        matrices = np.einsum("ui,vj,kcij->uvck", _WEIGHTS, _WEIGHTS, weights.astype(np.float64))
        matrix = self._constant(matrices.reshape(16, channels, kernels).astype(np.float32))
        products = self._add("MatMul", [self._reshaped(planes, (16, batch * rows * columns, channels)), matrix])
        parts = self._transformed([self._sliced(products, [at], [at + 1], (0,)) for at in range(16)], _BACK)
        made = self._reshaped(self._add("Concat", parts, axis=0), (2, 2, batch, rows, columns, kernels))
        made = self._add("Transpose", [made], perm=(2, 3, 0, 4, 1, 5))
        made = self._reshaped(made, (batch, rows * 2, columns * 2, kernels))
        made = self._add("Add", [made, *bias]) if bias else made
        return made if (rows * 2, columns * 2) == windows.out else self._sliced(made, [0, 0], windows.out)

    def _transformed(self, terms: Sequence[str], matrix: _Array) -> list[str]:
        """Return `matrix` times 4x4 values, in order of rows, times its transpose."""
        half = [[self._sum(terms[column::4], factors) for column in range(4)] for factors in matrix]
        return [self._sum(row, factors) for row in half for factors in matrix]

    def _sum(self, terms: Sequence[str], factors: _Array) -> str:
        """Return the sum of terms, each with a factor of 1, 0 or -1."""
        used = sorted(zip(factors, terms, strict=True), key=lambda one: -one[0])
        total = used[0][1]
        for factor, term in used[1:]:
            if factor:
                total = self._add("Add" if factor > 0 else "Sub", [total, term])
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
        """Return a part of an image, from its second axis on where no `axes` are given."""
        bounds = [self._constant(np.array(one)) for one in (begins, ends, axes or range(1, 1 + len(begins)))]
        return self._add("Slice", [image, *bounds])

    def _reshaped(self, image: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [image, self._constant(np.array(shape))])
