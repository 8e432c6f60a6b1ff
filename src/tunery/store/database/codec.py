"""Domain objects to plain JSON data and back, exactly: every float bit for bit, also those JSON has no word for."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")

_FLOAT = "$float"
_adapters: dict[object, TypeAdapter[Any]] = {}  # building one takes longer than decoding with it


def encode(value: object) -> Any:  # noqa: PLR0911 - one line per kind of value
    """Return a dataclass, or what JSON can hold, as strict JSON data: NaN and the infinities become `{"$float":
    "nan"}`; a key that starts with a dollar sign gets a second one. Tuples become lists."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)  # an enum becomes its value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_escape(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    raise TypeError(
        f"{value!r} ({type(value).__name__}) is no plain data; the store keeps text, numbers, lists and maps"
    )


def _escape(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key {key!r} is no text; the store keeps maps with text keys")
    return "$" + key if key.startswith("$") else str(key)


def plain(data: Any) -> Any:
    if isinstance(data, dict):
        if len(data) == 1 and _FLOAT in data:
            return float(data[_FLOAT])
        return {key.removeprefix("$"): plain(item) for key, item in data.items()}
    return [plain(item) for item in data] if isinstance(data, list) else data


def decode(kind: type[T], data: Any) -> T:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    value: T = _adapters[kind].validate_python(plain(data))
    return value


def pack(text: str) -> bytes:
    """Compress a program or a candidate's body; any text is kept, also one that is not valid Unicode."""
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 6)


def unpack(data: bytes) -> str:
    return zlib.decompress(data).decode("utf-8", "surrogatepass")
