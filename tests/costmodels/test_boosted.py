import json
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunery._errors import UsageError
from tunery.costmodels import BoostedModel, Dataset, FeatureRows, Layout, load_cost_model
from tunery.costmodels.boosted import for_device
from tunery.costmodels.columns import device_columns
from tunery.costmodels.training.evaluation import kendall
from tunery.devices import traits_of

TASKS, ROWS, WIDTH = 3, 80, 12
LAYOUT = Layout("made-up", 1, tuple(f"x{i}" for i in range(WIDTH)))


def synthetic(seed: int) -> tuple[list[FeatureRows], list[npt.NDArray[np.float64]]]:
    """Feature rows and latencies of some tasks; the tasks differ in scale, candidates by the same law within each."""
    rng = np.random.default_rng(seed)
    rows = [rng.random((ROWS, WIDTH), np.float32) for _ in range(TASKS)]
    laws = [np.exp(3 * (x[:, 0] - 0.5) ** 2 + x[:, 1] + 0.5 * x[:, 2] * x[:, 3]) for x in rows]
    return [FeatureRows(x, LAYOUT) for x in rows], [
        np.asarray(law, np.float64) * 10.0**-number for number, law in enumerate(laws)
    ]


def dataset(seed: int = 0) -> Dataset:
    made = Dataset(LAYOUT)
    for number, (rows, latencies) in enumerate(zip(*synthetic(seed), strict=True)):
        for index, (row, latency) in enumerate(zip(rows, latencies, strict=True)):
            made.add(f"task{number}", f"c{index}", row, float(latency))
    return made


@pytest.fixture(scope="module")
def model() -> BoostedModel:
    return BoostedModel.fit(dataset())


def test_it_learns_the_order_within_tasks(model: BoostedModel) -> None:
    for rows, latencies in zip(*synthetic(1), strict=True):
        assert kendall(-latencies, model.predict(rows)) > 0.6


def test_it_reads_back_what_it_wrote(model: BoostedModel) -> None:
    rows = synthetic(1)[0][0]
    again = load_cost_model(model.dumps())
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert BoostedModel.fit(dataset()).dumps() == model.dumps(), "the same rows give the same model"


