"""Many simulated mixes of jobs under every strategy: measurements on 1 to 8 devices, or on the cores of the builds."""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from multiprocessing import get_context
from typing import Any

from mock_jobs import UnitSeconds, cpu_mix, gpu_mix, hosts_mix
from rival_strategies import STRATEGIES

from studies._base import Options, StudyReport
from studies.decision_cost import HOSTS, MOST_US, cost_curve, cost_over_hosts_us, draw_curve, growth_exponent
from studies.mixes import MakeMix, MixResult, Summary, simulate_mixes, summarize
from tunery.devices.cpu.facts import usable_cores

MEDIAN_BOUND, GREEDY_MARGIN = 1.05, 0.02
_MIXES, _QUICK_MIXES = 300, 40
_DECISIONS, _QUICK_DECISIONS = 20_000, 4_000
_STRATEGY = "predictive"
_CPU_MIX = partial(cpu_mix, jobs=4, owners=2)


def recorded_sorts() -> list[UnitSeconds]:
    """Return the shipped record of real tuning: for each sort of task, seconds per candidate by kind of stage."""
    document = json.loads(files("studies").joinpath("durations.json").read_text(encoding="utf-8"))
    return [{kind: sort[kind] for kind in ("propose", "build", "measure", "learn")} for sort in document["sorts"]]


def run(options: Options) -> StudyReport:
    """Simulate random mixes with recorded and with given durations, and time the scheduler's decisions."""
    seeds = range(options.seed, options.seed + (_QUICK_MIXES if options.quick else _MIXES))
    results = {}
    for name, recorded, make in (
        ("recorded", recorded_sorts(), gpu_mix),
        ("log-normal", [], gpu_mix),
        ("recorded, over hosts", recorded_sorts(), hosts_mix),
        ("recorded, two cores that measuring takes both of", recorded_sorts(), _CPU_MIX),
    ):
        options.say(f"{len(seeds)} mixes, {name}, under {len(STRATEGIES)} strategies")
        results[name] = _simulate(seeds, recorded, make)
    options.say("the cost of a decision, up to 10,000 jobs on 1,000 devices")
    decisions = _QUICK_DECISIONS if options.quick else _DECISIONS
    curve = cost_curve(_STRATEGY, decisions)
    hosts_us = cost_over_hosts_us(_STRATEGY, decisions)
    summaries = {name: summarize(found, GREEDY_MARGIN) for name, found in results.items()}
    return StudyReport(
        name="scheduling-simulated",
        data={
            "mixes": len(seeds),
            "first_seed": options.seed,
            "summaries": {name: [asdict(s) for s in found] for name, found in summaries.items()},
            "runs": {name: [asdict(r) for r in found] for name, found in results.items()},
            "decision_cost": [{"jobs": jobs, "us": round(cost, 1)} for jobs, cost in curve],
            "decision_cost_over_hosts_us": round(hosts_us, 1),
        },
        text="\n\n".join([*(_table(name, found) for name, found in summaries.items()), _curve_text(curve, hosts_us)]),
        claims=_claims(summaries, curve, hosts_us),
        plots={
            "simulated-ratios.png": lambda figure: _draw_ratios(figure, results),
            "decision-cost.png": lambda figure: draw_curve(figure, curve, _STRATEGY),
        },
    )


def _simulate(seeds: Iterable[int], recorded: Sequence[UnitSeconds], make: MakeMix) -> list[MixResult]:
    """Run every strategy on every mix, spread over the cores."""
    with ProcessPoolExecutor(len(usable_cores()), get_context("spawn")) as pool:
        found = pool.map(partial(_one, recorded=recorded, make=make), seeds, chunksize=5)
        return [result for results in found for result in results]


def _one(seed: int, recorded: Sequence[UnitSeconds], make: MakeMix) -> list[MixResult]:
    return simulate_mixes([seed], recorded=recorded, make=make)


