import errno
import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costmodel_data import LAYOUT, in_use, table

from tunery._errors import NothingFoundError, UsageError
from tunery.costmodels import BoostedModel, Recipe, device_columns, for_device, load_cost_model, registry
from tunery.costmodels.columns import STORES
from tunery.costmodels.registry import (
    WORKLOAD_DIGITS,
    Version,
    check_directory,
    damaged,
    new_card,
    read,
    register,
    version,
    versions,
)
from tunery.costmodels.training.evaluation import hold_out_networks, ndcg
from tunery.costmodels.training.parquet import read_parquet
from tunery.devices import traits_of

DATASETS = Path(__file__).parents[2] / "datasets"
CONFIG = {"kind": "fake"}


@pytest.fixture(scope="module")
def model() -> BoostedModel:
    return BoostedModel.train([(g.rows, g.gains) for g in table().groups], Recipe(rounds=5))


@pytest.fixture(autouse=True)
def _own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path))


def card(passed: bool = True, target: str = "fake", dialect: str = "fake") -> Version:
    return new_card(
        dialect=dialect, compiler="fake 1.0", target=target, recipe={}, data={"candidates": 3}, metrics=(),
        passed=passed, reasons=() if passed else ("bad",), held_out=("n1",),
    )  # fmt: skip


def test_versions_count_up_and_come_back_as_they_were(model: BoostedModel) -> None:
    first, second = register(card(), model), register(card(passed=False), model)
    assert (first.version, second.version) == (1, 2)
    assert versions() == [first, second]
    found, again = version("1", "fake")
    assert found == first
    rows = table(1).groups[0].rows
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert version(first.path, "fake")[0] == first, "a file will do, too"


def test_only_what_passed_its_gate_is_used(model: BoostedModel) -> None:
    assert in_use("fake") is None
    first = register(card(), model)
    register(card(passed=False), model)
    register(card(target="other"), model)
    register(card(dialect="other"), model)
    used = in_use("fake")
    assert used == first
    assert registry.starting("fake", "fake") == (first, read(Path(first.path))[1])


def test_a_model_trained_here_comes_before_the_shipped_one(model: BoostedModel) -> None:
    shipped = registry.starting("metaschedule", "x86")
    assert shipped == registry.shipped("metaschedule", "x86")
    wide = registry.starting("metaschedule", "x86", vector_bits=512)
    assert wide == registry.shipped("metaschedule", "x86", 512) != registry.shipped("metaschedule", "x86", 256)
    mine = register(card(target="x86", dialect="metaschedule"), model)
    assert (registry.starting("metaschedule", "x86") or ())[:1] == (mine,)
    assert registry.starting("metaschedule", "apple-m1") is None


@pytest.mark.parametrize(
    "damage", [b"", b"x", b"cut", gzip.compress(b"{}", mtime=0), gzip.compress(b"[1]", mtime=0), b"\x1f\x8b\x08"]
)
def test_a_damaged_file_is_one_clear_sentence(model: BoostedModel, damage: bytes) -> None:
    good = register(card(), model)
    path = Path(good.path)
    path.write_bytes(path.read_bytes()[:200] if damage == b"cut" else damage)
    with pytest.raises(UsageError, match="damaged or no cost model") as caught:
        version("1", "fake")
    assert "\n" not in str(caught.value)
    assert versions() == []
    assert in_use("fake") is None
    [sentence] = damaged()
    assert sentence == str(caught.value)


