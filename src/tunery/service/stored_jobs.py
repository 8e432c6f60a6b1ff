"""What the manager does to a job in the store: each function is one call in the store's thread, with no other between.
That order is what keeps two clients, or a client and a look for jobs that others left, from undoing each other's
work."""

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from tunery._errors import UsageError, WorkError
from tunery.accounting.prices import Prices
from tunery.domain import JobState, JobStatus
from tunery.domain.request import Request, ShareRequest
from tunery.reports.job import ANSWER
from tunery.service.codec import Plain, claim_of, request_of
from tunery.store import Store

_TO_DO = (JobState.QUEUED, JobState.RUNNING, JobState.STOPPED)  # stopped: its process is gone
_OVER = (JobState.DONE, JobState.CANCELLED)
_ASIDE = ("budget", "options", "queue")


def left_behind(
    store: Store, known: Collection[str]
) -> tuple[list[tuple[JobStatus, Request, ShareRequest]], Collection[str]]:
    """Return the jobs of a queue that nobody works on, but for those that are `known`. The second are the known ones
    that are done by now, or at work somewhere."""
    found, gone = store.unfinished(known)
    left = [(status, claim_of(status)) for status in found]
    return [(status, request_of(status, store.url), claim) for status, claim in left if claim], gone


def begin(
    store: Store, job_id: str, request: Plain, known: Mapping[str, Any], prices: Prices
) -> tuple[JobStatus, bool]:
    """Become the owner of job `job_id`, of an equal unfinished one, or of a new one; say whether it was there. `known`
    is what its report tells beside its status."""
    found = check_unchanged(store.job(job_id), request) if job_id else store.resumable(request)
    if found is None:
        refuse_twin(store, request)
    else:
        check_currency(found, prices)
    status = found or store.create_job(request)
    if not store.acquire_job(status.job_id):
        raise WorkError(f"another process is working on job {status.job_id}; wait for it, or see `tunery jobs list`")
    if found is not None:  # limits, prices and options may be others now, and `jobs resume` is to go on with these
        store.specify_job(status.job_id, {"options": "{}", **request})
    store.events.append("began", known, status.job_id)
    return store.job(status.job_id), found is not None


def submit(store: Store, request: Plain, job_id: str) -> bool:
    _, is_new = store.create_job_once(request, job_id)
    if is_new:
        store.announce_job(job_id)
    return is_new


def create_at_work(store: Store, request: Plain) -> str:
    job_id = store.create_job(request).job_id
    store.acquire_job(job_id)
    return job_id


def acquire(store: Store, job_id: str) -> bool:
    """Become the owner of a job that is still to be done: another daemon may have done or paused it."""
    if store.job(job_id).state not in _TO_DO or not store.acquire_job(job_id):
        return False
    mine = store.job(job_id)
    if mine.message:  # why it waited
        store.save_job(replace(mine, message=""))
    return True


def specify(store: Store, job_id: str, request: Plain, known: Mapping[str, Any]) -> tuple[JobStatus, bool]:
    """Store what importing the model of a job that is at work has told; else as `begin`."""
    check_unchanged(store.job(job_id), request)
    store.specify_job(job_id, request)
    store.events.append("began", known, job_id)
    return store.job(job_id), True


def change(store: Store, job_id: str, values: Plain, check: Callable[[JobStatus], None]) -> None:
    status = store.job(job_id)
    check(status)
    store.specify_job(job_id, values)


def queue_again(store: Store, job_id: str, request: Plain) -> None:
    status = store.job(job_id)
    refuse_over(status)
    if status.state is JobState.RUNNING and store.taken(status.job_id):
        raise UsageError(f"job {status.job_id} is at work in another process; stop that one")
    store.specify_job(job_id, request)
    leave(store, job_id, JobState.QUEUED)


def leave_aside(store: Store, job_id: str, state: JobState) -> None:
    """Pause or cancel a job that is not at work here; a process that works on it stops by its next heartbeat."""
    if not store.take_out_job(job_id, state):
        raise UsageError(f"job {job_id} is {store.job(job_id).state} already")


def save_answer(store: Store, job_id: str, answer: Mapping[str, Any] | None, request: Plain | None) -> None:
    if answer is not None:
        store.events.append(ANSWER, answer, job_id)
    if request is not None:
        store.specify_job(job_id, request)
    leave(store, job_id, JobState.DONE)


def leave(store: Store, job_id: str, state: JobState, message: str = "", problem: str = "") -> None:
    store.save_job(replace(store.job(job_id), state=state, message=message, problem=problem))
    store.release_job(job_id, state)
    if state is JobState.QUEUED:
        store.announce_job(job_id)


def end(store: Store, job_id: str, state: JobState, message: str, problem: str) -> None:
    """Leave a job whose work has failed or was cancelled, unless its state says how it ended already."""
    if store.job(job_id).state is JobState.RUNNING:
        leave(store, job_id, state, message, problem)


def leave_to_others(store: Store, reasons: Mapping[str, str]) -> None:
    for job_id, why in reasons.items():
        if store.job(job_id).state is JobState.STOPPED:
            leave(store, job_id, JobState.QUEUED, why)
        else:
            store.explain_job(job_id, why)


def refuse_over(status: JobStatus) -> None:
    if status.state in _OVER:
        raise UsageError(f"job {status.job_id} is {status.state}; submit its model anew: what is known is used")


class ChangedJobError(UsageError):
    """A job's words mean something else here than where it began."""


def check_unchanged(status: JobStatus, request: Mapping[str, Any]) -> JobStatus:
    """Return a job's status; what it was submitted for must still be what its words mean today."""
    for part, what in (("network", "its model has changed"), ("target_key", "its target means another one here")):
        if status.request.get(part) not in {request[part], ""}:
            raise ChangedJobError(
                f"job {status.job_id} cannot go on, for {what} since it began; start anew with "
                f"`tunery tune {shlex.quote(request['model'])}`"
            )
    return status


def check_currency(status: JobStatus, prices: Prices) -> None:
    """Check that a job which has paid already goes on in the same money: sums and limits of two mean nothing."""
    paid = status.spend.currency if status.spend.money else ""
    if paid not in {"", prices.currency}:
        raise UsageError(
            f"job {status.job_id} has been paid in {paid}, and this price sheet is in {prices.currency}; go on with "
            "a sheet in the same currency (--prices), or start anew with another --seed"
        )


def refuse_twin(store: Store, request: Mapping[str, Any]) -> None:
    """Refuse to work on what another live process is working on: both would pay for the same candidates."""
    asked = {name: value for name, value in request.items() if not name.startswith(_ASIDE)}
    for job in store.jobs(50):
        theirs = {name: value for name, value in job.request.items() if not name.startswith(_ASIDE)}
        if job.state is JobState.RUNNING and theirs == asked:
            raise WorkError(
                f"another process is tuning this as job {job.job_id}; wait for it (`tunery jobs show {job.job_id}`), "
                "or tune with another --seed"
            )
