"""Networks the cost model has never seen: delivered without a measurement, with a few, and fully tuned.

Everything but stock's side is measured in this run, side by side. A network counts as unseen only if the model's card
lists none of its workloads, or, where it has no such list, says that the network was held out; the report says so where
it does not.
"""

import math
import statistics
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from studies._base import Options, StudyReport, noting, shortened
from studies._delivered import OWN, STOCK, WITH, WITHOUT, Result, Scale, label_of, plain, result_of
from studies._delivering import FEW, delivered
from studies._kept import Kept
from studies._ranked import Beside, beside_text, learnable, pairs, pairs_text, ranked, rivals
from tunery._errors import UsageError
from tunery._settings import cache_directory
from tunery.costmodels import device_columns
from tunery.costmodels.registry import Version, starting
from tunery.costmodels.training.evaluation import ALL, EvaluationRow
from tunery.devices import open_device, traits_of
from tunery.dialects import get_dialect
from tunery.domain import digest
from tunery.reports.format import as_text, milliseconds, new_table

NETWORKS = ("resnet18", "mobilenet_v2", "bert-small", "efficientnet_b0", "vit_b_32")
QUICK, FULL = Scale(NETWORKS[:1], 120, 1, 6, 24), Scale(NETWORKS, None, 3, 100, 40)
_LEAST_NETWORKS = 5
_RANKING, _BESIDE = "the ranking", "the ranking beside MetaSchedule's own model"
_WIDTH = 170


def run(options: Options, data: Path | None = None, networks: Sequence[str] = ()) -> StudyReport:
    """Deliver held-out networks without tuning, with a few measurements, and tuned, and compare.

    `networks` are models as `tune` takes them, in place of the five that were held out of what ships.
    With `data`, a dataset that `tunery records export --parquet` wrote, MetaSchedule's own model and one of ours learn
    from what of it is of other networks, and rank the same candidates. What fails is listed, and the rest goes on. An
    interrupted study goes on with the network that was cut short.

    Raises:
        UsageError: there is no cost model for this processor, or the dataset cannot be used.
    """
    scale = QUICK if options.quick else FULL
    if networks:
        scale = replace(scale, networks=tuple(networks))
    learn = learnable(data, [label_of(network) for network in networks] or NETWORKS) if data else []
    card, text = _model()
    kept = Kept(cache_directory(), "zero-shot", f"{scale} {options.seed} {options.repeats} {digest(text)}")
    results: list[Result] = []
    rows: list[EvaluationRow] = []
    beside: Beside | None = None
    failed: dict[str, str] = {}
    for name in scale.networks:
        with noting(name, failed, options.say):
            results.append(_known_or_new(name, scale, options, kept, card.data.get("workloads")))
    with noting(_RANKING, failed, options.say):
        rows, groups = ranked(scale, options, kept.directory)
        if learn:
            with noting(_BESIDE, failed, options.say):
                beside = rivals(groups, learn, card, options)
                rows += beside.rows
    unseen = all(r.network in card.held_out if r.learned is None else not r.learned for r in results)
    report = StudyReport(
        "zero-shot",
        {
            "model": card.name,
            "held_out": unseen,
            "networks": [plain(result) for result in results],
            "failed": failed,
            "ranking": [{"kind": row.kind, "ranking": row.ranking, **asdict(row.quality)} for row in rows],
            "beside_stock": beside and {**asdict(beside.difference), "capped": beside.capped},
        },
        _text(results, rows, failed, beside, unseen=unseen),
        claims(results, rows, failed, unseen=unseen),
    )
    if not failed:
        kept.remove()
    return report


def _model() -> tuple[Version, str]:
    """Return the card and the text of the model that is judged.

    Raises:
        UsageError: there is none for this processor.
    """
    dialect = get_dialect("metaschedule")
    config = dialect.resolve_target("native", 0).config
    bits = float(device_columns(traits_of(open_device("cpu").describe().as_facts()))[0])
    found = starting(dialect.name, dialect.family(config), compiler=dialect.compiler, vector_bits=bits)
    if found is None:
        raise UsageError(
            "there is no cost model for this processor; run `tunery costmodel collect` and `tunery costmodel train`"
        )
    return found


