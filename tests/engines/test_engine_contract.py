"""All engines against the contract suite."""

import sys
from functools import partial

import pytest

from tunery.engines import AgentEngine, Engine, JoinedEngine, LocalEngine, OnUsage
from tunery.testing.engine_contract import EngineContract
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.inline_engine import InlineEngine


class TestLocalEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return LocalEngine(on_usage=on_usage)


class TestInlineEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return InlineEngine(on_usage=on_usage)


@pytest.mark.jobs
class TestJoinedEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        def tell(host: str, worker: str, method: str, wall_s: float, cpu_s: float) -> None:
            on_usage(f"{host}/{worker}", method, wall_s, cpu_s)

        one = LocalEngine(on_usage=partial(tell, "one"))
        return JoinedEngine({"one": one, "two": LocalEngine(on_usage=partial(tell, "two"), blobs=one.blobs)})


@pytest.mark.jobs
class TestAgentEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return AgentEngine("far", f"{sys.executable} -m tunery agent --stdio", FakeBlobs(), on_usage)
