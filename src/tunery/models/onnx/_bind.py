"""Give every input of a model a static shape: the user's, the model's own, or a batch of one."""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import onnx

from tunery._errors import ModelError
from tunery.models.onnx._file import graphs

Dims = tuple[int | str, ...]
Shapes = Mapping[str, tuple[int, ...]]
_EMPTY = "0"
"""A dimension that the file says is 0: nobody means that, and it is bound by name only, not taken for a batch."""
_MOST_ELEMENTS = 2**31 - 1
_BATCH = re.compile(r"n|b|bs|batch\w*", re.IGNORECASE)
_PLACEHOLDERS = frozenset({"?", "-1", "None", "none"})
# What exporters write where nobody chose a name: TensorFlow unk__12, Paddle DynamicDimension.0, torch s77 or x_dim_0.
_UNNAMED = re.compile(
    r"|unk\w*|(p2o\.)?dynamicdimension\W?\w*|s\d+|dim_?0|\w+_dim_?0|\w+_dynamic_axes_\d+", re.IGNORECASE
)
_SEQUENCE = re.compile(r"seq|tok|len|time|frames|steps|past", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_SAMPLES = re.compile(r"sample|audio|wav|pcm", re.IGNORECASE)
_OF_EACH = re.compile(r"time_?step|sigma|guidance|noise|speaker|scale|temperature", re.IGNORECASE)
"""What inputs are called that have one number for each item of a batch."""
_SUM = re.compile(r"[\w.]+( \+ [\w.]+)+", re.ASCII)
"""A dimension that exporters write as a sum, such as `past_sequence_length + 1`."""


def check_shapes(path: Path, bindings: Iterable[Mapping[str, tuple[int, ...]]]) -> None:
    """Refuse bindings that leave an input of an ONNX file without a size; what else is wrong, `prepare` says."""
    try:
        declared = declared_dims(onnx.load(path, load_external_data=False))
    except Exception:  # noqa: BLE001 - no model, or one that is refused with more said
        return
    for shapes in bindings:
        bound_shapes(declared, shapes)


def bind(model: onnx.ModelProto, shapes: Shapes, batch: int | None = None) -> dict[str, tuple[int, ...]]:
    """Set static shapes on the model's inputs, in place, and return them by input name. Dimensions of one name are one
    dimension: bound in one input, they are bound in all. `shapes` has whole shapes by an input's name, and single sizes
    by a dimension's. A batch (named so, or an unnamed first dimension) that nobody binds is `batch`, or 1. A dimension
    may also be called by its place, as `x:0`. Initialisers listed as inputs (ONNX before IR 4) are taken off the list,
    and every shape the exporter wrote for other values is dropped, since it may contradict the new."""
    _drop_initialisers(model.graph)
    _drop_unused(model.graph)
    bound = bound_shapes(declared_dims(model), shapes, batch)
    _write(model.graph, bound)
    return bound


def bound_shapes(
    declared: Mapping[str, Dims | None], shapes: Shapes, batch: int | None = None
) -> dict[str, tuple[int, ...]]:
    declared, shapes = _by_name(declared, shapes)
    _check_request(declared, shapes)
    sizes = _sizes(declared, shapes, batch)
    shapes = of_inputs(declared, shapes)
    bound: dict[str, tuple[int, ...]] = {}
    for name, dims in declared.items():
        given: Sequence[int | str] = shapes.get(name, dims or ())
        if dims is None and name not in shapes:
            _refuse(declared, shapes, sizes)
        static = [_size(dim, position, dims or (), sizes, batch) for position, dim in enumerate(given)]
        bound[name] = tuple(size for size in static if size is not None)
        if len(bound[name]) != len(given):
            _refuse(declared, shapes, sizes)
        if math.prod(bound[name]) > _MOST_ELEMENTS:
            raise ModelError(f"input {name!r} would have {math.prod(bound[name]):,} elements; give smaller sizes")
    return bound


def free_inputs(model: onnx.ModelProto, bindings: Sequence[Shapes], batch: int | None = None) -> None:
    """Free the dimensions of a model's inputs, in place, that it declares so, and those that `bindings` differ in. They
    keep their names."""
    _drop_initialisers(model.graph)
    _drop_unused(model.graph)
    declared = declared_dims(model)
    bound = [bound_shapes(declared, shapes, batch) for shapes in bindings]
    for value in model.graph.input:
        dims = declared[value.name] or ("",) * len(bound[0][value.name])
        differ = [len({*sizes}) > 1 for sizes in zip(*(one[value.name] for one in bound), strict=True)]
        names = [dim.dim_param for dim in value.type.tensor_type.shape.dim]
        _set_shape(
            value, [-1 if isinstance(dim, str) or several else dim for dim, several in zip(dims, differ, strict=True)]
        )
        for dim, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
            if not dim.HasField("dim_value") and name not in _PLACEHOLDERS:
                dim.dim_param = name
    for each in graphs(model.graph):
        del each.value_info[:]


def _by_name(declared: Mapping[str, Dims | None], shapes: Shapes) -> tuple[Mapping[str, Dims | None], Shapes]:
    """Return both with dimensions that are bound by their place, as `x:0`, by name; one without a name gets that."""
    found: dict[str, Dims | None] = dict(declared)
    named: dict[str, tuple[int, ...]] = {}
    for key, shape in shapes.items():
        name, _, place = key.rpartition(":")
        dims = found.get(name) or ()
        called = key
        if key not in declared and place.isdecimal() and int(place) < len(dims):
            at = int(place)
            dim = dims[at]
            if isinstance(dim, int):
                raise ModelError(f"{key!r} is {dim} in the model; write the input's whole shape to replace it")
            called = key if dim in {"", _EMPTY} else dim
            found[name] = (*dims[:at], called, *dims[at + 1 :])
        if named.setdefault(called, tuple(shape)) != tuple(shape):
            raise ModelError(f"the dimension {called!r} is bound to two sizes; name it once")
    return found, named


def of_inputs(declared: Mapping[str, Dims | None], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in shapes.items() if name in declared}


def declared_dims(model: onnx.ModelProto) -> dict[str, Dims | None]:
    """Return each input's dimensions; a mask whose length no other input has is as long as the cache that comes back.
    torch's newer exporter names that length anew, though the mask covers what is cached and what is added."""
    constants = _constants(model.graph)
    declared = {value.name: _dims(value) for value in model.graph.input if value.name not in constants}
    names, dims = set(_names(declared)), [dim for dims in declared.values() for dim in dims or ()]
    given = {dim.dim_param for value in model.graph.output for dim in value.type.tensor_type.shape.dim}
    sums = [dim for dim in given if _SUM.fullmatch(dim) and any(part in names for part in dim.split(" + "))]
    for name, (*first, last) in ((name, dims) for name, dims in declared.items() if dims):
        if len(sums) == 1 and _MASK.search(name) and _UNNAMED.fullmatch(str(last)) and dims.count(last) == 1:
            declared[name] = (*first, sums[0])
    return declared


def batch_of_one(declared: Mapping[str, Dims | None], bound: Shapes, shapes: Shapes) -> tuple[str, ...]:
    """Return the inputs with a dynamic dimension that became 1 and that neither `shapes` nor its name bound."""
    declared, shapes = _by_name(declared, shapes)
    named = {
        dim for name, given in shapes.items() for dim, _ in zip(declared.get(name) or (), given, strict=False) if dim
    }
    named |= shapes.keys() - declared.keys()
    found = []
    for name, dims in declared.items():
        sizes = zip(dims or (), bound.get(name, ()), strict=False)
        loose = [dim for dim, size in sizes if isinstance(dim, str) and size == 1 and not _is_told(dim, named)]
        if name not in shapes and loose:
            found.append(name)
    return tuple(found)


def _is_told(dim: str, named: Collection[int | str]) -> bool:
    return dim in named or (_SUM.fullmatch(dim) is not None and any(part in named for part in dim.split(" + ")))


def declared_ranks(model: onnx.ModelProto) -> dict[str, int]:
    kinds = {value.name: value.type.tensor_type for value in model.graph.output}
    return {name: len(kind.shape.dim) for name, kind in kinds.items() if kind.HasField("shape")}


def unfit(declared: Mapping[str, Dims | None], shapes: Shapes, why: str) -> str:
    """Say in one sentence that the model cannot take `shapes`, which have the ranks that it has `declared`. Where these
    allow the sizes, an operator does not, or the model is corrupt: `why` says more."""
    dims = {name: shape for name, shape in shapes.items() if name not in declared}
    shapes = of_inputs(declared, shapes)
    replaced = {name for name, shape in shapes.items() if _replaces(declared[name] or (), shape)}
    said = [
        f"input {name!r} cannot have the shape {_join(shape)}: the model declares it {_show(declared[name])}"
        for name, shape in shapes.items()
        if name in replaced or not replaced
    ]
    said += [f"the dimension {name!r} cannot be {_join(shape)}" for name, shape in dims.items() if not replaced]
    if replaced:
        flags = " ".join(_kept(name, declared[name] or (), shapes[name]) for name in shapes if name in replaced)
        return f"{'; '.join(said)}; write {flags}, or export the model with other sizes"
    return f"{'; '.join(said)}, and its operators do not fit these sizes ({why}); give others with --shape"


def _replaces(dims: Dims, shape: Sequence[int]) -> bool:
    return any(isinstance(dim, int) and dim != size for dim, size in zip(dims, shape, strict=False))


def _kept(name: str, dims: Dims, shape: Sequence[int]) -> str:
    sizes = [dim if isinstance(dim, int) else size for dim, size in zip(dims, shape, strict=True)]
    return _flag(name, _join(sizes))


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Drop initialisers that nothing reads: old exporters left queues behind, which ONNX Runtime refuses."""
    used = {name for each in graphs(graph) for node in each.node for name in node.input}
    used |= {value.name for each in graphs(graph) for value in each.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    if len(kept) < len(graph.initializer):
        kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
        del graph.initializer[:]
        graph.initializer.extend(kept)


def _drop_initialisers(graph: onnx.GraphProto) -> None:
    constants = _constants(graph)
    real = [value for value in graph.input if value.name not in constants]
    if len(real) < len(graph.input):
        kept = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in real]
        del graph.input[:]
        graph.input.extend(kept)


def _constants(graph: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}


def _dims(value: onnx.ValueInfoProto) -> Dims | None:
    """Return an input's dimensions: a size, or a name ("" without one); None where not even the rank is known."""
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"input {value.name!r} is no tensor; export the model so that it takes plain tensors")
    if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"input {value.name!r} holds text; export the model without its text processing")
    if value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
        raise ModelError(f"input {value.name!r} has no element type; export the model again")
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(_dim(dim) for dim in value.type.tensor_type.shape.dim)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value == 0:
        return _EMPTY
    if dim.dim_value > 0:
        return int(dim.dim_value)
    return "" if dim.dim_param in _PLACEHOLDERS else str(dim.dim_param)


