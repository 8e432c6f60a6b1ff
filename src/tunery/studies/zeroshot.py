"""Networks the cost model has never seen: delivered without a measurement, with a few, and fully tuned.

Everything is measured in this run, side by side. A network's tasks count as unseen only if the model's card says that
the network was held out of its training; the report says so where it does not.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tunery._errors import UsageError
from tunery._report import as_text, new_table
from tunery.costmodels import Group
from tunery.costmodels.evaluation import ALL, Row, evaluate
from tunery.costmodels.parquet import read_parquet
from tunery.costmodels.registry import family, starting
from tunery.costmodels.rival import StockModel
from tunery.costmodels.splits import hold_out_networks
from tunery.dialects import get_dialect
from tunery.domain import Budget, Mode, Origin, Outcome, digest
from tunery.jobs import Request, bench, cache_directory, compile_model, tune
from tunery.jobs.collect import collect
from tunery.jobs.dataset import load
from tunery.jobs.opening import thread_count
from tunery.jobs.training import judge
from tunery.store import open_store
from tunery.studies._base import Options, StudyReport
from tunery.studies._children import watch
from tunery.studies._kept import Kept
from tunery.studies.stock import finished_side

NETWORKS = ("resnet18", "mobilenet_v2", "bert-small", "efficientnet_b0", "vit_b_32")
FEW = 4
_BENCH_S = 3.0
_LEAST_NETWORKS = 5
_HIGHER, _LOWER = ("ndcg8", "kendall"), ("regret1", "regret8")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: networks, the tuning's trials per network, tasks and candidates to judge the model by."""

    networks: tuple[str, ...]
    trials: int
    tasks: int
    per_task: int


@dataclass(frozen=True, slots=True)
class Result:
    """One network: seconds each way took, its latencies, and after how many trials the tuning was how good.

    The seconds of zero-shot and few-shot are those of the command, its start included. `trials` is how many the tuning
    that starts from the model had in all; `trials_with` and `trials_without` when it was as good as the tuning without
    the model was in the end. `stock_s` is what stock took, where its study has finished the network.
    """

    network: str
    zero_shot_s: float
    few_shot_s: float
    tuning_s: float
    latency_s: dict[str, float]
    spread: dict[str, float]
    trials: int
    trials_with: int | None
    trials_without: int | None
    stock_s: float | None = None

    def speed(self, way: str) -> float:
        """Return the speed relative to fully tuned."""
        return self.latency_s["tuned"] / self.latency_s[way]

    @property
    def fewer(self) -> float | None:
        """How many times fewer trials it takes with the model: at most that, if it was never as good."""
        return self.trials_without / (self.trials_with or self.trials + 1) if self.trials_without else None


def run(options: Options, data: Path | None = None) -> StudyReport:
    """Deliver held-out networks without tuning, with a few measurements, and tuned, and compare.

    With `data`, a dataset that `tunery records export --parquet` wrote, MetaSchedule's own model learns from what of it
    is of other networks, and ranks the same candidates. An interrupted study goes on with the network that was cut
    short.

    Raises:
        UsageError: there is no cost model for this processor.
    """
    learn = _others(data, NETWORKS) if data else []
    scale = Scale(NETWORKS[:1], 120, 6, 24) if options.quick else Scale(NETWORKS, 1500, 40, 64)
    dialect = get_dialect("metaschedule")
    start = starting(
        dialect.name, family(dialect.name, dialect.resolve_target("native", 0).config), compiler=dialect.compiler
    )
    if start is None:
        raise UsageError(
            "there is no cost model for this processor; run `tunery costmodel collect` and `tunery costmodel train`"
        )
    card, text = start
    unseen = set(scale.networks) <= set(card.held_out)
    kept = Kept(cache_directory(), "zero-shot", f"{scale} {options.seed} {options.repeats} {digest(text)}")
    results = [_known_or_new(name, scale, options, kept) for name in scale.networks]
    rows = _judged(scale, options, kept.directory, learn)
    kept.remove()
    return StudyReport(
        "zero-shot",
        {
            "model": card.name,
            "held_out": unseen,
            "networks": [asdict(result) for result in results],
            "ranking": [{"kind": row.kind, "ranking": row.ranking, **asdict(row.quality)} for row in rows],
        },
        _text(results, rows, unseen=unseen),
        claims(results, rows, unseen=unseen),
    )


