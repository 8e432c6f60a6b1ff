"""`tunery jobs`: what was asked for, how it stands, and what a service shall do about it."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, output_path, width
from tunery.cli.console.remote import (
    Server,
    Socket,
    followed,
    network_path,
    own_service,
    server_of,
    service_at,
    source,
    stated,
    summary,
)
from tunery.domain.request import Request

if TYPE_CHECKING:
    from tunery.domain import JobStatus
    from tunery.web.client import ServiceClient

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `tunery jobs list` shows it.")]


@command("jobs list", "jobs list")
def list_(
    *,
    store: options.StoreUrl = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Show the latest so many.")] = 50,
    socket: Socket = "",
    server: Server = "",
) -> Result:
    """List the jobs, latest first."""
    with source(server, store, socket) as known:
        latest = known.statuses(limit)
    return Result({"jobs": [summary(status) for status in latest]}, _list(latest))


def _list(latest: "list[JobStatus]") -> Iterator[str]:
    from tunery.domain import JobState
    from tunery.reports.data import sums
    from tunery.reports.format import as_text, duration, milliseconds, new_table, printable, ratio

    columns = ("job", "kind", "network", "state", "#trials", "#time", "#untuned ms", "#tuned ms", "#speed-up", "begun")
    table = new_table(*columns)
    for status in latest:
        before, after = sums(status.tasks)
        name = printable(str(status.request.get("name", "")), lines=False)
        table.add_row(
            status.job_id, status.kind, name, status.state.value, str(status.spend.trials),
            duration(status.spend.wall_s), milliseconds(before), milliseconds(after), ratio(before, after),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created_at)),
        )  # fmt: skip
    yield (as_text(table, width()) if latest else "no jobs yet; start one with `tunery tune MODEL --budget 10min`")
    waiting: dict[str, list[str]] = {}
    for status in latest:
        if status.state is JobState.QUEUED and status.message:
            waiting.setdefault(status.message, []).append(status.job_id)
    for why, jobs in waiting.items():
        yield printable(f"{', '.join(jobs)}: {why}", lines=False)
    stored = [
        one.job_id for one in latest
        if one.state is JobState.DONE and one.tasks and not (one.spend.trials or any(t.unreached for t in one.tasks))
    ]  # fmt: skip
    if stored:
        yield f"{', '.join(stored)}: from stored records; nothing new was measured"
    if any(task.unreached for status in latest for task in status.tasks):
        yield "latencies are sums of the tasks that a job reached, as `tunery jobs show` lists them"


@command("jobs show", "jobs show 3f2a9c01b7de")
def show(
    job: JobId,
    *,
    store: options.StoreUrl = "",
    socket: Socket = "",
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Show a job: what was asked for, its tasks, and what it has spent."""
    from tunery.domain import DEFAULT_KIND
    from tunery.reports.data import plain, task_data
    from tunery.reports.job import COMPILED, headline_of, host_seconds

    with source(server, store, socket) as known:
        status, answer = known.status(job)
        log = list(known.log(job))
    if status.kind == DEFAULT_KIND and answer is not None:  # its report is in its status
        answer = {COMPILED: answer[COMPILED]} if COMPILED in answer else None
    latest, hosts = {event["kind"]: event for event in log}, host_seconds(log)
    headline = headline_of({**latest, COMPILED: (answer or {}).get(COMPILED, answer or {})})
    data = {
        **summary(status),
        "remaining": plain(status.remaining),
        "outlook": plain(status.outlook),
        "request": status.request,
        "tasks": [task_data(task) for task in status.tasks],
        "answer": answer,
        "hosts": hosts,
        "headline": headline,
    }
    return Result(data, _show(status, answer, headline, hosts, verbose=verbose))


