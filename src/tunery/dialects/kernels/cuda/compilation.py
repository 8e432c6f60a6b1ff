"""Building kernels in CUDA by NVRTC: the author's source under its parameters as macros. It needs no GPU."""

import base64
import math
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

from tunery._errors import DialectError
from tunery._sandbox import call_confined
from tunery.devices.cuda.driver import no_library
from tunery.dialects.kernels.launched import Launched, headers
from tunery.dialects.kernels.launched.sizes import Sizes, sizes
from tunery.dialects.kernels.specification import KernelSpecification, Program

_MOST_THREADS = 1024
_MOST_ALONG = (1024, 1024, 64)
_MOST_GROUPS = ((1 << 31) - 1, 65535, 65535)
_TYPES = {
    "float16": "__half", "float32": "float", "float64": "double", "int8": "char", "uint8": "unsigned char",
    "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int", "int64": "long long",
    "uint64": "unsigned long long",
}  # fmt: skip
_KINDS = {"f": 1, "i": 2, "u": 3}
_POINTER = 1000
_INTEGERS = "".join(
    f"typedef {'unsigned ' * (not sign)}{name} {'u' * (not sign)}int{bits}_t;\n"
    for bits, name in ((16, "short"), (32, "int"), (64, "long long"))
    for sign in (True, False)
) + "typedef signed char int8_t;\ntypedef unsigned char uint8_t;\n"  # fmt: skip
_HEADERS = {b"stdint.h": _INTEGERS.encode(), b"cstdint": _INTEGERS.encode()}
# A number for each type of an argument: 100 times its kind and its bytes, and 1000 more for a pointer. It stands before
# the parameters, whose macros may have any names.
_CHECK = """
struct __half;
namespace tunery {
template <int N> struct number { static constexpr int value = N; };
template <class T> struct code : number<0> {};
template <> struct code<__half> : number<102> {};
template <> struct code<float> : number<104> {};
template <> struct code<double> : number<108> {};
template <> struct code<bool> : number<301> {};
template <> struct code<char> : number<201> {};
template <> struct code<signed char> : number<201> {};
template <> struct code<unsigned char> : number<301> {};
template <> struct code<short> : number<202> {};
template <> struct code<unsigned short> : number<302> {};
template <> struct code<int> : number<204> {};
template <> struct code<unsigned int> : number<304> {};
template <> struct code<long> : number<200 + sizeof(long)> {};
template <> struct code<unsigned long> : number<300 + sizeof(long)> {};
template <> struct code<long long> : number<208> {};
template <> struct code<unsigned long long> : number<308> {};
template <class T> struct code<const T> : code<T> {};
template <class T> struct code<T *> : number<1000 + code<T>::value> {};
template <class... A> struct list {
    static constexpr int tunery_count = sizeof...(A), tunery_codes[] = {code<A>::value..., 0};
};
template <class... A> __device__ list<A...> tunery_of(void (*)(A...));
}
"""
_PLACE = re.compile(r"^[^():]*\((\d+)\): error: ")
_ASSERTION = re.compile(r'static assertion failed with "(.*)"')


@dataclass(frozen=True)
class CudaBinary(Launched):
    """A kernel as machine code for `arch`, in base 64, and the name that it has there."""

    code: str
    symbol: str
    arch: str


@cache
def version() -> str:
    """Return NVRTC's version, "" where there is none."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return ""
    return f"{major}.{minor}"


def build(program: Program, arch: str) -> CudaBinary:
    kernel, source, function = program.kernel, program.source, program.function
    launch = _checked(sizes(kernel, program.configuration))
    text = (
        f'{_CHECK}{headers(source)}{program.macros}#line 1 "{function}.cu"\n{source}\n'
        f'#line 1 "its arguments"\n{_arguments(kernel, function)}'
    )
    options = [f"-arch={arch}", "-w", *_includes(source), *kernel.flags]
    code, symbol = compiled(text, function, options)
    return CudaBinary(launch, base64.b64encode(code).decode(), symbol, arch)


def _includes(source: str) -> list[str]:
    """Return the option for CUDA's headers (half precision, tensor cores), where a source may need them."""
    found = _headers() if "#include" in source else None
    return [f"-I{found}"] if found else []


