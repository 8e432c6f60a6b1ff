"""Kernel files: our own short TOML, read and checked as a whole. Each fault is one sentence."""

import io
import math
import re
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from tunery._errors import ModelError, misfit
from tunery.dialects.configurations.expressions import ExpressionError, Value, parse
from tunery.dialects.configurations.space import EmptySpaceError
from tunery.dialects.kernels.formulas import check_formula
from tunery.dialects.kernels.specification import (
    DTYPES,
    Argument,
    Fill,
    KernelSpecification,
    Launch,
    Reference,
    decoded,
    encoded,
    evaluated,
    extent,
)
from tunery.dialects.kernels.user_files import read_bytes, shown
from tunery.domain import OperatorKey, OperatorKeyError

MOST_BYTES = 4 << 30
_MOST_FILE, _MOST_SOURCE, _MOST_RECORDED = 1 << 20, 1 << 20, 4 << 20
_MOST_PARAMETERS, _MOST_VALUES, _MOST_DIMENSIONS, _MOST_ARGUMENTS = 64, 100_000, 8, 64
_FLAG = re.compile(
    r"-O[0-3s]|-Ofast|-lm|-std=[a-z0-9]+|-W[a-z][a-z-]{2,}|-m(no-)?[a-z0-9.]+|-mprefer-vector-width=[a-z0-9]+"
    r"|-f(no-)?(fast-math|openmp(-simd)?|(associative|reciprocal|rounding|trapping)-math|math-errno|unsafe-math-[a-z]+"
    r"|(align|finite|gcse|graphite|inline|ipa|ira|loop|modulo-sched|move-loop|peel|predictive|prefetch|reorder|sched"
    r"|split|strict|tree|unroll|unswitch|version-loops)[a-z0-9-]*(=[a-z0-9-]+)?|(fp-contract|excess-precision"
    r"|simd-cost-model|vect-cost-model)=[a-z-]+|signed-zeros|single-precision-constant|builtin|ivopts|wrapv|tracer|web"
    r"|rename-registers|thread-jumps|omit-frame-pointer|expensive-optimizations)"
)  # of gcc: what decides on code, and neither writes a file nor names a program
_OPENCL_FLAG = re.compile(r"-cl-[a-z0-9][a-z0-9-]*(=CL[0-9.]+)?|-w")
_CUDA_FLAG = re.compile(
    r"--?use_fast_math|--(fmad|ftz|prec-div|prec-sqrt)=(true|false)|--?maxrregcount=[0-9]{1,3}|--?std=c\+\+[0-9]{2}"
    r"|--?extra-device-vectorization|-w"
)
_FLAGS = {
    "c": (_FLAG, "-ffast-math"), "opencl": (_OPENCL_FLAG, "-cl-fast-relaxed-math"),
    "cuda": (_CUDA_FLAG, "--use_fast_math"),
}  # fmt: skip
"""What a kernel file may ask of its language's compiler, and one such flag."""
_TEXT = re.compile(r"[A-Za-z0-9_.+-]+( [A-Za-z0-9_]+)*")
_C_WORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "main", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while",
})  # fmt: skip

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
_Scalar = Annotated[bool | int | float | str, Field(union_mode="smart")]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Range(_Form):
    low: float | int
    high: float | int


class _ArgumentForm(_Form):
    name: _Name
    dtype: Literal[DTYPES] = "float32"  # type: ignore[valid-type]
    shape: list[int | str] | None = None
    output: bool = False
    value: int | float | str | None = None
    fill: int | float | str | _Range | None = None


class _ReferenceForm(_Form):
    numpy: str | dict[str, str] | None = None
    source: str = ""
    function: _Name | None = None
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class _LaunchForm(_Form):
    global_size: Annotated[list[int | str], Field(alias="global", min_length=1, max_length=3)]
    local_size: Annotated[list[int | str], Field(alias="local", max_length=3)] = []
    shared: int | str = ""