def claims(results: Sequence[Result], rows: Sequence[Row], *, unseen: bool) -> dict[str, bool]:
    """Return each claim with its bound, and whether these results meet it."""
    overall = next((r.quality for r in rows if (r.kind, r.device, r.ranking) == (ALL, ALL, "model")), None)
    zero, few = (_mean([r.speed(way) for r in results]) for way in ("zero-shot", "few-shot"))
    fewer = [r.fewer or 0.0 for r in results]
    found = {
        "the model has seen none of these networks": unseen,
        f"at least {_LEAST_NETWORKS} networks": len(results) >= _LEAST_NETWORKS,
        "NDCG@8 on held-out networks >= 0.90": overall is not None and overall.ndcg8 >= 0.90,
        "every network delivered in <= 10 s without a measurement": all(r.zero_shot_s <= 10 for r in results),
        "zero-shot speed >= 80 % of fully tuned (geometric mean)": zero >= 0.8,
        f"few-shot {FEW} speed >= 90 % of fully tuned (geometric mean)": few >= 0.9,
        ">= 10 x less time than our tuning": all(r.tuning_s >= 10 * r.zero_shot_s for r in results),
        ">= 3 x fewer trials to the quality of tuning without the model": all(fewer) and _mean(fewer) >= 3,
    }
    if pairs := _beside_stock(rows):
        found["ranks better than MetaSchedule's own model, every metric and kind"] = all(better for *_, better in pairs)
    for r in results:
        if r.stock_s:
            as_fast = r.latency_s["zero-shot"] <= r.latency_s["stock"]
            found[f"{r.network}: as fast as stock's last in >= 10 x less time"] = (
                as_fast and r.stock_s >= 10 * r.zero_shot_s
            )
    return found