def _claims(
    summaries: dict[str, list[Summary]], curve: Sequence[tuple[int, float]], hosts_us: float
) -> dict[str, bool]:
    claims = {}
    for name, found in summaries.items():
        ours = next(s for s in found if s.strategy == _STRATEGY)
        claims[
            f"{name}: predictive is {ours.ratio_median:.3f} x the lower bound in the median of {ours.mixes} "
            f"mixes (bound {MEDIAN_BOUND})"
        ] = ours.ratio_median <= MEDIAN_BOUND
        claims[f"{name}: the mean job ends {ours.finish_of_greedy:.2f} x as late as under greedy (bound 1)"] = (
            ours.finish_of_greedy <= 1.0
        )
        claims[
            f"{name}: predictive takes over {GREEDY_MARGIN:.0%} longer than greedy in {ours.above_greedy} of "
            f"{ours.mixes} mixes, at most {ours.of_greedy_worst - 1:+.1%} (bound: in none)"
        ] = ours.above_greedy == 0
    exponent = growth_exponent(curve)
    claims[f"a decision costs at most {max(cost for _, cost in curve):.0f} µs (bound {MOST_US:g})"] = all(
        cost < MOST_US for _, cost in curve
    )
    claims[f"with {HOSTS:,} hosts a decision costs {hosts_us:.0f} µs (bound {MOST_US:g})"] = hosts_us < MOST_US
    claims[f"its cost grows with the logarithm of the number of jobs to the power {exponent:.2f} (bound 1)"] = (
        exponent <= 1.0
    )
    return claims


def _table(name: str, summaries: Sequence[Summary]) -> str:
    lines = [
        f"{summaries[0].mixes} mixes, {name}",
        f"{'strategy':<12} {'makespan / bound':^24} {'/ greedy':^17} {'over':>5} {'idle':>6} {'mean end':>9} "
        f"{'owner waits / bound':>19}",
        f"{'':<12} {'median':>8}{'p90':>8}{'worst':>8} {'median':>8} {'worst':>8} {'2 %':>5} {'':>6} {'/ greedy':>9} "
        f"{'median':>10}{'worst':>9}",
    ]
    lines += [
        f"{s.strategy:<12} {s.ratio_median:>8.3f}{s.ratio_p90:>8.3f}{s.ratio_worst:>8.3f} {s.of_greedy_median:>8.3f} "
        f"{s.of_greedy_worst:>8.3f} {s.above_greedy:>5} {s.idle_mean:>6.1%} {s.finish_of_greedy:>9.2f} "
        f"{s.owner_wait_median:>10.3f}{s.owner_wait_worst:>9.3f}"
        for s in summaries
    ]
    return "\n".join(lines)


def _curve_text(curve: Sequence[tuple[int, float]], hosts_us: float) -> str:
    costs = [f"{jobs:>6} jobs, 1,000 devices: {cost:5.1f}" for jobs, cost in curve]
    costs.append(f"{HOSTS:>6} jobs, {HOSTS:,} hosts: {hosts_us:7.1f}")
    return "\n".join(f"{cost} µs of CPU time per decision" for cost in costs)


def _draw_ratios(figure: Any, results: dict[str, list[MixResult]]) -> None:
    """Draw, for each strategy, which share of the mixes stays below each ratio of makespan to lower bound."""
    for axes, (name, found) in zip(figure.subplots(1, len(results), sharey=True), results.items(), strict=True):
        for strategy in STRATEGIES:
            ratios = sorted(r.makespan_s / r.bound_s for r in found if r.strategy == strategy)
            axes.step(ratios, [(i + 1) / len(ratios) for i in range(len(ratios))], where="post", label=strategy)
        axes.axvline(MEDIAN_BOUND, color="grey", linestyle=":")
        axes.set(xlim=(1.0, 2.0), xlabel="makespan / lower bound", ylabel="share of mixes", title=name)
        axes.legend()