def _lower(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


class KernelForm(_Form):
    """What a kernel file says, before any of it is looked at together."""

    function: _Name
    source: str
    language: Annotated[Literal["c", "opencl", "cuda"], BeforeValidator(_lower)] = "c"
    flags: list[str] = []
    flop: int | float | str = 0
    problem: dict[_Name, int] = {}
    arguments: list[_ArgumentForm]
    parameters: dict[_Name, list[_Scalar]]
    restrictions: list[str] = []
    default: dict[_Name, _Scalar] = {}
    reference: _ReferenceForm = _ReferenceForm()
    launch: _LaunchForm | None = None
    inputs: str = ""
    hints: str = ""
    operator: str | None = None


def read_kernel(path: Path) -> KernelSpecification:
    """Read a kernel file, in our TOML or in Kernel Tuner's T1 (.json), and all files that it names."""
    data = read_bytes(path, _MOST_FILE, "a kernel file")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ModelError(f"{shown(path)} is no kernel file: it is not text in UTF-8") from None
    if path.suffix == ".json":
        from tunery.dialects.kernels.kernel_tuner import form_of_t1

        plain = form_of_t1(text, path)
    else:
        try:
            plain = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ModelError(f"{shown(path)} is no TOML: {str(error) or 'it is nested too deeply'}") from None
    try:
        form = KernelForm.model_validate(plain)
    except ValidationError as error:
        raise ModelError(f"{shown(path)}: {misfit(error.errors())}; see the page on kernels") from None
    except RecursionError:
        raise ModelError(f"{shown(path)} is nested too deeply") from None
    try:
        return _checked(form, path.parent)
    except (ExpressionError, EmptySpaceError, _FaultError) as error:
        raise ModelError(f"{shown(path)}: {error}") from None


class _FaultError(ValueError):
    """What a kernel file says cannot be; the message is the rest of a sentence about it."""


def _checked(form: KernelForm, directory: Path) -> KernelSpecification:
    problem = _problem(form)
    parameters = _parameters(form, problem)
    arguments = _arguments(form, problem, directory)
    for flag in form.flags:
        known, such = _FLAGS[form.language]
        if not known.fullmatch(flag):
            raise _FaultError(f"the compiler's flag {flag!r:.60} is none that a kernel file may give, such as {such}")
    flop = float(evaluated(form.flop, problem) if isinstance(form.flop, str) else form.flop)
    if not 0 <= flop < math.inf:
        raise _FaultError(f"flop is {flop:g}, and should be a number of operations")
    source = _source(directory / form.source)
    reference = _reference(form.reference, arguments, problem, directory)
    found = KernelSpecification(
        form.function, form.language, source, arguments, parameters, tuple(form.restrictions), {}, problem,
        reference, tuple(form.flags), flop, _launch(form, parameters, problem), _hints(form, directory),
        _operator(form),
    )  # fmt: skip
    return _with_default(found, form.default)


def _problem(form: KernelForm) -> dict[str, int]:
    for name, value in form.problem.items():
        _check_name(name)
        if not -(1 << 63) <= value < 1 << 63:
            raise _FaultError(f"the problem's {name} is too large a number")
    return dict(form.problem)


def _parameters(form: KernelForm, problem: Mapping[str, Value]) -> dict[str, tuple[Value, ...]]:
    if not form.parameters:
        raise _FaultError("there are no parameters to tune; write for example `[parameters]` and TILE = [8, 16, 32]")
    if len(form.parameters) > _MOST_PARAMETERS:
        raise _FaultError(f"there are more than {_MOST_PARAMETERS} parameters")
    for name, values in form.parameters.items():
        _check_name(name)
        if name in problem:
            raise _FaultError(f"{name} is a parameter and a constant of the problem; call one of them otherwise")
        if not values or len(values) > _MOST_VALUES:
            raise _FaultError(f"the parameter {name} has {len(values)} values, and should have 1 to {_MOST_VALUES}")
        if len({(isinstance(value, str), value) for value in values}) < len(values):
            raise _FaultError(f"the parameter {name} has a value twice")
        for value in values:
            _check_value(name, value)
    return {name: tuple(values) for name, values in form.parameters.items()}


def _check_name(name: str) -> None:
    if name in _C_WORDS:
        raise _FaultError(f"{name!r} is a word of C and cannot be the name of a parameter or a constant")


def _check_value(name: str, value: Value) -> None:
    if isinstance(value, str):
        if not _TEXT.fullmatch(value) or len(value) > 64:
            raise _FaultError(f"the parameter {name} has the value {value!r:.60}, which is no name or number of C")
    elif not abs(value) < 1 << 63:
        raise _FaultError(f"the parameter {name} has a value that is too large, or no number")


def _arguments(form: KernelForm, problem: Mapping[str, Value], directory: Path) -> tuple[Argument, ...]:
    if not form.arguments or not any(one.output for one in form.arguments):
        raise _FaultError("no argument is an output; write `output = true` in the one that the kernel writes")
    if len(form.arguments) > _MOST_ARGUMENTS:
        raise _FaultError(f"there are more than {_MOST_ARGUMENTS} arguments")
    if len({one.name for one in form.arguments}) < len(form.arguments):
        raise _FaultError("two arguments have one name")
    found = tuple(_argument(one, problem, directory, form.inputs) for one in form.arguments)
    total = sum(math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in found)
    if total > MOST_BYTES:
        largest = max(found, key=lambda one: math.prod(one.shape) * np.dtype(one.dtype).itemsize)
        raise _FaultError(
            f"the arguments take {total / 1e9:.3g} GB, {largest.name} most of it, and {MOST_BYTES / 1e9:.2g} GB is the "
            "limit; tune a smaller problem"
        )
    return found


def _argument(form: _ArgumentForm, problem: Mapping[str, Value], directory: Path, inputs: str) -> Argument:
    dtype = np.dtype(form.dtype)
    if form.value is not None:
        if form.shape is not None or form.output or form.fill is not None:
            raise _FaultError(f"the argument {form.name} has a value, so it is a number and can have no shape or fill")
        value = evaluated(form.value, problem) if isinstance(form.value, str) else form.value
        if isinstance(value, str) or not _fits(value, dtype):
            raise _FaultError(f"the argument {form.name} is {value!r:.40}, which is no {form.dtype}")
        return Argument(form.name, form.dtype, value=float(value) if dtype.kind == "f" else int(value))
    if form.shape is None:
        raise _FaultError(f"the argument {form.name} has neither a shape nor a value; give one of them")
    if not 1 <= len(form.shape) <= _MOST_DIMENSIONS:
        raise _FaultError(
            f"the argument {form.name} has {len(form.shape)} sizes, and should have 1 to {_MOST_DIMENSIONS}"
        )
    shape = tuple(extent(size, problem, f"a size of the argument {form.name}") for size in form.shape)
    if form.output and form.fill is not None:
        raise _FaultError(f"the argument {form.name} is an output and is never filled")
    if inputs and not form.output and form.fill is None:
        form = form.model_copy(update={"fill": inputs})
    return Argument(form.name, form.dtype, shape, form.output, fill=_fill(form, shape, dtype, directory))


def _fill(form: _ArgumentForm, shape: tuple[int, ...], dtype: np.dtype[Any], directory: Path) -> Fill:
    low, high = {"f": (-1.0, 1.0), "i": (-8.0, 8.0), "u": (0.0, 8.0)}[dtype.kind]
    fill = form.fill
    if fill is None or fill == "random":
        return Fill(low, high)
    if isinstance(fill, str):
        return Fill(recorded=recorded(directory / fill, shape, dtype, form.name))
    low, high = (fill, fill) if isinstance(fill, int | float) else (fill.low, fill.high)
    if not (_fits(low, dtype) and _fits(high, dtype) and low <= high):
        raise _FaultError(f"the fill of the argument {form.name} from {low:g} to {high:g} is none for {form.dtype}")
    return Fill(float(low), float(high))


def _fits(value: Value, dtype: np.dtype[Any]) -> bool:
    if isinstance(value, str) or not abs(value) < math.inf:
        return False
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype).max)
    return float(value).is_integer() and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def _source(path: Path) -> str:
    try:
        source = read_bytes(path, _MOST_SOURCE, "the kernel's source").decode()
    except UnicodeDecodeError:
        raise _FaultError(f"the source {path.name!r} is not text in UTF-8") from None
    if "\0" in source:
        raise _FaultError(f"the source {path.name!r} is not text")
    return source