def _check_request(declared: Mapping[str, Dims | None], shapes: Shapes) -> None:
    for name, shape in shapes.items():
        if name not in declared:
            _check_dimension(declared, name, shape)
            continue
        dims = declared[name]
        if dims is not None and len(dims) != len(shape):
            raise ModelError(
                f"input {name!r} has {len(dims)} dimensions {_show(dims)}, not the {len(shape)} of {_join(shape)}; "
                f"write for example {_example(name, dims, {})}"
            )
        if any(size <= 0 for size in shape):
            raise ModelError(f"input {name!r} cannot have the shape {_join(shape)}; every size must be at least 1")


def _check_dimension(declared: Mapping[str, Dims | None], name: str, sizes: Sequence[int]) -> None:
    named = sorted({dim for dims in declared.values() for dim in dims or () if isinstance(dim, str) and dim})
    if name not in named or name == _EMPTY:
        inputs = ", ".join(repr(known) for known in declared) or "none"
        dims = f", its dimensions with a name {', '.join(map(repr, named))}" if named else ""
        raise ModelError(f"the model has no input {name!r}; its inputs are {inputs}{dims}")
    if len(sizes) != 1 or sizes[0] <= 0:
        raise ModelError(f"{name!r} is a dimension, which has one size, not {_join(sizes)}; write for example {name}=4")