def test_trees_are_put_into_words_once_and_never_changed_by_what_grows_on_them(
    model: BoostedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, rows = model.dumps(), synthetic(1)[0][0]
    before = model.predict(rows)
    monkeypatch.setattr("lightgbm.Booster.model_to_string", lambda _: pytest.fail("they were known"))
    assert model.dumps() == text
    again = load_cost_model(text)
    assert again.dumps() == text
    monkeypatch.undo()
    assert isinstance(again, BoostedModel)
    grown = BoostedModel.fit(dataset(2), again)
    assert grown.dumps() != text
    assert not np.array_equal(grown.predict(rows), before)
    assert again.dumps() == text
    assert np.array_equal(again.predict(rows), before)


def test_training_goes_on_from_a_base(model: BoostedModel) -> None:
    rows, latencies = synthetic(1)
    few = Dataset(LAYOUT)
    for index in range(24):
        few.add("new", f"c{index}", rows[0].values[index], float(latencies[0][index]))
    scores = BoostedModel.fit(few, model).predict(rows[0][24:])
    assert kendall(-latencies[0][24:], scores) > 0.6
    assert kendall(-latencies[0][24:], BoostedModel.fit(few).predict(rows[0][24:])) < kendall(
        -latencies[0][24:], scores
    )


def test_trees_that_were_grown_for_one_vector_width_are_used_on_no_other(model: BoostedModel) -> None:
    rows = synthetic(1)[0][0]
    grown = model.grown(list(dataset(7).groups().values()), 5).grown_for(256, model.rounds)
    assert grown.rounds == model.rounds + 5
    narrow, wide = (
        load_cost_model(for_device(grown.dumps(), device_columns(traits_of({"vector": [flags]}))))
        for flags in ("avx2", "avx512f")
    )
    assert np.array_equal(narrow.predict(rows), grown.predict(rows))
    assert not np.array_equal(wide.predict(rows), grown.predict(rows))
    np.testing.assert_array_equal(wide.predict(rows), model.predict(rows))
    assert np.array_equal(load_cost_model(narrow.dumps()).predict(rows), grown.predict(rows))
    again = load_cost_model(for_device(narrow.dumps(), device_columns(None)))
    assert np.array_equal(again.predict(rows), model.predict(rows)), "a device that is not known may be of any kind"
    twice = grown.grown(list(dataset(8).groups().values()), 5).grown_for(256, grown.rounds)
    other = load_cost_model(for_device(twice.dumps(), device_columns(traits_of({"vector": ["avx512f"]}))))
    assert np.array_equal(other.predict(rows), model.predict(rows))
    for bits, trunk in ((512, grown.rounds), (256, 0)):
        with pytest.raises(ValueError, match="one kind of device"):
            grown.grown_for(bits, trunk)
    forged = json.dumps(json.loads(grown.dumps()) | {"growth": None})
    with pytest.raises(UsageError, match="not as they were written"):
        load_cost_model(forged)


def test_failed_candidates_rank_last() -> None:
    rng = np.random.default_rng(0)
    made = Dataset(LAYOUT)
    for index in range(80):
        row = rng.random(WIDTH, np.float32)
        made.add("task", f"c{index}", row, float("inf") if row[0] > 0.5 else 1.0 + float(row[1]))
    rows = rng.random((200, WIDTH), np.float32)
    scores = BoostedModel.fit(made).predict(FeatureRows(rows, LAYOUT))
    bad = rows[:, 0] > 0.5
    assert scores[bad].mean() < scores[~bad].mean() / 2


def test_rows_of_nan_are_left_out_and_equal_candidates_replaced() -> None:
    made = Dataset(LAYOUT)
    made.add("t", "a", np.full(WIDTH, np.nan, np.float32), 1.0)
    assert (len(made), made.groups()) == (0, {})
    partly = np.zeros(WIDTH, np.float32)
    partly[3] = np.nan
    made.add("t", "a", partly, 2.0)
    made.add("t", "a", partly, 1.0)
    made.add("t", "b", np.zeros(WIDTH, np.float32), 4.0)
    assert len(made) == 2
    assert made.groups()["t"][1].tolist() == [1.0, 0.25]


def test_a_task_without_any_valid_candidate_teaches_nothing() -> None:
    made = Dataset(LAYOUT)
    made.add("t", "a", np.zeros(WIDTH, np.float32), float("inf"))
    assert made.groups() == {}


@pytest.mark.parametrize("rows", [0, 1, 15])
def test_too_few_rows_are_refused(rows: int) -> None:
    made = Dataset(LAYOUT)
    for index in range(rows):
        made.add("t", f"c{index}", np.full(WIDTH, index, np.float32), 1.0 + index)
    with pytest.raises(UsageError, match=f"^{rows} candidates are too few"):
        BoostedModel.fit(made)


@pytest.mark.parametrize("latency_s", [1.0, float("inf")])
def test_rows_that_are_all_alike_are_refused(latency_s: float) -> None:
    made = Dataset(LAYOUT)
    for index in range(40):
        made.add("t", f"c{index}", np.full(WIDTH, index, np.float32), latency_s)
    with pytest.raises(UsageError, match="too alike"):
        BoostedModel.fit(made)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '"boosted"', "{}", '{"family": "boosted"}', '{"family": "boosted", "booster": 3}',
        '{"family": "boosted", "booster": ""}', '{"family": "boosted", "booster": "tree\\n"}',
        '{"family": ["boosted"]}', '{"family": "oracle"}',
    ],
)  # fmt: skip
def test_what_is_no_cost_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_cost_model(text)
    assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize("damage", ["0.0", "0.01", "0.3", "0.6", "0.9", "0.99", "byte", "build", "digest"])
def test_a_damaged_model_is_refused(model: BoostedModel, damage: str) -> None:
    """In a process of its own: LightGBM does not refuse a damaged text, it ends the process."""
    data = json.loads(model.with_build_cost(synthetic(0)[0][0], np.ones(ROWS)).dumps())
    [text] = data["boosters"]
    if damage == "byte":
        data["boosters"] = [text.replace("split_feature=", "split_feature=9", 1)]
    elif damage == "build":
        data["build_booster"] = data["build_booster"][:500]
    elif damage == "digest":
        del data["digest"]
    else:
        data["boosters"] = [text[: int(len(text) * float(damage))]]
    code = "import sys; from tunery.costmodels import load_cost_model; load_cost_model(sys.stdin.read())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(data), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "UsageError: this is not a cost model" in done.stderr.splitlines()[-1]


@given(st.text(max_size=30))
def test_any_text_is_a_model_or_refused(text: str) -> None:
    with pytest.raises(UsageError):
        load_cost_model(text)
