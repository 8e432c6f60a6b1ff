"""Kernels in OpenCL: built from the author's source under its parameters, and called in a process of their own."""

import fcntl
import json
import math
import os
import re
import shutil
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tunery._errors import DialectError, brief
from tunery.devices.opencl.platform import find
from tunery.dialects.kernels._child import CODE
from tunery.dialects.kernels.kernel import ProcessKernel
from tunery.dialects.kernels.launched import Launched
from tunery.dialects.kernels.launched.sizes import sizes
from tunery.dialects.kernels.process import PROGRAM, end, has_ended, readable, start
from tunery.dialects.kernels.specification import Argument, KernelSpecification, Program
from tunery.domain import digest

_TYPES = {
    "float16": "half", "float32": "float", "float64": "double", "int8": "char", "uint8": "uchar", "int16": "short",
    "uint16": "ushort", "int32": "int", "uint32": "uint", "int64": "long", "uint64": "ulong",
}  # fmt: skip
_ZONE = 4096  # bytes on each side of an array that the device sees, and nobody may change
_LONGEST_S = 100.0
_MOST_ERRORS = 3
_REQUIRED = "libtunery-runs.so"
_LINKER = '#!/bin/sh\nexec {linker} --no-as-needed "${{0%/*}}/{required}" "$@"\n'
_ERROR = re.compile(r"(?:\.cl:(\d+):\d+: )?(?:fatal )?error: (?:\S*\.cl:(\d+):\d+: )?(.*)")


@dataclass(frozen=True)
class OpenClProgram(Launched):
    """A program that compiles."""

    source: str
    function: str
    options: tuple[str, ...]


