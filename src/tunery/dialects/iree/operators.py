"""Operator keys of dispatches: products of matrices, with what is fused behind them.

A key is written where the dispatch says enough: what a product was made of, such as a convolution, is lost.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tunery.domain import OperatorKeyError, operator_key
from tunery.domain.operator_key import number

_GENERIC = re.compile(
    r"^ *(?P<result>%\w+) = linalg\.generic \{indexing_maps = \[(?P<maps>[^\]]*)\], "
    r"iterator_types = \[(?P<iterators>[^\]]*)\]\} ins\((?P<ins>[^:]*) : (?P<types>[^)]*)\) "
    r"outs\((?P<out>%\w+) : (?P<out_type>[^)]*)\) \{\n(?P<body>.*?)^ *\} -> ",
    re.MULTILINE | re.DOTALL,
)
MAP = re.compile(r"affine_map<\(([^)]*)\) -> \(([^)]*)\)>")
_SCALAR = re.compile(r"^ *(%\w+) = arith\.constant (-?\d\.\d+e[+-]\d+|-?\d+\.\d+) : f32$", re.MULTILINE)
_FILL = re.compile(r"^ *(%\w+) = linalg\.fill ins\((%\w+) : f32\)", re.MULTILINE)
_LOAD = re.compile(r"^ *(%\w+) = iree_tensor_ext\.dispatch\.tensor\.load %arg(\d+)\b", re.MULTILINE)
_STORE = re.compile(r"^ *iree_tensor_ext\.dispatch\.tensor\.store (%\w+),", re.MULTILINE)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)f32>")
_STEPS = {"addf": "add", "mulf": "multiply"}


@dataclass(frozen=True)
class _Operation:
    """One `linalg.generic`: `dims` are the loops that index each operand, `shapes` its sizes; the output comes last."""

    result: str
    values: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    summed: frozenset[str]
    body: tuple[str, ...]


def operator_of(executable: str, constants: Collection[int] = ()) -> str | None:
    """Return the operator key of an executable; None where it is not known. `constants` are arguments that do not vary.

    How a constant lies in memory is the compiler's own choice: a product with a transposed one is that with the other.
    """
    found = [_operation(one) for one in _GENERIC.finditer(executable)]
    operations = [one for one in found if one is not None]
    stores = _STORE.findall(executable)
    if not operations or len(operations) < len(found) or len(operations) > 2 or "linalg." in _rest(executable):
        return None
    zeros = {name for name, value in _SCALAR.findall(executable) if float(value) == 0.0}
    arguments = {name: int(at) for name, at in _LOAD.findall(executable)}
    product, *behind = operations
    filled = dict(_FILL.findall(executable))
    if filled.get(product.values[-1]) not in zeros or stores != [operations[-1].result]:
        return None
    tensors = _tensors(product, [arguments.get(name) in constants for name in product.values[:2]])
    if tensors is None:
        return None
    fused: Sequence[str] | None = ()
    if behind:
        scalars = {name: float(value) for name, value in _SCALAR.findall(executable)}
        fused = _fused(behind[0], product, scalars, len(tensors["a"]))
    if fused is None:
        return None
    try:
        return operator_key("matmul", {name: (shape, "float32") for name, shape in tensors.items()}, {}, fused)
    except OperatorKeyError:
        return None


def _rest(executable: str) -> str:
    """Return what is neither a generic operation nor what its output begins with."""
    return re.sub(r"linalg\.(fill|yield)", "", _GENERIC.sub("", executable))


def _operation(found: re.Match[str]) -> _Operation | None:
    types = [*re.split(r", (?=tensor)", found["types"]), found["out_type"]]
    shapes = [tuple(int(size) for size in one[1].split("x") if size) for kind in types
              if (one := _TENSOR.fullmatch(kind.strip()))]  # fmt: skip
    maps = MAP.findall(found["maps"])
    if len(shapes) != len(types) or len(maps) != len(types):
        return None
    dims = tuple(tuple(name.strip() for name in made.split(",") if name.strip()) for _, made in maps)
    loops = [name.strip() for name in maps[0][0].split(",")]
    iterators = [one.strip().strip('"') for one in found["iterators"].split(",")]
    if any(len(set(one)) != len(one) or len(one) != len(shape) or not set(one) <= set(loops)
           for one, shape in zip(dims, shapes, strict=True)):  # fmt: skip
        return None
    summed = frozenset(name for name, kind in zip(loops, iterators, strict=True) if kind == "reduction")
    values = (*(one.strip() for one in found["ins"].split(",")), found["out"])
    body = tuple(line.strip() for line in found["body"].splitlines())
    return _Operation(found["result"], values, dims, tuple(shapes), summed, body)


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
    """Say whether an operation adds the product of its two inputs to its output."""
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
    operation: _Operation, product: _Operation, scalars: Mapping[str, float], rank: int
) -> tuple[str, ...] | None:
    """Return the steps of an operation on each element of a product, whose key has so many dimensions; None: others."""
    names = re.findall(r"(%\w+): f32", operation.body[0])
    inputs = operation.values[:-1]
    if operation.summed or len(names) != len(operation.values) or inputs.count(product.result) != 1:
        return None
    at = inputs.index(product.result)
    operands = {name: _broadcast(operation, place, rank) for place, name in enumerate(names[:-1]) if place != at}
    if operation.dims[at] != operation.dims[-1] or not all(operands.values()):
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
    for line, after in zip(body, (*body[1:], ""), strict=True):
        if line == f"linalg.yield {now} : f32":
            return tuple(steps)
        compared = re.fullmatch(r"(%\w+) = arith\.cmpf ugt, (%\w+), (%\w+) : f32", line)
        if compared and compared[2] == now and operands.get(compared[3]) == "0":
            chosen = re.fullmatch(r"(%\w+) = arith\.select (%\w+), (%\w+), (%\w+) : f32", after)
            if chosen is None or chosen.groups()[1:] != (compared[1], now, compared[3]):
                return None
            steps, now = [*steps, "relu"], chosen[1]
            continue
        if steps and steps[-1] == "relu" and line.startswith(f"{now} = arith.select "):
            continue
        found = re.fullmatch(r"(%\w+) = arith\.(\w+) (%\w+), (%\w+) : f32", line)
        other = found and found[4 if found[3] == now else 3]
        if found is None or found[2] not in _STEPS or now not in found.groups()[2:] or other not in operands:
            return None
        steps, now = [*steps, f"{_STEPS[found[2]]}={operands[str(other)]}"], found[1]
    return None
