"""A network's dispatches as modules of their own. At IREE's phase `flow` a network is a list of executables, each with
one function of tensors, and calls of them. A task is one executable, verbatim, with a function that calls it. What an
executable holds of a network's weights (a bias, as a rule) is replaced by other numbers: the same operator of two
layers is one task."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tunery.dialects.iree.operators import MAP, Convolution, operator_of, without_locations

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i1": "bool", "i8": "int8",
          "i16": "int16", "i32": "int32", "i64": "int64"}  # fmt: skip
Spec = tuple[tuple[int, ...], str]
"""A tensor's shape and NumPy dtype name."""
DEVICE = "// the device"
"""Where a module's device is to be written."""
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)>")
_EXECUTABLE = re.compile(r"^  flow\.executable private @(?P<name>[\w$]+) \{\n.*?^  \}\n", re.MULTILINE | re.DOTALL)
_CALL = re.compile(
    r"^ +(?:%[\w:, %]+ = )?flow\.dispatch @(?P<executable>[\w$]+)::@(?P<export>[\w$]+)"
    r"\((?P<operands>[^()]*)\) : \((?P<types>[^()]*)\) -> (?P<results>.*)$",
    re.MULTILINE,
)
_CONSTANTS = ("%__constant", "%__hoisted")
_FIXED = re.compile(r"^ +(%\w+) = flow\.tensor\.reshape %__(?:constant|hoisted)\w* :", re.MULTILINE)
_SUMMED = re.compile(r'iterator_types = \[[^\]]*"reduction"[^\]]*\].*?^ *\} -> ', re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(r"dense(?:_resource<\w+>|<\[[^>]*\]>|<\"[^\"]*\">) : (tensor<(?:\d+x)+f32>)")
_GENERIC = re.compile(
    r"^ *%\w+ = linalg\.generic \{indexing_maps = \[(?P<maps>[^\]]*)\], iterator_types = \[(?P<iterators>[^\]]*)\]\} "
    r"ins\((?P<inputs>[^:]*) : (?P<input_types>[^)]*)\) outs\((?P<output>%\w+) : (?P<output_type>[^)]*)\) \{\n"
    r"(?P<body>(?: *(?:\^bb0|%\w+ = arith\.|linalg\.yield)[^\n]*\n)*) *\} -> (?P<result>tensor<\S+>)$",
    re.MULTILINE,
)
_SYMBOL = re.compile(r'@("[^"\n]*"|[\w$.]+)')
_NAMES = re.compile(r"^.*?dispatch_\d+_?")


@dataclass(frozen=True)
class Contraction:
    """A product of tensors, summed over some loops: `extents` and `reduced` are of its loops, outermost first. `vector`
    is the loop over outputs along which an input lies in memory, else the output does."""

    extents: tuple[int, ...]
    reduced: tuple[bool, ...]
    vector: int
    operands: dict[str, str]
    text: str

    @property
    def flop(self) -> float:
        return 2.0 * math.prod(self.extents)


@dataclass(frozen=True)
class DispatchedOperator:
    """An executable, with how often a network calls it; tensors are shapes with NumPy's dtype names."""

    name: str
    module: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    contraction: Contraction | None
    calls: int = 1
    operator: str | None = None


def dispatches(
    flow: str, nodes: Mapping[int, Convolution] = MappingProxyType({}), apart: Iterable[str] = ()
) -> Iterator[DispatchedOperator]:
    """Yield what a network at the phase `flow` calls, in the order of the first calls; equal ones are not merged. What
    takes anything else than tensors of static shapes cannot be called by itself and is left out, as is what was made of
    a convolution in `nodes` (by line) that is one of `apart`, operator keys of tasks of their own."""
    whole = {key.partition("+")[0] for key in apart}
    own = {line for line, node in nodes.items() if node.operator in whole}
    flow, lines = without_locations(flow)
    # They are named after the model's graph, which may be called anything.
    flow = _SYMBOL.sub(lambda found: "@" + re.sub(r"[^\w$]", "_", found[1].strip('"')), flow)
    executables = {found["name"]: found for found in _EXECUTABLE.finditer(flow)}
    fixed = set(_FIXED.findall(flow))
    calls: dict[str, list[re.Match[str]]] = {}
    begin = re.search(r"^  util\.func public ", flow, re.MULTILINE)  # what initialisers call before runs once
    for found in _CALL.finditer(flow, begin.start() if begin else len(flow)):
        calls.setdefault(found["export"], []).append(found)
    for export, [call, *others] in calls.items():
        executable = executables.get(call["executable"])
        made = None if executable is None else _alone(executable.group(0), call)
        of = {line for one in (call, *others) for line in lines[flow.count("\n", 0, one.start())] or {0}}
        if executable is None or made is None or of <= own:
            continue
        module, inputs, outputs = made
        constants = set.intersection(*(_constants(one, fixed) for one in (call, *others)))
        places = [executable.start() + one.end() for one in _SUMMED.finditer(executable.group(0))]
        products = {nodes.get(line) for at in places for line in lines[flow.count("\n", 0, at)]}
        callers = {nodes.get(line) for one in others for line in lines[flow.count("\n", 0, one.start())]}
        [node] = products if len(products) == 1 and callers <= products else [None]
        operator = operator_of(executable.group(0), constants, node)
        yield DispatchedOperator(
            _short(export), module, inputs, outputs, contraction(module), 1 + len(others), operator
        )


def _constants(call: re.Match[str], fixed: Collection[str]) -> set[int]:
    """Return which operands of a call are the network's constants, as they are or in another shape."""
    names = enumerate(_split(call["operands"]))
    return {at for at, name in names if name.startswith(_CONSTANTS) or name in fixed}


def _short(export: str) -> str:
    return _NAMES.sub("", export) or export


def _alone(executable: str, call: re.Match[str]) -> tuple[str, tuple[Spec, ...], tuple[Spec, ...]] | None:
    types = _split(call["types"])
    operands = _split(call["operands"])
    results = _split(call["results"].strip().removeprefix("(").removesuffix(")"))
    if len(types) != len(operands) or not all(_spec(one) for one in types):
        return None
    tied = {place: operands.index(name) for place, one in enumerate(results)
            if (name := one.partition(" ")[0]).startswith("%") and name in operands}  # fmt: skip
    made = [types[tied[place]] if place in tied else one for place, one in enumerate(results)]
    if not made or not all(_spec(one) for one in made) or any("as tensor" in one for one in results):
        return None
    text = _replaced(executable)
    if text is None:
        return None
    rename = {call["executable"]: "dispatch", call["export"]: "kernel"}
    for name in sorted(rename, key=len, reverse=True):
        text = re.sub(rf"@{re.escape(name)}(?![\w$])", f"@{rename[name]}", text)
    # A tensor that is updated in place is copied: what was given stays.
    copies = [f"    %c{at} = flow.tensor.clone %t{at} : {types[at]}\n" for at in sorted(set(tied.values()))]
    given = [f"%{'c' if at in tied.values() else 't'}{at}" for at in range(len(types))]
    arrows = [given[tied[place]] if place in tied else one for place, one in enumerate(made)]
    arguments = [f"%a{at}: !hal.buffer_view" for at in range(len(types))]
    arguments += [f"%o{at}: !hal.buffer_view" for at in range(len(made))]
    views = ", ".join("!hal.buffer_view" for _ in made)
    lines = [f"    %t{at} = hal.tensor.import %a{at} : !hal.buffer_view -> {one}\n" for at, one in enumerate(types)]
    lines += copies
    names = "%r" if len(made) == 1 else f"%r:{len(made)}"
    result = arrows[0] if len(made) == 1 else f"({', '.join(arrows)})"
    lines.append(
        f"    {names} = flow.dispatch @dispatch::@kernel({', '.join(given)}) : ({', '.join(types)}) -> {result}\n"
    )
    for at, one in enumerate(made):
        name = "%r" if len(made) == 1 else f"%r#{at}"
        lines.append(f"    %s{at} = hal.tensor.alias {name} : {one} to %o{at} : !hal.buffer_view\n")
        lines.append(f"    %e{at} = hal.tensor.export %s{at} : {one} -> !hal.buffer_view\n")
    returned = ", ".join(f"%e{at}" for at in range(len(made)))
    module = (
        f"module attributes {{stream.affinity.default = #hal.device.affinity<@__device_0>}} {{\n{DEVICE}\n{text}"
        f"  util.func public @main({', '.join(arguments)}) -> ({views}) attributes {{iree.abi.stub}} {{\n"
        f"{''.join(lines)}    util.return {returned} : {views}\n  }}\n}}\n"
    )
    inputs, outputs = (tuple(spec for one in of if (spec := _spec(one))) for of in (types, made))
    return module, inputs, outputs


def _split(text: str) -> list[str]:
    return [one.strip() for one in re.split(r",(?![^<]*>)", text) if one.strip()]


def _spec(text: str) -> Spec | None:
    found = _TENSOR.fullmatch(text)
    if found is None or found[2] not in DTYPES:
        return None
    return tuple(int(size) for size in found[1].split("x") if size), DTYPES[found[2]]


def _replaced(executable: str) -> str | None:
    """Replace what an executable holds of weights by numbers that its shape decides; None where that is not known."""

    def numbers(found: re.Match[str]) -> str:
        spec = _spec(found[1])
        assert spec is not None
        values = np.random.default_rng(math.prod(spec[0])).uniform(0.25, 0.75, spec[0]).astype("<f4")
        return f'dense<"0x{values.tobytes().hex().upper()}"> : {found[1]}'

    text = _CONSTANT.sub(numbers, executable)
    return None if "dense_resource<" in text else text


def contraction(module: str) -> Contraction | None:
    found = [one for one in map(_contraction, _GENERIC.finditer(module)) if one is not None]
    return found[0] if len(found) == 1 else None


def _contraction(found: re.Match[str]) -> Contraction | None:
    reduced = tuple(one.strip().strip('"') == "reduction" for one in found["iterators"].split(","))
    types = [*_split(found["input_types"]), found["output_type"]]
    if not any(reduced) or len(types) != 3 or "arith.mul" not in found["body"] or "arith.add" not in found["body"]:
        return None
    extents: dict[str, int] = {}
    loops: list[str] = []
    along: list[str] = []
    for (names, made), kind in zip(MAP.findall(found["maps"]), types, strict=True):
        loops = [name.strip() for name in names.split(",")]
        dims = [name.strip() for name in made.split(",") if name.strip()]
        spec = _spec(kind)
        if spec is None or len(dims) != len(spec[0]) or not set(dims) <= set(loops):
            return None  # a window, a broadcast of a constant, a dynamic size
        extents.update(zip(dims, spec[0], strict=True))
        along += dims[-1:]
    outer = [one for one in along if one in loops and not reduced[loops.index(one)]]
    if set(loops) != extents.keys() or not outer:
        return None
    values = [*_split(found["inputs"]), found["output"]]
    names = {value: f"%x{at}" for at, value in enumerate(dict.fromkeys(values))}
    operands = {names[value]: kind for value, kind in zip(values, types, strict=True)}
    text = (
        f"linalg.generic {{indexing_maps = [{found['maps']}], iterator_types = [{found['iterators']}]}} "
        f"ins({', '.join(names[one] for one in values[:-1])} : {found['input_types']}) "
        f"outs({names[values[-1]]} : {found['output_type']}) {{\n{found['body']}      }} -> {found['result']}"
    )
    return Contraction(tuple(extents[one] for one in loops), reduced, loops.index(outer[0]), operands, text)