def _show(
    status: "JobStatus",
    answer: "dict[str, Any] | None",
    headline: str,
    hosts: Mapping[str, Mapping[str, float]],
    *,
    verbose: bool,
) -> Iterator[str]:
    from tunery.reports.format import as_text, duration, printable
    from tunery.reports.text import best_host_lines, cost_lines, filter_lines, tasks_table

    yield printable(f"job {status.job_id}: {status.state.value}  {status.message}".rstrip(), lines=False)
    if headline:
        yield headline
    asked = "  ".join(f"{key}={value}" for key, value in status.request.items() if value not in {None, "", "{}"})
    yield printable(asked, lines=False)
    if status.tasks:
        yield as_text(tasks_table(status.tasks), width())
    for name, value in (answer or {}).items() if not status.tasks else ():
        yield printable(f"{name}: {value}", lines=False)
    yield from (*best_host_lines(status.tasks), *filter_lines(status), *cost_lines(status, verbose=verbose))
    stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in status.spend.stage_s.items())
    if stages and verbose:
        yield f"of workers  {stages}"
    for host, kinds in hosts.items() if len(hosts) > 1 else ():
        yield f"of {host}  " + ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in kinds.items())


@command("jobs log", "jobs log 3f2a9c01b7de")
def log(job: JobId, *, store: options.StoreUrl = "", socket: Socket = "", server: Server = "") -> Result:
    """Show what has happened to a job, and which candidates failed; with --json, all that is known of it."""
    from tunery.reports.job import failure_text

    with source(server, store, socket) as known:
        events, failures = list(known.log(job)), known.failures(job)
    rows = [(event["at"], _said(event)) for event in events] + [(one["at"], failure_text(one)) for one in failures]
    lines = (
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}  {what}"
        for at, what in sorted(rows, key=lambda row: row[0])
    )
    return Result({"job": job, "events": events, "failures": failures}, lines)


def _said(event: Mapping[str, Any]) -> str:
    return f"{event['state']}  {event['message']}".rstrip() if event["kind"] == "state" else str(event["kind"])


@command("jobs submit", "jobs submit resnet18.onnx --budget 10min --priority 2")
def submit_(
    *,
    request: Annotated[
        Request,
        Only(
            "model",
            "target",
            "budget",
            "latency_target_s",
            "prices",
            "effort",
            "threads",
            "shapes",
            "seed",
            "dialect",
            "trust",
        ),
    ],
    kind: Annotated[
        str, typer.Option("--kind", help="What it does: tune, compile, query, …; a wrong one lists them.")
    ] = "tune",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="What a job of that kind is given: output=net.tunery."),
    ] = None,
    owner: Annotated[str, typer.Option("--owner", help="Whose share of the machine it uses; else yours.")] = "",
    weight: Annotated[float, typer.Option("--weight", help="How large that share is beside others'.")] = 1.0,
    priority: Annotated[int, typer.Option("--priority", help="0 to 10; each step doubles the share.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the job to end.")] = False,
    socket: Socket = "",
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Give a job to a service and follow it; it goes on without us."""
    from tunery.domain.request import ShareRequest
    from tunery.web.client import status_of, submit

    request = replace(request, kind=kind, options=options.job_options(option or []))
    share = ShareRequest(owner, weight, priority)
    with service_at(server, socket) as service:
        if not service.is_local and (owner or weight != 1.0):
            raise UsageError("a service knows owner and weight from the account; leave out --owner and --weight")
        if not service.is_local and "output" in request.options:
            raise UsageError(
                "a service takes no option 'output'; `tunery compile MODEL -o FILE --server URL` fetches a file"
            )
        if detach:
            return stated(status_of(submit(service, request, share)))
        with followed(verbose=verbose, server=service.name) as live:
            job = submit(service, request, share)
            live.began(job["id"])
            job = service.follow(job["id"], live.show)
    return _ended(job)


def _ended(job: Mapping[str, Any]) -> Result:
    from tunery.reports.comparison import batch_lines
    from tunery.web.client import status_of

    answer = job["answer"] or {}
    told = next((one for name in ("network", "described") if isinstance(one := answer.get(name), Mapping)), answer)
    data, lines, code = stated(status_of(job))
    return Result(data, [*batch_lines(told.get("batch_of_one", ())), *lines], code)


@command("jobs watch", "jobs watch 3f2a9c01b7de")
def watch(
    job: JobId,
    *,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Fetch the network that it compiles to this file.")
    ] = "",
    force: options.Force = False,
    socket: Socket = "",
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Follow a job of a service to its end; Ctrl-C leaves it running."""
    from tunery._outputs import NETWORK, check_output
    from tunery.domain import JobState
    from tunery.web.client import fetch, status_of

    file = output_path(output, f"{job}.tunery") if output else None
    if file is not None:
        check_output(file, NETWORK, force=force)
    with service_at(server, socket) as service:
        with followed(verbose=verbose, server=service.name, output=file, force=force) as live:
            live.began(service.job(job)["id"])
            ended = service.follow(job, live.show)
        status = status_of(ended)
        if file is not None and status.state is JobState.DONE:
            fetch(service, status, ended["answer"] or {}, file)
    data, lines, code = _ended(ended)
    written = [f"written to {file}"] if file is not None and status.state is JobState.DONE else []
    return Result(data, [*lines, *written], code)


