"""Kernels with scripted latency, noise, drift and bursts, on the fake device: measuring is tested with them."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tunery.devices import ConstantBuffers
from tunery.dialects import Array, Kernel
from tunery.measuring.verification import is_float
from tunery.testing.fake_device import FakeDevice

Factors = npt.NDArray[np.float64]
NoiseScript = Callable[[np.random.Generator, int], Factors]
"""Gives n successive factors on a kernel's level; the median of a long series is about 1."""


def quiet() -> NoiseScript:
    return lambda _, n: np.ones(n)


def gaussian(sigma: float = 0.02) -> NoiseScript:
    return lambda generator, n: np.maximum(0.5, 1 + sigma * generator.standard_normal(n))


def heavy_tailed(index: float = 2.0, scale: float = 0.01) -> NoiseScript:
    """Only ever slower, with a Pareto tail: now and then many times slower."""
    middle = 2 ** (1 / index) - 1
    return lambda generator, n: 1 + scale * (generator.pareto(index, n) - middle)


def bimodal(share: float = 0.3, slower: float = 0.15, sigma: float = 0.01) -> NoiseScript:
    return lambda generator, n: (1 + slower * (generator.random(n) < share)) * gaussian(sigma)(generator, n)


def bursts(share: float = 0.05, length: float = 3.0, slowest: float = 3.0, sigma: float = 0.01) -> NoiseScript:
    """Runs of `length` samples on average in which everything is up to `slowest` times slower."""

    def script(generator: np.random.Generator, n: int) -> Factors:
        factors = gaussian(sigma)(generator, n)
        starts = np.flatnonzero(generator.random(n) < share / length)
        for start in starts:
            end = start + generator.geometric(1 / length)
            factors[start:end] *= generator.uniform(1.1, slowest)
        return factors

    return script


def drifting(swing: float = 0.01, period: int = 500, sigma: float = 0.01) -> NoiseScript:
    """The machine's speed swings slowly by the share `swing` to either side."""

    def script(generator: np.random.Generator, n: int) -> Factors:
        phase = generator.uniform(0, 2 * np.pi)
        wave: Factors = 1 + swing * np.sin(phase + 2 * np.pi * np.arange(n) / period)
        return wave * gaussian(sigma)(generator, n)

    return script


class FakeKernel(Kernel):
    """A kernel of scripted latency that writes scripted outputs.

    `compute` maps the inputs to the outputs; None in its list leaves that output as it was (a partial writer). The
    first run takes `first` times as long. `times` replaces the clock's answers, `error` is raised by a run, and
    `hang_s` makes a run sleep for real, for tests of killing from outside.
    """

    def __init__(
        self,
        device: FakeDevice,
        latency_s: float,
        compute: Callable[[Sequence[Array]], Sequence[Array | None]],
        *,
        empty: Sequence[Array] = (),
        noise: NoiseScript | None = None,
        first: float = 1.0,
        times: Sequence[float] = (),
        error: Exception | None = None,
        hang_s: float = 0.0,
    ) -> None:
        self._device = device
        self._latency_s = latency_s
        self._compute = compute
        self._outputs = [array.copy() for array in empty]
        self._noise = noise or quiet()
        self._first = first
        self._times = list(times)
        self._error = error
        self._hang_s = hang_s
        self._inputs: list[Array] = []
        self._fresh = True
        self.executions = 0
        self.buffers: ConstantBuffers | None = None

    def bind(self, inputs: Sequence[Array]) -> None:
        self._inputs = [array.copy() for array in inputs]

    def poison(self) -> None:
        """Fill the outputs with NaN, the smallest integer or False."""
        self._fresh = True
        for array in self._outputs:
            array[...] = _poison(array.dtype)

    def use_cold_constants(self, buffers: ConstantBuffers) -> None:
        """Remember where weights should be; there are none."""
        self.buffers = buffers

    def run(self) -> None:
        self._execute(1)

    def time(self, calls: int) -> float:
        spent_s = self._execute(calls)
        return self._times.pop(0) if self._times else spent_s

    def outputs(self) -> list[Array]:
        return [array.copy() for array in self._outputs]

    def _execute(self, calls: int) -> float:
        if self._error is not None:
            raise self._error
        if self._hang_s:
            time.sleep(self._hang_s)
        if self._fresh:
            for i, values in enumerate(self._compute(self._inputs)):
                if values is not None:
                    self._outputs[i] = np.asarray(values)
        self._fresh = False
        warm = self._first if not self.executions else 1.0
        self.executions += calls
        factor = float(self._noise(self._device.generator, 1)[0])
        return self._device.run_for(self._latency_s * calls * factor * warm)


def _poison(dtype: np.dtype[np.generic]) -> float | int | bool:
    if is_float(dtype):
        return float("nan")
    return False if dtype == np.bool_ else int(np.iinfo(dtype.name).min)
