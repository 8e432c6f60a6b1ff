"""Operator keys of dispatches: products of matrices, with what is fused behind them. What a product was made of is not
seen: of a convolution, that is told by its ONNX node. Only one whose windows are single places has a key: of others,
padding and windows are dispatches of their own, which several may share, and what is behind one is often computed with
the next one's windows. Such a convolution is a task of its own (`convolution`)."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunery.domain import OperatorKeyError, operator_key
from tunery.domain.operator_key import number

_CONVOLUTION = re.compile(
    r'^%\w+ = torch\.operator "onnx\.Conv"\([^)]*\)(?: \{(?P<attributes>.*)\})? : \((?P<types>.*)\) -> (?P<result>.*)$'
)
_TYPE = re.compile(r"!torch\.vtensor<\[([\d,]*)\],f32>")
_ATTRIBUTE = re.compile(r"torch\.onnx\.(\w+) = (\[[^\]]*\]|\S+ : si64)")
_LOCATION = re.compile(r' loc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*\))*\)')
_LINE = re.compile(r'":(\d+):\d+')
_RESOURCES = "{-#"


@dataclass(frozen=True)
class Convolution:
    """A convolution in float32, as ONNX has it."""

    image: tuple[int, ...]
    weights: tuple[int, ...]
    result: tuple[int, ...]
    has_bias: bool
    groups: int
    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...] = ()

    @property
    def operator(self) -> str:
        told = {"strides": self.strides, "pads": self.pads, "dilations": self.dilations, "groups": (self.groups,)}
        tensors = {"x": (self.image, "float32"), "w": (self.weights, "float32")}
        return operator_key(f"conv{len(self.image) - 2}d", tensors, {name: one for name, one in told.items() if one})

    @property
    def is_of_points(self) -> bool:
        return math.prod(self.weights[2:]) == 1 and self.groups == 1 and not any(self.pads)


def convolutions(module: Path) -> dict[int, Convolution]:
    found = {}
    with module.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.startswith(_RESOURCES):
                break
            if '"onnx.Conv"' in line and (one := _convolution(line.strip())):
                found[number] = one
    return found


def _convolution(line: str) -> Convolution | None:
    found = _CONVOLUTION.match(line)
    if found is None or re.search(r'auto_pad = "SAME', found["attributes"] or ""):
        return None
    types = [*found["types"].split(", "), found["result"]]
    shapes = [tuple(int(size) for size in one[1].split(",") if size) for kind in types
              if (one := _TYPE.fullmatch(kind.strip()))]  # fmt: skip
    if len(shapes) != len(types) or len(shapes) not in {3, 4}:
        return None
    told = {name: tuple(map(int, re.findall(r"-?\d+(?= : si64)", value)))
            for name, value in _ATTRIBUTE.findall(found["attributes"] or "")}  # fmt: skip
    [groups], strides = told.get("group", (1,)), told.get("strides", (1,) * (len(shapes[0]) - 2))
    return Convolution(shapes[0], shapes[1], shapes[-1], len(shapes) == 4, groups, told.get("pads", ()), strides,
                       told.get("dilations", ()))  # fmt: skip


def without_locations(text: str) -> tuple[str, list[frozenset[int]]]:
    lines, told = [], []
    for line in text.splitlines(keepends=True):
        found = _LOCATION.findall(line)
        lines.append(_LOCATION.sub("", line))
        told.append(frozenset(map(int, _LINE.findall(found[-1]))) if found else frozenset())
    return "".join(lines), told


_GENERIC = re.compile(
    r"^ *(?P<result>%\w+) = linalg\.generic \{indexing_maps = \[(?P<maps>[^\]]*)\], "
    r"iterator_types = \[(?P<iterators>[^\]]*)\]\} ins\((?P<ins>[^:]*) : (?P<types>[^)]*)\) "
    r"outs\((?P<out>%\w+) : (?P<out_type>[^)]*)\) \{\n(?P<body>.*?)^ *\} -> ",
    re.MULTILINE | re.DOTALL,
)
_TERM = re.compile(r"(d\d+)(?: \* (\d+))?")
MAP = re.compile(r"affine_map<\(([^)]*)\) -> \(([^)]*)\)>")
_SCALAR = re.compile(r"^ *(%\w+) = arith\.constant (-?\d\.\d+e[+-]\d+|-?\d+\.\d+) : f32$", re.MULTILINE)
_FILL = re.compile(r"^ *(%\w+) = linalg\.fill ins\((%\w+) : f32\)", re.MULTILINE)
_LOAD = re.compile(r"^ *(%\w+) = iree_tensor_ext\.dispatch\.tensor\.load %arg(\d+)\b", re.MULTILINE)
_STORE = re.compile(r"^ *iree_tensor_ext\.dispatch\.tensor\.store (%\w+),", re.MULTILINE)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)f32>")
_COMPARED = re.compile(r"(%\w+) = arith\.cmpf (ugt|ult), (%\w+), (%\w+) : f32")
_CHOSEN = re.compile(r"(%\w+) = arith\.select (%\w+), (%\w+), (%\w+) : f32")
_STEPS = {"addf": "add", "mulf": "multiply"}


@dataclass(frozen=True)
class _Operation:
    """One `linalg.generic`: `dims` are the loops that index each operand; the output comes last."""

    result: str
    values: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]
    scales: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    summed: frozenset[str]
    body: tuple[str, ...]

    @property
    def is_plain(self) -> bool:
        return not {scale for of in self.scales for scale in of} - {1}


@dataclass(frozen=True)
class _Dispatch:
    """What an executable does: `operations` one after the other, the last of which makes its only output."""

    operations: tuple[_Operation, ...]
    scalars: Mapping[str, float]
    filled: Mapping[str, str]
    arguments: Mapping[str, int]

    def is_zero(self, value: str) -> bool:
        return self.scalars.get(self.filled.get(value, "")) == 0.0


def operator_of(executable: str, constants: Collection[int] = (), convolution: Convolution | None = None) -> str | None:
    """Return the operator key of an executable. How a constant lies in memory is the compiler's own choice: a product
    with a transposed one is that with the other. A product of matrices may be made of a `convolution`, and be all of
    it."""
    found = _read(executable)
    if found is None:
        return None
    try:
        made = convolution and _point_key(found, constants, convolution)
        return made or _product_key(found, constants)
    except OperatorKeyError:
        return None


def _read(executable: str) -> _Dispatch | None:
    found = [_operation(one) for one in _GENERIC.finditer(executable)]
    operations = tuple(one for one in found if one is not None)
    if not operations or len(operations) < len(found) or "linalg." in _rest(executable):
        return None
    if _STORE.findall(executable) != [operations[-1].result]:
        return None
    return _Dispatch(
        operations, {name: float(value) for name, value in _SCALAR.findall(executable)},
        dict(_FILL.findall(executable)), {name: int(at) for name, at in _LOAD.findall(executable)},
    )  # fmt: skip


def _product_key(found: _Dispatch, constants: Collection[int]) -> str | None:
    product, *behind = found.operations
    if (
        len(behind) > 1
        or not all(operation.is_plain for operation in found.operations)
        or not found.is_zero(product.values[-1])
    ):
        return None
    tensors = _tensors(product, [found.arguments.get(name) in constants for name in product.values[:2]])
    if tensors is None:
        return None
    fused: Sequence[str] | None = ()
    if behind:
        [last] = behind
        at = _place(last, product)
        if at is None or last.dims[at] != last.dims[-1]:
            return None
        rank = len(tensors["a"])
        fused = _fused(last, at, found.scalars, [_broadcast(last, place, rank) for place in range(len(last.dims) - 1)])
    if fused is None:
        return None
    return operator_key("matmul", {name: (shape, "float32") for name, shape in tensors.items()}, {}, fused)


# -- convolutions whose windows are single places ---------------------------------------------------------------------


def _point_key(found: _Dispatch, constants: Collection[int], convolution: Convolution) -> str | None:
    """Return the key of a convolution that is all in one product of matrices: of its whole image, by its weights."""
    at = next((place for place, one in enumerate(found.operations) if one.summed), None)
    if at is None or at > 1 or len(found.operations) > at + 2 or not convolution.is_of_points:
        return None
    product, behind = found.operations[at], found.operations[at + 1 :]
    fixed = [found.arguments.get(name) in constants for name in product.values]
    channels = _channels(product, fixed, convolution)
    if channels is None or not all(one.is_plain for one in behind):
        return None
    shapes = {frozenset({channels}): f"1x{convolution.result[1]}" + "x1" * (len(convolution.result) - 2),
              frozenset(product.dims[-1]): "x".join(map(str, convolution.result))}  # fmt: skip
    bias = f"add={shapes[frozenset({channels})]}"
    steps = _begun(found, at, bias, channels, is_fixed=fixed[-1])
    for last in behind:
        more = _behind_points(last, product, found.scalars, shapes)
        steps = None if steps is None or more is None else [*steps, *more]
    if steps is None or convolution.has_bias != (steps[:1] == [bias]):
        return None
    tensors = {"x": (convolution.image, "float32"), "w": (convolution.weights, "float32")}
    return operator_key(f"conv{len(convolution.image) - 2}d", tensors, {"strides": convolution.strides}, steps)


def _begun(found: _Dispatch, at: int, bias: str, channels: str, *, is_fixed: bool) -> list[str] | None:
    """Return the steps that what a convolution begins with stands for: of a constant, its bias. None: others."""
    product = found.operations[at]
    if found.is_zero(product.values[-1]):
        return None if at else []
    return [bias] if (_is_bias(found.operations[0], product, channels) if at else is_fixed) else None


def _channels(product: _Operation, fixed: Sequence[bool], convolution: Convolution) -> str | None:
    if len(product.values) != 3 or len(product.summed) != 1 or not _is_product(product.body) or sum(fixed[:2]) != 1:
        return None
    weights = fixed.index(True)
    inner, image, out = product.dims[weights], product.dims[1 - weights], product.dims[-1]
    (k,) = product.summed
    [*columns] = set(inner) - {k}
    if len(columns) != 1 or k in out or {*image} != {*out, k} - {*columns} or not {*columns} <= {*out}:
        return None
    places = [name for name in out if name not in columns]
    scales = [scale for name, scale in zip(image, product.scales[1 - weights], strict=True) if name != k]
    expected = [1] * (len(places) - len(convolution.strides)) + [*convolution.strides]
    known = (
        [name for name in image if name != k] == places
        and scales == (expected if max(convolution.strides) > 1 else [1] * len(places))
        and not {*product.scales[weights], *product.scales[-1]} - {1}
        and math.prod(product.shapes[1 - weights]) == math.prod(convolution.image)
        and math.prod(product.shapes[-1]) == math.prod(convolution.result)
        and dict(zip(inner, product.shapes[weights], strict=True)) == {columns[0]: convolution.weights[0],
                                                                       k: convolution.weights[1]}
    )  # fmt: skip
    return columns[0] if known else None


def _is_bias(operation: _Operation, product: _Operation, channels: str) -> bool:
    if operation.result != product.values[-1] or len(operation.values) != 2 or not operation.is_plain:
        return False
    loops = dict(zip(operation.dims[-1], product.dims[-1], strict=True))
    copied = re.fullmatch(r"\^bb0\((%\w+): f32, %\w+: f32\):", operation.body[0])
    return (
        [loops.get(name) for name in operation.dims[0]] == [channels] and copied is not None
        and operation.body[1:] == (f"linalg.yield {copied[1]} : f32",)
    )  # fmt: skip


def _behind_points(
    operation: _Operation, product: _Operation, scalars: Mapping[str, float], shapes: Mapping[frozenset[str], str]
) -> tuple[str, ...] | None:
    """Return the steps of an operation on each result of a convolution, whatever the order of its loops; `shapes` has
    what an operand is called in a key by the product's loops that it has."""
    at = _place(operation, product)
    if at is None:
        return None
    loops = dict(zip(operation.dims[at], product.dims[-1], strict=True))
    order = [name for name in product.dims[-1] if frozenset({name}) not in shapes]
    texts = []
    for dims in operation.dims:
        mine = [loops.get(name, "") for name in dims]
        straight = [name for name in mine if name in order] in ([], order)
        texts.append(shapes.get(frozenset(mine), "") if straight else "")
    return _fused(operation, at, scalars, texts[:-1]) if texts[-1] else None


