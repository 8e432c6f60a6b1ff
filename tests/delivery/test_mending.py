"""Which operators are taken for those at fault, and what is stored of them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunery._errors import BlobNotFoundError, CrashError, TuneryError, WorkError
from tunery.delivery import compile as compiling
from tunery.delivery import placing
from tunery.delivery.comparing.compare import Expected
from tunery.delivery.judging import Judged
from tunery.delivery.linking import LinkedNetwork
from tunery.delivery.placing import mended
from tunery.domain import Network
from tunery.domain.request import CompileReport
from tunery.tuning.work import CompileTimes

NODES = [f"Node {number}" for number in range(5)]
WRONG = Judged(None, wrong="since it crashed")


@dataclass(frozen=True)
class Model:
    """A model, and what is compiled of it: with these nodes in ONNX Runtime."""

    elsewhere: Mapping[str, str] = field(default_factory=dict)
    blob: str = ""
    target: str = ""

    @property
    def network(self) -> "Model":
        return self


class Linker:
    """Compiles a model of which a node is `faulty` beside others, or none is; on a host that `fails`, if so."""

    def __init__(self, faulty: str, fails: TuneryError | None = None) -> None:
        self._faulty, self._fails = faulty, fails
        self.stored: list[Model] = []

    @property
    def work(self) -> "Linker":
        return self

    @property
    def runtime(self) -> "Linker":
        return self

    @asynccontextmanager
    async def stage(self, *_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(worker="")

    async def call(self, *_: object, **__: object) -> dict[str, str]:
        return {}  # each is right alone

    async def model(self) -> Model:
        return Model()

    async def nodes(self, _: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(label=label) for label in NODES]

    async def placed(self, _: object, elsewhere: Mapping[str, str]) -> Model:
        return Model(elsewhere)

    async def compile(self, model: Model, **_: object) -> Model:
        return model

    async def settle(self, model: Model) -> None:
        self.stored.append(model)

    async def is_right(self, _: object, made: Model, *__: object) -> bool:
        if self._fails:
            raise self._fails
        return not self._faulty or self._faulty in made.elsewhere

    async def judge(self, _: object, made: Model, *__: object) -> Judged:
        return Judged(0.0) if await self.is_right(_, made) else WRONG


def found(linker: Linker, monkeypatch: pytest.MonkeyPatch) -> Judged:
    monkeypatch.setattr(placing, "is_right", linker.is_right)
    monkeypatch.setattr(placing, "judge", linker.judge)
    _, verdict = asyncio.run(mended(cast("Any", linker), cast("Any", Model()), WRONG, Expected()))
    return verdict


@pytest.mark.parametrize("faulty", NODES)
def test_the_node_at_fault_is_stored_and_no_other(faulty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linker = Linker(faulty)
    assert not found(linker, monkeypatch).wrong
    assert [set(model.elsewhere) for model in linker.stored] == [{faulty}]


def test_no_node_is_blamed_for_what_does_not_happen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    linker = Linker("")
    assert not found(linker, monkeypatch).wrong
    assert not linker.stored


def test_no_node_is_blamed_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    linker = Linker(NODES[0], CrashError("killed", out_of_memory=True))
    assert found(linker, monkeypatch) is WRONG
    assert not linker.stored


def test_a_blob_that_is_gone_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    linker = Linker(NODES[0], BlobNotFoundError("gone"))
    with pytest.raises(BlobNotFoundError):
        found(linker, monkeypatch)
    assert not linker.stored


@pytest.mark.parametrize("weights", ["", "w"])
def test_of_a_network_that_cannot_run_here_or_whole_there_it_is_said_why(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def same(*given: Any) -> Any:
        return given[1], given[2]

    async def wrong(*_: object) -> Judged:
        return WRONG

    async def kept(*given: Any) -> Any:
        return given[1]

    monkeypatch.setattr(compiling, "judge", wrong)
    monkeypatch.setattr(compiling, "judge_once", wrong)
    monkeypatch.setattr(compiling, "mended", same)
    monkeypatch.setattr(compiling, "_kept", kept)
    network = Network("n", "n.onnx", "d", "", (), (), 0, "n.onnx", weights=weights)
    made = LinkedNetwork(CompileReport("n", "", 0, {}), network, "b")
    work = SimpleNamespace(
        runtime=SimpleNamespace(host_facts=None), times=CompileTimes.by_reading(1.0), has_time=lambda _: True
    )
    linker = SimpleNamespace(work=work, late=None)
    judged = compiling._judged(cast("Any", linker), made, Expected(), "auto", lambda _: None)
    with pytest.raises(WorkError, match="it crashed") if weights else nullcontext():
        asyncio.run(judged)