@cache
def _headers() -> str | None:
    from cuda.pathfinder import find_nvidia_header_directory

    found: str | None = find_nvidia_header_directory("cudart")
    return found


def _checked(launch: Sizes) -> Sizes:
    """Refuse what no GPU takes."""
    group = launch.group or (1,)
    if math.prod(group) > _MOST_THREADS or any(size > most for size, most in zip(group, _MOST_ALONG, strict=False)):
        raise DialectError(
            f"a block of {list(group)} threads is too large for any GPU, whose limit is {_MOST_THREADS}, and "
            f"{_MOST_ALONG[2]} along the third axis"
        )
    groups = [whole // each for whole, each in zip(launch.whole, group, strict=True)]
    if any(count > most for count, most in zip(groups, _MOST_GROUPS, strict=False)):
        raise DialectError(f"a grid of {groups} blocks is too large for any GPU, whose limits are {list(_MOST_GROUPS)}")
    return launch


def _arguments(kernel: KernelSpecification, function: str) -> str:
    import numpy as np

    many = len(kernel.arguments)
    lines = [
        f"typedef decltype(tunery::tunery_of(&{function})) tunery_takes;",
        f'static_assert(tunery_takes::tunery_count == {many}, "its arguments are not the {many} of the kernel file");',
    ]
    for place, one in enumerate(kernel.arguments):
        kind = np.dtype(one.dtype)
        wanted = 100 * _KINDS[kind.kind] + kind.itemsize + (0 if one.scalar else _POINTER)
        name = f"{_TYPES[one.dtype]}{'' if one.scalar else '*'}"
        told = f"it should take {name} as {one.name}, its argument {place + 1}"
        lines.append(f'static_assert(tunery_takes::tunery_codes[{place}] == {wanted}, "{told}");')
    return "\n".join(lines) + "\n"


def compiled(text: str, function: str, options: list[str]) -> tuple[bytes, str]:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DialectError(no_library()) from error
    expression = f"&{function}".encode()
    try:
        program = _answer(
            nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(_HEADERS), [*_HEADERS.values()], [*_HEADERS])
        )
    except RuntimeError as error:  # the package finds no NVRTC to load
        raise DialectError(no_library().replace("cuda-bindings is", "nvidia-cuda-nvrtc is")) from error
    try:
        _answer(nvrtc.nvrtcAddNameExpression(program, expression))
        given = [option.encode() for option in options]
        answers: list[tuple[Any, ...]] = []
        call_confined(  # the source may include any file
            lambda: answers.append(nvrtc.nvrtcCompileProgram(program, len(given), given)),
            (sys.prefix, sys.base_prefix, *filter(None, sys.path)), (),
        )  # fmt: skip
        if int(answers[0][0]):
            log = b" " * _answer(nvrtc.nvrtcGetProgramLogSize(program))
            _answer(nvrtc.nvrtcGetProgramLog(program, log))
            raise DialectError(f"NVRTC refuses {function}: {_first_error(log.decode(errors='replace'), function)}")
        symbol: bytes = _answer(nvrtc.nvrtcGetLoweredName(program, expression))
        code = b" " * _answer(nvrtc.nvrtcGetCUBINSize(program))
        _answer(nvrtc.nvrtcGetCUBIN(program, code))
        return code, symbol.decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _answer(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if int(status):
        raise DialectError(f"NVRTC answers {status.name}")
    return values[0] if values else None


def _first_error(log: str, function: str) -> str:
    lines = [line for line in log.split("\0", maxsplit=1)[0].splitlines() if "error" in line]
    first = (lines or log.splitlines() or ["it says nothing"])[0]
    if assertion := _ASSERTION.search(first):
        return assertion[1]
    if first.startswith("its arguments") or "non-__global__" in first:
        return f"there is no __global__ function {function} in the source"
    place = _PLACE.match(first)
    text = first.partition("error")[2].lstrip(": ")
    return " ".join((f"line {place[1]}: {text}" if place else text or first).split())[:240]
