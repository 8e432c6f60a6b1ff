"""All engines against the contract suite."""

from functools import partial

from tunery.engines import Engine, InlineEngine, JoinedEngine, LocalEngine, OnUsage
from tunery.engines.contract import EngineContract


class TestLocalEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return LocalEngine(on_usage=on_usage)


class TestInlineEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return InlineEngine(on_usage=on_usage)


class TestJoinedEngine(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        def tell(host: str, worker: str, method: str, wall_s: float, cpu_s: float) -> None:
            on_usage(f"{host}/{worker}", method, wall_s, cpu_s)

        return JoinedEngine({host: LocalEngine(on_usage=partial(tell, host)) for host in ("one", "two")})