def _beside_stock(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """Return for each kind and metric whether the model is better than stock's; nothing if stock's was not asked."""
    found = []
    by = {(row.kind, row.ranking): row.quality for row in rows if row.device == ALL}
    for kind in dict.fromkeys(row.kind for row in rows):
        ours, theirs = by.get((kind, "model")), by.get((kind, "stock"))
        if ours and theirs:
            found += [(kind, metric, getattr(ours, metric) > getattr(theirs, metric)) for metric in _HIGHER]
            found += [(kind, metric, getattr(ours, metric) < getattr(theirs, metric)) for metric in _LOWER]
    return found


def _known_or_new(name: str, scale: Scale, options: Options, kept: Kept) -> Result:
    known = kept.results(name)
    if known:
        options.say(f"{name}: done by an interrupted study")
        return Result(**known)
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as directory:
        result = _network(name, scale, options, Path(directory))
    kept.keep_results(name, asdict(result))
    return result


def _network(name: str, scale: Scale, options: Options, directory: Path) -> Result:
    model, took, files = f"zoo:{name}", {}, {}
    for way, asked in (("zero-shot", ()), ("few-shot", ("--few-shot", str(FEW)))):
        options.say(f"{name}: {way}")
        files[way] = directory / f"{name}-{way}.tunery"
        command = ["-m", "tunery.cli", "compile", model, "-o", str(files[way]), "--effort", "quick", *asked,
                   "--store", str(directory / f"{name}-{way}.db")]  # fmt: skip
        cold = {"TUNERY_CACHE": str(directory / f"cache-{way}")}
        took[way] = watch(command, directory / f"{way}.log", cold).wall_s
    trials: dict[bool, list[float]] = {}
    for taught in (False, True):
        options.say(f"{name}: tuned {'with' if taught else 'without'} the model")
        request = Request(
            model, store=str(directory / f"{name}-{taught}.db"), seed=options.seed, pretrained=taught,
            budget=Budget(trials=scale.trials),
        )  # fmt: skip
        began = time.monotonic()
        tune(request)
        took["tuned"] = time.monotonic() - began
        trials[taught] = progress(request.store)
    files["tuned"] = directory / f"{name}-tuned.tunery"
    compile_model(request, files["tuned"])
    goal = trials[False][-1] if trials[False] else math.inf
    stock = finished_side(model, thread_count(request.threads))
    measured = _benched(request, files, stock and stock[1], options)
    return Result(
        name, took["zero-shot"], took["few-shot"], took["tuned"],
        {way: statistics.median(samples) for way, samples in measured.items()},
        {way: max(samples) / min(samples) - 1 for way, samples in measured.items()},
        len(trials[True]), reached(trials[True], goal), reached(trials[False], goal), stock and stock[0].wall_s,
    )  # fmt: skip


def _benched(request: Request, files: dict[str, Path], stock: Path | None, options: Options) -> dict[str, list[float]]:
    """Return the medians of several rounds; in each all files and ONNX Runtime take turns, run by run."""
    samples: dict[str, list[float]] = {}
    others = {way: file for way, file in files.items() if way != "tuned"} | ({"stock": stock} if stock else {})
    for _ in range(max(2, options.repeats)):
        found = bench(request, ("onnxruntime",), _BENCH_S, compiled=files["tuned"], others=others)
        for label, latency in found.latency_s.items():
            samples.setdefault("tuned" if label == "tunery" else label, []).append(latency.median)
    return samples


def progress(store_url: str) -> list[float]:
    """Return, after each trial of a store's one job, the sum of its tasks' best latencies by their weights.

    Trials before every task has a latency are inf. Weights are those of the job's network.
    """
    with open_store(store_url) as store:
        [status] = [store.job(job.job_id) for job in store.jobs(1)]
        records = store.records(modes=[Mode.RACE], job_id=status.job_id)
    weights = {task.task_key: task.weight for task in status.tasks if task.tunable}
    best = dict.fromkeys(weights, math.inf)
    curve = []
    for record in records:
        key, latency_s = record.candidate.task_key, record.measurement.latency_s
        if record.candidate.origin is Origin.BASELINE or key not in best:
            continue
        if record.measurement.outcome is Outcome.FILTERED:
            continue  # dropped unmeasured: no trial
        if record.measurement.outcome is Outcome.OK and latency_s:
            best[key] = min(best[key], latency_s)
        curve.append(sum(weights[key] * seconds for key, seconds in best.items()))
    return curve


def reached(curve: Sequence[float], goal: float) -> int | None:
    """Return after how many trials the curve is at or under the goal, None if never.

    >>> reached([3.0, 2.0, 1.0], 2.0)
    2
    """
    return next((number for number, value in enumerate(curve, 1) if value <= goal), None)


def _others(data: Path, held_out: Sequence[str]) -> list[Group]:
    """Return what of a dataset is of none of these networks."""
    return list(hold_out_networks(read_parquet(data).groups, held_out)[0])


def _judged(scale: Scale, options: Options, directory: Path, learn: Sequence[Group]) -> list[Row]:
    """Rank candidates of the held-out networks' tasks, measured for this; stock's model learns from `learn`."""
    options.say("measuring candidates of held-out networks")
    request = Request("collect", store=str(directory / "judge.db"), seed=options.seed, pretrained=False)
    models = [f"zoo:{name}" for name in scale.networks]
    collect(request, models, tasks=scale.tasks, per_task=scale.per_task)
    table = load(request.store, request.dialect)
    target = get_dialect(request.dialect).resolve_target("native", 0)
    rows = judge(table, "", target, seed=options.seed, all_groups=True)[1]
    return rows + (evaluate(table.groups, {"stock": StockModel(learn).predict}) if learn else [])


def _text(results: Sequence[Result], rows: Sequence[Row], *, unseen: bool) -> str:
    table = new_table("network", "#zero-shot s", "#few-shot s", "#tuning s", "#ORT ms", "#zero-shot ms", "#few-shot ms",
                      "#tuned ms", "#stock ms", "#stock s", "#spread", "#trials with", "#without")  # fmt: skip
    for r in results:
        table.add_row(
            r.network, f"{r.zero_shot_s:.1f}", f"{r.few_shot_s:.1f}", f"{r.tuning_s:.0f}",
            *(f"{1e3 * r.latency_s[way]:.2f}" if way in r.latency_s else "-"
              for way in ("onnxruntime", "zero-shot", "few-shot", "tuned", "stock")),
            f"{r.stock_s:.0f}" if r.stock_s else "-",
            f"{100 * max(r.spread.values()):.0f} %", str(r.trials_with or "never"), str(r.trials_without or "never"),
        )  # fmt: skip
    ranking = new_table("kind", "ranking", "#tasks", "#NDCG@8", "#regret of 1", "#regret of 8", "#Kendall")
    for row in rows:
        q = row.quality
        ranking.add_row(row.kind, row.ranking, str(q.tasks), f"{q.ndcg8:.3f}", f"{q.regret1:.3f}", f"{q.regret8:.3f}",
                        f"{q.kendall:.3f}")  # fmt: skip
    notes = ""
    if not _beside_stock(rows):
        notes += "\nnote: not ranked beside MetaSchedule's own model, which learns from a dataset; give one with --data"
    if not unseen:
        notes += "\nnote: the model's card does not say that these networks were held out of its training"
    means = ", ".join(f"{way} {_mean([r.speed(way) for r in results]):.2f}" for way in ("zero-shot", "few-shot"))
    return f"{as_text(table, 160)}\nspeed against tuned (geometric mean): {means}\n{as_text(ranking, 120)}{notes}"


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else math.nan
