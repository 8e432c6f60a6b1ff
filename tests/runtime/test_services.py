"""What runs inside workers, called here: a dialect without a compiler in this process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tunery._errors import BlobError, DialectError
from tunery.blobs import DirectoryBlobs
from tunery.costmodels import BoostedModel, Dataset
from tunery.costmodels.columns import TASK_COLUMNS
from tunery.devices import open_device
from tunery.dialects import open_built
from tunery.domain import Task
from tunery.runtime.services import Builder, ProposerHost
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_dialect import FakeDialect, fake_network


class Keeper(FakeDialect):
    """Says which tasks it was told to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []

    def forget(self, task: Task) -> None:
        self.forgotten.append(task.key)


@pytest.fixture
def dialect(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    keeper = Keeper()
    for module in ("proposer", "builder"):
        monkeypatch.setattr(f"tunery.runtime.services.{module}.get_dialect", lambda _: keeper)
    return keeper


@pytest.fixture
def tasks(dialect: Keeper) -> list[Task]:
    return dialect.extract(fake_network("fake:net?tasks=2"), dialect.resolve_target("native", 1))


@pytest.fixture
def model() -> str:
    layout = FakeDialect().layout().with_columns(TASK_COLUMNS)
    dataset = Dataset(layout)
    for number, row in enumerate(np.random.default_rng(0).random((40, len(layout.columns))).astype(np.float32)):
        dataset.add("t", str(number), row, 1.0 + float(row[0]))
    return BoostedModel.fit(dataset).dumps()


def test_a_search_that_is_closed_is_forgotten_by_the_dialect_too(dialect: Keeper, tasks: list[Task]) -> None:
    host = ProposerHost("keeper")
    for task in tasks:
        host.open(task, (), None, 0)
    host.close(tasks[0].key)
    assert dialect.forgotten == [tasks[0].key]
    host.close(tasks[0].key)
    host.close("unknown")
    assert dialect.forgotten == [tasks[0].key]


def test_a_prediction_leaves_nothing_behind_unless_the_task_is_searched(
    dialect: Keeper, tasks: list[Task], model: str
) -> None:
    host, blobs = ProposerHost("keeper"), FakeBlobs()
    host.open(tasks[0], (), None, 0)
    for task in tasks:
        assert host.predict(task, 8, 2, model, 0).candidates
    assert dialect.forgotten == [tasks[1].key]
    assert Builder("keeper", blobs).pick(tasks[0], 8, 2, blobs.put(model.encode()), 0, ()).candidate
    assert dialect.forgotten == [tasks[1].key, tasks[0].key]


def test_what_was_built_is_a_blob_and_its_scratch_is_gone(dialect: Keeper, tasks: list[Task], tmp_path: Path) -> None:
    with DirectoryBlobs(tmp_path) as blobs:
        builder = Builder("keeper", blobs)
        candidate = dialect.baseline(tasks[0])
        artifact = builder.build(tasks[0], candidate)
        assert dialect.load(tasks[0], open_built(blobs, artifact), open_device("cpu"))
        assert blobs.get(artifact.blob, verify=True).stat().st_size == artifact.size_bytes
        assert builder.build(tasks[0], candidate) == artifact
        with pytest.raises(DialectError):
            builder.build(tasks[0], replace(candidate, body="{"))
        (lease,) = (tmp_path / "leases").iterdir()
        assert not list((lease / "scratch").iterdir())


def test_a_disk_that_is_full_is_no_fault_of_a_candidate(
    dialect: Keeper, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise BlobError("cannot write: no space is left")

    blobs = FakeBlobs()
    builder, candidate = Builder("keeper", blobs), dialect.baseline(tasks[0])
    monkeypatch.setattr(blobs, "put", full)
    with pytest.raises(BlobError, match="no space"):
        builder.build(tasks[0], candidate)
    with pytest.raises(BlobError, match="no space"):  # a compiler that fails for want of space says whatever it likes
        builder.build(tasks[0], replace(candidate, body="{"))


def test_a_reference_is_built_once_for_all_builders_of_a_host(
    dialect: Keeper, tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    original = FakeDialect.build
    monkeypatch.setattr(
        Keeper, "build", lambda self, task, one, where: built.append(one.key) or original(self, task, one, where)
    )
    blobs, task = FakeBlobs(), tasks[0]
    for _ in range(3):
        assert Builder("keeper", blobs).check(task, dialect.candidate(task, 1)).verdict.deliverable
    assert built.count(dialect.reference(task).key) == 1
