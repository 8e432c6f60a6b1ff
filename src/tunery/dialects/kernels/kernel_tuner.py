"""Kernel Tuner's files: T1 (a tuning problem) is read; caches and T4 (results) are read as hints, and written."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunery._errors import ModelError, UsageError, misfit
from tunery.dialects.configurations.expressions import ExpressionError, Value, values_of
from tunery.dialects.kernels.specification import KernelSpecification
from tunery.dialects.kernels.user_files import read_bytes
from tunery.domain import Mode, Outcome, Record

_MOST_RESULTS_FILE = 256 << 20
_CACHE_VERSIONS = ("", "1.0.0", "1.0.1", "1.1.0")
_T4_VERSIONS = ("1.0.0",)
_DTYPES = {"half": "float16", "float": "float32", "double": "float64", "bool": "uint8"}
_TO_SECONDS = 1e-3  # both formats tell milliseconds


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


Form = TypeVar("Form", bound=_Part)


class _TuningParameter(_Part):
    name: str = Field(alias="Name")
    type: str = Field(alias="Type")
    values: str = Field(alias="Values")
    default: bool | int | float | str | None = Field(None, alias="Default")


class _Condition(_Part):
    expression: str = Field(alias="Expression")


class _Space(_Part):
    parameters: list[_TuningParameter] = Field(alias="TuningParameters")
    conditions: list[_Condition] = Field([], alias="Conditions")


class _Argument(_Part):
    name: str = Field("", alias="Name")
    type: str = Field(alias="Type")
    memory: str = Field(alias="MemoryType")
    size: int | str = Field(1, alias="Size")
    fill: str = Field("Random", alias="FillType")
    value: float | int = Field(1, alias="FillValue")
    access: str = Field("ReadOnly", alias="AccessType")


class _Size(_Part):
    x: str | int = Field(1, alias="X")
    y: str | int = Field(1, alias="Y")
    z: str | int = Field(1, alias="Z")


class _Kernel(_Part):
    language: str = Field(alias="Language")
    name: str = Field(alias="KernelName")
    file: str = Field(alias="KernelFile")
    options: list[str] = Field([], alias="CompilerOptions")
    problem: list[int] | int = Field([], alias="ProblemSize")
    global_size: _Size | None = Field(None, alias="GlobalSize")
    local_size: _Size | None = Field(None, alias="LocalSize")
    global_type: str = Field("", alias="GlobalSizeType")
    shared: int = Field(0, alias="SharedMemory")
    arguments: list[_Argument] = Field([], alias="Arguments")


class _T1(_Part):
    space: _Space = Field(alias="ConfigurationSpace")
    kernel: _Kernel = Field(alias="KernelSpecification")


def form_of_t1(text: str, path: Path) -> dict[str, Any]:
    """Return what a T1 file says, in the words of our own kernel files."""
    t1 = _valid(_T1, text, path)
    kernel, language = t1.kernel, {"C": "c", "OpenCL": "opencl", "CUDA": "cuda"}.get(t1.kernel.language)
    if language is None:
        raise ModelError(f"{str(path)!r}: the language {kernel.language!r:.40} is not known here; C, OpenCL, CUDA are")
    if not kernel.arguments:
        raise ModelError(f"{str(path)!r} has no KernelSpecification.Arguments, so nobody knows what to call it with")
    sizes = [kernel.problem] if isinstance(kernel.problem, int) else kernel.problem
    problem = {f"ProblemSize{axis}": size for axis, size in zip("XYZ", sizes, strict=False)}
    try:
        parameters = {one.name: values_of(one.values) for one in t1.space.parameters}
    except ExpressionError as error:
        raise ModelError(f"{str(path)!r}: {error}") from None
    form: dict[str, Any] = {
        "function": kernel.name, "source": kernel.file, "language": language, "problem": problem,
        "arguments": [_argument(number, one) for number, one in enumerate(kernel.arguments)],
        "parameters": {name: [int(v) if isinstance(v, bool) else v for v in of] for name, of in parameters.items()},
        "restrictions": [_constants(one.expression) for one in t1.space.conditions],
        "flags": kernel.options,
    }  # fmt: skip
    defaults = {one.name: one.default for one in t1.space.parameters if one.default is not None}
    if defaults:
        form["default"] = defaults
    if language != "c":
        if kernel.global_size is None or kernel.local_size is None:
            raise ModelError(f"{str(path)!r} has no GlobalSize or no LocalSize")
        whole, group = _axes(kernel.global_size), _axes(kernel.local_size)
        counted = (kernel.global_type or kernel.language).upper()
        if counted not in {"CUDA", "OPENCL"}:
            raise ModelError(
                f"{str(path)!r}: the GlobalSizeType {counted!r:.40} is not known here; CUDA and OpenCL are"
            )
        if counted == "CUDA":  # they count blocks
            whole = [f"({blocks}) * ({threads})" for blocks, threads in zip(whole, group, strict=True)]
        form["launch"] = {"global": whole, "local": group, **({"shared": kernel.shared} if kernel.shared else {})}
    return form


def _argument(number: int, one: _Argument) -> dict[str, Any]:
    name = one.name or f"argument{number}"
    dtype = _DTYPES.get(one.type, one.type)
    if one.memory == "Scalar":
        return {"name": name, "dtype": dtype, "value": one.value}
    if one.memory != "Vector":
        return {"name": name, "dtype": dtype, "shape": None}
    plain: dict[str, Any] = {"name": name, "dtype": dtype, "shape": [_constants(one.size)]}
    if one.access in {"WriteOnly", "ReadWrite"}:
        return plain | {"output": True}
    return plain | {"fill": one.value if one.fill == "Constant" else "random"}


def _constants(text: str | int) -> Any:
    if isinstance(text, int):
        return text
    for place, axis in enumerate("XYZ"):
        text = text.replace(f"ProblemSize[{place}]", f"ProblemSize{axis}")
    return text


def _axes(size: _Size) -> list[str]:
    return [str(_constants(one)) for one in (size.x, size.y, size.z)]


@dataclass(frozen=True)
class KernelTunerResult:
    """What somebody measured of a configuration: its seconds, None where it failed for the `reason`."""

    configuration: Mapping[str, Value]
    latency_s: float | None
    reason: str = ""
    compile_s: float = 0.0


class _CacheFile(_Part):
    schema_version: str = ""
    tune_params_keys: list[str]
    cache: dict[str, dict[str, Any]]


class _T4Result(_Part):
    configuration: dict[str, bool | int | float | str]
    invalidity: str
    times: dict[str, Any] = {}
    measurements: list[dict[str, Any]] = []


class _T4File(_Part):
    schema_version: str
    results: list[_T4Result]


def read_results(path: Path) -> list[KernelTunerResult]:
    """Return what a cache of Kernel Tuner or a T4 file holds, the fastest first. None of it is believed."""
    try:
        text = read_bytes(path, _MOST_RESULTS_FILE, "the file of results").decode()
    except UnicodeDecodeError:
        raise ModelError(f"{str(path)!r} is no file of results: it is not text in UTF-8") from None
    plain = _parsed(text, path)
    versions = _CACHE_VERSIONS if "cache" in plain else _T4_VERSIONS
    version = plain.get("schema_version", "")
    if version not in versions:
        known = ", ".join(filter(None, versions))
        raise ModelError(f"{str(path)!r} has the version {version!r:.20}, and {known} are known here")
    results = (
        _of_cache(_valid(_CacheFile, text, path), path)
        if "cache" in plain
        else _of_t4(_valid(_T4File, text, path), path)
    )
    return sorted(results, key=lambda one: math.inf if one.latency_s is None else one.latency_s)


def _of_cache(found: _CacheFile, path: Path) -> list[KernelTunerResult]:
    results = []
    for entry in found.cache.values():
        if missing := set(found.tune_params_keys) - entry.keys():
            raise ModelError(f"{str(path)!r} has a configuration without {min(missing)!r:.60}")
        configuration = {name: _plain(entry[name], path) for name in found.tune_params_keys}
        results.append(_result(configuration, entry.get("time"), entry.get("compile_time", 0.0), path))
    return results


def _of_t4(found: _T4File, path: Path) -> list[KernelTunerResult]:
    results = []
    for one in found.results:
        time: Any = one.invalidity
        if one.invalidity == "correct":
            time = next((each.get("value") for each in one.measurements if each.get("name") == "time"), None)
        spent = one.times.get("compilation_time", one.times.get("compilation", 0.0))
        results.append(_result(one.configuration, time, spent, path))
    return results


def _result(configuration: Mapping[str, Value], time: Any, compile_ms: Any, path: Path) -> KernelTunerResult:
    if isinstance(time, str):
        return KernelTunerResult(configuration, None, time[:60] or "it failed")
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 < time * _TO_SECONDS < 1e9:
        raise ModelError(f"{str(path)!r} has the time {time!r:.40}, which is none; remove that entry")
    spent = compile_ms if isinstance(compile_ms, int | float) and 0 <= compile_ms < 1e12 else 0.0
    return KernelTunerResult(configuration, time * _TO_SECONDS, compile_s=spent * _TO_SECONDS)


def _plain(value: Any, path: Path) -> Value:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ModelError(f"{str(path)!r} has the value {value!r:.40}, which no parameter can have")


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{str(path)!r} is no JSON, or torn: {str(error)[:80]}") from None
    if not isinstance(plain, dict):
        raise ModelError(f"{str(path)!r} holds no JSON object")
    return plain


def _valid(kind: type[Form], text: str, path: Path) -> Form:
    plain = _parsed(text, path)
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        raise ModelError(f"{str(path)!r}: {misfit(error.errors())}") from None
    except RecursionError:
        raise ModelError(f"{str(path)!r} is nested too deeply") from None


_CACHE_REASONS = {Outcome.BUILD_FAILED: "CompilationFailedConfig"}
_T4_REASONS = {
    Outcome.BUILD_FAILED: "compile", Outcome.TIMEOUT: "timeout", Outcome.WRONG_RESULT: "correctness",
}  # fmt: skip
FORMATS = ("kernel-tuner", "t4")


def written(kernel: KernelSpecification, records: Iterable[Record], device: str, format_name: str) -> str:
    """Return records of a kernel as one of the `FORMATS`: a cache, or T4. What was not measured is left out."""
    if format_name not in FORMATS:
        raise UsageError(f"unknown format {format_name!r:.40} of records of kernels; use {' or '.join(FORMATS)}")
    reasons = _CACHE_REASONS if format_name == "kernel-tuner" else _T4_REASONS
    chosen: dict[str, Record] = {}
    for one in records:
        before = chosen.get(one.candidate.key)
        if one.measurement.outcome is not Outcome.FILTERED and (before is None or _rank(one) <= _rank(before)):
            chosen[one.candidate.key] = one
    found = {}
    for one in chosen.values():
        choices = kernel.space.choices(json.loads(one.candidate.body).get("parameters", {}))
        if choices is not None:  # else it is the reference
            measured, latency_s = one.measurement, one.measurement.latency_s
            failed = measured.outcome not in {Outcome.OK, Outcome.ABANDONED} or latency_s is None
            reason = reasons.get(measured.outcome, "") if failed else ""
            result = KernelTunerResult(
                kernel.space.configuration(choices), None if failed else latency_s, reason, measured.build_s
            )
            found[choices] = result
    ordered = [found[choices] for choices in sorted(found)]
    sizes = list(kernel.problem.values()) or [1]
    plain = (
        cache_of(ordered, kernel.parameters, kernel.function, device, sizes)
        if format_name == "kernel-tuner"
        else t4_of(ordered)
    )
    return json.dumps(plain, indent=1) + "\n"


def _rank(record: Record) -> tuple[bool, float]:
    """Order records of one candidate: finals before races, the faster race before the slower one."""
    latency_s = record.measurement.latency_s
    final = record.measurement.mode is Mode.FINAL
    return (not final, 0.0 if final else math.inf if latency_s is None else latency_s)


def cache_of(
    results: Iterable[KernelTunerResult],
    parameters: Mapping[str, Sequence[Value]],
    kernel: str,
    device: str,
    problem: Sequence[int],
) -> dict[str, Any]:
    """Return results as a cache of Kernel Tuner (1.0.0), by which it replays a space without a device."""
    entries = {}
    for one in results:
        key = ",".join(str(one.configuration[name]) for name in parameters)
        time: Any = one.reason or "RuntimeFailedConfig" if one.latency_s is None else one.latency_s / _TO_SECONDS
        entries[key] = {
            **one.configuration, "time": time, "times": [] if one.latency_s is None else [time],
            "compile_time": one.compile_s / _TO_SECONDS, "verification_time": 0, "benchmark_time": 0.0,
            "strategy_time": 0.0, "framework_time": 0.0, "timestamp": "2000-01-01 00:00:00+00:00",
        }  # fmt: skip
    return {
        "device_name": device, "kernel_name": kernel, "problem_size": list(problem),
        "tune_params_keys": list(parameters), "tune_params": {name: list(of) for name, of in parameters.items()},
        "objective": "time", "cache": entries,
    }  # fmt: skip


def t4_of(results: Iterable[KernelTunerResult]) -> dict[str, Any]:
    """Return results in the T4 format (1.0.0), in milliseconds."""
    found = []
    for one in results:
        correct = one.latency_s is not None
        time = [] if one.latency_s is None else [one.latency_s / _TO_SECONDS]
        found.append({
            "configuration": dict(one.configuration),
            "times": {"compilation_time": one.compile_s / _TO_SECONDS, "runtimes": time},
            "invalidity": "correct" if correct else one.reason or "runtime",
            "correctness": int(correct),
            "measurements": [{"name": "time", "value": value, "unit": "ms"} for value in time],
            "objectives": ["time"],
        })  # fmt: skip
    return {"schema_version": "1.0.0", "results": found}
