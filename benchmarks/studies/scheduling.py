"""Several jobs at once under every scheduling strategy: real ones on this machine, and many simulated mixes."""

from collections.abc import Callable, Collection

from studies._base import Options, StudyReport
from studies.scheduling_real import run as run_real
from studies.scheduling_simulated import run as run_simulated

PARTS: dict[str, Callable[[Options], StudyReport]] = {"real": run_real, "simulated": run_simulated}


def run(options: Options, parts: Collection[str] = PARTS.keys()) -> StudyReport:
    """Tune networks at once on this machine (`real`), simulate mixes of jobs (`simulated`), or both."""
    reports = {name: PARTS[name](options) for name in PARTS if name in parts}
    claims = {f"{name}: {claim}": met for name, one in reports.items() for claim, met in one.claims.items()}
    plots = {f"{name}_{file}": draw for name, one in reports.items() for file, draw in one.plots.items()}
    text = "\n\n".join(f"{name}\n{one.text}" for name, one in reports.items())
    return StudyReport("scheduling", {name: one.data for name, one in reports.items()}, text, claims, plots)