class _Driver:
    """What compiles and links programs here, and where it puts what it makes, which goes with this process."""

    def __init__(self) -> None:
        self.found, self.users = find(), 0
        self._directory = Path(tempfile.mkdtemp(prefix="tunery-opencl-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._compiler = list[_Started]()
        weakref.finalize(self, _end_all, self._compiler)
        made = self._directory / "cache"
        made.mkdir()
        self.variables = {"POCL_CACHE_DIR": str(made), "POCL_KERNEL_CACHE": "1", "PYOPENCL_NO_CACHE": "1"}
        if self.found.is_confined and (linker := shutil.which("ld")):
            self.variables["COMPILER_PATH"] = str(self._directory)
            self._write_linker(linker)
        else:
            self.variables["PATH"] = os.environ.get("PATH", os.defpath)

    def _write_linker(self, linker: str) -> None:
        """Have a kernel's library require another one, without which PoCL cannot load it where it was linked."""
        something, made = self._directory / "something", self._directory / "something.o"
        something.write_text(_REQUIRED)
        subprocess.run([linker, "-r", "-b", "binary", "-o", made, something], check=True)
        required = self._directory / _REQUIRED
        subprocess.run([linker, "-shared", "-soname", _REQUIRED, "-o", required, made], check=True)
        (script := self._directory / "ld").write_text(_LINKER.format(linker=linker, required=_REQUIRED))
        script.chmod(0o755)
        (self._directory / "linker").symlink_to(linker)

    def words(self, task: str) -> list[object]:
        return [task, self.found.number, "confined" if self.found.is_confined else ""]

    def _start(self, task: str) -> "_Started":
        log = os.memfd_create("log", os.MFD_CLOEXEC)
        fcntl.fcntl(log, fcntl.F_SETFL, os.O_APPEND)
        wire, process = start(PROGRAM, 1, ["", "", *self.words(task), *readable()], [log], self.variables)
        wire.settimeout(_LONGEST_S)
        return _Started(wire, process, log)

    def order(self, program: OpenClProgram, **more: object) -> bytes:
        path = self._directory / f"{digest(program.source, *program.options)}.cl"
        path.write_text(program.source, encoding="utf-8")
        told = {"path": str(path), "function": program.function, "options": program.options,
                "whole": program.launch.whole, "group": program.launch.group, **more}  # fmt: skip
        return json.dumps(told).encode()

    def compile(self, program: OpenClProgram) -> dict[str, Any]:
        """Return what the compiler says of a program: its kernels, or a log."""
        if not self.users:
            for left in (*self._directory.glob("*.cl"), *self._directory.glob("cache/*")):
                shutil.rmtree(left, ignore_errors=True)
                left.unlink(missing_ok=True)
        if not self._compiler:
            self._compiler.append(self._start("compile"))
        [started] = self._compiler
        os.ftruncate(started.log, 0)
        try:
            started.wire.send(self.order(program))
            answer = started.wire.recv(1 << 18)
        except OSError:
            answer = b""
        if len(answer) <= CODE.size:
            _end_all(self._compiler)
            raise DialectError(f"OpenCL's compiler did not end with {program.function}; it took too long, or failed")
        started.check(program.function)
        return dict(json.loads(answer))

    def link(self, order: bytes, function: str) -> None:
        started = self._start("link")
        try:
            started.wire.send(order)
            if not has_ended(started.process, _LONGEST_S):
                raise DialectError(f"OpenCL does not link {function} within {_LONGEST_S:g} seconds")
            started.check(function)
        finally:
            _end_all([started])


@dataclass(frozen=True)
class _Started:
    """A process of the driver; what its compiler writes goes to `log`."""

    wire: socket.socket
    process: int
    log: int

    def check(self, function: str) -> None:
        if errors := _errors(os.pread(self.log, 1 << 16, 0).decode(errors="replace")):
            raise DialectError(f"OpenCL refuses {function}: {errors}")


def _end_all(processes: list[_Started]) -> None:
    while processes:
        one = processes.pop()
        end(one.wire, one.process)
        os.close(one.log)


@cache
def _driver_of(owner: int) -> _Driver:  # noqa: ARG001 - a process that was forked has its own
    return _Driver()


def build(configured: Program) -> OpenClProgram:
    """Compile a program for the device, and return what makes it again: the same each time, as a binary is not."""
    kernel, function = configured.kernel, configured.function
    text = f"{configured.macros}#line 1\n{configured.source}\n"
    options = (*kernel.flags, "-cl-kernel-arg-info", "-w")
    program = OpenClProgram(sizes(kernel, configured.configuration), text, function, options)
    said = _driver_of(os.getpid()).compile(program)
    if "log" in said:
        raise DialectError(f"OpenCL refuses {function}: {_errors(said['log']) or brief(said['log'])}")
    if "types" not in said:
        raise DialectError(f"OpenCL finds no kernel {function} in the source, only {said['functions']}")
    _check_arguments(function, said["types"], kernel.arguments)
    if said["local"] > said["most_local"]:
        raise DialectError(
            f"it takes {said['local']} bytes of local memory, and {said['most_local']} is the device's limit"
        )
    if program.launch.group and math.prod(program.launch.group) > said["most"]:
        raise DialectError(
            f"a work group of {math.prod(program.launch.group)} items is too large for the device, whose limit is "
            f"{said['most']}"
        )
    return program


def _check_arguments(function: str, types: Sequence[str], arguments: Sequence[Argument]) -> None:
    if len(types) != len(arguments):
        raise DialectError(f"OpenCL's {function} has {len(types)} arguments, and the kernel file {len(arguments)}")
    for found, one in zip(types, arguments, strict=True):
        wanted = _TYPES[one.dtype] + ("" if one.scalar else "*")
        if found.replace(" ", "") != wanted:
            raise DialectError(f"OpenCL's {function} takes {found} as {one.name}, and should take {wanted}")


def _errors(log: str) -> str:
    found = [(first or second, text.strip()) for first, second, text in _ERROR.findall(log)]
    lines = dict.fromkeys(f"line {line}: {text}" if line else text for line, text in found)
    return "; ".join([*lines][:_MOST_ERRORS])[:600]


class OpenClKernel(ProcessKernel):
    """A kernel in OpenCL, its buffers between zones that the device sees too. Where the device computes in the host's
    memory, as PoCL does, nobody may touch the pages beyond the zones."""

    _warm_below_s = 20e-3  # the first call loads the kernel's library
    _checks_last = False  # each answer that is checked takes a process more, of 40 ms

    def __init__(self, kernel: KernelSpecification, program: OpenClProgram, threads: int) -> None:
        driver = _driver_of(os.getpid())
        driver.users += 1
        weakref.finalize(self, _leave, driver)
        order = driver.order(
            program, arguments=[(one.dtype, one.value) for one in kernel.arguments],
            bytes=[math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in kernel.arguments],
        )  # fmt: skip
        if driver.found.is_confined:
            driver.compile(program)
            driver.link(order, program.function)
        aligned = max(64, driver.found.device.mem_base_addr_align // 8)
        super().__init__(
            kernel, PROGRAM, driver.words("run"), threads, load=order, more=driver.variables, aligned=aligned,
            zone=_ZONE, reads=not driver.found.is_confined,
        )  # fmt: skip


def _leave(driver: _Driver) -> None:
    driver.users -= 1
