import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from costmodel_data import table
from studies._children import Watched
from studies._delivered import OWN, STOCK, Arm, Result, Scale, arms, plain, result_of
from studies._delivering import _tuned, delivered, document, unpredicted
from studies._judged import Way
from studies._ranked import OURS, Beside, Pair, beside_text, learnable, pairs, pairs_text, rivals
from studies.stock_sides import Point, Side
from studies.zeroshot import claims

from studies import Options, _delivering, _ranked, _stock_model, zeroshot
from tunery._errors import UsageError, WorkError
from tunery.costmodels import Group, Recipe, Table
from tunery.costmodels.registry import WORKLOAD_DIGITS, new_card
from tunery.costmodels.training.evaluation import EvaluationRow, Quality
from tunery.costmodels.training.parquet import write_parquet
from tunery.domain import Budget, JobState, JobStatus, Network, Spend, Target, Task, Workload
from tunery.domain.request import BenchReport, Latency, Request, TuneReport


def way(*steps: tuple[int, float], key: str = "a", weight: int = 1) -> Way:
    return Way(key, weight, steps, {"key": "c", "body": "long"}, True)


def rounds(*medians: float) -> tuple[Latency, ...]:
    return tuple(Latency(median, 0.9 * median, 1.1 * median, 20) for median in medians)


def arm(*steps: tuple[int, float], trials: int = 400) -> Arm:
    return Arm(300.0, trials, (way(*steps),), {})


GOOD = Result(
    "net",
    (8.0, 9.0, 8.5),
    12.0,
    2,
    {},
    {"tuned": rounds(1.0, 1.0), "zero-shot": rounds(1.1), "few-shot": rounds(1.05), "onnxruntime": rounds(1.2, 1.26)},
    {"with": arm((0, 9.0), (50, 2.0), (390, 1.9)), "without": arm((0, 9.0), (100, 3.0), (200, 2.0))},
)
CURVE = tuple(Point(at, 2 * at, 8, latency_s) for at, latency_s in ((50.0, None), (500.0, 6.0), (800.0, 4.0)))
SIDE = Side("net", 2, 8, 0, 0.0, 900.0, 1800.0, 2, CURVE)
BESIDE_STOCK = replace(GOOD, stock=SIDE, latency_s={**GOOD.latency_s, "stock": rounds(1.2)})
BETTER, WORSE = Quality(5, 0.93, 0.1, 0.01, 0.6), Quality(5, 0.9, 0.2, 0.02, 0.5)
ROWS = [
    EvaluationRow("all", "all", "model", BETTER),
    EvaluationRow("all", "all", OURS, BETTER),
    EvaluationRow("all", "all", "stock", WORSE),
]
MODEL_ONLY = ROWS[:1]


def missed(result: Result, *, unseen: bool = True) -> list[str]:
    return [claim for claim, met in claims([result] * 5, ROWS, unseen=unseen).items() if met is False]


def test_all_claims_can_be_met_and_what_this_run_cannot_judge_is_left_open() -> None:
    assert set(claims([BESIDE_STOCK] * 5, ROWS, unseen=True).values()) == {True}
    left = [claim for claim, met in claims([GOOD] * 5, MODEL_ONLY, unseen=True).items() if met is None]
    words = ["to stock's final quality", "without a trial", "trained on the same data", "stock takes"]
    assert [word in claim for word, claim in zip(words, left, strict=True)] == [True] * 4
    assert claims([GOOD] * 5, [], unseen=True)["NDCG@8 on held-out networks >= 0.90"] is None


