"""Both engines against the contract suite."""

from tunery.engines import Engine, InlineEngine, LocalEngine, OnUsage
from tunery.engines.contract import EngineContract


class TestLocalEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return LocalEngine(on_usage=on_usage)


class TestInlineEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return InlineEngine(on_usage=on_usage)
