"""What a worker may take of the machine's memory, and what happens at the limit."""

import asyncio
from pathlib import Path

import pytest

from tunery._errors import CrashError
from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.runtime.memory import worker_bytes
from tunery.runtime.pools import Runtime

GIB = 1 << 30


@pytest.mark.parametrize("role", list(Role))
def test_no_worker_may_take_all_of_the_memory(role: Role) -> None:
    for granted in (2 * GIB, 8 * GIB, 64 * GIB, 4096 * GIB):
        assert 0 < worker_bytes(role, granted) <= min(granted / 2, 16 * GIB)


class Recording(LocalEngine):
    """Notes how workers are started."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self.specs: list[WorkerSpec] = []

    def start(self, spec: WorkerSpec) -> str:
        self.specs.append(spec)
        return super().start(spec)


def test_every_role_is_started_with_a_limit(tmp_path: Path) -> None:
    with Recording(tmp_path / "logs") as engine:
        Runtime(engine, "fake", 1, tmp_path)
        assert {spec.role for spec in engine.specs} == set(Role)
        assert all(spec.memory_bytes for spec in engine.specs)


@pytest.mark.parametrize(("death", "made"), [("abort_for_memory", 1), ("be_killed", 3), ("be_killed_when_full", 1)])
def test_a_call_that_ran_out_of_memory_is_not_made_again(death: str, made: int, tmp_path: Path) -> None:
    async def main() -> None:
        with LocalEngine(tmp_path / "logs") as engine:
            runtime = Runtime(engine, "fake", 1, tmp_path)
            worker = engine.start(WorkerSpec(Role.IMPORTER, "dying_services:Dying", memory_bytes=256 << 20))
            with pytest.raises(CrashError) as caught:
                await runtime.call(worker, death, deadline_s=60, tries=3)
            assert caught.value.out_of_memory == (made == 1)
            assert engine.generation(worker) == made

    asyncio.run(main())


def test_an_import_does_not_wait_for_another_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        with LocalEngine(tmp_path / "logs") as engine:
            runtime = Runtime(engine, "fake", 1, tmp_path)
            for job in ("one", "two"):
                runtime.submit(job)
            if runtime.granted < 2:
                pytest.skip("one core imports one model at a time")
            async with (
                runtime.stage("one", "prepare", Role.PREPARER) as first,
                asyncio.timeout(60),
                runtime.stage("two", "prepare", Role.PREPARER) as second,
            ):
                assert first.worker != second.worker
                assert await runtime.call(second.worker, "identify", "fake:other", {}, tmp_path, deadline_s=60)

    asyncio.run(main())
