"""How many builds further hosts are given while they come, go, and are used by others."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from tunery.domain import HERE, HostFacts
from tunery.engines import HostUse
from tunery.engines.remote.facts import host_facts
from tunery.runtime.dispatch import Dispatch, core_of
from tunery.runtime.hosts.further import FurtherHosts
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.inline_engine import InlineEngine

FAR = "far"


class Hosts(InlineEngine):
    """This host and `far`, which is as busy as `busy` says; every builder has one compiler."""

    def __init__(self) -> None:
        super().__init__(FakeBlobs())
        self.busy: HostUse | None = None
        self.there: HostFacts | None = replace(host_facts(), cores=tuple(range(8)), granted=8)
        self.heard: list[Callable[[str], None]] = []

    @property
    @override
    def hosts(self) -> tuple[str, ...]:
        return HERE, FAR

    @override
    def facts(self, host: str = "") -> HostFacts | None:
        return self.there if host == FAR else None

    @override
    def use(self, host: str = "") -> HostUse | None:
        return self.busy if host == FAR else None

    @override
    def trouble(self, host: str = "") -> str:
        return "" if self.there else "no route to it"

    @override
    def watch(self, changed: Callable[[str], None]) -> None:
        self.heard.append(changed)

    @override
    def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result("compiler 1")
        return answer

    def tell(self, busy: HostUse | None) -> None:
        self.busy = busy
        for changed in self.heard:
            changed(FAR)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_host_that_others_use_is_given_fewer_builds_until_they_end() -> None:
    async def main() -> None:
        engine, room = Hosts(), dict[str, int]()
        hosts = FurtherHosts(
            engine, "ours", lambda *_: [f"far/{n}" for n in range(6)], room.__setitem__, lambda _, use: use.others,
            named={},
        )  # fmt: skip
        hosts.follow()
        await settle()
        assert room == {FAR: 6}
        given = []
        for others in (0.1, 5.0, 5.2, 0.4, 0.1, 40.0):
            engine.tell(HostUse(ours=2.0, others=others))
            await settle()
            given.append(room[FAR])
            assert hosts.taken(FAR) == others
        assert given == [6, 3, 3, 6, 6, 1]
        engine.there = None
        engine.tell(None)
        await settle()
        assert room == {FAR: 0}
        assert hosts.taken(FAR) is None

    asyncio.run(main())


def test_a_host_that_comes_and_goes_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        engine, room = Hosts(), dict[str, int]()
        hosts = FurtherHosts(engine, "ours", lambda *_: [FAR], room.__setitem__, lambda _, use: use.others, named={})
        hosts.follow()
        facts = engine.there
        for there in (facts, None) * 3:
            engine.there = there
            engine.tell(None)
            await settle()
            assert room == {FAR: int(there is not None)}

    asyncio.run(main())
    assert len([record for record in caplog.records if FAR in record.getMessage()]) == 1


def test_what_another_pool_of_ours_does_on_a_host_is_not_foreign() -> None:
    dispatch = Dispatch()
    assert dispatch.others_on("a", FAR, HostUse(ours=3.0, others=0.0)) == 0.0
    assert dispatch.others_on("b", FAR, HostUse(ours=2.0, others=4.0)) == pytest.approx(1.0)
    assert dispatch.others_on("b", "near", HostUse(ours=2.0, others=4.0)) == 4.0


def test_one_pool_that_loses_a_host_takes_no_cores_from_another() -> None:
    dispatch = Dispatch()
    left: Mapping[str, int] = {who: dispatch.cores_left(who, cores, FAR).capacity for who, cores in
                               (("a", 4), ("b", 6), ("c", 0))}  # fmt: skip
    assert left == {"a": 4, "b": 6, "c": 6}
    assert dispatch.cores_left("b", 0, FAR).resource == core_of(FAR)
    assert dispatch.cores_left("a", 0, FAR).capacity == 0


def test_what_is_built_for_this_processor_runs_only_on_hosts_that_have_its_instructions() -> None:
    async def run(there: HostFacts) -> bool:
        engine = Hosts()
        engine.there = there
        found = FurtherHosts(engine, "ours", lambda *_: [FAR], lambda *_: None, lambda _, use: use.others, named={})
        found.follow()
        await settle()
        assert found.up == [FAR], "it builds"
        return found.delivers(FAR)

    facts = host_facts()
    (processor,) = facts.devices
    lesser = replace(processor, facts={**processor.facts, "vector": processor.facts["vector"][:-1]})
    assert asyncio.run(run(facts))
    assert not asyncio.run(run(replace(facts, devices=(lesser,))))