def _reference(
    form: _ReferenceForm, arguments: Sequence[Argument], problem: Mapping[str, Value], directory: Path
) -> Reference:
    inputs = {one.name: one for one in arguments if not one.output and not one.scalar}
    outputs = {one.name: one for one in arguments if one.output}
    if sum((form.numpy is not None, bool(form.source), bool(form.outputs))) > 1:
        raise _FaultError("the reference is more than one of `numpy`, `source` and `outputs`; keep one")
    formulas = dict.fromkeys(outputs, form.numpy) if isinstance(form.numpy, str) else dict(form.numpy or {})
    if isinstance(form.numpy, str) and len(outputs) > 1:
        raise _FaultError("the reference is one formula for several outputs; write a table with one for each")
    if formulas and formulas.keys() != outputs.keys():
        raise _FaultError(f"the reference has formulas for {sorted(formulas)}, and the outputs are {sorted(outputs)}")
    scalars = {one.name: one.value for one in arguments if one.value is not None}
    for formula in formulas.values():
        check_formula(formula, list(inputs), {**problem, **scalars})
    if bool(form.inputs) != bool(form.outputs) or (form.outputs and form.outputs.keys() != outputs.keys()):
        raise _FaultError("the reference needs recorded `inputs`, and `outputs` for every output")
    missing = {name for name, one in inputs.items() if one.fill.varies} - form.inputs.keys() if form.outputs else set()
    if missing or form.inputs.keys() - inputs.keys():
        wrong = min(missing or form.inputs.keys() - inputs.keys())
        raise _FaultError(f"the reference's recorded inputs and the kernel's differ in {wrong!r}")
    taken = [
        {
            name: recorded(directory / file, known[name].shape, np.dtype(known[name].dtype), name)
            for name, file in of.items()
        }
        for of, known in ((form.inputs, inputs), (form.outputs, outputs))
    ]
    source = _source(directory / form.source) if form.source else ""
    return Reference(formulas, source, form.function or "", *taken)


