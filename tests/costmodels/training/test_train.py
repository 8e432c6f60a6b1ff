"""Training from a dataset to a version that is used, or is not, on a made-up world."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from costmodel_data import in_use, table

from tunery._errors import UsageError
from tunery.costmodels import BoostedModel, Recipe, Table, load_cost_model, registry
from tunery.costmodels.columns import DEVICE_COLUMNS
from tunery.costmodels.registry import Version, new_card, register, versions
from tunery.costmodels.training import train as training
from tunery.costmodels.training.evaluation import LEAST_TASKS, hold_out_networks
from tunery.costmodels.training.parquet import write_parquet
from tunery.costmodels.training.train import Training, judge, open_table, train
from tunery.domain import Target
from tunery.domain.request import Request

pytestmark = pytest.mark.jobs

CONFIG = {"kind": "fake"}
TARGET = Target("fake", CONFIG, 1)
HELD = ("n0", "n1", "n2", "n3")


@pytest.fixture(autouse=True)
def _own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "models"))


@pytest.fixture(scope="module")
def world() -> Table:
    return table(networks=10, per_network=5, rows=12)


def spoiled(world: Table, share: float, spare: tuple[str, ...] = ()) -> Table:
    """Give a share of each task's candidates another one's latency, but not in the networks to spare."""
    rng = np.random.default_rng(0)
    groups = []
    for group in world:
        latencies = group.latencies.copy()
        chosen = np.flatnonzero(rng.random(len(latencies)) < (0 if set(spare) & set(group.networks) else share))
        latencies[chosen] = latencies[rng.permutation(chosen)]
        groups.append(replace(group, latencies=latencies))
    return world.only(groups)


def trained(world: Table, hold_out: tuple[str, ...] = HELD) -> Training:
    return train(world, 0.0, hold_out=hold_out, most=1)


def good_model(world: Table, **facts: object) -> Version:
    """Register a model that knows the law; its card says what it may have seen."""
    model = BoostedModel.train([(g.rows, g.gains) for g in world], Recipe())
    card = dict(dialect="fake", compiler="fake 1.0", target="fake", recipe={}, data={}, metrics=(), passed=True)  # noqa: C408 - as keywords
    return register(new_card(**{**card, **facts}), model)


def test_a_dataset_becomes_a_version_that_is_used(world: Table) -> None:
    heard: list[str] = []
    done = train(world, 2.0, most=2, notify=heard.append)
    card = done.card
    assert card.passed
    assert done.used
    assert in_use("fake", compiler="fake 1.0") == card
    assert done.search.tried == 2
    assert heard
    overall = {row.ranking: row.quality for row in done.appraisal.rows if row.kind == row.device == "all"}
    assert {"model", "random"} <= overall.keys()
    assert overall["model"].tasks >= LEAST_TASKS
    assert overall["model"].ndcg8 > overall["random"].ndcg8 + 0.05
    assert card.overall["ndcg8"] == overall["model"].ndcg8
    assert card.tau == overall["model"].kendall
    assert card.data["digest"] == world.digest
    assert card.data["candidates"] == len(world)
    assert load_cost_model((registry.starting("fake", "fake") or ("", ""))[1]).predict(world.groups[0].rows).shape == (
        12,
    )


def test_labels_of_noise_are_refused(world: Table) -> None:
    done = trained(spoiled(world, 1.0))
    assert not done.used
    assert not done.card.passed
    assert any("chance" in reason for reason in done.card.reasons)
    assert versions() == [done.card], "it is kept to look at"
    assert in_use("fake") is None


def test_a_model_clearly_worse_than_the_one_in_use_does_not_take_its_place(world: Table) -> None:
    first = good_model(world)
    done = trained(spoiled(world, 0.85, spare=HELD))
    assert any("the model in use" in reason for reason in done.card.reasons)
    assert [row for row in done.appraisal.rows if row.ranking == "in use"]
    assert in_use("fake") == first


def test_one_that_is_as_good_does(world: Table) -> None:
    learn, _ = hold_out_networks(world.groups, HELD)
    good_model(world.only(learn))
    done = trained(world)
    [pair] = [pair for pair in done.appraisal.pairs if pair.rival == "in use"]
    assert pair.tasks >= LEAST_TASKS
    assert in_use("fake") == done.card


def test_where_the_model_in_use_has_seen_the_tasks_they_are_not_compared(world: Table) -> None:
    everything = sorted({name for group in world for name in group.networks})
    good_model(world, data={"networks": everything})
    done = trained(world)
    assert "in use" not in {pair.rival for pair in done.appraisal.pairs}
    [remark] = [text for text in done.appraisal.remarks if "in use" in text]
    assert "may have learned" in remark
    assert "in use" not in {row.ranking for row in done.appraisal.rows}, "it would shine on what it knows"
    assert "in use" not in {row["ranking"] for row in done.card.metrics}
    good_model(world, data={"networks": everything}, held_out=HELD)
    again = trained(world)
    assert "in use" in {pair.rival for pair in again.appraisal.pairs}
    assert "in use" in {row.ranking for row in again.appraisal.rows}


def test_where_it_has_seen_some_of_the_tasks_it_is_compared_on_the_others_only(world: Table) -> None:
    good_model(world, data={"networks": ["n0"]})
    done = trained(world)
    [pair] = [pair for pair in done.appraisal.pairs if pair.rival == "in use"]
    tasks = [group for group in world if set(HELD) & set(group.networks)]
    assert pair.tasks == sum("n0" not in group.networks for group in tasks) >= LEAST_TASKS
    assert "in use" not in {row.ranking for row in done.appraisal.rows}
    [remark] = [text for text in done.appraisal.remarks if "in use" in text]
    assert f"compared on {pair.tasks} of the {len(tasks)} tasks" in remark


@pytest.mark.parametrize(("learned", "beside"), [(["n0"], False), (["unheard-of"], True)])
def test_the_shipped_model_is_beside_only_on_tasks_that_it_has_not_seen(
    world: Table, learned: list[str], beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(world)
    ships = good_model(world, data={"networks": learned}, passed=False)
    monkeypatch.setattr(training, "shipped", lambda *_: registry.read(Path(ships.path)))
    assert ("shipped" in {row.ranking for row in judge(world, "1", TARGET).rows}) is beside


def test_the_shipped_model_is_judged_as_it_is_used_where_the_candidates_ran() -> None:
    path = Path(__file__).parents[3] / "datasets" / "favourites-256.parquet"
    favourites = open_table("", "metaschedule", path, any_compiler=True)
    _, unseen = hold_out_networks(favourites.groups, ("resnet18",))
    here = favourites.only(replace(group, stores=None) for group in unseen)
    wide = np.zeros(len(here.groups[0].rows.layout.columns), np.float32)
    wide[-len(DEVICE_COLUMNS)] = 256
    elsewhere = here.only(
        replace(group, rows=replace(group.rows, values=group.rows.values + wide)) for group in here
    )  # fmt: skip
    found = [judge(table, "", all_groups=True).rows[0].quality.ndcg8 for table in (here, elsewhere)]
    assert found[0] > found[1] + 0.1, "what was grown for vectors of 256 bits is not used for 512"


def test_a_model_in_use_that_cannot_read_the_rows_does_not_stop_training(world: Table) -> None:
    wide = world.only(replace(g, rows=g.rows.with_columns(("more",), np.zeros(1, np.float32))) for g in world)
    good_model(wide)
    done = trained(world)
    assert done.used
    assert any("knows the column more and" in text for text in done.appraisal.remarks)


def test_few_held_out_tasks_are_too_few(world: Table) -> None:
    done = trained(world, ("n0",))
    assert not done.used
    assert any("tasks, and 10 are needed" in reason for reason in done.card.reasons)


def several_devices(world: Table) -> Table:
    new = table(networks=10, per_network=5, rows=12, seed=1)
    return world.only([*world, *(replace(g, device="other", task_key=f"o{g.task_key}") for g in new)])


def test_several_devices_have_rows_of_their_own(world: Table) -> None:
    done = trained(several_devices(world))
    assert {row.device for row in done.appraisal.rows} == {"all", "device", "other"}


def test_where_models_cannot_be_written_nothing_is_searched(
    world: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "file" / "models"))
    monkeypatch.setattr(training, "search", lambda *_, **__: pytest.fail("searched in vain"))
    with pytest.raises(UsageError, match=registry.VARIABLE):
        trained(world)


@pytest.mark.parametrize(
    ("change", "hold_out", "words"),
    [
        (lambda world: world.only(replace(g, latencies=np.ones(12)) for g in world), HELD, "too alike"),
        (lambda world: world, ("n0", "mystery"), "'mystery'"),
        (lambda world: world, tuple(f"n{i}" for i in range(10)), "nothing to train on"),
        (lambda world: world.only(world.groups[:8]), (), "2 networks"),
    ],
)
def test_what_cannot_be_trained_on_is_one_sentence(
    world: Table, change: Callable[[Table], Table], hold_out: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        trained(change(world), hold_out)
    assert "\n" not in str(caught.value)
    assert versions() == []


def test_a_dataset_of_another_compiler_is_taken_only_if_asked(world: Table, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_parquet(replace(world, compiler="fake 0.9"), path, {})
    with pytest.raises(UsageError, match=r"another compiler \(fake 0.9; installed is fake 1.0\)"):
        open_table("", "fake", path)
    done = trained(open_table("", "fake", path, any_compiler=True))
    assert done.card.passed
    assert not done.used
    assert in_use("fake", compiler="fake 1.0") is None
    write_parquet(world.only(replace(g, compiler="fake 0.8") for g in world), path, {})
    with pytest.raises(UsageError, match=r"fake 0.8"):
        open_table("", "fake", path)
    write_parquet(replace(world, compiler="fake 1.0 lowering 3"), path, {})
    assert open_table("", "fake", path).digest == replace(world, compiler="fake 1.0 lowering 3").digest


def test_what_a_held_out_network_holds_is_read_from_it(world: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = world.groups[0], world.groups[-1]
    asked: list[str] = []

    def extract_many(request: Request, models: Sequence[str]) -> SimpleNamespace:
        asked.extend(models)
        work = SimpleNamespace(key=mine.workload_key)
        found = SimpleNamespace(failure="", tasks=[SimpleNamespace(workload=work)])
        return SimpleNamespace(models=[found, SimpleNamespace(failure="no memory", tasks=())])

    monkeypatch.setattr(training, "extract_many", extract_many)
    said: list[str] = []
    zoo = replace(world, dialect="metaschedule")
    marked = training._owned(zoo, ["resnet18", "mine", "vgg11"], said.append)
    assert asked == ["zoo:resnet18", "zoo:vgg11"], "only the zoo can be read"
    assert marked.groups[0].networks == tuple(sorted({*mine.networks, "resnet18"}))
    assert marked.groups[-1].networks == other.networks
    assert "vgg11 cannot be read" in said[-1]
    learn, _ = hold_out_networks(marked.groups, ["resnet18"])
    assert mine.workload_key not in {group.workload_key for group in learn}
    assert training._owned(zoo, ["mine"], said.append) is zoo


def test_judging_says_whether_the_tasks_were_seen(world: Table) -> None:
    done = trained(world)
    held = [group for group in world if set(HELD) & set(group.networks)]
    found = judge(world, "", TARGET)
    assert (found.model, found.unseen) == ("version 1", True)
    assert found.groups == tuple(held)
    assert {row.ranking for row in found.rows} == {"model", "random"}
    everything = judge(world, "1", TARGET, all_groups=True)
    assert not everything.unseen
    assert len(everything.groups) == len(world.groups)
    seen = judge(world.only(g for g in world if g not in held), done.card.path)
    assert not seen.unseen
    assert len(seen.groups) == len(world.groups) - len(held)
    new = world.only(replace(g, networks=("unheard-of",)) for g in world)
    assert judge(new, "1").unseen


def test_without_a_target_the_model_for_the_processors_of_the_dataset_is_judged(
    world: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = good_model(world), good_model(world, target="elsewhere")
    foreign = replace(world, target="elsewhere")
    assert judge(foreign, "").model == there.name
    assert judge(foreign, "", TARGET).model == here.name
    asked: list[str] = []
    monkeypatch.setattr(training, "shipped", lambda _, target, __: asked.append(target))
    judge(foreign, "1")
    assert asked == ["elsewhere"]
    with pytest.raises(UsageError, match="for nowhere"):
        judge(replace(world, target="nowhere"), "")


def test_without_any_model_judging_says_what_to_do(world: Table) -> None:
    with pytest.raises(UsageError, match="tunery costmodel train"):
        judge(world, "", TARGET)
