import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel_data import LAYOUT, OWN, table

from tunery._errors import DialectError, UsageError
from tunery.costmodels import BoostedModel, FeatureRows, Group, Recipe, for_device, load_cost_model
from tunery.costmodels.boosted import trees_digest
from tunery.costmodels.columns import DEVICE_COLUMNS
from tunery.costmodels.training.automl import FAMILIES, fit, search
from tunery.costmodels.training.evaluation import evaluate, gate, hold_out_networks, kendall, paired, random_ranker
from tunery.costmodels.training.parquet import read_parquet, write_parquet

SMALL = Recipe(rounds=20)


def test_the_search_always_answers_and_ranks_unseen_networks() -> None:
    learn, judge = hold_out_networks(table().groups, ["n6", "n7"])
    found = search(learn, seconds=0.0, most=1)
    assert found.tried == 1
    model = fit(learn, replace(found.recipe, rounds=40, members=2))
    for group in judge:
        assert kendall(group.gains, model.predict(group.rows)) > 0.4
        assert (model.uncertainty(group.rows) > 0).any()
        cost = model.build_cost(group.rows)
        assert kendall(group.build_s, cost) > 0.4


def test_one_network_is_too_few() -> None:
    with pytest.raises(UsageError, match="one network"):
        search(table(networks=1, shared=False).groups, seconds=0.0, most=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_ranks_with_positive_scores_and_goes_on_learning(family: str) -> None:
    groups = table().groups
    pairs = [(g.rows, g.gains) for g in groups]
    model = BoostedModel.train(pairs[:20], replace(SMALL, family=family, rounds=40, members=2))
    again = load_cost_model(model.dumps())
    for g in groups[20:]:
        scores = again.predict(g.rows)
        assert np.array_equal(scores, model.predict(g.rows))
        assert np.isfinite(scores).all()
        if family != "gain":
            assert (scores > 0).all()
        assert kendall(g.gains, scores) > 0.4
    grown = model.grown(pairs[20:], 60)
    before = np.mean([kendall(g.gains, model.predict(g.rows)) for g in groups[20:]])
    assert np.mean([kendall(g.gains, grown.predict(g.rows)) for g in groups[20:]]) > before


def test_a_model_reads_the_columns_it_knows_by_their_names() -> None:
    groups, rows = table().groups, table().groups[0].rows
    own, device = rows.pick(OWN), rows.values[0, 7:]
    narrow = FeatureRows(own, OWN)
    model = BoostedModel.train([(FeatureRows(g.rows.pick(OWN), OWN), g.gains) for g in groups], SMALL)
    assert np.array_equal(model.predict(rows), model.predict(narrow))
    wide = BoostedModel.train([(g.rows, g.gains) for g in groups], SMALL)
    turned = FeatureRows(rows.values[:, ::-1].copy(), replace(LAYOUT, columns=LAYOUT.columns[::-1]))
    assert np.array_equal(wide.predict(turned), wide.predict(rows))
    told = load_cost_model(for_device(wide.dumps(), device))
    assert np.array_equal(told.predict(narrow), wide.predict(narrow.with_columns(DEVICE_COLUMNS, device)))
    assert not np.array_equal(told.predict(narrow), wide.predict(narrow)), "columns not told are empty"
    again = load_cost_model(told.dumps())
    assert np.array_equal(again.predict(narrow), told.predict(narrow))


def test_rows_of_another_dialect_or_version_are_refused() -> None:
    groups = table().groups
    model = BoostedModel.train([(g.rows, g.gains) for g in groups], SMALL)
    rows = groups[0].rows
    for layout in (replace(LAYOUT, name="others"), replace(LAYOUT, version=2)):
        with pytest.raises(UsageError, match=f"knows rows of layout made-up 1 and the candidates' are of {layout}: "):
            model.predict(FeatureRows(rows.values, layout))
    fewer = replace(OWN, columns=OWN.columns[1:])
    with pytest.raises(UsageError, match="knows the column x0 and the candidates have none: "):
        model.predict(FeatureRows(rows.values[:, 1:7], fewer))
    with pytest.raises(DialectError, match=r"shape \(40, 12\) are said to be of layout made-up 1, which has 6 columns"):
        FeatureRows(rows.values, fewer)


@pytest.mark.parametrize("named", [None, {"name": "made-up", "version": 1, "columns": ["x0", "x1"]}])
def test_a_model_that_does_not_name_the_rows_of_its_trees_is_refused(named: object) -> None:
    data = json.loads(BoostedModel.train([(g.rows, g.gains) for g in table().groups], SMALL).dumps()) | {
        "layout": named
    }
    with pytest.raises(UsageError, match="train one anew"):
        load_cost_model(json.dumps(data | {"digest": trees_digest(data)}))


def test_rows_of_an_evaluation_and_the_gate() -> None:
    groups = table().groups

    def oracle(group: Group) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return group.gains

    rows = evaluate(groups, {"model": oracle, "random": random_ranker()})
    assert {(row.kind, row.ranking) for row in rows} == {
        (kind, ranking) for kind in ("all", "conv2d", "matmul") for ranking in ("model", "random")
    }
    assert gate(rows).passed
    bad = gate(evaluate(groups, {"model": random_ranker(1), "random": random_ranker(2)}))
    assert not bad.passed
    assert bad.reasons
    few = gate(evaluate(groups[:9], {"model": oracle, "random": random_ranker()}))
    assert not few.passed
    assert any("judged on 9 tasks" in reason for reason in few.reasons)
    with pytest.raises(UsageError, match="no task is left"):
        gate(evaluate([], {"model": oracle, "random": oracle}))


def test_a_rival_must_be_clearly_better_to_close_the_gate() -> None:
    groups = table().groups
    rows = evaluate(groups, {"model": lambda g: g.gains, "random": random_ranker()})

    def often(group: Group) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Rank by the law, in some tasks the wrong way round."""
        return group.gains if int(group.task_key.removeprefix("task")) % 4 else -group.gains

    def now_and_then(group: Group) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return group.gains if group is not groups[0] else -group.gains

    clear = paired(groups, often, lambda g: g.gains, "in use")
    assert clear.mean < 0
    assert clear.clearly_worse
    assert any("the model in use" in reason for reason in gate(rows, [clear]).reasons)
    hardly = paired(groups, now_and_then, lambda g: g.gains, "in use")
    assert hardly.mean < 0, "worse, but on one task of many"
    assert gate(rows, [hardly]).passed
    assert not paired(groups, lambda g: g.gains, often, "in use").clearly_worse


def test_devices_are_told_apart() -> None:
    groups = table().groups
    two = [*groups, *(replace(g, device="other") for g in groups)]
    rows = evaluate(two, {"model": lambda g: g.gains})
    assert {row.device for row in rows} == {"all", "device", "other"}


def test_a_dataset_comes_back_from_its_file(tmp_path: Path) -> None:
    made = table(networks=2)
    path = tmp_path / "data.parquet"
    card = write_parquet(made, path, {"candidates": len(made)})
    assert card.exists()
    again = read_parquet(path)
    assert again.digest == made.digest
    assert (again.dialect, again.compiler, again.target) == (made.dialect, made.compiler, made.target)
    for one, other in zip(again.groups, made.groups, strict=True):
        assert np.array_equal(one.rows.values, other.rows.values)
        assert one.networks == other.networks
        assert one.stores is not None
        assert other.stores is not None
        assert all(np.array_equal(a, b) for a, b in zip(one.stores, other.stores, strict=True))


def test_a_dataset_is_read_without_a_python_number_for_each_of_its_own(tmp_path: Path) -> None:
    made = table(networks=4, rows=400)
    wide = made.only(replace(g, stores=tuple(np.tile(each, (8, 1)) for each in g.stores or ())) for g in made)
    path = tmp_path / "data.parquet"
    write_parquet(wide, path, {})
    size = sum(g.rows.values.nbytes + sum(each.nbytes for each in g.stores or ()) for g in wide)
    read_parquet(path)  # once for what is imported
    tracemalloc.start()
    try:
        again = read_parquet(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert again.digest == wide.digest
    assert peak < 3 * size


def test_a_dataset_without_stores_comes_back(tmp_path: Path) -> None:
    made = table(networks=2)
    bare = made.only(replace(g, stores=None) for g in made)
    write_parquet(bare, tmp_path / "data.parquet", {})
    again = read_parquet(tmp_path / "data.parquet")
    assert [g.stores for g in again] == [None] * len(made.groups)
    assert all(np.array_equal(one.rows.values, other.rows.values) for one, other in zip(again, made, strict=True))


def test_in_a_file_of_several_devices_no_row_tells_of_its_device(tmp_path: Path) -> None:
    made = table(networks=1, shared=False)
    write_parquet(made.only([*made, *(replace(g, device="other") for g in made)]), tmp_path / "two.parquet", {})
    again = read_parquet(tmp_path / "two.parquet")
    assert len(again.groups) == 2 * len(made.groups)
    for one, other in zip(again.groups, [*made, *made], strict=True):
        assert np.isnan(one.rows.values[:, 7:]).all()
        assert np.array_equal(one.rows.pick(OWN), other.rows.pick(OWN))


@pytest.mark.parametrize("content", [None, b"", b"PAR1 nonsense PAR1"])
def test_what_is_no_dataset_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "data.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_parquet(path)
    assert str(path) in str(caught.value)
