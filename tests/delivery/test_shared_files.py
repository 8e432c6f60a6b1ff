"""What several jobs make with the same content: each has it until it lets go of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery.delivery.linking import LinkedNetwork, Linker
from tunery.domain import Network
from tunery.runtime.runtime import Runtime
from tunery.runtime.services import CompiledBlob
from tunery.runtime.spec import RuntimeSpec
from tunery.testing.inline_engine import InlineEngine

CONTENT = b"compiled"
NETWORK = Network("n", "n.onnx", "d", "n.onnx", (), (), 0)


class Works:
    """Two jobs of one runtime, whose importer makes the same file for both; `meanwhile` is called after each."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runtime = runtime
        self.meanwhile: Callable[[], object] = lambda: None
        self.made = 0
        monkeypatch.setattr(runtime, "call", self.call)

    @asynccontextmanager
    async def stage(self, *_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(worker="", core_s=0.0)

    async def call(self, *_: object, **__: object) -> CompiledBlob:
        self.made += 1
        blob = self.runtime.blobs.put(CONTENT, temporary=True)
        self.meanwhile()
        return CompiledBlob(blob, len(CONTENT), {}, {}, {})

    def linker(self) -> Linker:
        return Linker(cast("Any", self), None, tuned=False)

    async def linked(self, linker: Linker) -> LinkedNetwork:
        return await linker.link(cast("Any", SimpleNamespace(network=NETWORK, target=None)), ())


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with InlineEngine() as engine:
        yield Works(Runtime(engine, RuntimeSpec("fake"), tmp_path), monkeypatch)


def test_a_job_that_takes_its_network_leaves_another_jobs(works: Works, tmp_path: Path) -> None:
    async def main() -> None:
        one, other = works.linker(), works.linker()
        mine, theirs = await works.linked(one), await works.linked(other)
        assert mine.blob == theirs.blob
        one.take(mine, tmp_path / "mine")
        one.close()
        assert works.runtime.blobs.get(theirs.blob).read_bytes() == CONTENT
        other.take(theirs, tmp_path / "theirs")
        other.close()
        assert [(tmp_path / name).read_bytes() for name in ("mine", "theirs")] == [CONTENT] * 2
        assert not works.runtime.blobs.has(mine.blob)

    asyncio.run(main())


def test_what_is_compiled_and_not_taken_goes_with_the_job(works: Works) -> None:
    async def main() -> None:
        linker = works.linker()
        made = [await works.linked(linker) for _ in range(2)]
        linker.close()
        assert not works.runtime.blobs.has(made[0].blob)

    asyncio.run(main())


def test_what_another_job_took_before_it_was_held_is_made_again(works: Works, tmp_path: Path) -> None:
    async def main() -> None:
        one, other = works.linker(), works.linker()
        mine = await works.linked(one)
        left = [lambda: one.take(mine, tmp_path / "mine")]
        works.meanwhile = lambda: left.pop()() if left else None
        theirs = await works.linked(other)
        assert works.made == 3
        assert works.runtime.blobs.get(theirs.blob).read_bytes() == CONTENT

    asyncio.run(main())
