"""Which ONNX node a part of a compiled network was made of: the compiler tells the line of the imported module."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from tunery.domain import operator_key

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