def _launch(
    form: KernelForm, parameters: Mapping[str, tuple[Value, ...]], problem: Mapping[str, Value]
) -> Launch | None:
    if (form.launch is None) != (form.language == "c"):
        raise _FaultError(
            "a kernel in OpenCL or CUDA, and only such a one, has a table `launch` with its `global` size"
        )
    if form.launch is None:
        return None
    if form.language == "cuda" and not form.launch.local_size:
        raise _FaultError("a kernel in CUDA has a `local` size in its launch: that of a block of threads")
    sizes = [[str(size) for size in of] for of in (form.launch.global_size, form.launch.local_size)]
    if sizes[1] and len(sizes[0]) != len(sizes[1]):
        raise _FaultError("the launch has another number of local sizes than of global ones")
    shared = str(form.launch.shared)
    if shared and form.language != "cuda":
        raise _FaultError("`shared` in a launch are bytes for CUDA; in OpenCL a kernel has `__local` arrays of its own")
    for size in (*sizes[0], *sizes[1], *filter(None, [shared])):
        parse(size, parameters, problem)
    return Launch(tuple(sizes[0]), tuple(sizes[1]), shared)


def _hints(form: KernelForm, directory: Path) -> tuple[Mapping[str, Value], ...]:
    if not form.hints:
        return ()
    from tunery.dialects.kernels.kernel_tuner import read_results

    return tuple(one.configuration for one in read_results(directory / form.hints)[:16])


def _operator(form: KernelForm) -> str | None:
    try:
        return None if form.operator is None else str(OperatorKey.parse(form.operator))
    except OperatorKeyError as error:
        raise _FaultError(
            f"the operator {form.operator!r:.80} {error}; write it as matmul:a=8x16:float32,b=16x4"
        ) from None


def _with_default(found: KernelSpecification, told: Mapping[str, Value]) -> KernelSpecification:
    for text in found.restrictions:
        if not parse(text, found.parameters, found.problem).names:
            raise _FaultError(f"the restriction {text!r:.60} names no parameter")
    for name, value in told.items():
        if name not in found.parameters:
            raise _FaultError(f"the default names {name}, which is no parameter")
        if value not in found.parameters[name]:
            raise _FaultError(f"the default {name} = {value!r:.40} is none of its values")
    if told and told.keys() != found.parameters.keys():
        missing = min(found.parameters.keys() - told.keys())
        raise _FaultError(f"the default has no value for {missing}; name every parameter, or leave the default out")
    space = found.space
    choices = space.choices(told) if told else space.first
    if choices is None:
        broken = next(one.text for one in space.restrictions if not one.holds(told))
        raise _FaultError(f"the default does not fulfil {broken!r:.60}")
    return replace(found, default=space.configuration(choices))


def recorded(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> str:
    data = read_bytes(path, _MOST_RECORDED, f"the recorded {name}")
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
        array = array[name] if isinstance(array, np.lib.npyio.NpzFile) else array
        kept = encoded(np.ascontiguousarray(array))
        decoded(kept)
    except (ValueError, OSError, EOFError, SyntaxError, MemoryError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"the recorded {name} {shown(path)} is no .npy file, and no .npz with one of that name: {str(error)[:80]}"
        ) from None
    if array.shape != shape or array.dtype != dtype:
        raise ModelError(
            f"the recorded {name} {shown(path)} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
        )
    return kept
