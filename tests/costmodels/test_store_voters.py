"""Voters that see a candidate's stores one by one."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tunery._errors import UsageError
from tunery.costmodels import BoostedModel, FeatureRows, Group, Recipe, load_cost_model
from tunery.costmodels.boosted import for_device, trees_digest
from tunery.costmodels.columns import DEVICE_COLUMNS, STORE_WIDTH, STORES, TASK_COLUMNS, fold
from tunery.costmodels.dataset import columns_of
from tunery.costmodels.training.automl import fit, search, voting
from tunery.costmodels.training.evaluation import kendall

LAYOUT = STORES.of_fold(STORE_WIDTH).with_columns(TASK_COLUMNS).with_columns(DEVICE_COLUMNS)
RECIPE = Recipe("gain", 60, {"feature_fraction": 1.0, "min_data_in_leaf": 4}, members=1, store_members=2)


def group(seed: int, candidates: int = 64, *, hidden: bool = False) -> Group:
    """A task of programs whose time is that of all their stores, of which the busiest tells little, or if `hidden`, no
    fold tells anything: the slow ones are neither large nor small, and all their columns say the same.
    """
    rng = np.random.default_rng(seed)
    stores = []
    for _ in range(candidates):
        each = np.zeros((int(rng.integers(2, 5)), STORE_WIDTH), np.float32)
        each[:, : 50 if hidden else 4] = rng.random((len(each), 1 if hidden else 4))
        each[:, 50] = 1
        stores.append(each)
    taken = [0.2 + (abs(each[:, 2] - 0.5) < 0.2) if hidden else np.exp(2 * each[:, 2]) for each in stores]
    latencies = np.array([each.sum() for each in taken], np.float64) * 10.0**-seed
    task = np.full(len(TASK_COLUMNS) + len(DEVICE_COLUMNS), seed, np.float32)
    rows = np.stack([np.concatenate([fold(each), task]) for each in stores])
    keys = tuple(f"c{i}" for i in range(candidates))
    return Group(
        f"t{seed}",
        f"w{seed}",
        "op",
        "conv2d",
        "device",
        "fake",
        ("n",),
        keys,
        FeatureRows(rows, LAYOUT),
        latencies,
        latencies,
        tuple(stores),
    )


@pytest.mark.jobs
def test_the_search_finds_out_whether_they_pay_and_the_model_that_is_used_has_two() -> None:
    learn = [replace(group(seed, hidden=True), networks=(f"n{seed}",)) for seed in range(4)]
    found = search(learn, seconds=60.0, most=2)
    assert found.recipe.store_members == 1, "the second recipe, where only single stores tell anything"
    recipe = voting(replace(found.recipe, rounds=5))
    assert (recipe.members, recipe.store_members) == (2, 2)
    assert json.loads(fit(learn, recipe).dumps())["stores"]["boosters"][1:]
    folded = [replace(each, stores=None) for each in learn]
    assert search(folded, seconds=60.0, most=2).recipe.store_members == 0, "where a dialect has no stores"


LEARN, UNSEEN = [group(seed) for seed in range(4)], group(4)


@pytest.fixture(scope="module")
def model() -> BoostedModel:
    return BoostedModel.train([(each.inputs, each.gains) for each in LEARN], RECIPE)


def order(model: BoostedModel, rows: FeatureRows) -> float:
    return kendall(UNSEEN.gains, model.predict(rows))


def test_they_learn_what_folding_loses(model: BoostedModel) -> None:
    alone = BoostedModel.train([(each.rows, each.gains) for each in LEARN], RECIPE)
    assert order(model, UNSEEN.inputs) > order(alone, UNSEEN.rows) + 0.1


def test_rows_without_stores_are_scored_by_the_others_alone(model: BoostedModel) -> None:
    assert np.isfinite(model.predict(UNSEEN.rows)).all()
    assert not np.array_equal(model.predict(UNSEEN.rows), model.predict(UNSEEN.inputs))
    one = UNSEEN.inputs[:1]
    empty = replace(one, values=np.full_like(one.values, np.nan))
    assert np.isfinite(model.predict(empty)).all(), "a row that could not be computed is no reason to fail"
    assert len(model.predict(UNSEEN.inputs[:0])) == 0


def test_a_search_has_none_of_the_devices_columns(model: BoostedModel) -> None:
    told = load_cost_model(for_device(model.dumps(), columns_of(UNSEEN)))
    layout = STORES.with_columns(TASK_COLUMNS)
    rows = FeatureRows(UNSEEN.inputs.pick(layout), layout)
    assert np.allclose(told.predict(rows), model.predict(UNSEEN.inputs))


def test_a_model_of_before_layouts_had_names_knows_them_all_the_same(model: BoostedModel) -> None:
    data = {key: value for key, value in json.loads(model.dumps()).items() if key != "layout"}
    again = load_cost_model(json.dumps(data | {"digest": trees_digest(data)}))
    assert np.array_equal(again.predict(UNSEEN.inputs), model.predict(UNSEEN.inputs))


def test_a_model_without_them_takes_rows_with_stores() -> None:
    alone = BoostedModel.train([(each.rows, each.gains) for each in LEARN], RECIPE)
    assert np.array_equal(alone.predict(UNSEEN.inputs), alone.predict(UNSEEN.rows))


def test_they_are_written_and_read(model: BoostedModel) -> None:
    text = model.with_build_cost(UNSEEN.inputs, UNSEEN.build_s).dumps()
    again = load_cost_model(text)
    assert np.array_equal(again.predict(UNSEEN.inputs), model.predict(UNSEEN.inputs))
    assert again.uncertainty(UNSEEN.inputs).max() > 0
    data = json.loads(text)
    data["stores"]["boosters"][0] = data["stores"]["boosters"][0][:300]
    with pytest.raises(UsageError, match="not as they were written"):
        load_cost_model(json.dumps(data))


def test_a_job_goes_on_learning_on_top(model: BoostedModel) -> None:
    reverse = 1.05 - UNSEEN.gains  # nothing that was learned before holds here
    grown = model.grown([(UNSEEN.inputs, reverse)], 60)
    assert kendall(reverse, model.predict(UNSEEN.inputs)) < -0.3
    assert kendall(reverse, grown.predict(UNSEEN.inputs)) > 0.5
    assert np.array_equal(load_cost_model(grown.dumps()).predict(UNSEEN.inputs), grown.predict(UNSEEN.inputs))