def _sizes(declared: Mapping[str, Dims | None], shapes: Shapes, batch: int | None) -> dict[str, int]:
    sizes = {name: shape[0] for name, shape in shapes.items() if name not in declared}
    for name, size in sizes.items():
        if batch is not None and _BATCH.fullmatch(name) and size != batch:
            raise ModelError(f"the dimension {name!r} is {size}, but @{batch} was asked for; give one")
    for name, dims in declared.items():
        for dim, size in zip(dims or (), shapes.get(name, ()), strict=False):
            if isinstance(dim, str) and dim not in ("", _EMPTY) and sizes.setdefault(dim, size) != size:
                raise ModelError(
                    f"the dimension {dim!r} cannot be both {sizes[dim]} and {size} ({name!r}); make them equal"
                )
            if batch is not None and isinstance(dim, str) and _BATCH.fullmatch(dim) and size != batch:
                raise ModelError(f"input {name!r} has a batch of {size}, but @{batch} was asked for; give one")
    return _solved(declared, sizes)


def _solved(declared: Mapping[str, Dims | None], sizes: Mapping[str, int]) -> dict[str, int]:
    named = _names(declared)
    sums = {dim: _parts(dim, named) for dim in named if dim not in sizes}
    solved = {
        dim: sum(int(part) if part.isdecimal() else sizes[part] for part in parts)
        for dim, parts in sums.items()
        if parts and all(part.isdecimal() or part in sizes for part in parts)
    }
    return {**sizes, **solved}


def _names(declared: Mapping[str, Dims | None]) -> list[str]:
    dims = (dim for dims in declared.values() for dim in dims or ())
    return list(dict.fromkeys(dim for dim in dims if isinstance(dim, str) and dim not in {"", _EMPTY}))


