"""Cost per decision of the scheduler from 100 to 10,000 jobs on 1,000 devices.

    python benchmarks/scheduler_scale.py [--json FILE] [--plot FILE] [--strategy NAME] [--quick]

Every job is kept at four stages ready or running (propose, build, measure, learn); only `Scheduler.handle` is timed, in
process CPU time, until 20,000 stages have started. `python benchmarks/study.py scheduling` shows the same curve.
"""

import argparse
import json
from pathlib import Path

from rival_strategies import STRATEGIES
from studies.decision_cost import HOSTS, MOST_US, RESOURCES, cost_curve, cost_over_hosts_us, draw_curve, growth_exponent

from studies import pyplot


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the curve here")
    parser.add_argument("--plot", type=Path, help="draw it here")
    parser.add_argument("--strategy", default="predictive", choices=sorted(STRATEGIES))
    parser.add_argument("--quick", action="store_true", help="fewer decisions per point")
    arguments = parser.parse_args()
    decisions = 4_000 if arguments.quick else 20_000
    curve = cost_curve(arguments.strategy, decisions)
    for jobs, cost in curve:
        print(f"{jobs:>6} jobs  {cost:7.1f} us per decision")
    print(f"under {MOST_US:g} us: {'met' if all(cost < MOST_US for _, cost in curve) else 'MISSED'}")
    hosts_us = cost_over_hosts_us(arguments.strategy, decisions)
    print(f"{HOSTS:,} hosts  {hosts_us:7.1f} us per decision: {'met' if hosts_us < MOST_US else 'MISSED'}")
    exponent = growth_exponent(curve)
    print(f"grows as (log jobs)^{exponent:.2f}, at most 1: {'met' if exponent <= 1 else 'MISSED'}")
    if arguments.json:
        points = [{"jobs": jobs, "us_per_decision": round(cost, 1)} for jobs, cost in curve]
        report = {"strategy": arguments.strategy, "resources": RESOURCES, "curve": points, "exponent": exponent}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if arguments.plot:
        figure = pyplot().figure(layout="constrained")
        draw_curve(figure, curve, arguments.strategy)
        figure.savefig(arguments.plot, dpi=110)


if __name__ == "__main__":
    main()
