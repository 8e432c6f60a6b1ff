"""Going on with a stored job, and what a finished one has to report."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from tunery._errors import UsageError, WorkError
from tunery.domain import JobState, JobStatus, Network
from tunery.domain.request import TuneReport
from tunery.reports.data import by_dialect, described, total

if TYPE_CHECKING:
    from tunery.accounting.prices import Prices
    from tunery.runtime.importing import ImportedModel
    from tunery.runtime.runtime import Runtime
    from tunery.service.turns import Sides
    from tunery.store import Store

_ASIDE = ("budget", "queue")


class ChangedJobError(UsageError):
    """A job's words mean something else here than where it began."""


def check_unchanged(status: JobStatus, request: Mapping[str, Any]) -> JobStatus:
    """Return a job's status; what it was submitted for must still be what its words mean today.

    Raises:
        ChangedJobError: the model or the target has changed.
    """
    for part, what in (("network", "its model has changed"), ("target_key", "its target means another one here")):
        if status.request.get(part) not in {request[part], ""}:
            raise ChangedJobError(
                f"job {status.job_id} cannot go on, for {what} since it began; start anew with "
                f"`tunery tune {shlex.quote(request['model'])}`"
            )
    return status


def check_currency(status: JobStatus, prices: "Prices") -> None:
    """Check that a job which has paid already goes on in the same money: sums and limits of two mean nothing.

    Raises:
        UsageError: the price sheet is in another currency.
    """
    paid = status.spend.currency if status.spend.money else ""
    if paid not in {"", prices.currency}:
        raise UsageError(
            f"job {status.job_id} has been paid in {paid}, and this price sheet is in {prices.currency}; go on with "
            "a sheet in the same currency (--prices), or start anew with another --seed"
        )


def refuse_twin(store: "Store", request: Mapping[str, Any]) -> None:
    """Refuse to work on what another live process is working on: both would pay for the same candidates.

    Raises:
        WorkError: there is such a process.
    """
    asked = {name: value for name, value in request.items() if not name.startswith(_ASIDE)}
    for job in store.jobs(50):
        theirs = {name: value for name, value in job.request.items() if not name.startswith(_ASIDE)}
        if job.state is JobState.RUNNING and theirs == asked:
            raise WorkError(
                f"another process is tuning this as job {job.job_id}; wait for it (`tunery jobs show {job.job_id}`), "
                "or tune with another --seed"
            )


def report_of(status: JobStatus, sides: "Sides", *, resumed: bool, place: str) -> TuneReport:
    """Return the report of a job that has ended."""
    imported = sides.first.imported
    found = report_from(status, beginning(imported, sides.first.runtime), place, resumed=resumed)
    tasks = tuple(task for side in sides.found for task in side.imported.tasks)
    return replace(found, network=imported.network, tasks=tasks)


def beginning(imported: "ImportedModel", runtime: "Runtime") -> dict[str, Any]:
    """Return what a job's report tells beside its status, as plain data: it is known from the job's beginning."""
    return {
        "network": described(imported.network),
        "slots": len(runtime.pools.all_slots),
        "calibrated_at": runtime.calibration.made_at if runtime.calibration else None,
        "elsewhere": dict(imported.elsewhere),
        "threads": imported.target.threads,
    }


def report_from(status: JobStatus, began: Mapping[str, Any], place: str, *, resumed: bool = False) -> TuneReport:
    """Return the report of a job, of its status and what was known at its beginning.

    Of several dialects the sums are those of the one whose network is the fastest.
    """
    each = [(total(tasks, "baseline_s"), total(tasks, "best_s")) for tasks in by_dialect(status.tasks).values()]
    known = [(before, after) for before, after in each if before is not None and after is not None]
    before_s, after_s = min(known, key=lambda sums: sums[1], default=(None, None))
    return TuneReport(
        job=status,
        network=TypeAdapter(Network).validate_python(began["network"]),
        tasks=(),
        before_s=before_s,
        after_s=after_s,
        resumed=resumed,
        store=place,
        **{name: began[name] for name in ("slots", "calibrated_at", "elsewhere", "threads")},
    )
