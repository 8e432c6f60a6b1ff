"""What runs inside workers, called here: a dialect without a compiler in this process."""

from pathlib import Path

import numpy as np
import pytest

from tunery.costmodels import BoostedModel, Dataset
from tunery.costmodels.columns import TASK_COLUMNS
from tunery.dialects.fake import FakeDialect, fake_network
from tunery.dialects.fake._space import FEATURES
from tunery.domain import Task
from tunery.runtime.services import Builder, ProposerHost


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
    monkeypatch.setattr("tunery.runtime.services.get_dialect", lambda _: keeper)
    return keeper


@pytest.fixture
def tasks(dialect: Keeper) -> list[Task]:
    return dialect.extract(fake_network("fake:net?tasks=2"), dialect.resolve_target("native", 1))


@pytest.fixture
def model() -> str:
    dataset = Dataset()
    for number, row in enumerate(np.random.default_rng(0).random((40, FEATURES + TASK_COLUMNS)).astype(np.float32)):
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
    dialect: Keeper, tasks: list[Task], model: str, tmp_path: Path
) -> None:
    host, text = ProposerHost("keeper"), tmp_path / "model"
    text.write_text(model)
    host.open(tasks[0], (), None, 0)
    for task in tasks:
        assert host.predict(task, 8, 2, model, 0).candidates
    assert dialect.forgotten == [tasks[1].key]
    assert Builder("keeper", tmp_path).pick(tasks[0], 8, 2, text, 0, ()).candidate
    assert dialect.forgotten == [tasks[1].key, tasks[0].key]