def slower(way_: str, median: float) -> Result:
    return replace(BESIDE_STOCK, latency_s={**BESIDE_STOCK.latency_s, way_: rounds(median)})


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (replace(GOOD, zero_shots_s=(9.0, 11.0, 12.0)), "<= 10 s"),
        (replace(GOOD, unpredicted={"conv:1234": "it failed"}), "<= 10 s"),
        (replace(GOOD, latency_s={**GOOD.latency_s, "zero-shot": rounds(1.3)}), ">= 80 %"),
        (slower("few-shot", 1.2), ">= 90 %"),
        (replace(GOOD, arms={**GOOD.arms, "with": arm((0, 9.0), (100, 2.0))}), ">= 3 x fewer"),
        (replace(GOOD, arms={**GOOD.arms, "with": arm((0, 9.0))}), ">= 3 x fewer"),
        (replace(BESIDE_STOCK, arms={**GOOD.arms, "with": arm((0, 9.0), (50, 2.0), (190, 1.2))}), "to stock's final"),
        (replace(BESIDE_STOCK, zero_shots_s=(9.9,), stock=replace(SIDE, wall_s=98.0)), "stock takes"),
    ],
)
def test_each_claim_can_be_missed(result: Result, words: str) -> None:
    [claim] = missed(result)
    assert words in claim


def test_a_run_of_few_networks_or_of_a_model_that_has_seen_them_says_so() -> None:
    [claim] = missed(BESIDE_STOCK, unseen=False)
    assert "seen none" in claim
    assert not claims([GOOD], ROWS, unseen=True)["at least 5 networks"]
    short = claims([BESIDE_STOCK] * 5, ROWS, ["resnet18"], unseen=True)
    assert [claim for claim, met in short.items() if met is False] == [c for c in short if "every network" in c]
    assert [met for met in claims([], [], unseen=True).values() if met is True] == [True], "only that it has seen none"


def test_one_start_above_the_bound_is_shown_and_does_not_decide() -> None:
    result = replace(BESIDE_STOCK, zero_shots_s=(9.0, 20.0, 8.0))
    assert missed(result) == []
    assert "20.0" in zeroshot._text([result], ROWS, {}, unseen=True)


def test_trials_count_from_the_defaults_on_and_within_a_hundredth() -> None:
    result = replace(GOOD, arms={"with": arm((0, 2.02)), "without": arm((0, 9.0), (200, 2.0))})
    assert result.goals_s == {OWN: pytest.approx(2.02)}
    assert result.arms["with"].reached(result.goals_s[OWN]) == 0, "the defaults are good enough"
    assert result.fewer(OWN) == 200
    assert replace(result, arms={**result.arms, "with": arm((0, 2.021), (100, 1.0))}).fewer(OWN) == 2


def test_an_arm_that_never_gets_there_counts_with_all_its_trials() -> None:
    never, found = arm((0, 9.0), trials=150), arm((0, 9.0), (200, 2.0), trials=400)
    assert replace(GOOD, arms={"with": never, "without": found}).fewer(OWN) == 1.0, "at most: it had fewer trials"
    longer = replace(GOOD, arms={"with": replace(never, trials=800), "without": found})
    assert longer.fewer(OWN) == 0.25
    taught = arm((0, 9.0), (40, 1.0), trials=400)
    beside = replace(BESIDE_STOCK, arms={"with": taught, "without": found})
    assert beside.goals_s[STOCK] == pytest.approx(1.01 * 1.2), "stock's file is 1.2 times as slow as the tuned one"
    assert slower("stock", 0.1).fewer(STOCK) is None, "neither did"
    assert beside.fewer(STOCK) == 10, "at least: the other had 400 and did not get there"


def test_what_is_delivered_without_a_trial_is_judged_beside_stocks_network() -> None:
    claim = "what is delivered without a trial has stock's final quality (wherever stock was run)"
    dearer = slower("zero-shot", 1.22)
    assert (BESIDE_STOCK.untried_is_enough, dearer.untried_is_enough) == (True, False)
    assert claims([BESIDE_STOCK, GOOD], ROWS, unseen=True)[claim] is True
    assert claims([BESIDE_STOCK, dearer], ROWS, unseen=True)[claim] is False
    assert claims([GOOD], ROWS, unseen=True)[claim] is None
    said = zeroshot._text([BESIDE_STOCK, replace(dearer, network="other"), GOOD], ROWS, {}, unseen=True)
    assert "as fast as stock's end without a trial: net of 2" in said