def _known_or_new(network: str, scale: Scale, options: Options, kept: Kept, learned: Collection[str] | None) -> Result:
    name = label_of(network)
    known = kept.results(name)
    if known:
        options.say(f"{name}: done by an interrupted study")
        return result_of(known)
    with tempfile.TemporaryDirectory(prefix="tunery-study-") as directory:
        result = delivered(network, scale, options, Path(directory), learned)
    kept.keep_results(name, asdict(result))
    return result


def claims(
    results: Sequence[Result], rows: Sequence[EvaluationRow], failed: Collection[str] = (), *, unseen: bool
) -> dict[str, bool | None]:
    """Return each claim with its bound, and whether these results meet it; None where they cannot tell."""
    overall = next((r.quality for r in rows if (r.kind, r.device, r.ranking) == (ALL, ALL, "model")), None)
    zero, few = (_mean([r.speed(way) for r in results]) for way in ("zero-shot", "few-shot"))
    fewer = {goal: [r.fewer(goal) or 0.0 for r in results if goal == OWN or r.stock] for goal in (OWN, STOCK)}
    compared = pairs(rows)
    whole = bool(results) and not set(failed) - {_RANKING, _BESIDE}
    found: dict[str, bool | None] = {
        "the model has seen none of these networks": unseen,
        f"at least {_LEAST_NETWORKS} networks": len(results) >= _LEAST_NETWORKS,
        "NDCG@8 on held-out networks >= 0.90": None if overall is None else overall.ndcg8 >= 0.90,
        "every network delivered in <= 10 s without a measurement (median of cold starts), each tunable task "
        "predicted": whole and all(r.zero_shot_s <= 10 and not r.unpredicted for r in results),
        "zero-shot speed >= 80 % of tuned with effort standard (geometric mean)": zero >= 0.8,
        f"few-shot {FEW} speed >= 90 % of tuned with effort standard (geometric mean)": few >= 0.9,
        ">= 3 x fewer trials with what ships, model and winners, to the end of tuning without (geometric mean)": (
            _at_least(fewer[OWN], 3)
        ),
        ">= 3 x fewer trials with what ships, model and winners, to stock's final quality (geometric mean, where stock "
        "was run)": _at_least(fewer[STOCK], 3) if fewer[STOCK] else None,
        "what is delivered without a trial has stock's final quality (wherever stock was run)": (
            all(r.untried_is_enough for r in results if r.stock) if fewer[STOCK] else None
        ),
        "trained on the same data, ranks better than MetaSchedule's own model, every metric and kind (a tie is not "
        "worse)": all(pair.edge >= 0 for pair in compared) if compared else None,
    }
    for r in results:
        claim = f"{r.network}: stock takes >= 10 x zero-shot's time to a network as fast"
        found[claim] = None if r.stock_times is None else r.stock_times >= 10
    return found


def _at_least(ratios: Sequence[float], bound: float) -> bool:
    return bool(ratios) and all(ratios) and _mean(ratios) >= bound


def _text(
    results: Sequence[Result],
    rows: Sequence[EvaluationRow],
    failed: Mapping[str, str],
    beside: Beside | None = None,
    *,
    unseen: bool,
) -> str:
    lines = [_delivered_text(results), _speed_text(results), ""]
    lines += [_trials_text(results), *_NOTES, *_untried_text(results), "", _ranking_text(rows)]
    if compared := pairs(rows):
        lines.append(pairs_text(compared))
        lines += beside_text(beside) if beside else []
    elif _BESIDE not in failed:
        lines.append("note: not ranked beside MetaSchedule's own model, which learns from a dataset: --data gives one")
    lines += [f"failed: {what}: {shortened(why)}" for what, why in failed.items()]
    if failed:
        lines.append("note: the same command tries again what failed, and takes the rest as it is here")
    if missing := [r.network for r in results if not r.stock]:
        lines.append(f"note: no side of stock's for {', '.join(missing)}: run `make study-stock` for these before")
    if not unseen:
        lines.append(_learned_text(results))
    return "\n".join(lines)