@command("jobs cancel", "jobs cancel 3f2a9c01b7de")
def cancel(job: JobId, socket: Socket = "", server: Server = "") -> Result:
    """End a job of a service for good; what it has measured is kept."""
    return _act("cancel", job, socket, server)


@command("jobs pause", "jobs pause 3f2a9c01b7de")
def pause(job: JobId, socket: Socket = "", server: Server = "") -> Result:
    """Let a job of a service wait until it is resumed."""
    return _act("pause", job, socket, server)


def _act(what: str, job: str, socket: str, server: str) -> Result:
    from tunery.web.client import status_of

    with service_at(server, socket) as service:
        return stated(status_of(service.act(job, what)))


@command("jobs resume", "jobs resume 3f2a9c01b7de")
def resume(
    job: JobId,
    *,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Compile the network to this file instead.")
    ] = "",
    force: options.Force = False,
    store: options.StoreUrl = "",
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the service to end it.")] = False,
    socket: Socket = "",
    server: Server = "",
    json: bool = False,
    verbose: bool = False,
) -> Result:
    """Go on with a job, in a service if one runs, else here; nothing that was measured is measured again."""
    there = server_of(server, socket, store)
    service = service_at(there, socket) if there else own_service(socket)
    if service is not None:
        with service:
            if not (store and service.is_local) or service.about()["store"] == store:
                if output:
                    raise UsageError(
                        "a service goes on with a job as it was submitted; leave out -o, and fetch its file with "
                        f"`tunery jobs watch {job} -o FILE`, or give `tunery tune` again with -o"
                    )
                return _resume_there(service, job, detach=detach, verbose=verbose)
    return _resume_here(job, store, output, force=force, as_json=json, verbose=verbose)


def _resume_there(service: "ServiceClient", job: str, *, detach: bool, verbose: bool) -> Result:
    from tunery.web.client import status_of

    status = status_of(service.act(job, "resume"))
    if not detach:
        with followed(verbose=verbose, server=service.name) as live:
            live.began(job)
            status = status_of(service.follow(job, live.show))
    return stated(status)


def _resume_here(job: str, store: str, output: str, *, force: bool, as_json: bool, verbose: bool) -> Result:
    from tunery.cli.tune import run
    from tunery.domain import JobState
    from tunery.service.codec import request_of
    from tunery.service.kinds import resumable
    from tunery.store import open_store

    with open_store(store, create=False) as opened:
        status = opened.job(job)
    if status.state in {JobState.DONE, JobState.CANCELLED}:
        raise UsageError(f"job {job} is {status.state}; to go further, tune its model again: what is known is used")
    if not resumable(status.kind):
        raise UsageError(
            f"job {job} is a {status.kind}: give that command again, or let a service do it (`tunery serve`)"
        )
    request = request_of(status, store)
    path = network_path(request, output) if output else None
    return run(request, path, (), force=force, as_json=as_json, verbose=verbose, job_id=job)