def test_stocks_time_is_that_of_its_first_network_as_fast_as_zero_shots() -> None:
    def at(latency_s: float) -> Result:
        return slower("zero-shot", latency_s)

    assert at(1.2).stock_took == (800.0, True)
    assert at(1.7).stock_took == (800.0, True), "its sum of 6 was worth 1.8"
    assert at(1.8).stock_took == (500.0, True), "there was nothing before each task had a latency"
    assert at(1.1).stock_took == (900.0, False)
    assert at(1.1).stock_times == pytest.approx(900 / 8.5)
    assert ">106x" in zeroshot._text([at(1.1)], ROWS, {}, unseen=True)
    assert GOOD.stock_took is None
    assert "no side of stock's for net" in zeroshot._text([GOOD], ROWS, {}, unseen=True)


def test_arms_count_with_what_their_winners_are_worth_and_equal_kernels_with_the_same() -> None:
    fixed = replace(way((0, 4.0), key="fixed", weight=2), winner={})
    tunings = {
        "with": (10.0, 8, [way((0, 8.0), (4, 1.0)), fixed, way((1, 3.0), key="untimed"), way(key="none")]),
        "without": (
            20.0, 9,
            [way((0, 8.0), (7, 2.0)), replace(fixed, steps=((0, 5.0),)), way((1, 3.5), key="untimed"),
             way((1, 1.0), key="none")],
        ),
    }  # fmt: skip
    worth = {"a": {"with": 1.5, "without": 1.6}, "untimed": {"with": math.inf, "without": 3.0}, "none": {"without": 1}}
    made = arms(tunings, worth)
    assert made["with"].curve == ((0, math.inf), (1, pytest.approx(12 + 9 + 3)), (4, pytest.approx(1.5 + 9 + 3)))
    assert made["without"].curve[-1] == (7, pytest.approx(1.6 + 9 + 3.5))
    assert (made["with"].trials, made["without"].seconds) == (8, 20.0)
    assert [one.winner for one in made["with"].ways] == [{"key": "c"}, {}, {"key": "c"}], "programs are long"


def test_a_result_is_the_same_after_it_was_kept_and_holds_what_its_claims_are_made_of() -> None:
    assert result_of(json.loads(json.dumps(asdict(BESIDE_STOCK)))) == BESIDE_STOCK
    data = plain(BESIDE_STOCK)
    assert data["curves"]["with"] == ((0, 9.0), (50, 2.0), (390, 1.9))
    assert data["latency_s"]["onnxruntime"][1]["p90"] == pytest.approx(1.1 * 1.26)
    assert data["trials"][OWN] == {"with": 50, "without": 200, "fewer": 4.0}
    assert data["stock"]["curve"][1]["wall_s"] == 500.0
    assert (data["stock_took_s"], data["stock_was_as_fast"]) == (900.0, False)
    assert BESIDE_STOCK.spread == pytest.approx(0.05)


@pytest.mark.jobs
def test_a_tuning_counts_each_candidate_once_and_begins_with_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(tmp_path / "cache"))
    request = Request(
        "fake:curve?tasks=2&frozen=1&weights=3,1", dialect="fake", threads=1, budget=Budget(trials=24),
        store=str(tmp_path / "store.db"),
    )  # fmt: skip
    seconds, report, found = _tuned(request)
    arm_ = arms({"with": (seconds, report.job.spend.trials, found)}, {})["with"]
    assert arm_.curve[0][0] == 0
    assert math.isfinite(arm_.curve[0][1]), "the defaults"
    assert arm_.curve[-1][0] <= arm_.trials == 24
    assert [s for _, s in arm_.curve] == sorted((s for _, s in arm_.curve), reverse=True)
    assert arm_.curve[-1][1] == pytest.approx(report.after_s, rel=0.1)
    assert arm_.reached(0.0) is None


def task(name: str, *, tunable: bool = True) -> Task:
    return Task(Workload(f"{name}-workload", name, "conv2d", "", (), 1, 8.0), Target("fake", {}, 1), 1, tunable)