def _place(operation: _Operation, product: _Operation) -> int | None:
    inputs = operation.values[:-1]
    if operation.summed or inputs.count(product.result) != 1 or len(operation.dims[-1]) != len(product.dims[-1]):
        return None
    at = inputs.index(product.result)
    return at if set(operation.dims[at]) == set(operation.dims[-1]) else None


def _rest(executable: str) -> str:
    return re.sub(r"linalg\.(fill|yield)", "", _GENERIC.sub("", executable))


def _operation(found: re.Match[str]) -> _Operation | None:
    types = [*re.split(r", (?=tensor)", found["types"]), found["out_type"]]
    shapes = [tuple(int(size) for size in one[1].split("x") if size) for kind in types
              if (one := _TENSOR.fullmatch(kind.strip()))]  # fmt: skip
    maps = MAP.findall(found["maps"])
    if len(shapes) != len(types) or len(maps) != len(types):
        return None
    terms = [[_TERM.fullmatch(name.strip()) for name in made.split(",") if name.strip()] for _, made in maps]
    if not all(all(of) for of in terms):
        return None
    dims = tuple(tuple(one[1] for one in of if one) for of in terms)
    scales = tuple(tuple(int(one[2] or 1) for one in of if one) for of in terms)
    loops = [name.strip() for name in maps[0][0].split(",")]
    iterators = [one.strip().strip('"') for one in found["iterators"].split(",")]
    if any(len(set(one)) != len(one) or len(one) != len(shape) or not set(one) <= set(loops)
           for one, shape in zip(dims, shapes, strict=True)):  # fmt: skip
        return None
    summed = frozenset(name for name, kind in zip(loops, iterators, strict=True) if kind == "reduction")
    values = (*(one.strip() for one in found["ins"].split(",")), found["out"])
    body = tuple(line.strip() for line in found["body"].splitlines())
    return _Operation(found["result"], values, dims, scales, tuple(shapes), summed, body)


