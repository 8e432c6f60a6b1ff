"""The heavy operator of a fused program: a convolution, a product, a pool or a reduction, as ONNX tells it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tunery.dialects.metaschedule.operators.nests import (
    Affine,
    Apply,
    Constant,
    ElementLoad,
    Nest,
    NestedProgram,
    Tensor,
    UnknownProgramError,
)

_HUGE = 1e30
"""What no sum of float32 is meant to be larger than: a maximum begins below its opposite."""


@dataclass(frozen=True)
class Heavy:
    """An operator with its tensors and attributes; `nests` of the program are it, and `result` is what they compute.
    `order` has the output's axes as ONNX has them: by their number in the program. `names` has the tensors that are
    parameters of the program."""

    kind: str
    tensors: Mapping[str, tuple[Sequence[int], str]]
    attributes: Mapping[str, Sequence[int] | int | str]
    nests: int
    result: int
    order: tuple[int, ...]
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Data:
    """What a reduction reads, as it is before it is padded: `pads` are those of each dimension, before and behind."""

    tensor: int
    shape: tuple[int, ...]
    dtype: str
    pads: tuple[tuple[int, int], ...]
    filled: float | None = None


@dataclass(frozen=True)
class _Window:
    """A spatial dimension of data: the axes of the output and of the window, and its steps."""

    dimension: int
    output: int
    window: int
    stride: int
    dilation: int


def heavy_operator(program: NestedProgram) -> Heavy:
    first = next((i for i, nest in enumerate(program.nests) if nest.reduced), None)
    if first is None or first > 1:
        raise UnknownProgramError
    nest, pad = program.nests[first], program.nests[0] if first else None
    value = nest.value
    if (
        not nest.in_order
        or nest.condition
        or not isinstance(value, Apply)
        or value.name not in {"add", "maximum", "minimum"}
    ):
        raise UnknownProgramError
    itself, term = value.operands
    if itself != ElementLoad(nest.output, nest.places) or not isinstance(nest.initial, Constant):
        raise UnknownProgramError
    begins = nest.initial.value * {"add": 1, "maximum": -1, "minimum": 1}[value.name]
    if begins != 0 if value.name == "add" else begins < _HUGE:
        raise UnknownProgramError
    factors = _factors(term) if value.name == "add" else None
    if factors:
        return _contraction(program, nest, factors, pad, first + 1)
    if not isinstance(term, ElementLoad):
        raise UnknownProgramError
    data = _source(program, term.tensor, pad)
    return _reduction(nest, value.name, data, term, first + 1)


def _factors(term: object) -> tuple[ElementLoad, ElementLoad] | None:
    """Return the two loads of a product, cast to a wider type or not."""
    if not isinstance(term, Apply) or term.name != "multiply":
        return None
    bare = [one.operands[0] if isinstance(one, Apply) and one.name == "cast" else one for one in term.operands]
    left, right = bare
    return (left, right) if isinstance(left, ElementLoad) and isinstance(right, ElementLoad) else None


def _source(program: NestedProgram, tensor: int, pad: Nest | None) -> _Data:
    """Return what is read of a tensor: where the nest before pads it, what that reads."""
    known = program.tensors[tensor]
    if pad is None:
        _check_parameter(known)
        return _Data(tensor, known.shape, known.dtype, ((0, 0),) * len(known.shape))
    if pad.output != tensor or not pad.in_order or not isinstance(pad.value, ElementLoad):
        raise UnknownProgramError
    source = program.tensors[pad.value.tensor]
    _check_parameter(source)
    pads = []
    for axis, (index, size, whole) in enumerate(zip(pad.value.indices, source.shape, known.shape, strict=True)):
        before = -index.offset
        if dict(index.factors) != {(axis, 1): 1} or not 0 <= before <= whole - size:
            raise UnknownProgramError
        pads.append((before, whole - size - before))
    always = {_bound("from", axis, 0) for axis in range(len(pads))}  # the importer writes some of these
    always |= {_bound("below", axis, whole) for axis, whole in enumerate(known.shape)}
    bounds = set(pad.condition[1:]) - always
    needed = {_bound("from", axis, before) for axis, (before, _) in enumerate(pads) if before}
    needed |= {
        _bound("below", axis, pads[axis][0] + source.shape[axis]) for axis, (_, behind) in enumerate(pads) if behind
    }
    filled = pad.condition[0] if pad.condition else None
    if bounds != needed or (pad.condition and not isinstance(filled, Constant)):
        raise UnknownProgramError
    value = filled.value if isinstance(filled, Constant) else None
    return _Data(pad.value.tensor, source.shape, source.dtype, tuple(pads), value)


def _bound(name: str, axis: int, limit: int) -> Apply:
    return Apply(name, (Constant(axis, "int64"), Constant(limit, "int64")), "bool")


def _check_parameter(tensor: Tensor) -> None:
    if not tensor.parameter:
        raise UnknownProgramError  # something is computed before it


def _axes_of(load: ElementLoad) -> set[int]:
    return {axis for index in load.indices for axis, _ in index.factors}


def _contraction(
    program: NestedProgram, nest: Nest, factors: tuple[ElementLoad, ElementLoad], pad: Nest | None, nests: int
) -> Heavy:
    sliding = [any(_is_window(index, nest) for index in one.indices) for one in factors]
    if sliding == [False, False]:
        return _product(program, nest, factors, pad, nests)
    if sliding == [True, True]:
        raise UnknownProgramError
    data, weights = factors if sliding[0] else factors[::-1]
    return _convolution(program, nest, data, weights, pad, nests)


def _is_window(index: Affine, nest: Nest) -> bool:
    axes = {axis for axis, _ in index.factors}
    return bool(axes & nest.reduced and axes - nest.reduced) and all(quotient == 1 for _, quotient in index.factors)


def _product(
    program: NestedProgram, nest: Nest, factors: tuple[ElementLoad, ElementLoad], pad: Nest | None, nests: int
) -> Heavy:
    """Return a matrix product: of stacked matrices, in whatever order their dimensions are."""
    if pad is not None or len(nest.reduced) != 1:
        raise UnknownProgramError
    [k] = nest.reduced
    kept = [axis for axis in range(len(nest.extents)) if axis != k]
    axes = [_axes_of(one) for one in factors]
    last = kept[-1] if kept else k
    a, b = factors if last in axes[1] else factors[::-1]
    of_a, of_b = _axes_of(a), _axes_of(b)
    if last in of_a or not {k} <= of_a & of_b or (len(kept) > 1 and kept[-2] in of_b and nest.extents[kept[-2]] > 1):
        raise UnknownProgramError
    _check_used(nest, of_a | of_b)
    tensors = {}
    for name, load, own, matrix in (("a", a, of_a, [*kept[:-1], k]), ("b", b, of_b, [*kept[:-2], k, last])):
        _check_parameter(program.tensors[load.tensor])
        _check_plain(load, program.tensors[load.tensor], nest)
        shape = [nest.extents[axis] if axis in own else 1 for axis in matrix]
        while len(shape) > 2 and shape[0] == 1 and matrix[len(matrix) - len(shape)] not in own:
            shape = shape[1:]
        tensors[name] = (shape, program.tensors[load.tensor].dtype)
    return Heavy(
        "matmul", tensors, _out(program, nest, a), nests, nest.output, tuple(range(len(kept))),
        {a.tensor: "a", b.tensor: "b"},
    )  # fmt: skip


def _check_used(nest: Nest, axes: Collection[int]) -> None:
    """Check that a nest's axes are among those of what it reads: along another one the result would be repeated."""
    if any(extent > 1 and axis not in axes for axis, extent in enumerate(nest.extents)):
        raise UnknownProgramError


