"""What the store knows of a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tunery._errors import NothingFoundError
from tunery.delivery.forecast import HISTORY, Forecast, forecast, tuned
from tunery.delivery.ladder import KnownTask, offered, offers_for
from tunery.delivery.predict import fill
from tunery.domain import Choice, JobStatus, Network, Rung, Target, Task
from tunery.domain.request import FillPolicy
from tunery.runtime.importing import ImportedModel
from tunery.store import Skipped, Store
from tunery.tuning.work import Work

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
