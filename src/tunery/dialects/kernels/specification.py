"""A kernel file as read and checked: all that is needed to build, run and verify the kernel, in plain data."""

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from tunery._errors import DialectError
from tunery.dialects import Array
from tunery.dialects.configurations.expressions import ExpressionError, Value, parse
from tunery.dialects.configurations.space import ConfigurationSpace
from tunery.domain import TensorSpec, canonical_json, digest

DTYPES = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
)  # fmt: skip
C_TYPES = {
    "float16": "_Float16", "float32": "float", "float64": "double", "int8": "int8_t", "uint8": "uint8_t",
    "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t",
    "uint64": "uint64_t",
}  # fmt: skip


@dataclass(frozen=True)
class Fill:
    """What an input holds: `random` numbers from `low` to `high`, other ones each time, or the `recorded` .npy file."""

    low: float = -1.0
    high: float = 1.0
    recorded: str = ""

    @property
    def varies(self) -> bool:
        return not self.recorded and self.low < self.high


@dataclass(frozen=True)
class Argument:
    """One argument of the C function, in its order: an array in, an array out, or a number (`value`, and no shape)."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    output: bool = False
    value: float | int | None = None
    fill: Fill = Fill()

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, self.dtype)

    @property
    def scalar(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class Reference:
    """What is right: NumPy expressions by output, else another function in C, else what the default parameters give.
    `inputs` and `outputs` are recorded .npy files by argument, which that default has to reproduce."""

    numpy: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    function: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """The work items of a kernel in OpenCL or CUDA, as expressions of its parameters: in all, and in a group. `shared`
    are the bytes that a block in CUDA gets for an `extern __shared__` array."""

    global_size: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    shared: str = ""


@dataclass(frozen=True)
class KernelSpecification:
    """A kernel with its arguments, tuning parameters and reference; `hints` are configurations thought fast. `operator`
    is the key of what it computes, where the file says it."""

    function: str
    language: Literal["c", "opencl", "cuda"]
    source: str
    arguments: tuple[Argument, ...]
    parameters: Mapping[str, tuple[Value, ...]]
    restrictions: tuple[str, ...]
    default: Mapping[str, Value]
    problem: Mapping[str, int]
    reference: Reference = Reference()
    flags: tuple[str, ...] = ()
    flop: float = 0.0
    launch: Launch | None = None
    hints: tuple[Mapping[str, Value], ...] = ()
    operator: str | None = None

    @cached_property
    def space(self) -> ConfigurationSpace:
        parsed = [parse(text, self.parameters, self.problem) for text in self.restrictions]
        return ConfigurationSpace(self.parameters, parsed)

    @cached_property
    def key(self) -> str:
        """Identity: whatever decides what is computed, or by which code; not what is merely thought fast, or a name."""
        return digest(replace(self, hints=(), operator=None).text)

    @cached_property
    def text(self) -> str:
        plain: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        if self.operator is None:  # as it was before kernels had such keys: the records of old stores stay
            del plain["operator"]
        if self.launch is not None and not self.launch.shared:
            del plain["launch"]["shared"]
        return canonical_json(
            plain | {"parameters": [[name, list(values)] for name, values in self.parameters.items()]}
        )

    @property
    def inputs(self) -> tuple[Argument, ...]:
        return tuple(one for one in self.arguments if not one.output and not one.scalar)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        return tuple(one for one in self.arguments if one.output)

    @property
    def work(self) -> float:
        """How many operations one execution takes: as told, or one for each element."""
        return self.flop or float(sum(math.prod(one.shape) for one in self.arguments if not one.scalar))


_ADAPTER: TypeAdapter[KernelSpecification] = TypeAdapter(KernelSpecification)


def read_specification(text: str) -> KernelSpecification:
    import json

    try:
        plain = json.loads(text)
        plain["parameters"] = dict(plain["parameters"])
        return _ADAPTER.validate_python(plain)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DialectError(f"a task's program is none of this dialect: {type(error).__name__}") from error


def encoded(array: Array) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def decoded(text: str) -> Array:
    found: Array = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return found


def evaluated(text: str | int, constants: Mapping[str, Value]) -> Value:
    return text if isinstance(text, int) else parse(text, (), constants)({})


def extent(text: str | int, constants: Mapping[str, Value], what: str) -> int:
    value = evaluated(text, constants)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ExpressionError(f"{what} is {value!r:.40}, and should be a whole number from 1 on")
    return value


@dataclass(frozen=True)
class Program:
    """What is compiled of a kernel: its source and function, or those of its reference, under a configuration."""

    kernel: KernelSpecification
    configuration: Mapping[str, Value]
    source: str
    function: str

    @classmethod
    def of(cls, kernel: KernelSpecification, configuration: Mapping[str, Value]) -> "Program":
        return cls(kernel, configuration, kernel.source, kernel.function)

    @property
    def macros(self) -> str:
        return macros({**self.kernel.problem, **self.configuration})


def macros(values: Mapping[str, Value]) -> str:
    return "".join(f"#define {name} {_literal(value)}\n" for name, value in values.items())


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"({value})" if not isinstance(value, str) and value < 0 else str(value)