def _parts(dim: str, named: Collection[str]) -> list[str]:
    """Return what a dimension is the sum of, as far as its name tells: `past + 1`, or `total_x` of `past_x` and `x`."""
    if _SUM.fullmatch(dim):
        return dim.split(" + ")
    rest = dim.removeprefix("total_")
    return [f"past_{rest}", rest] if rest != dim and {f"past_{rest}", rest} <= set(named) else []


def _size(dim: int | str, position: int, dims: Dims, sizes: Mapping[str, int], batch: int | None) -> int | None:
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    if _BATCH.fullmatch(dim) or (position == 0 and len(dims) > 1 and _UNNAMED.fullmatch(dim)):
        return batch or 1
    return None


def _refuse(declared: Mapping[str, Dims | None], shapes: Shapes, sizes: Mapping[str, int]) -> NoReturn:
    """Name every input that stays dynamic, with an example that binds them all. Dimensions with a name that somebody
    chose are bound by it, and what is a sum of them with them."""
    named = [dim for dim in _names(declared) if not _is_unnamed(dim)]
    loose = {name: dims for name, dims in declared.items() if name not in shapes and _is_loose(dims, sizes)}
    known, flags, remarks = dict(sizes), list[str](), list[str]()
    for is_sum in (False, True):
        for dims in loose.values():
            for at, dim in enumerate(dims or ()):
                parts = _parts(str(dim), named)
                if dim in named and bool(parts) == is_sum and _size(dim, at, dims or (), known, None) is None:
                    known[str(dim)] = sum(_part(part, known) for part in parts) or _usual(dim, at, dims or ())
                    flags.append(_flag(str(dim), str(known[str(dim)])))
        known = _solved(declared, known)
    for name, dims in loose.items():
        empty = ", and a dimension of 0 holds nothing" if _EMPTY in (dims or ()) else ""
        remarks.append(f"{name!r} is {_show(dims)}{empty}")
    for name, dims in sorted(loose.items(), key=lambda item: any(_parts(str(dim), named) for dim in item[1] or ())):
        if _is_loose(dims, known):
            flags.append(_example(name, dims, known))
            shape = _example_shape(name, dims, known)
            known = _solved(declared, known | {str(dim): size for dim, size in zip(dims or (), shape, strict=False)})
    listed = "; ".join(remarks)
    raise ModelError(f"the model has inputs of unknown size: {listed}. Bind them, for example with {' '.join(flags)}")


def _is_unnamed(dim: str) -> bool:
    return all(part.isdecimal() or _UNNAMED.fullmatch(part) for part in dim.split(" + "))


def _is_loose(dims: Dims | None, sizes: Mapping[str, int]) -> bool:
    return dims is None or any(_size(dim, at, dims, sizes, None) is None for at, dim in enumerate(dims))


def _part(part: str, sizes: Mapping[str, int]) -> int:
    return int(part) if part.isdecimal() else sizes.get(part, 128)


def _example(name: str, dims: Dims | None, sizes: Mapping[str, int]) -> str:
    return _flag(name, _join(_example_shape(name, dims, sizes)))


def _example_shape(name: str, dims: Dims | None, sizes: Mapping[str, int]) -> Sequence[int]:
    if dims is None:
        return (1, 3, 224, 224)
    return [_size(dim, at, dims, sizes, None) or _usual(dim, at, dims, name) for at, dim in enumerate(dims)]


def _flag(name: str, sizes: str) -> str:
    return f"--shape {shlex.quote(f'{name}={sizes}')}"


def _usual(dim: int | str, position: int, dims: Dims, name: str = "") -> int:
    """Return a usual size for a dimension: 224 for an image's sides, 3 for channels, a second of audio, else 128."""
    if len(dims) == 4 and not _SEQUENCE.search(f"{name} {dim}"):
        return 3 if position == 1 and not isinstance(dims[3], int) else 224
    if _SAMPLES.search(str(dim)):
        return 16000
    return 1 if position == 0 and (len(dims) > 1 or _OF_EACH.search(name)) else 128


def _join(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "a scalar"


def _show(dims: Dims | None) -> str:
    return "of unknown rank" if dims is None else f"[{', '.join(str(dim) or '?' for dim in dims)}]"


def _write(graph: onnx.GraphProto, bound: Mapping[str, tuple[int, ...]]) -> None:
    known = dict(bound) | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in graph.input:
        _set_shape(value, bound[value.name])
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
        if value.name in known:  # an input or a constant handed out as it is: inference says nothing about those
            _set_shape(value, known[value.name])
    for each in graphs(graph):
        del each.value_info[:]


def _set_shape(value: onnx.ValueInfoProto, sizes: Sequence[int]) -> None:
    shape = value.type.tensor_type.shape
    shape.SetInParent()
    del shape.dim[:]
    for size in sizes:
        dim = shape.dim.add()
        if size >= 0:
            dim.dim_value = size
