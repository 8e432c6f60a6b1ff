"""What a network's kernels take inside it: a median over calls, without the first."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading import network as networks

pytestmark = pytest.mark.tvm


class Machine:
    """A virtual machine of two kernels, one called twice; what they take is scripted by the call of the network."""

    def __init__(self, conv_ns: list[int]) -> None:
        self.now = 0
        self._conv_ns = iter(conv_ns)

    def watched(self, function: str, watch: Callable[..., int]) -> Callable[[], None]:
        self._watch = watch
        return self._main

    def _main(self) -> None:
        conv_ns = next(self._conv_ns)
        for name, takes_ns in (("vm.alloc", 50), ("conv", conv_ns), ("dense", 200), ("conv", conv_ns)):
            self._watch(None, name, True)
            self.now += takes_ns
            self._watch(None, name, False)
            self.now += 1000  # between kernels


def test_a_kernels_time_is_its_median_without_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([90_000, *[100] * 9, *[101] * 2, *[50_000] * 9])
    monkeypatch.setattr(library, "VirtualMachine", lambda _: machine)
    monkeypatch.setattr(networks, "time", SimpleNamespace(perf_counter_ns=lambda: machine.now))
    network: Any = object.__new__(networks.TvmNetwork)
    network._library, network._workloads = None, {"dense": "w1"}
    context = SimpleNamespace(fill=lambda _: None, segments=nullcontext(), call=lambda: None, arguments=[])
    found = network._profile(context, [])
    assert found == {"conv": pytest.approx(202e-9), "w1": pytest.approx(200e-9)}
