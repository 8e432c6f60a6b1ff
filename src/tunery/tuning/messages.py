"""What a job says when it ends without a failure: pure texts."""

from collections import Counter
from collections.abc import Sequence

from tunery.domain import TaskState
from tunery.domain.request import GOES_ON

NO_TASKS = "nothing was tuned: ONNX Runtime runs all of the network, or it has nothing to compute"


def too_little(needs_s: float) -> str:
    """Say that there was no time to measure, and what the model needs besides."""
    return (
        f"nothing was measured: this model needs about {needs_s:.0f} s to read and compile here; give a larger --budget"
    )


def nothing_right_summary(name: str, states: Sequence[TaskState], latest: str) -> str:
    """Say that all that was tried of a user's own kernel is wrong, "" where something is right; `latest` is how."""
    failed = [task for task in states if task.best_s is None and (task.problem or task.tried)]
    if not failed:
        return ""
    ended = Counter[str]()
    for task in failed:
        ended.update({name: count for name, count in task.outcomes.items() if count})
    said = ", ".join(f"{count} {name}" for name, count in sorted(ended.items())) or failed[0].problem
    why = f": {latest}" if latest else ""
    return f"no parameters that were tried of {name} are right ({said}{why}); mend it, or its reference"


def latency_target_summary(target_s: float, latency_s: float | None, *, served: bool, unproven: int = 0) -> str:
    """Say whether the latency target was met by what is verified; `served` says that nothing had to be tuned.

    `unproven` are the tasks whose finals the budget left no time for.
    """
    target = f"the latency target of {target_s * 1e3:.4g} ms"
    late = f", and no time was left for the finals of {unproven} tasks" if unproven else ""
    if latency_s is None:
        return f"{target} was not met: not all tasks were verified{late}"
    if latency_s > target_s:
        return f"{target} was not met: {latency_s * 1e3:.4g} ms was reached{late}"
    how = "what is stored already meets it, nothing was tuned" if served else "met"
    return f"{target}: {how} ({1e3 * latency_s:.4g} ms predicted)"


def stop_summary(raced: int, outdated: int) -> str:
    said = ["stopped; the same command goes on where it stopped"]
    if raced:
        said.append(f"{raced} tasks had no finals yet, so their races alone count")
    if outdated:
        said.append(f"{outdated} tasks were searched on since their finals, which count until new ones are held")
    return "; ".join(said)


def unreached_summary(
    states: Sequence[TaskState],
    fresh: int,
    earlier_s: float,
    *,
    unproven: int = 0,
    outdated: int = 0,
    predicted: bool = False,
) -> str:
    """Say how many tasks were not reached and what becomes of them, and why a resumed run found nothing.

    `fresh` are the candidates that this run tried, `earlier_s` is the time that earlier runs of the job had used. The
    budget left no time for the finals of `unproven` tasks, which never had any, and of `outdated` ones, which were
    searched on since theirs; `predicted` says that there is a cost model, which chooses for what was not reached.
    """
    said = []
    if not fresh and earlier_s:
        used = f"earlier ones had used {earlier_s:.0f} s"
        said.append(f"nothing new was tried: a job's budget is for all its runs, and {used}")
    tunable = [state for state in states if state.tunable]
    if missed := sum(state.unreached for state in tunable):
        how = "will run as the cost model predicts" if predicted else "keep the compiler's slow default"
        said.append(f"{missed} of {len(tunable)} tasks were not reached and {how}")
    if unproven:
        said.append(f"no time was left for the finals of {unproven} of {len(tunable)} tasks, whose races alone count")
    if outdated:
        said.append(f"no time was left for new finals of {outdated} of {len(tunable)} tasks, whose earlier ones count")
    return f"{'; '.join(said)}{GOES_ON}" if said else ""
