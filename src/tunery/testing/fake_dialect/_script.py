"""What a fake network does, read from its source."""

import json
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from tunery._errors import DialectError, ModelError
from tunery.domain import Network, TensorSpec, canonical_json, digest
from tunery.testing.fake_dialect._workloads import KINDS, OPERATORS, arguments, flop

BUILD_FAULTS = frozenset({"refuse", "build_crash", "build_hang"})
RUN_FAULTS = frozenset({"fail", "segfault", "hang", "hang_gil", "eat"})
WRONG = frozenset({"one_off", "all_nan", "constant", "partial", "some", "negative", "infinite"})
CLOCK_FAULTS = frozenset({"zero_time", "nan_time"})
FAULTS = BUILD_FAULTS | RUN_FAULTS | WRONG | CLOCK_FAULTS

_PREFIX = "fake:"
_S = TypeVar("_S", "NetworkScript", "TaskScript")


@dataclass(frozen=True, slots=True)
class NetworkScript:
    """The options that shape the network as a whole; they are no part of a task's identity."""

    tasks: int = 3
    frozen: int = 0
    ops: str = ",".join(OPERATORS)
    weights: str = "1"
    fault_tasks: str = ""
    unsupported: bool = False
    extract_dies: bool = False
    compile_fails: bool = False
    extract_s: float = 0.0
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskScript:
    """The options that shape one task; they travel in its program."""

    size: int = 8
    seed: int = 0
    space: str = "16x16x8"
    best_us: float = 100.0
    spread: float = 20.0
    baseline: float = 8.0
    levels: int = 200
    noise: float = 0.01
    burst: float = 0.0
    burst_factor: float = 3.0
    drift: float = 0.0
    exhaust: int = 0
    real: bool = False
    spin: bool = False
    propose_s: float = 0.0
    build_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    memory_mib: int = 512
    some_share: float = 0.5
    absurd: float = 0.0
    propose_dies: bool = False
    baseline_fault: str = ""
    reference_fault: str = field(default="", repr=False)  # networks of before it keep their digests
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def axes(self) -> tuple[int, int, int]:
        """Configs per axis: tile_x, tile_y, unroll."""
        x, y, z = (int(part) for part in self.space.split("x"))
        return x, y, z


@dataclass(frozen=True, slots=True)
class FakeProgram:
    """A workload's program: its operator, its number in the network, and its script."""

    op: str
    index: int
    script: TaskScript

    def dump(self) -> str:
        default = TaskScript()
        options = {
            one.name: getattr(self.script, one.name)
            for one in fields(TaskScript)
            if getattr(self.script, one.name) != getattr(default, one.name)
        }
        return canonical_json({"op": self.op, "index": self.index, "script": options})

    @classmethod
    def parse(cls, text: str) -> "FakeProgram":
        """Read a workload's program."""
        try:
            data = json.loads(text)
            options = data["script"]
            faults = tuple((str(name), str(value)) for name, value in options.pop("faults", ()))
            return cls(data["op"], int(data["index"]), TaskScript(**options, faults=faults))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DialectError(f"{text[:200]!r} is no program of the fake dialect: {error}") from error

    @property
    def kind(self) -> str:
        return KINDS[self.op]

    @property
    def flop(self) -> float:
        return flop(self.op, self.script.size)

    @property
    def arguments(self) -> tuple[tuple[TensorSpec, ...], int]:
        """Inputs, then outputs, and how many outputs there are."""
        return arguments(self.op, self.script.size)


def parse_source(source: str) -> tuple[str, NetworkScript, TaskScript]:
    """Read `fake:NAME[?option=value&...]`."""
    name, _, query = source.removeprefix(_PREFIX).partition("?")
    if not source.startswith(_PREFIX) or not name:
        raise ModelError(f"source {source!r} is no fake network; write for example fake:small?tasks=2")
    try:
        pairs = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        network, pairs = _take(NetworkScript(), pairs)
        task, pairs = _take(TaskScript(), pairs)
        faults = {fault: pairs.pop(fault) for fault in sorted(FAULTS & pairs.keys())}
        if pairs:
            raise ValueError(f"unknown options: {', '.join(sorted(pairs))}")  # noqa: TRY301 - one message for all mistakes
        script = replace(task, faults=tuple(faults.items()))
        _check(network, script)
    except ValueError as error:
        raise ModelError(
            f"source {source!r} cannot be right: {error}; see help(tunery.testing.fake_dialect)"
        ) from error
    return name, network, script


def fake_network(source: str) -> Network:
    """Return the network that `source` (`fake:NAME[?option=value&...]`) scripts; it has no file (`path` is empty).

    Its inputs and outputs are those of its tasks, one after the other: `t0.x`, `t0.w`, `t1.table`, ...
    """
    name, network, script = parse_source(source)
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for program in programs(network, script):
        specs, count = program.arguments
        named = [TensorSpec(f"t{program.index}.{spec.name}", spec.shape, spec.dtype) for spec in specs]
        inputs += named[: len(named) - count]
        outputs += named[len(named) - count :]
    identity = digest(repr(network), repr(script), *filter(None, [script.reference_fault]))
    return Network(name, source, identity, "", tuple(inputs), tuple(outputs), parameters=0)


def programs(network: NetworkScript, script: TaskScript) -> list[FakeProgram]:
    ops = network.ops.split(",")
    faulty = {int(number) for number in network.fault_tasks.split(",") if number}
    healthy = replace(script, faults=(), baseline_fault="", reference_fault="")
    return [
        FakeProgram(ops[index % len(ops)], index, script if not faulty or index in faulty else healthy)
        for index in range(network.tasks + network.frozen)
    ]


def _take(default: _S, pairs: dict[str, str]) -> tuple[_S, dict[str, str]]:
    """Return the script with the options it knows, and the options that are left."""
    known: dict[str, Any] = {}
    for one in fields(default):
        if one.name in pairs and one.name != "faults":
            known[one.name] = _convert(one.name, pairs[one.name], type(getattr(default, one.name)))
    return replace(default, **known), {name: text for name, text in pairs.items() if name not in known}


def _convert(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in ("0", "1"):
            raise ValueError(f"{name}={text} is neither 0 nor 1")
        return text == "1"
    value = kind(text)
    if kind is not str and value < 0:
        raise ValueError(f"{name}={text} is negative")
    return value


def _check(network: NetworkScript, script: TaskScript) -> None:
    unknown = set(network.ops.split(",")) - set(OPERATORS)
    if unknown:
        raise ValueError(f"unknown operators {sorted(unknown)}; known: {', '.join(OPERATORS)}")
    if any(int(weight) < 1 for weight in network.weights.split(",")):
        raise ValueError(f"weights={network.weights} holds a weight below 1")
    for name in ("baseline_fault", "reference_fault"):
        if (fault := getattr(script, name)) and fault not in FAULTS:
            raise ValueError(f"{name}={fault} is no fault; known: {', '.join(sorted(FAULTS))}")
    if min(*script.axes, script.size, script.levels) < 1 or script.spread < 1 or script.best_us <= 0:
        raise ValueError("space, size and levels start at 1, spread at 1.0, and best_us is positive")
    for fault, value in script.faults:
        _ = float(value) if "." in value else [int(part) for part in value.split(",")]
        if "." in value and not 0 <= float(value) <= 1:
            raise ValueError(f"{fault}={value} is no share between 0.0 and 1.0")