def _tensors(product: _Operation, constant: Sequence[bool]) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of a product's operands as ONNX's MatMul has them; None where it is none."""
    if len(product.values) != 3 or len(product.summed) != 1 or not _is_product(product.body):
        return None
    a, b, out = product.dims
    (k,) = product.summed
    sizes = {name: size for dims, shape in zip(product.dims, product.shapes, strict=True)
             for name, size in zip(dims, shape, strict=True)}  # fmt: skip
    batch = tuple(name for name in out if name in a and name in b)
    rows = tuple(name for name in out if name in a and name not in b)
    columns = tuple(name for name in out if name in b and name not in a)
    if k in out or k not in a or k not in b or len(columns) != 1 or out != (*batch, *rows, *columns):
        return None
    straight = b == (*batch, k, *columns)
    if a != (*batch, *rows, k) or not (straight or (constant[1] and set(b) == {k, *columns})):
        return None
    if batch and len(rows) > 1:
        return None
    ones = () if rows else (1,)
    return {
        "a": (*(sizes[name] for name in (*batch, *rows)), *ones, sizes[k]),
        "b": (*(sizes[name] for name in batch), sizes[k], sizes[columns[0]]),
    }


def _is_product(body: Sequence[str]) -> bool:
    if len(body) != 4:
        return False
    names = re.findall(r"(%\w+): f32", body[0])
    times = re.fullmatch(r"(%\w+) = arith\.mulf (%\w+), (%\w+) : f32", body[1])
    plus = re.fullmatch(r"(%\w+) = arith\.addf (%\w+), (%\w+) : f32", body[2])
    return (
        len(names) == 3 and times is not None and plus is not None
        and {times[2], times[3]} == set(names[:2]) and {plus[2], plus[3]} == {names[2], times[1]}
        and body[3] == f"linalg.yield {plus[1]} : f32"
    )  # fmt: skip


def _fused(
    operation: _Operation, at: int, scalars: Mapping[str, float], shapes: Sequence[str]
) -> tuple[str, ...] | None:
    names = re.findall(r"(%\w+): f32", operation.body[0])
    if len(names) != len(operation.values):
        return None
    operands = {name: shape for place, (name, shape) in enumerate(zip(names, shapes, strict=False)) if place != at}
    if not all(operands.values()):
        return None
    return _steps(operation.body[1:], names[at], {**operands, **{k: number(v) for k, v in scalars.items()}})


def _broadcast(operation: _Operation, place: int, rank: int) -> str:
    """Return an operand's shape beside that of the output, in so many dimensions; "" where it is transposed."""
    out = operation.dims[-1]
    sizes = dict(zip(operation.dims[place], operation.shapes[place], strict=True))
    if list(sizes) != [one for one in out if one in sizes]:
        return ""
    return "x".join([*["1"] * (rank - len(out)), *(str(sizes.get(one, 1)) for one in out)])


