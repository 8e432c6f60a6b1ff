"""`tunery jobs`: what was asked for, how it stands, and what a service shall do about it."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.following import followed, report, summary
from tunery.cli.console.output import emit, output_path, say, width
from tunery.cli.console.remote import Server, Socket, network_path, own_service, server_of, service_at, service_or_none

if TYPE_CHECKING:
    from tunery.domain import JobStatus
    from tunery.store import Store
    from tunery.web.client import ServiceClient

_MOST_EVENTS = 1_000_000

app = typer.Typer(help="List and show jobs; submit, pause, resume and cancel them.", no_args_is_help=False)
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `tunery jobs list` shows it.")]


@app.command("list", epilog="Example: tunery jobs list")
def list_(
    *,
    store: options.StoreUrl = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Show the latest so many.")] = 50,
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the jobs, latest first."""
    from tunery.domain import JobState
    from tunery.reports.data import sums
    from tunery.reports.format import as_text, duration, milliseconds, new_table, printable, ratio

    found = _latest(store, socket, server, limit)
    if json:
        emit({"jobs": [summary(status) for status in found]})
        return
    columns = ("job", "kind", "network", "state", "#trials", "#time", "#untuned ms", "#tuned ms", "#speed-up", "begun")
    table = new_table(*columns)
    for status in found:
        before, after = sums(status.tasks)
        name = printable(str(status.request.get("name", "")), lines=False)
        table.add_row(
            status.job_id, status.kind, name, status.state.value, str(status.spend.trials),
            duration(status.spend.wall_s), milliseconds(before), milliseconds(after), ratio(before, after),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created_at)),
        )  # fmt: skip
    say(as_text(table, width()) if found else "no jobs yet; start one with `tunery tune MODEL --budget 10min`")
    waiting: dict[str, list[str]] = {}
    for status in found:
        if status.state is JobState.QUEUED and status.message:
            waiting.setdefault(status.message, []).append(status.job_id)
    for why, jobs in waiting.items():
        say(printable(f"{', '.join(jobs)}: {why}", lines=False))
    if any(task.unreached for status in found for task in status.tasks):
        say("latencies are sums of the tasks that a job reached, as `tunery jobs show` lists them")


def _latest(store: str, socket: str, server: str, limit: int) -> "list[JobStatus]":
    if service := service_or_none(server, socket, store):
        from tunery.web.client import status_of

        with service:
            return [status_of(job) for job in service.jobs(limit)]
    from tunery.store import open_store

    with open_store(store, create=False, keep=False) as opened:
        return opened.jobs(limit)