def _check_plain(load: ElementLoad, tensor: Tensor, nest: Nest) -> None:
    """Check that a load's indices are axes over the whole tensor, or 0 where there is one element only, each once."""
    axes = [index.axis for index in load.indices if not index.is_zero]
    single = all(size == 1 for size, index in zip(tensor.shape, load.indices, strict=True) if index.is_zero)
    whole = all(
        index.axis is not None and size == nest.extents[index.axis]
        for size, index in zip(tensor.shape, load.indices, strict=True)
        if not index.is_zero
    )
    if not whole or len(set(axes)) < len(axes) or not single:
        raise UnknownProgramError


def _out(program: NestedProgram, nest: Nest, data: ElementLoad) -> dict[str, str]:
    dtype = program.tensors[nest.output].dtype
    return {} if dtype == program.tensors[data.tensor].dtype else {"out": dtype}


def _convolution(  # noqa: PLR0917 - what it is made of
    program: NestedProgram, nest: Nest, data: ElementLoad, weights: ElementLoad, pad: Nest | None, nests: int
) -> Heavy:
    read = _source(program, data.tensor, pad)
    _check_parameter(program.tensors[weights.tensor])
    _check_plain(weights, program.tensors[weights.tensor], nest)
    of_weights = _axes_of(weights)
    windows = _windows(nest, data, of_weights)
    taken = {one.window for one in windows} | {one.output for one in windows}
    channels = nest.reduced - taken
    kernels = [axis for axis in of_weights - nest.reduced if axis not in taken]
    rest = [i for i in range(len(data.indices)) if i not in {one.dimension for one in windows}]
    if len(channels) != 1 or len(kernels) != 1 or len(rest) != 2:
        raise UnknownProgramError
    [channel], [kernel] = channels, kernels
    groups, of_channel = _groups(nest, data, rest, channel, kernel)
    [of_batch] = [dimension for dimension in rest if dimension != of_channel]
    batch = data.indices[of_batch].axis
    if batch is None or batch in of_weights | nest.reduced or any(any(read.pads[i]) for i in rest):
        raise UnknownProgramError
    _check_used(nest, _axes_of(data) | of_weights)
    if read.filled not in {None, 0.0} or {channel, kernel, *(one.window for one in windows)} != of_weights:
        raise UnknownProgramError
    shape = [read.shape[of_batch], read.shape[of_channel], *(read.shape[one.dimension] for one in windows)]
    size = [nest.extents[axis] for axis in (kernel, channel, *(one.window for one in windows))]
    return Heavy(
        f"conv{len(windows)}d",
        {"x": (shape, read.dtype), "w": (size, program.tensors[weights.tensor].dtype)},
        {**_steps(nest, windows, read), "groups": groups, **_out(program, nest, data)},
        nests, nest.output, tuple(_positions(nest, [batch, kernel, *(one.output for one in windows)])),
        {read.tensor: "x", weights.tensor: "w"},
    )  # fmt: skip


