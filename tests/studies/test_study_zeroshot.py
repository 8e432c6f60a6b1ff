import math
from dataclasses import replace
from pathlib import Path

import pytest

from tunery.costmodels.evaluation import Row
from tunery.costmodels.metrics import Quality
from tunery.domain import Budget, Measurement, Mode, Origin, Outcome
from tunery.jobs import Request, tune
from tunery.store import open_store
from tunery.studies import Options, zeroshot
from tunery.studies.zeroshot import Result, claims, progress, reached

GOOD = Result(
    "net",
    8.0,
    12.0,
    300.0,
    {"tuned": 1.0, "zero-shot": 1.1, "few-shot": 1.05, "onnxruntime": 1.2},
    {"tuned": 0.01},
    1500,
    50,
    200,
)
FIVE = [GOOD] * 5
ROWS = [Row("all", "all", "model", Quality(5, 0.93, 0.1, 0.01, 0.6))]


def test_all_claims_can_be_met() -> None:
    stock = replace(GOOD, stock_s=900.0, latency_s=GOOD.latency_s | {"stock": 2.0})
    theirs = [*ROWS, Row("all", "all", "stock", Quality(5, 0.9, 0.2, 0.02, 0.5))]
    found = claims([stock] * 5, theirs, unseen=True)
    assert all(found.values())
    assert len(found) == len(claims(FIVE, ROWS, unseen=True)) + 2


@pytest.mark.parametrize(
    ("result", "unseen", "missed"),
    [
        (GOOD, False, "seen none"),
        (replace(GOOD, zero_shot_s=11.0), True, "<= 10 s"),
        (replace(GOOD, latency_s=GOOD.latency_s | {"zero-shot": 1.3}), True, ">= 80 %"),
        (replace(GOOD, latency_s=GOOD.latency_s | {"few-shot": 1.2}), True, ">= 90 %"),
        (replace(GOOD, tuning_s=70.0), True, ">= 10 x"),
        (replace(GOOD, trials_with=100), True, ">= 3 x"),
        (replace(GOOD, trials_with=None), True, ">= 3 x"),
        (replace(GOOD, trials_without=None), True, ">= 3 x"),
        (replace(GOOD, stock_s=60.0, latency_s=GOOD.latency_s | {"stock": 2.0}), True, "stock's last"),
        (replace(GOOD, stock_s=900.0, latency_s=GOOD.latency_s | {"stock": 1.0}), True, "stock's last"),
    ],
)
def test_each_claim_can_be_missed(result: Result, unseen: bool, missed: str) -> None:
    found = claims([result] * 5, ROWS, unseen=unseen)
    assert [claim for claim, met in found.items() if not met] == [claim for claim in found if missed in claim]


def test_a_model_that_ranks_badly_misses_its_claim() -> None:
    rows = [Row("all", "all", "model", Quality(5, 0.6, 0.1, 0.01, 0.6))]
    assert not claims(FIVE, rows, unseen=True)["NDCG@8 on held-out networks >= 0.90"]
    assert not claims([GOOD], ROWS, unseen=True)["at least 5 networks"]


@pytest.mark.parametrize(
    "theirs", [Quality(5, 0.95, 0.2, 0.02, 0.5), Quality(5, 0.9, 0.1, 0.02, 0.5), Quality(5, 0.9, 0.2, 0.02, 0.7)]
)
def test_a_model_that_is_not_better_than_stocks_in_one_metric_of_one_kind_misses_its_claim(theirs: Quality) -> None:
    worse = Quality(5, 0.5, 0.9, 0.9, 0.1)
    rows = [*ROWS, Row("all", "all", "stock", worse), Row("conv2d", "all", "model", ROWS[0].quality)]
    claim = "ranks better than MetaSchedule's own model, every metric and kind"
    assert claims(FIVE, [*rows, Row("conv2d", "all", "stock", worse)], unseen=True)[claim]
    assert not claims(FIVE, [*rows, Row("conv2d", "all", "stock", theirs)], unseen=True)[claim]


def test_one_network_that_is_never_as_good_with_the_model_weighs_on_the_mean() -> None:
    never = replace(GOOD, trials_with=None, trials=400, trials_without=401)
    assert never.fewer == 1.0
    claim = next(claim for claim in claims(FIVE, ROWS, unseen=True) if ">= 3 x" in claim)
    assert claims([GOOD] * 6 + [never], ROWS, unseen=True)[claim], "four times fewer for six of seven"
    assert not claims([GOOD] * 3 + [never] * 2, ROWS, unseen=True)[claim]


def test_progress_is_the_weighted_sum_of_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    request = Request(
        "fake:curve?tasks=2&frozen=1&weights=3,1", dialect="fake", threads=1, budget=Budget(trials=24),
        store=str(tmp_path / "store.db"),
    )  # fmt: skip
    report = tune(request)
    with open_store(request.store) as store:  # what the filter drops is recorded in the mode of a race
        measured = next(r for r in store.records(modes=[Mode.RACE]) if r.candidate.origin is not Origin.BASELINE)
        task = next(task for task in report.tasks if task.key == measured.candidate.task_key)
        store.add_record(
            task,
            replace(
                measured,
                candidate=replace(measured.candidate, key="dropped"),
                measurement=Measurement(Outcome.FILTERED),
            ),
        )
    curve = progress(request.store)
    assert len(curve) == 24
    assert math.isinf(curve[0])
    assert curve == sorted(curve, reverse=True)
    tuned = [task for task in report.job.tasks if task.tunable]
    assert curve[-1] == pytest.approx(sum(t.weight * (t.best_s or math.inf) for t in tuned), rel=0.1)
    assert reached(curve, curve[-1]) is not None
    assert reached(curve, 0.0) is None


def test_an_interrupted_study_goes_on_with_the_network_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path))
    monkeypatch.setenv("TUNERY_MODELS", str(tmp_path / "models"))
    begun: list[str] = []

    def network(name: str, *_: object) -> Result:
        begun.append(name)
        if begun == ["resnet18", "mobilenet_v2"]:
            raise KeyboardInterrupt
        return replace(GOOD, network=name)

    monkeypatch.setattr(zeroshot, "_network", network)
    monkeypatch.setattr(zeroshot, "_judged", lambda *_: ROWS)
    with pytest.raises(KeyboardInterrupt):
        zeroshot.run(Options())
    report = zeroshot.run(Options())
    assert begun == ["resnet18", "mobilenet_v2", *zeroshot.NETWORKS[1:]], "the first is done, the second begins anew"
    assert [one["network"] for one in report.data["networks"]] == list(zeroshot.NETWORKS)
    assert report.data["held_out"], "none of them was in the shipped model's data"
    assert not list(tmp_path.glob("study-*")), "the study is complete"
