"""What the store knows of a model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from tunery._errors import NothingFoundError
from tunery.accounting.meter import EFFORTS
from tunery.delivery.ladder import KnownTask, offered, offers_for
from tunery.delivery.predict import fill
from tunery.domain import Choice, JobState, JobStatus, Network, Rung, Target, Task
from tunery.domain.request import FillPolicy
from tunery.runtime.importing import ImportedModel
from tunery.store import Skipped, Store
from tunery.tuning.work import Work

HISTORY = 100
"""How many of the latest jobs a forecast looks at."""


@dataclass(frozen=True, slots=True)
class TuningForecast:
    """What tuning the open tasks would probably take, as the `jobs` latest jobs of this dialect and target did.
    `speedup` is that of the open tasks over their untuned code, each kind as it was tuned before, weighted by what they
    compute."""

    tasks: int
    trials: int
    wall_s: float
    core_s: float
    money: float | None
    currency: str
    speedup: float | None
    latency_s: float | None
    jobs: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The network's latency, as a sum over tasks; None while `unknown` tasks have none. `met` says whether verified
    records hold the latency `target_s`. `tuning` is None where all was tuned, or nothing like it was ever tuned
    here."""

    latency_s: float | None
    unknown: int
    target_s: float | None = None
    met: bool | None = None
    tuning: TuningForecast | None = None


def forecast(
    known: Sequence[KnownTask], jobs: Iterable[JobStatus], effort: str, target_key: str, target_s: float | None
) -> Forecast:
    """Of `jobs` those count that tuned to their end; those for `target_key` alone, if there are any."""
    unknown = sum(each.choice.latency_s is None for each in known)
    latency_s, done = _total_s(known, {}), tuned(jobs)
    met = None if target_s is None else latency_s is not None and latency_s <= target_s
    alike = [job for job in done if job.request.get("target_key") == target_key] or done
    return Forecast(latency_s, unknown, target_s, met, _tuning(known, alike, effort))


def tuned(jobs: Iterable[JobStatus]) -> list[JobStatus]:
    return [
        job for job in jobs
        if job.state is JobState.DONE and job.tasks and job.spend.trials
    ]  # fmt: skip


def _tuning(known: Sequence[KnownTask], jobs: Sequence[JobStatus], effort: str) -> TuningForecast | None:
    rest = [each.task for each in known if each.task.tunable and each.open]
    if not rest or not jobs:
        return None
    trials, gains = EFFORTS[effort] * len(rest), _gains(jobs)
    after = {task.key: gain for task in rest if (gain := gains.get(task.workload.kind, gains.get("")))}
    flop = {task.key: task.weight * task.workload.flop or 1.0 for task in rest if task.key in after}
    paid = [job for job in jobs if job.spend.money and job.spend.currency == jobs[0].spend.currency]

    def each_trial(amounts: Iterable[tuple[float, JobStatus]]) -> float:
        return trials * median(amount / job.spend.trials for amount, job in amounts)

    return TuningForecast(
        len(rest), trials,
        each_trial((job.spend.wall_s, job) for job in jobs),
        each_trial((job.spend.core_s, job) for job in jobs),
        each_trial((job.spend.money or 0.0, job) for job in paid) if paid else None,
        jobs[0].spend.currency if paid else "",
        sum(flop.values()) / sum(flop[key] / after[key] for key in flop) if flop else None,
        _total_s(known, after), len(jobs),
    )  # fmt: skip


def _gains(jobs: Iterable[JobStatus]) -> dict[str, float]:
    """Return by how many times tasks became faster in the geometric mean, by kind, and of all kinds ("")."""
    logs: dict[str, list[float]] = {}
    for task in (task for job in jobs for task in job.tasks if task.tunable and not task.unreached):
        if task.baseline_s and task.best_s:
            for kind in (task.kind, ""):
                logs.setdefault(kind, []).append(max(math.log(task.baseline_s / task.best_s), 0.0))
    return {kind: math.exp(sum(found) / len(found)) for kind, found in logs.items()}