def _learned_text(results: Sequence[Result]) -> str:
    known = ", ".join(f"{r.network} {r.learned} of {r.tunable}" for r in results if r.learned)
    if known:
        return f"note: the model has learned from some of these tasks, measured in other networks: {known}"
    return "note: the model's card does not say that these networks were held out of its training"


def _delivered_text(results: Sequence[Result]) -> str:
    table = new_table(
        "network", "#zero-shot s", "#largest", "#predicted", "#few-shot s", "#tuning s", "#trials", "#ORT ms",
        "#zero-shot ms", "#few-shot ms", "#tuned ms", "#stock ms", "#spread",
    )  # fmt: skip
    for r in results:
        tuned = r.arms[WITH]
        table.add_row(
            r.network, f"{r.zero_shot_s:.1f}", f"{max(r.zero_shots_s):.1f}",
            f"{r.tunable - len(r.unpredicted)} of {r.tunable}", f"{r.few_shot_s:.1f}", f"{tuned.seconds:.0f}",
            str(tuned.trials),
            *(milliseconds(r.median_s(way) if way in r.latency_s else None)
              for way in ("onnxruntime", "zero-shot", "few-shot", "tuned", "stock")),
            f"{r.spread:.0%}",
        )  # fmt: skip
    missing = [f"not predicted: {r.network} {label}: {why}" for r in results for label, why in r.unpredicted.items()]
    return "\n".join([as_text(table, _WIDTH), *missing])


def _speed_text(results: Sequence[Result]) -> str:
    means = ", ".join(f"{way} {_mean([r.speed(way) for r in results]):.2f}" for way in ("zero-shot", "few-shot"))
    return f"speed against tuned (geometric mean): {means}"


def _trials_text(results: Sequence[Result]) -> str:
    table = new_table(
        "trials to quality", "#own: with", "#without", "#fewer", "#stock's: with", "#without", "#fewer", "#stock s",
        "#as fast after s", "#times zero-shot's",
    )  # fmt: skip
    for r in results:
        cells: list[str] = []
        for goal in (OWN, STOCK):
            goal_s = r.goals_s.get(goal)
            if goal_s is None:
                cells += ["-"] * 3
                continue
            fewer = r.fewer(goal)
            cells += [_trials(r, arm, goal_s) for arm in (WITH, WITHOUT)] + [f"{fewer:.1f}x" if fewer else "-"]
        took, times = r.stock_took, r.stock_times
        never = ">" if took and not took[1] else ""
        table.add_row(
            r.network, *cells, f"{r.stock.wall_s:.0f}" if r.stock else "-", f"{never}{took[0]:.0f}" if took else "-",
            f"{never}{times:.0f}x" if times else "-",
        )  # fmt: skip
    return as_text(table, _WIDTH)


_NOTES = (
    "trials to within 1 % of what tuning without what ships (model and winners) ends with, and of stock's end; winners",
    "of both timed in turns. An arm that never got there (not in N) counts with its N trials. as fast after: when",
    "stock's network first was as fast as zero-shot's; before each of its tasks has a latency that is not known. >: it",
    "never was",
)


def _untried_text(results: Sequence[Result]) -> list[str]:
    beside = [r for r in results if r.stock]
    enough = [r.network for r in beside if r.untried_is_enough]
    return [f"as fast as stock's end without a trial: {', '.join(enough) or 'none'} of {len(beside)}"] if beside else []


def _trials(result: Result, arm: str, goal_s: float) -> str:
    found = result.arms[arm].reached(goal_s)
    return f"not in {result.arms[arm].trials}" if found is None else str(found)


def _ranking_text(rows: Sequence[EvaluationRow]) -> str:
    table = new_table("kind", "ranking", "#tasks", "#NDCG@8", "#regret of 1", "#regret of 8", "#Kendall")
    order = list(dict.fromkeys(row.kind for row in rows))
    for row in sorted(rows, key=lambda row: order.index(row.kind)):
        q = row.quality
        figures = (q.ndcg8, q.regret1, q.regret8, q.kendall)
        table.add_row(row.kind, row.ranking, str(q.tasks), *(f"{figure:.3f}" for figure in figures))
    return as_text(table, _WIDTH)


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else math.nan
