"""The model that jobs share: what it starts from, when it is swapped, and who shares it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from costmodel_data import LAYOUT, table
from job_tools import run_in

from tunery.costmodels import BoostedModel, FeatureRows, Layout, Recipe, device_columns, registry
from tunery.costmodels.columns import TASK_COLUMNS
from tunery.costmodels.training.replay import _read, _write
from tunery.devices import open_device, traits_of
from tunery.dialects import Observation
from tunery.domain import Candidate, Outcome
from tunery.engines import Role
from tunery.runtime.services import Trainer
from tunery.testing.fake_dialect import FakeDialect
from tunery.tuning.allocation.failing import LIKELY
from tunery.tuning.learning import InitialModel, Learning
from tunery.tuning.search import task_search as search_registry
from tunery.tuning.search.proposer import ProposalFilter
from tunery.tuning.search.task_search import SearchRegistry

pytestmark = pytest.mark.usefixtures("inline_workers")


class OneTrainer:
    """A runtime with the real trainer, in this process; `born` is its generation."""

    def __init__(self) -> None:
        self.engine, self.born, self.row_layout = self, 0, LAYOUT
        self.trainer, self.sent = Trainer(), list[int]()

    def workers(self, _: Role) -> list[str]:
        return ["proposer"]

    def generation(self, _: str) -> int:
        return self.born

    @asynccontextmanager
    async def stage(self, *_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(worker="trainer")

    async def call(
        self, _: str, __: str, name: str, layout: Layout, rows: list[Any], base: str | None, **___: object
    ) -> str | None:
        self.sent.append(len(rows))
        return self.trainer.learn(name, layout, rows, base)


@pytest.fixture
def runtime() -> Any:
    return OneTrainer()


def good_model() -> str:
    return BoostedModel.train([(g.rows, g.gains) for g in table(seed=3)], Recipe()).dumps()


def measure(learning: Learning, first: int, last: int, *, noise: bool = False) -> None:
    """Add what was measured of some tasks; with noise only every fourth candidate, which is held out, is by the law."""
    rng = np.random.default_rng(first)
    for group in table(seed=3).groups[first:last]:
        for i, (key, row, latency) in enumerate(zip(group.keys, group.rows, group.latencies, strict=True)):
            shown = rng.random(len(row)).astype(np.float32) if noise and (i + 1) % 4 else row
            told = Observation(Candidate(key, group.task_key, ""), Outcome.OK, float(latency))
            learning.add(group.task_key, told, shown.tobytes())


def learn(learning: Learning) -> None:
    async def pay(*_: object) -> None:
        pass

    asyncio.run(learning.learn("job", pay))


def test_it_learns_once_there_is_a_quarter_more_and_counts_its_versions(runtime: Any) -> None:
    learning = Learning(runtime, "cpu", None)
    assert not learning.due()
    measure(learning, 0, 1)
    assert not learning.due(), "40 rows are too few"
    measure(learning, 1, 2)
    assert learning.due()
    learn(learning)
    assert (learning.version, learning.due()) == (1, False)
    first = learning.model
    measure(learning, 2, 12)
    assert learning.due()
    learn(learning)
    assert learning.version == 2
    assert learning.model != first
    assert runtime.sent == [80, 400], "the trainer keeps what it was sent"
    runtime.born, runtime.trainer = 1, Trainer()
    measure(learning, 12, 16)
    learn(learning)
    assert runtime.sent[-1] == 640, "a new trainer knows nothing"


def test_rows_without_features_are_not_learned(runtime: Any) -> None:
    learning = Learning(runtime, "cpu", None)
    learning.add("t", Observation(Candidate("c", "t", ""), Outcome.OK, 1.0), b"")
    learning.add(
        "t",
        Observation(Candidate("c", "t", ""), Outcome.CRASHED, None),
        np.zeros(len(LAYOUT.columns), np.float32).tobytes(),
    )
    assert [row.latency_s for row in learning.rows] == [float("inf")]


@pytest.mark.parametrize(("outcome", "blamed"), [(Outcome.BUILD_FAILED, True), (Outcome.CRASHED, False)])
def test_a_worker_that_died_blames_no_candidate(runtime: Any, outcome: Outcome, *, blamed: bool) -> None:
    learning = Learning(runtime, "cpu", None)
    bad, good = (np.full(len(LAYOUT.columns), knob, np.float32).tobytes() for knob in (1.0, 0.0))
    for i in range(40):
        learning.add("t", Observation(Candidate(f"bad{i}", "t", ""), outcome, None), bad)
        learning.add("t", Observation(Candidate(f"good{i}", "t", ""), Outcome.OK, 1.0), good)
    found = learning.failing.likelihoods([bad])
    assert (found is not None and found[0] > LIKELY) is blamed


def test_a_worse_model_is_not_taken(runtime: Any) -> None:
    base = good_model()
    learning = Learning(runtime, "cpu", base)
    measure(learning, 0, 6, noise=True)
    learn(learning)
    assert (learning.model, learning.version) == (base, 0)


def test_jobs_that_start_from_another_model_have_their_own(runtime: Any) -> None:
    searches = SearchRegistry(runtime)
    one, other = good_model(), BoostedModel.train([(g.rows, g.gains) for g in table()], Recipe(rounds=5)).dumps()
    first = searches.learning("cpu", InitialModel(one, 0.5))
    assert searches.learning("cpu", InitialModel(one, 0.5)) is first
    second = searches.learning("cpu", InitialModel(other, 0.2))
    nothing = searches.learning("cpu", None)
    assert len({id(each) for each in (first, second, nothing, searches.learning("gpu", InitialModel(one, 0.5)))}) == 4
    assert [each.model for each in (first, second, nothing)] == [one, other, None]
    assert [each.prior_tau for each in (first, second, nothing)] == [0.5, 0.2, None]
    for each in (first, second, nothing):
        measure(each, 0, 2)
        learn(each)
    assert len(runtime.trainer._warm) == 3, "the trainer keeps them apart, too"


@pytest.mark.jobs
def test_a_job_starts_from_the_model_in_use_told_of_its_device_and_trusts_it_by_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "models"))
    layout = FakeDialect().layout().with_columns(TASK_COLUMNS)
    rows = FeatureRows(np.random.default_rng(0).random((40, len(layout.columns))).astype(np.float32), layout)
    model = BoostedModel.train([(rows, rows.values[:, 0].astype(float))], Recipe(rounds=5))
    metrics = ({"kind": "all", "device": "all", "ranking": "model", "kendall": 0.31},)
    card = registry.new_card(
        dialect="fake", compiler="fake 1.0", target="fake", recipe={}, data={}, metrics=metrics, passed=True
    )
    registry.register(card, model)
    priors: list[float | None] = []
    started: list[InitialModel | None] = []
    learning = SearchRegistry.learning

    def proposal_filter(*args: Any) -> ProposalFilter:
        priors.append(args[3])
        return ProposalFilter(*args)

    def spy(self: SearchRegistry, target_key: str, start: InitialModel | None) -> Learning:
        started.append(start)
        return learning(self, target_key, start)

    monkeypatch.setattr(search_registry, "ProposalFilter", proposal_filter)
    monkeypatch.setattr(SearchRegistry, "learning", spy)
    run_in(tmp_path, "fake:start?tasks=2", "4trials")
    assert set(priors) == {0.31}
    [start] = started
    assert start is not None
    told = np.asarray(json.loads(start.model)["device"], np.float32)
    assert np.array_equal(told, device_columns(traits_of(open_device("cpu").describe().as_facts())), equal_nan=True)
    assert np.isfinite(told).any()


def test_kept_features_that_are_damaged_are_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    rows = np.random.default_rng(0).integers(0, 3, (64, 40)).astype(np.float32)
    _write(path, {str(i): (row, None) for i, row in enumerate(rows)})
    good = path.read_bytes()
    assert len(_read(path)) == 64
    for at in range(0, len(good), 31):
        path.write_bytes(good[:at] + bytes(255 - value for value in good[at : at + 8]) + good[at + 8 :])
        found = _read(path)  # damage to what says nothing of the content does no harm
        assert all(np.array_equal(found[str(i)][0], row) for i, row in enumerate(rows)) if found else True