def _total_s(known: Sequence[KnownTask], gains: Mapping[str, float]) -> float | None:
    parts = [(each.task.weight, each.choice.latency_s, gains.get(each.task.key, 1.0)) for each in known]
    if any(latency_s is None for _, latency_s, _ in parts):
        return None
    return sum(weight * (latency_s or 0.0) / gain for weight, latency_s, gain in parts)


_SHOWN = 4
_ENOUGH_ACCOUNTS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store knows of a network. `open` are the keys of tunable tasks that were neither searched nor
    predicted."""

    network: Network
    target: Target
    tasks: tuple[Task, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, Skipped], ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    forecast: Forecast = field(default_factory=lambda: Forecast(None, 0))
    nothing: str = ""


async def query(work: Work, policy: FillPolicy | None = None) -> Answer:
    """What was measured on a compatible device is named as such; it is verified here only with a `policy`."""
    imported = await work.model()
    known = await fill(work, imported.tasks, policy)
    expected = await _forecast(work, imported, known)
    if policy is None:
        offers = await offers_for(work, await work.provenance(), known)
        known = tuple(offered(each, offers.get(each.task.key, ())) for each in known)
    skipped = tuple((each.task.key, reason) for each in known for reason in each.skipped)
    refused = {each.task.key: each.refused for each in known if each.refused}
    nothing = ""
    if not any(each.choice.candidate for each in known):
        names = {task.key: task.workload.name for task in imported.tasks}
        said = [*skipped_lines(skipped, names), *sorted(set(refused.values()))]
        reasons = "; ".join(said) or "nothing was measured yet"
        nothing = f"no verified record for {imported.network.name} on {imported.target}: {reasons}"
    return Answer(
        imported.network, imported.target, imported.tasks, tuple(each.choice for each in known), skipped, refused,
        frozenset(each.task.key for each in known if each.untuned), expected, nothing,
    )  # fmt: skip


async def _forecast(work: Work, imported: ImportedModel, known: Sequence[KnownTask]) -> Forecast:
    """Return what is to be expected; what was timed on another device says nothing of this one."""
    request = work.request
    jobs = await work.store.read(lambda store: _history(store, work.job_id, request.dialect))
    here = [
        replace(each, choice=Choice(each.task.key, Rung.DEFAULT), untried=True)
        if each.choice.rung is Rung.COMPATIBLE
        else each
        for each in known
    ]
    return forecast(here, jobs, request.effort, imported.target.key, request.latency_target_s)


def _history(store: Store, job_id: str, dialect: str) -> list[JobStatus]:
    """Return the jobs that a forecast goes by: those of the account that asks, if it has tuned anything; else all, if
    they are of so many accounts that none of them can be told."""
    try:
        asks = str(store.job(job_id).request.get("queue_owner", ""))
    except NothingFoundError:  # this machine's user, in their own process
        asks = ""
    jobs = [job for job in store.jobs(HISTORY) if job.request.get("dialect") == dialect]
    if not asks:
        return jobs
    own = [job for job in store.jobs(HISTORY, account=asks) if job.request.get("dialect") == dialect]
    accounts = {job.request.get("queue_owner") for job in tuned(jobs)}
    return tuned(own) or (jobs if len(accounts) >= _ENOUGH_ACCOUNTS else [])


def skipped_lines(skipped: Iterable[tuple[str, Skipped]], names: Mapping[str, str]) -> list[str]:
    counts: dict[tuple[str, str], int] = {}
    tasks: dict[tuple[str, str], list[str]] = {}
    for key, why in skipped:
        reason = (why.reason, why.found)
        counts[reason] = counts.get(reason, 0) + why.count
        tasks.setdefault(reason, []).append(names[key])
    return [
        f"{Skipped(*reason, counts[reason])}: {', '.join(of[:_SHOWN])}"
        + (f" and {len(of) - _SHOWN} more" if len(of) > _SHOWN else "")
        for reason, of in tasks.items()
    ]