@app.command("show", epilog="Example: tunery jobs show 3f2a9c01b7de")
def show(
    job: JobId,
    *,
    store: options.StoreUrl = "",
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show a job: what was asked for, its tasks, and what it has spent."""
    from tunery.reports.data import plain, task_data
    from tunery.reports.format import as_text, duration, printable
    from tunery.reports.job import COMPILED, headline_of, host_seconds
    from tunery.reports.text import best_host_lines, cost_lines, filter_lines, tasks_table

    status, answer, events = _one(job, store, socket, server)
    hosts = host_seconds(events)
    headline = headline_of({COMPILED: (answer or {}).get(COMPILED, answer or {})})
    if json:
        more = {"remaining": plain(status.remaining), "outlook": plain(status.outlook)}
        tasks = [task_data(task) for task in status.tasks]
        emit(
            {
                **summary(status),
                **more,
                "request": status.request,
                "tasks": tasks,
                "answer": answer,
                "hosts": hosts,
                "headline": headline,
            }
        )
        return
    say(printable(f"job {status.job_id}: {status.state.value}  {status.message}".rstrip(), lines=False))
    if headline:
        say(headline)
    asked = "  ".join(f"{key}={value}" for key, value in status.request.items() if value not in {None, "", "{}"})
    say(printable(asked, lines=False))
    if status.tasks:
        say(as_text(tasks_table(status.tasks), width()))
    for name, value in (answer or {}).items() if not status.tasks else ():
        say(printable(f"{name}: {value}", lines=False))
    stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in status.spend.stage_s.items())
    found = [*best_host_lines(status.tasks), *filter_lines(status), *cost_lines(status)]
    say("\n".join([*found, *([f"of workers  {stages}"] if stages else [])]))
    for host, kinds in hosts.items() if len(hosts) > 1 else ():
        say(f"of {host}  " + ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in kinds.items()))


def _one(
    job_id: str, store: str, socket: str, server: str
) -> "tuple[JobStatus, dict[str, Any] | None, list[dict[str, Any]]]":
    """Return how a job stands, what it has answered, and what has happened to it.

    A resumable job has no answer here: its report is in its status.
    """
    if service := service_or_none(server, socket, store):
        from tunery.web.client import status_of

        with service:
            found = service.job(job_id)
            return status_of(found), _shown(found["kind"], found["answer"]), list(service.log(job_id))
    from tunery.service.kinds import answer_of
    from tunery.store import open_store

    with open_store(store, create=False, keep=False) as opened:
        status = opened.job(job_id)
        return status, _shown(status.kind, answer_of(opened, status)), _stored_events(opened, job_id)


def _shown(kind: str, answer: "dict[str, Any] | None") -> "dict[str, Any] | None":
    """Return of the answer what is not in a job's status: of one that tunes its compiled file."""
    from tunery.domain import DEFAULT_KIND
    from tunery.reports.job import COMPILED

    if kind != DEFAULT_KIND or answer is None:
        return answer
    return {COMPILED: answer[COMPILED]} if COMPILED in answer else None


@app.command("log", epilog="Example: tunery jobs log 3f2a9c01b7de")
def log(
    job: JobId,
    *,
    store: options.StoreUrl = "",
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show what has happened to a job, and which candidates failed; with --json, all that is known of it."""
    from tunery.reports.job import failure_text

    events, failures = _events(job, store, socket, server)
    if json:
        emit({"job": job, "events": events, "failures": failures})
        return
    lines = [(event["at"], _said(event)) for event in events] + [(one["at"], failure_text(one)) for one in failures]
    for at, what in sorted(lines, key=lambda line: line[0]):
        say(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}  {what}")


def _said(event: Mapping[str, Any]) -> str:
    return f"{event['state']}  {event['message']}".rstrip() if event["kind"] == "state" else str(event["kind"])


def _events(job_id: str, store: str, socket: str, server: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what has happened to a job, and its candidates that failed."""
    if service := service_or_none(server, socket, store):
        with service:
            return list(service.log(job_id)), service.failures(job_id)
    from tunery.reports.job import MOST_FAILURES, failure_data
    from tunery.store import open_store

    with open_store(store, create=False, keep=False) as opened:
        failed = opened.failures(job_id, MOST_FAILURES)
        return _stored_events(opened, job_id), failure_data(opened.job(job_id).tasks, failed)


def _stored_events(store: "Store", job_id: str) -> list[dict[str, Any]]:
    """Return a stored job's events as a service tells them."""
    found = store.events.after(job_id=job_id, limit=_MOST_EVENTS)
    return [{"id": e.number, **e.payload, "kind": e.kind, "at": e.created_at} for e in found]


@app.command("submit", epilog="Example: tunery jobs submit resnet18.onnx --budget 10min --priority 2")
def submit_(
    model: options.ModelName,
    *,
    target: options.TargetName = "native",
    budget: options.BudgetText = None,
    latency_target: options.LatencyTarget = "",
    prices: options.PriceSheet = "",
    effort: Annotated[options.Effort, typer.Option("--effort", help="Trials where there is no budget.")] = (
        options.Effort.STANDARD
    ),
    threads: options.Threads = 0,
    shape: options.Shapes = None,
    seed: options.Seed = 0,
    dialect: options.DialectName = options.DIALECT,
    trust: options.Trust = False,
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
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Give a job to a service and follow it; it goes on without us."""
    from tunery.domain.request import ShareRequest
    from tunery.web.client import status_of, submit

    request = options.make_request(
        model, target=target, budget=budget, effort=effort, store="", threads=threads, shapes=shape, seed=seed,
        dialect=dialect, prices=prices, latency_target=latency_target, trust=trust,
    )  # fmt: skip
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
            report(status_of(submit(service, request, share)), as_json=json)
            return
        with followed(verbose=verbose, server=service.name) as live:
            job = submit(service, request, share)
            live.began(job["id"])
            job = service.follow(job["id"], live.show)
    _report(job, as_json=json)


def _report(job: Mapping[str, Any], *, as_json: bool) -> None:
    """Print how a job of a service has ended, and for which inputs a batch of one was taken."""
    from tunery.reports.comparison import batch_lines
    from tunery.web.client import status_of

    answer = job["answer"] or {}
    told = next((one for name in ("network", "described") if isinstance(one := answer.get(name), Mapping)), answer)
    for line in () if as_json else batch_lines(told.get("batch_of_one", ())):
        say(line)
    report(status_of(job), as_json=as_json)


@app.command("watch", epilog="Example: tunery jobs watch 3f2a9c01b7de")
def watch(
    job: JobId,
    *,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Fetch the network that it compiles to this file.")
    ] = "",
    force: options.Force = False,
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
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
    _report(ended, as_json=json)
    if file is not None and not json and status.state is JobState.DONE:
        say(f"written to {file}")


@app.command("cancel", epilog="Example: tunery jobs cancel 3f2a9c01b7de")
def cancel(
    job: JobId,
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """End a job of a service for good; what it has measured is kept."""
    _act("cancel", job, socket, server, as_json=json)


@app.command("pause", epilog="Example: tunery jobs pause 3f2a9c01b7de")
def pause(
    job: JobId,
    socket: Socket = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Let a job of a service wait until it is resumed."""
    _act("pause", job, socket, server, as_json=json)


def _act(what: str, job: str, socket: str, server: str, *, as_json: bool) -> None:
    from tunery.web.client import status_of

    with service_at(server, socket) as service:
        status = status_of(service.act(job, what))
    report(status, as_json=as_json)


@app.command("resume", epilog="Example: tunery jobs resume 3f2a9c01b7de")
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
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
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
                _resume_there(service, job, detach=detach, as_json=json, verbose=verbose)
                return
    _resume_here(job, store, output, force=force, as_json=json, verbose=verbose)


def _resume_there(service: "ServiceClient", job: str, *, detach: bool, as_json: bool, verbose: bool) -> None:
    from tunery.web.client import status_of

    status = status_of(service.act(job, "resume"))
    if not detach:
        with followed(verbose=verbose, server=service.name) as live:
            live.began(job)
            status = status_of(service.follow(job, live.show))
    report(status, as_json=as_json)


def _resume_here(job: str, store: str, output: str, *, force: bool, as_json: bool, verbose: bool) -> None:
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
    run(request, path, (), force=force, as_json=as_json, verbose=verbose, job_id=job)