def test_trees_that_were_changed_are_found_without_reading_them(model: BoostedModel) -> None:
    path = Path(register(card(), model).path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["model"]["boosters"][0] = document["model"]["boosters"][0][:300]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(UsageError, match=f"{path} is damaged"):
        read(path)


def test_with_a_damaged_model_the_next_best_is_used_and_a_line_says_so(
    model: BoostedModel, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = register(card(), model), register(card(), model)
    assert registry.starting("fake", "fake") == (second, read(Path(second.path))[1])
    assert caplog.messages == []
    Path(second.path).write_bytes(b"x")
    assert registry.starting("fake", "fake") == (first, read(Path(first.path))[1])
    [line] = caplog.messages
    assert second.path in line
    assert "delete it" in line
    assert register(card(), model).version == 3, "a damaged file keeps its number"


def test_a_model_of_another_compiler_version_is_not_used(model: BoostedModel) -> None:
    fitting = register(card(), model)
    register(replace(card(), compiler="fake 2.0"), model)
    assert in_use("fake", compiler="fake 1.0") == fitting
    assert in_use("fake", compiler="fake 1.0 lowering 7") == fitting, "how networks are lowered does not count"
    assert in_use("fake", compiler="fake 3.0") is None


@pytest.mark.parametrize(("bits", "growth", "least"), [(256, 256, 30_000), (512, None, 20_000)])
def test_the_shipped_model_has_a_card_of_what_it_learned_and_showed(bits: int, growth: int | None, least: int) -> None:
    found = registry.shipped("metaschedule", "x86", bits)
    assert found is not None
    shipped, text = found
    assert (shipped.version, shipped.name, shipped.passed) == (0, "shipped", True)
    assert (json.loads(text).get("growth") or {}).get("vector_bits") == growth
    assert shipped.compiler.startswith("apache-tvm ")
    assert {"resnet18", "vit_b_32"} <= set(shipped.held_out)
    assert not set(shipped.held_out) & set(shipped.data["networks"])
    assert shipped.data["candidates"] > least
    assert shipped.tau == shipped.overall["kendall"]
    assert 0.3 < (shipped.tau or 0) < 1


def test_a_damaged_shipped_model_is_passed_over_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for bits in (256, 512):
        found = registry.shipped("metaschedule", "x86", bits)
        assert found is not None
        (tmp_path / "pretrained").mkdir(exist_ok=True)
        whole = Path(found[0].path).read_bytes()
        (tmp_path / "pretrained" / Path(found[0].path).name).write_bytes(whole if bits == 256 else whole[:-100])
    monkeypatch.setattr(registry, "files", lambda _: tmp_path)
    other = registry.shipped("metaschedule", "x86", 512)
    assert other is not None
    assert other[0].path.endswith("-256.json.gz")
    assert "install tunery again" in caplog.text
    (tmp_path / "pretrained" / "metaschedule-x86-256.json.gz").write_bytes(b"")
    assert registry.shipped("metaschedule", "x86", 512) is None


def test_there_is_a_shipped_model_for_every_x86_and_for_nothing_else() -> None:
    narrow, wide = (registry.shipped("metaschedule", "x86", bits) for bits in (256, 512))
    assert narrow is not None
    assert wide is not None
    assert narrow != wide
    for other in (128, math.nan):
        assert registry.shipped("metaschedule", "x86", other) == narrow
    models = [
        load_cost_model(for_device(narrow[1], device_columns(traits_of({"vector": flags})))) for flags in (["avx2"], [])
    ]
    rounds = [model.rounds for model in models if isinstance(model, BoostedModel)]
    assert rounds[0] > rounds[1] > 0, "on other vectors it goes without what it has grown"
    assert registry.shipped("metaschedule", "apple-m1") is None
    assert registry.shipped("fake", "x86") is None


@pytest.mark.jobs
def test_the_shipped_model_for_256_bits_grew_on_the_dataset_in_the_repository() -> None:
    found = registry.shipped("metaschedule", "x86", 256)
    assert found is not None
    shipped, text = found
    table = read_parquet(DATASETS / "favourites-256.parquet")
    assert str(table.layout) == str(STORES), "it was written before layouts had names"
    learned, judged = hold_out_networks(table.groups, shipped.held_out)
    assert table.only(learned).digest == shipped.data["digest"]
    assert len(table.only(learned)) == shipped.data["candidates"] - shipped.data["base"]["candidates"]
    assert len(judged) == shipped.overall["tasks"]
    here, elsewhere = (
        load_cost_model(for_device(text, device_columns(traits_of({"vector": [f]})))) for f in ("avx2", "avx512f")
    )
    scores = [ndcg(g.gains, model.predict(g.rows)) for g in judged[:20] for model in (here, elsewhere)]
    assert np.mean(scores[::2]) > np.mean(scores[1::2]) + 0.05


@pytest.mark.jobs
def test_the_shipped_model_for_512_bits_learned_from_the_dataset_in_the_repository() -> None:
    found = registry.shipped("metaschedule", "x86", 512)
    narrow = registry.shipped("metaschedule", "x86", 256)
    assert found is not None
    assert narrow is not None
    shipped, text = found
    table = read_parquet(DATASETS / "x86-512.parquet")
    learned, judged = hold_out_networks(table.groups, shipped.held_out)
    assert table.only(learned).digest == shipped.data["digest"]
    assert len(table.only(learned)) == shipped.data["candidates"]
    assert len([group for group in judged if group.usable]) == shipped.overall["tasks"]
    device = device_columns(traits_of({"vector": ["avx512f"]}))
    mine, other = (load_cost_model(for_device(one, device)) for one in (text, narrow[1]))
    scores = [ndcg(g.gains, model.predict(g.inputs)) for g in judged if g.usable for model in (mine, other)]
    assert np.mean(scores[::2]) == pytest.approx(shipped.overall["ndcg8"], abs=0.002), (
        "with the facts of its own device"
    )
    assert np.mean(scores[::2]) > np.mean(scores[1::2]) + 0.05


def test_what_a_model_may_have_learned_from() -> None:
    mine = replace(card(), data={"networks": ["n0", "n1", "n2"]}, held_out=("n1",))
    group = table(1).groups[0]
    seen = {names: mine.saw(replace(group, networks=names)) for names in (("n0",), ("n1",), ("n1", "n2"), ("n9",), ())}
    assert seen == {("n0",): True, ("n1",): False, ("n1", "n2"): False, ("n9",): False, (): True}
    listed = replace(mine, data={**mine.data, "workloads": [group.workload_key[:WORKLOAD_DIGITS]]})
    for names in (("n1",), ("n9",), ()):
        assert listed.saw(replace(group, networks=names)), "another network may hold what it has learned from"
        assert not listed.saw(replace(group, workload_key="0" * 16, networks=names))


def test_a_model_of_a_newer_tunery_is_refused(model: BoostedModel) -> None:
    path = Path(register(card(), model).path)
    document = json.loads(gzip.decompress(path.read_bytes())) | {"format": 99}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(UsageError, match="newer tunery"):
        version("1", "fake")


def test_a_version_that_is_not_there(model: BoostedModel) -> None:
    register(card(), model)
    with pytest.raises(NothingFoundError, match="there are: 1"):
        version("7", "fake")
    with pytest.raises(NothingFoundError, match=r"there is no file mine\.json\.gz; leave it out for the model in use"):
        version("mine.json.gz", "fake")


def test_a_directory_that_cannot_be_written(
    model: BoostedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "file" / "models"))
    with pytest.raises(UsageError, match=registry.VARIABLE):
        register(card(), model)
    with pytest.raises(UsageError, match=registry.VARIABLE):
        check_directory()


def test_a_directory_without_hard_links(model: BoostedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, other: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    check_directory()
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    for fails in (check_directory, lambda: register(card(), model)):
        with pytest.raises(UsageError, match="hard links"):
            fails()
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize("bits", [256, 512])
def test_a_shipped_model_knows_rows_of_stores(bits: int) -> None:
    found = registry.shipped("metaschedule", "x86", bits)
    assert found is not None
    assert found[0].layout == str(STORES)


def test_a_model_for_rows_of_another_layout_is_passed_over(model: BoostedModel) -> None:
    mine = register(card(), model)
    later = replace(LAYOUT, version=2)
    register(card(), BoostedModel.train([(replace(g.rows, layout=later), g.gains) for g in table()], Recipe(rounds=5)))
    assert (registry.starting("fake", "fake", layout=str(LAYOUT)) or ())[:1] == (mine,)
    assert (registry.starting("fake", "fake", layout=str(later)) or (mine,))[0].version == 2
    assert registry.starting("fake", "fake", layout="made-up 3") is None
    assert registry.starting("metaschedule", "x86", layout="others 1") is None
    assert registry.starting("metaschedule", "x86", layout=str(STORES)) is not None


def test_a_card_that_names_another_layout_than_its_model_is_refused(model: BoostedModel) -> None:
    assert register(card(), model).layout == str(LAYOUT)
    with pytest.raises(UsageError, match="its card is of layout others 1, and the model of made-up 1"):
        register(replace(card(), layout="others 1"), model)