def _groups(nest: Nest, data: ElementLoad, rest: Sequence[int], channel: int, kernel: int) -> tuple[int, int]:
    inside, kernels = nest.extents[channel], nest.extents[kernel]
    for dimension in rest:
        factors = dict(data.indices[dimension].factors)
        if data.indices[dimension].offset or factors.pop((channel, 1), 0) != 1:
            continue
        if not factors:
            return 1, dimension
        [((axis, quotient), factor)] = factors.items()
        if axis == kernel and factor == inside and kernels % quotient == 0:
            return kernels // quotient, dimension
    raise UnknownProgramError


def _windows(nest: Nest, data: ElementLoad, of_weights: Collection[int]) -> list[_Window]:
    found = []
    for dimension, index in enumerate(data.indices):
        if not _is_window(index, nest) or len(index.factors) != 2:
            continue
        [output] = [axis for axis, _ in index.factors if axis not in nest.reduced]
        [window] = [axis for axis, _ in index.factors if axis in nest.reduced]
        if output in of_weights:
            continue  # a channel of a group
        if index.offset:
            raise UnknownProgramError
        found.append(_Window(dimension, output, window, index.factors[output, 1], index.factors[window, 1]))
    return found


def _steps(nest: Nest, windows: Sequence[_Window], read: _Data) -> dict[str, Sequence[int]]:
    for one in windows:
        last = sum(read.pads[one.dimension]) + read.shape[one.dimension] - 1
        last -= one.dilation * (nest.extents[one.window] - 1)
        if nest.extents[one.output] != last // one.stride + 1:
            raise UnknownProgramError
    pads = [read.pads[one.dimension] for one in windows]
    return {
        "strides": [one.stride for one in windows],
        "pads": [*(before for before, _ in pads), *(behind for _, behind in pads)],
        "dilations": [one.dilation for one in windows],
    }


def _positions(nest: Nest, axes: Sequence[int]) -> list[int]:
    places = [place.axis for place in nest.places]
    return [places.index(axis) for axis in axes]


def _reduction(nest: Nest, combine: str, data: _Data, load: ElementLoad, nests: int) -> Heavy:
    windows = _windows(nest, load, ())
    if windows:
        return _pool(nest, combine, data, load, windows, nests)
    _check_plain(load, Tensor(data.shape, data.dtype, parameter=True), nest)
    _check_used(nest, _axes_of(load))
    if any(any(pair) for pair in data.pads) or not nest.reduced <= _axes_of(load):
        raise UnknownProgramError
    axes = [index.axis for index in load.indices]
    kept = [axes.index(axis) for axis in range(len(nest.extents)) if axis in axes and axis not in nest.reduced]
    kept += [i for i, axis in enumerate(axes) if axis is None]
    gone = [i for i, axis in enumerate(axes) if axis in nest.reduced]
    name = {"add": "sum", "maximum": "max", "minimum": "min"}[combine]
    shape = [data.shape[i] for i in (*kept, *gone)]
    first = len(kept)
    return Heavy(
        f"reduce_{name}", {"x": (shape, data.dtype)}, {"axes": list(range(first, len(shape)))}, nests, nest.output,
        tuple(range(len(nest.places))), {data.tensor: "x"},
    )  # fmt: skip


def _pool(  # noqa: PLR0917 - what it is made of
    nest: Nest, combine: str, data: _Data, load: ElementLoad, windows: Sequence[_Window], nests: int
) -> Heavy:
    rest = [i for i in range(len(load.indices)) if i not in {one.dimension for one in windows}]
    axes = [load.indices[i].axis for i in rest]
    plain = [axis for axis in axes if axis is not None and axis not in nest.reduced]
    kind, filled = {"maximum": ("max_pool", -_HUGE), "add": ("sum_pool", 0.0)}.get(combine, ("", 0.0))
    if not kind or len(plain) != len(rest) or {one.window for one in windows} != nest.reduced:
        raise UnknownProgramError
    if len(rest) != 2 or any(any(data.pads[i]) for i in rest) or (data.filled is not None and data.filled > filled):
        raise UnknownProgramError
    _check_used(nest, _axes_of(load))
    steps = _steps(nest, windows, data)
    return Heavy(
        f"{kind}{len(windows)}d",
        {"x": ([data.shape[i] for i in (*rest, *(one.dimension for one in windows))], data.dtype)},
        {"kernel": [nest.extents[one.window] for one in windows], **steps}, nests, nest.output,
        tuple(_positions(nest, [*plain, *(one.output for one in windows)])), {data.tensor: "x"},
    )  # fmt: skip