def _steps(body: Sequence[str], now: str, operands: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the steps from the value `now` to what is yielded; `operands` are the others, as a key has them."""
    steps: list[str] = []
    lines = iter(body)
    for line in lines:
        if line == f"linalg.yield {now} : f32":
            return tuple(steps)
        if limit := _COMPARED.fullmatch(line):
            chosen = _CHOSEN.fullmatch(next(lines, ""))
            bound = operands.get(limit[4], "")
            if limit[3] != now or chosen is None or chosen[2] != limit[1] or {chosen[3], chosen[4]} != {now, limit[4]}:
                return None
            if "x" in bound or not bound:
                return None
            steps = _limited(steps, bound, least=(limit[2] == "ugt") == (chosen[3] == now))
            now = chosen[1]
            continue
        found = re.fullmatch(r"(%\w+) = arith\.(\w+) (%\w+), (%\w+) : f32", line)
        other = found and found[4 if found[3] == now else 3]
        if found is None or found[2] not in _STEPS or now not in found.groups()[2:] or other not in operands:
            return None
        steps, now = [*steps, f"{_STEPS[found[2]]}={operands[str(other)]}"], found[1]
    return None


def _limited(steps: Sequence[str], bound: str, *, least: bool) -> list[str]:
    if least:
        return [*steps, "relu" if float(bound) == 0 else f"maximum={bound}"]
    name, _, low = steps[-1].partition("=") if steps else ("", "", "")
    if name == "relu" or (name == "maximum" and float(low) <= float(bound)):
        return [*steps[:-1], f"clip={low or 0},{bound}"]
    return [*steps, f"minimum={bound}"]
