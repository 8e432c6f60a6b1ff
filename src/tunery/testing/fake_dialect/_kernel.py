"""Kernels whose results are computed and whose times and faults are scripted."""

import ctypes
import math
import os
import signal
import time
from collections.abc import Sequence

import numpy as np

from tunery.devices import Device
from tunery.dialects import Array, Kernel
from tunery.domain import digest
from tunery.testing.fake_device import FakeDevice
from tunery.testing.fake_dialect._script import TaskScript
from tunery.testing.fake_dialect._space import FakeSpace
from tunery.testing.fake_dialect._workloads import compute

_MIB = 1 << 20
_BURST_WINDOW = 8


class NoiseClock:
    """What disturbs the samples of one process: noise, bursts and drift, all decided by seed and sample number."""

    def __init__(self) -> None:
        self.samples = 0

    def disturb(self, script: TaskScript, candidate: str) -> float:
        number = self.samples
        self.samples += 1
        rng = np.random.default_rng(int(digest(str(script.seed), candidate, str(number)), 16))
        window = np.random.default_rng(int(digest(str(script.seed), "burst", str(number // _BURST_WINDOW)), 16))
        factor = math.exp(script.noise * float(rng.standard_normal()))
        factor *= 1.0 + script.drift * number / 1000
        return factor * script.burst_factor if window.random() < script.burst else factor


class FakeKernel(Kernel):
    """A kernel in host memory. Every fault is acted out for real: signals, endless sleeps, memory, wrong arrays.

    On a fake device its virtual time is the device's: it passes there, slowed by whatever is scripted for the device.
    """

    def __init__(self, space: FakeSpace, key: str, body: str, clock: NoiseClock, device: Device | None = None) -> None:
        self._device = device if isinstance(device, FakeDevice) else None
        self._space = space
        self._key = key
        self._fault = space.fault(body)
        self._latency_s = space.latency_s(body)
        self._split = (space.index(body) or 0) + 1
        self._clock = clock
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []
        self._eaten: list[Array] = []

    def bind(self, inputs: Sequence[Array]) -> None:
        specs = self._space.task.workload.input_specs
        given = [(array.shape, str(array.dtype)) for array in inputs]
        if given != [(spec.shape, spec.dtype) for spec in specs]:
            raise ValueError(f"inputs {given} do not fit {[(spec.name, spec.shape, spec.dtype) for spec in specs]}")
        self._inputs = [array.copy() for array in inputs]
        if not self._outputs:
            self._outputs = [np.zeros(spec.shape, spec.dtype) for spec in self._space.task.workload.output_specs]

    def poison(self) -> None:
        for array in self._outputs:
            array.fill(poison_of(array))

    def run(self) -> None:
        self._execute()
        if self._device is not None and not self._space.script.real:
            self._device.run_for(self._latency_s)

    def _execute(self) -> None:
        script = self._space.script
        misbehave(self._fault)
        if self._fault == "eat":
            self._eat(script.memory_mib)
        spend(script.run_s, script.spin)
        self._write(compute(self._space.program.op, self._inputs, self._split))

    def time(self, calls: int) -> float:
        started = time.perf_counter()
        self._execute()
        if self._fault == "zero_time":
            return 0.0
        if self._fault == "nan_time":
            return math.nan
        script = self._space.script
        virtual_s = calls * self._latency_s * self._clock.disturb(script, self._key)
        if not script.real:
            return virtual_s if self._device is None else self._device.run_for(virtual_s)
        spend(virtual_s - (time.perf_counter() - started), script.spin)
        return time.perf_counter() - started

    def outputs(self) -> list[Array]:
        return [array.copy() for array in self._outputs]

    def _eat(self, mib: int) -> None:
        while len(self._eaten) * 16 < mib:
            self._eaten.append(np.ones(16 * _MIB, np.uint8))

    def _write(self, right: list[Array]) -> None:
        for output, value in zip(self._outputs, right, strict=True):
            written = value.size // 2 if self._fault == "partial" else value.size
            output.reshape(-1)[:written] = value.reshape(-1)[:written]
            if self._fault == "all_nan":
                output.fill(poison_of(output))
            elif self._fault == "constant":
                output.fill(value.reshape(-1)[0])
            elif self._fault == "one_off" or self._wrong_on_these_inputs():
                flat = np.asarray(output).reshape(-1)
                flat[value.size // 3] += np.ones((), output.dtype)

    def _wrong_on_these_inputs(self) -> bool:
        if self._fault == "some":
            draw = int(digest(*(array.tobytes() for array in self._inputs)), 16) / 2.0**64
            return draw < self._space.script.some_share
        if self._fault == "infinite":
            return not all(np.isfinite(array).all() for array in self._inputs if array.dtype.kind == "f")
        return self._fault == "negative" and bool((self._inputs[0] < np.zeros((), self._inputs[0].dtype)).any())


def poison_of(array: Array) -> float | int:
    """Return the value no right answer holds: NaN for floats, the minimum for integers."""
    return math.nan if array.dtype.kind == "f" else int(np.iinfo(array.dtype.name).min)


def misbehave(fault: str | None) -> None:
    """Act out a fault that ends or hangs this process, or fails the call; return for any other."""
    if fault == "fail":
        raise RuntimeError("the scripted kernel failed to run")
    if fault in ("segfault", "build_crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    while fault in ("hang", "build_hang"):
        time.sleep(3600)
    while fault == "hang_gil":
        ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the GIL: no thread of this process runs meanwhile


def spend(seconds: float, spin: bool) -> None:
    """Sleep for wall seconds, or compute for CPU seconds; nothing for a duration that is not positive."""
    if seconds <= 0:
        return
    if not spin:
        time.sleep(seconds)
        return
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