def test_a_tunable_task_without_a_prediction_is_named() -> None:
    tasks = [task("one"), task("two"), task("three"), task("fixed", tunable=False)]
    coverage = {"one:one-work": {"rung": "zero-shot"}, "two:two-work": {"rung": "compiler-default"}}
    assert unpredicted(tasks, coverage, {"two": "all three crashed"}) == {
        "two:two-work": "all three crashed", "three:three-wo": "its prediction could not be compiled",
    }  # fmt: skip
    text = zeroshot._text([replace(GOOD, unpredicted={"two:two-work": "crashed"})], ROWS, {}, unseen=True)
    assert "1 of 2" in text
    assert "not predicted: net two:two-work: crashed" in text


def test_a_document_is_found_between_remarks() -> None:
    text = json.dumps({"coverage": {"a": {"rung": "zero-shot"}}, "refused": {}}, indent=2)
    assert document(f"a remark {{\n{text}\nthe end\n")["coverage"] == {"a": {"rung": "zero-shot"}}
    for wrong in ("nothing", "{\nno json\n}"):
        with pytest.raises(WorkError, match="no JSON"):
            document(wrong)


class Machine:
    """The command, the tunings and the stop-watch, by a script; what they were asked for."""

    def __init__(self, wrong: tuple[str, ...] = ()) -> None:
        self.wrong, self.caches, self.budgets = wrong, [], []  # type: ignore[var-annotated]
        self.took = iter((9.0, 8.0, 10.0, 12.0))

    def watch(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Watched:
        self.caches.append(environment["TUNERY_CACHE"])
        assert "--json" in command
        covered = {"one:one-work": {"rung": "zero-shot", "candidate": "c"}}
        log.write_text(json.dumps({"coverage": covered, "refused": {}}, indent=2))
        return Watched(0.0, next(self.took), 1.0, ())

    def tuned(self, request: Request) -> tuple[float, TuneReport, Sequence[Way]]:
        self.budgets.append(request.budget)
        one = task("one")
        status = JobStatus("job", JobState.DONE, {}, Spend(trials=64))
        report = TuneReport(status, Network("n", "n", "n", "", (), (), 0), (one,), None, None, False, request.store)
        return 5.0, report, [way((0, 9.0), (16 if request.pretrained else 64, 2.0), key=one.key)]

    def judge(self, request: Request, tasks: Sequence[Task], runs: Mapping[str, object]) -> dict[str, dict[str, float]]:
        return {tasks[0].key: {"with": 1.0, "without": 1.1}}

    def bench(self, request: Request, *_: object, compiled: Path, others: Mapping[str, Path]) -> BenchReport:
        labels = ["tunery", "onnxruntime", *others]
        return BenchReport("net", 2, dict(zip(labels, rounds(1, 2, 3, 4, 5), strict=False)), 0.0, wrong=self.wrong)


def delivery(
    machine: Machine, directory: Path, monkeypatch: pytest.MonkeyPatch, scale: Scale, network: str = "net",
    learned: Sequence[str] | None = None,
) -> Result:  # fmt: skip
    monkeypatch.setattr(_delivering, "watch", machine.watch)
    monkeypatch.setattr(_delivering, "_tuned", machine.tuned)
    monkeypatch.setattr(_delivering, "judge", machine.judge)
    monkeypatch.setattr(_delivering, "bench", machine.bench)
    monkeypatch.setattr(_delivering, "compile_model", lambda *_: None)
    monkeypatch.setattr(_delivering, "finished_side", lambda *_: (SIDE, Path("stock.tunery")))
    return delivered(network, scale, Options(repeats=2), directory, learned)


def test_a_network_is_delivered_from_cold_each_time_and_tuned_with_the_standard_effort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    result = delivery(machine, tmp_path, monkeypatch, zeroshot.FULL)
    assert (result.zero_shots_s, result.zero_shot_s, result.few_shot_s) == ((9.0, 8.0, 10.0), 9.0, 12.0)
    assert len(set(machine.caches)) == 4, "a cache of its own for each command"
    assert all(budget.unlimited for budget in machine.budgets), "so the effort decides"
    assert (result.tunable, result.unpredicted, result.stock) == (1, {}, SIDE)
    assert result.arms["with"].curve == ((0, 4.5), (16, 1.0))
    assert result.arms["without"].curve == ((0, pytest.approx(9.0 * 0.55)), (64, 1.1))
    assert result.median_s("tuned") == 1.0
    assert len(result.latency_s["stock"]) == 2


def test_a_quick_network_has_few_trials_and_a_wrong_file_is_no_rival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(wrong=("stock",))
    result = delivery(machine, tmp_path, monkeypatch, zeroshot.QUICK)
    assert len(result.zero_shots_s) == 1
    assert machine.budgets == [Budget(trials=zeroshot.QUICK.trials)] * 2
    assert (result.stock, "stock" in result.latency_s) == (None, False)
    with pytest.raises(WorkError, match="zero-shot computes something else"):
        delivery(Machine(wrong=("zero-shot",)), tmp_path, monkeypatch, zeroshot.QUICK)


def test_what_the_model_has_learned_from_is_told_by_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = task("one").workload.key[:WORKLOAD_DIGITS]
    file = str(tmp_path / "mine.onnx")
    seen = delivery(Machine(), tmp_path, monkeypatch, zeroshot.QUICK, file, [key])
    assert (seen.network, seen.tunable, seen.learned) == ("mine", 1, 1)
    assert delivery(Machine(), tmp_path, monkeypatch, zeroshot.QUICK, learned=["0"]).learned == 0
    said = zeroshot._text([seen, GOOD], ROWS, {}, unseen=False)
    assert "has learned from some of these tasks, measured in other networks: mine 1 of 1" in said


def test_ties_are_not_worse_and_what_is_worse_is_named() -> None:
    claim = next(claim for claim in claims([GOOD], ROWS, unseen=True) if "same data" in claim)
    tie = EvaluationRow("conv2d", "all", "stock", replace(WORSE, regret8=BETTER.regret8))
    rows = [*ROWS, EvaluationRow("conv2d", "all", OURS, BETTER), tie]
    assert claims([GOOD], rows, unseen=True)[claim]
    assert pairs_text(pairs(rows)).endswith("in 7 of 8, as well in 1")
    for metric, theirs in (("ndcg8", 0.95), ("kendall", 0.7), ("regret1", 0.05), ("regret8", 0.0)):
        worse = [*rows[:-1], replace(tie, quality=replace(WORSE, **{metric: theirs}))]
        assert claims([GOOD], worse, unseen=True)[claim] is False
        assert f"not: conv2d {metric} (" in pairs_text(pairs(worse))
    assert pairs(MODEL_ONLY) == []
    nothing = pairs_text([Pair("all", "ndcg8", math.nan, 0.5, math.nan)])
    assert nothing.endswith("0 of 1; not: all ndcg8 (nan, theirs 0.500)")


def test_a_dataset_is_looked_at_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(_stock_model, "_xgboost", lambda: None)
    file = tmp_path / "data.parquet"
    world = table(networks=4, per_network=2, rows=8)
    foreign = Table(world.groups, "metaschedule", "some-compiler 1", "x86")
    write_parquet(foreign, file, {})
    with pytest.raises(UsageError, match="another compiler"):
        learnable(file, ["n0"])
    write_parquet(world, file, {})
    with pytest.raises(UsageError, match="nothing but tasks of"):
        learnable(file, [f"n{i}" for i in range(4)])

    def missing() -> None:
        raise UsageError("install xgboost")

    monkeypatch.setattr(_stock_model, "_xgboost", missing)
    with pytest.raises(UsageError, match="install xgboost"):
        zeroshot.run(Options(), file)


def test_rivals_learn_from_no_workload_that_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    world = table(networks=6, per_network=3, rows=24, shared=False)
    heard: dict[str, list[str]] = {}

    class Stock:
        capped = True

        def __init__(self, groups: Sequence[Group], threads: int) -> None:
            heard["stock"] = [group.workload_key for group in groups]
            assert threads >= 1

        def predict(self, group: Group) -> object:
            return group.rows.values[:, 0]

    fit = _ranked.fit

    def noted(groups: Sequence[Group], recipe: Recipe, threads: int) -> object:
        heard["ours"] = [group.workload_key for group in groups]
        assert recipe.members == 2, "as many voters as the model that is judged has"
        return fit(groups, recipe, threads=threads)

    monkeypatch.setattr(_ranked, "StockModel", Stock)
    monkeypatch.setattr(_ranked, "fit", noted)
    recipe = {"family": "gain", "rounds": 20.0, "parameters": {"num_leaves": 7.0, "learning_rate": 0.2}, "members": 2}
    facts = dict(dialect="fake", compiler="", target="", recipe=recipe, data={}, metrics=(), passed=True)  # noqa: C408 - as keywords
    card = new_card(**facts)
    judged = world.groups[:4]
    rows, difference, capped = rivals(judged, world.groups, card, Options())
    assert capped
    assert heard["ours"] == heard["stock"] == [group.workload_key for group in world.groups[4:]]
    assert {row.ranking for row in rows} == {OURS, "stock"}
    assert next(row for row in rows if row.ranking == OURS).quality.ndcg8 > 0.8, "it has learned the law"
    means = [next(row for row in rows if row.ranking == name).quality.ndcg8 for name in (OURS, "stock")]
    assert difference.mean == pytest.approx(means[0] - means[1])
    first, second = beside_text(Beside(rows, difference, capped))
    assert f"over 4 tasks: {difference.mean:+.3f}" in first
    assert "was still learning" in second
    with pytest.raises(UsageError, match="no workload but those"):
        rivals(judged, judged, card, Options())


def studied(monkeypatch: pytest.MonkeyPatch, cache: Path, network: object, ranked: object = None) -> None:
    monkeypatch.setenv("TUNERY_CACHE", str(cache))
    monkeypatch.setenv("TUNERY_MODELS", str(cache / "models"))
    monkeypatch.setattr(zeroshot, "delivered", network)
    monkeypatch.setattr(zeroshot, "ranked", ranked or (lambda *_: ([*MODEL_ONLY], ())))


def test_an_interrupted_study_goes_on_with_the_network_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def network(name: str, *_: object) -> Result:
        begun.append(name)
        if begun == ["resnet18", "mobilenet_v2"]:
            raise KeyboardInterrupt
        return replace(BESIDE_STOCK, network=name)

    studied(monkeypatch, tmp_path, network)
    with pytest.raises(KeyboardInterrupt):
        zeroshot.run(Options())
    report = zeroshot.run(Options())
    assert begun == ["resnet18", "mobilenet_v2", *zeroshot.NETWORKS[1:]], "the first is done, the second begins anew"
    assert [one["network"] for one in report.data["networks"]] == list(zeroshot.NETWORKS)
    assert report.data["held_out"], "none of them was in the shipped model's data"
    assert not list(tmp_path.glob("study-*")), "the study is complete"


def test_what_fails_is_listed_and_tried_again_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def network(name: str, *_: object) -> Result:
        begun.append(name)
        if begun.count("bert-small") == 1 and name == "bert-small":
            raise WorkError("the first line\nand at last the reason")
        return replace(GOOD, network=name)

    def unranked(*_: object) -> object:
        raise ValueError("no candidate")

    studied(monkeypatch, tmp_path, network, unranked)
    report = zeroshot.run(Options())
    assert begun == list(zeroshot.NETWORKS)
    assert report.data["failed"]["bert-small"] == "WorkError: the first line\nand at last the reason"
    assert report.claims["at least 5 networks"] is False
    assert report.claims["NDCG@8 on held-out networks >= 0.90"] is None
    assert "failed: bert-small: WorkError: the first line and at last the reason" in report.text
    assert "failed: the ranking: ValueError: no candidate" in report.text

    studied(monkeypatch, tmp_path, network)
    again = zeroshot.run(Options())
    assert begun == [*zeroshot.NETWORKS, "bert-small"]
    assert not again.data["failed"]
    assert again.claims["at least 5 networks"]
    assert not list(tmp_path.glob("study-*"))


def test_a_report_that_cannot_be_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def network(name: str, *_: object) -> Result:
        begun.append(name)
        return replace(GOOD, network=name)

    studied(monkeypatch, tmp_path, network)
    with monkeypatch.context() as patch:
        patch.setattr(zeroshot, "claims", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            zeroshot.run(Options())
    zeroshot.run(Options())
    assert begun == list(zeroshot.NETWORKS), "no network is measured twice"
