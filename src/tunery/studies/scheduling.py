"""Several jobs at once under every scheduling strategy."""

from tunery.studies._base import Options, StudyReport
from tunery.studies.scheduling_simulated import run as run_simulated


def run(options: Options) -> StudyReport:
    """Simulate many mixes of jobs under every strategy; the same with real jobs on this machine is not here yet."""
    return run_simulated(options)
