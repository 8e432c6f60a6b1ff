"""Operator keys: what a workload computes, in one text that every dialect writes the same.

    conv2d:x=1x64x56x56:float32,w=64x64x3x3,pads=1x1x1x1+add=1x64x1x1+relu

First comes the operator; then its tensors, in the order and layout that ONNX gives them (channels first), and its
attributes; then what is fused behind it, each with its other operands: the shape of a tensor, or a number. `$0` is the
operator's own result, `$1` that of the first step behind it. A type is written with the first tensor, with others
that have another one, and with operands of one dimension, as `add=8:float32`: `add=8` adds the number. What an
attribute is by default is left out.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SHAPE = re.compile(r"\d{1,18}(x\d{1,18})*")
_VALUE = re.compile(r"[a-z0-9_.@$-]{1,400}")
_MOST_CHARACTERS = 2000

Defaults = Callable[[int, str], str]
"""From the number of spatial dimensions and the first tensor's type to the text of an attribute's default."""


@dataclass(frozen=True, slots=True)
class _Signature:
    tensors: tuple[str, ...]
    attributes: Mapping[str, Defaults]


def _each(text: str, times: int = 1) -> Defaults:
    return lambda rank, _: "x".join([text] * rank * times)


def _always(text: str) -> Defaults:
    return lambda _, __: text


def _same_type(_: int, dtype: str) -> str:
    return dtype


_WINDOW: dict[str, Defaults] = {"strides": _each("1"), "pads": _each("0", 2), "dilations": _each("1")}
_POOL: dict[str, Defaults] = {"kernel": _each("1"), **_WINDOW, "count_include_pad": _always("0")}
_CONVOLUTION = _Signature(("x", "w"), {**_WINDOW, "groups": _always("1"), "out": _same_type})
_SIGNATURES = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _CONVOLUTION),
    **{f"{kind}{n}d": _Signature(("x",), _POOL) for kind in ("max_pool", "avg_pool", "sum_pool") for n in (1, 2, 3)},
    "matmul": _Signature(("a", "b"), {"out": _same_type}),
    "softmax": _Signature(("x",), {"axis": _always("-1")}),
}
"""Of other operators the tensors are those with a type, and nothing is known of their attributes."""


class OperatorKeyError(ValueError):
    """A text is no operator key; the message is the rest of a sentence about it."""


@dataclass(frozen=True)
class OperatorKey:
    """An operator with its operands, canonical: equal for equal operators, however they were told.

    Example:
        >>> str(OperatorKey.parse("matmul: b=8x16, a=4x8:float32 + relu"))
        'matmul:a=4x8:float32,b=8x16+relu'
    """

    kind: str
    fields: tuple[tuple[str, str], ...]
    fused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join([self.kind + ":" + ",".join(f"{name}={value}" for name, value in self.fields), *self.fused])

    @staticmethod
    def parse(text: str) -> "OperatorKey":
        """Return the key that a text is, with its parts in any order and defaults given or not."""
        pattern = OperatorPattern.parse(text)
        found = dict(pattern.fields)
        signature = _SIGNATURES.get(pattern.kind)
        tensors = signature.tensors if signature else tuple(sorted(n for n, value in found.items() if ":" in value))
        if missing := [name for name in tensors if name not in found]:
            raise OperatorKeyError(f"has no tensor {missing[0]}")
        if not tensors or ":" not in found[tensors[0]]:
            raise OperatorKeyError(f"has no type for {tensors[0] if tensors else 'any tensor'}, as x=8x8:float32")
        rank = _spatial(found[tensors[0]])
        own = found[tensors[0]].partition(":")[2]
        values = {}
        for name in (*tensors, *sorted(found.keys() - set(tensors))):
            value = found[name]
            if name in tensors:
                shape, _, dtype = value.partition(":")
                if not _SHAPE.fullmatch(shape):
                    raise OperatorKeyError(f"has the shape {value!r:.60} of {name}, which is none, as 1x64x56x56")
                value = shape if signature and name != tensors[0] and dtype in {"", own} else value
            elif signature and name not in signature.attributes:
                raise OperatorKeyError(f"has {name!r:.40}, and {pattern.kind} has {', '.join(signature.attributes)}")
            elif signature and value == signature.attributes[name](rank, own):
                continue
            values[name] = value
        order = list(values) if signature is None else [*tensors, *(n for n in signature.attributes if n in values)]
        return OperatorKey(pattern.kind, tuple((name, values[name]) for name in order), pattern.fused)


@dataclass(frozen=True)
class OperatorPattern:
    """Some operators: those of a kind with all the fields that are given; `fused` is what begins their epilogue."""

    kind: str
    fields: tuple[tuple[str, str], ...]
    fused: tuple[str, ...]
    text: str = ""

    @staticmethod
    def parse(text: str) -> "OperatorPattern":
        """Return what operators a text names: a whole key, parts of one, or its beginning."""
        if len(text) > _MOST_CHARACTERS:
            raise OperatorKeyError(f"has {len(text)} characters; {_MOST_CHARACTERS} are the most")
        bare = re.sub(r"\s+", "", text).lower()
        head, *fused = bare.split("+")
        kind, _, rest = head.partition(":")
        if not _KIND.fullmatch(kind):
            raise OperatorKeyError("does not begin with an operator and a colon, as conv2d:")
        fields: dict[str, str] = {}
        for part in filter(None, rest.split(",")):
            name, equals, value = part.partition("=")
            value, colon, dtype = value.partition(":")
            if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise OperatorKeyError(f"has {part!r:.60}, which is no NAME=VALUE")
            if colon and not _NAME.fullmatch(dtype):
                raise OperatorKeyError(f"has {dtype!r:.40}, which is no type, as float32")
            if name in fields:
                raise OperatorKeyError(f"has {name} twice")
            fields[name] = _plain(value) + colon + dtype
        for step in fused:
            name, equals, value = step.partition("=")
            if not _NAME.fullmatch(name) or (equals and not all(map(_operand, value.split(",")))):
                raise OperatorKeyError(f"has {step!r:.60} behind it, which is no step, as relu or add=1x64x1x1")
        return OperatorPattern(kind, tuple(fields.items()), tuple(fused), bare)

    def matches(self, key: OperatorKey) -> bool:
        return (":" in self.text and str(key).startswith(self.text)) or (
            key.kind == self.kind
            and all(_agrees(key, name, value) for name, value in self.fields)
            and key.fused[: len(self.fused)] == self.fused
        )


def operator_key(
    kind: str,
    tensors: Mapping[str, tuple[Sequence[int], str]],
    attributes: Mapping[str, Sequence[int] | int | str] = MappingProxyType({}),
    fused: Sequence[str] = (),
) -> str:
    """Return the key of an operator whose tensors have a shape and a dtype each.

    >>> operator_key("softmax", {"x": ((8, 128), "float32")}, {"axis": -1})
    'softmax:x=8x128:float32'
    """
    parts = [f"{name}={_shape(shape)}:{dtype}" for name, (shape, dtype) in tensors.items()]
    parts += [
        f"{name}={value if isinstance(value, int | str) else _shape(value)}" for name, value in attributes.items()
    ]
    return str(OperatorKey.parse("+".join([f"{kind}:" + ",".join(parts), *fused])))


def number(value: float, dtype: str = "float32") -> str:
    """Return a number as it stands in a key: the shortest text from which its type reads it back."""
    if isinstance(value, int):
        return str(value)
    single = value if dtype == "float64" else _shortest(value)
    return (str(int(single)) if single.is_integer() and abs(single) < 1e16 else repr(single)).replace("e+", "e")


def _shortest(value: float) -> float:
    if not math.isfinite(value):
        return value
    import struct

    try:
        narrow = struct.pack("f", value)
    except OverflowError:
        return value
    return next((short for digits in range(1, 10) if struct.pack("f", short := float(f"{value:.{digits}g}")) == narrow),
                value)  # fmt: skip


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) if shape else "1"


def _plain(value: str) -> str:
    return "x".join(str(int(size)) for size in value.split("x")) if _SHAPE.fullmatch(value) else value


def _operand(text: str) -> bool:
    shape, colon, dtype = text.partition(":")
    return bool(_VALUE.fullmatch(shape)) and (not colon or bool(_NAME.fullmatch(dtype)))


def _spatial(tensor: str) -> int:
    return max(len(tensor.partition(":")[0].split("x")) - 2, 0)


def _agrees(key: OperatorKey, name: str, value: str) -> bool:
    found = dict(key.fields)
    signature = _SIGNATURES.get(key.kind)
    mine = found.get(name)
    if mine is None:
        known = signature.attributes.get(name) if signature else None
        first, _, own = key.fields[0][1].partition(":")
        return known is not None and value == known(_spatial(first), own)
    shape, _, dtype = value.partition(":")
    my_shape, _, my_dtype = mine.partition(":")
    return shape == my_shape and dtype in {"", my_dtype or key.fields[0][1].partition(":")[2]}
