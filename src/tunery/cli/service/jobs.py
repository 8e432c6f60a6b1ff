"""`tunery jobs`: what was asked for, how it stands, and what the daemon shall do about it."""

import time
from dataclasses import replace
from typing import Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.daemon import Socket, daemon_at, daemon_store, followed, report, summary
from tunery.cli.console.output import emit, say, width
from tunery.cli.console.remote import Server, print_job, server_of

app = typer.Typer(help="List and show jobs; submit, pause, resume and cancel them.", no_args_is_help=False)
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `tunery jobs list` shows it.")]


@app.command("list", epilog="Example: tunery jobs list")
def list_(
    store: options.StoreUrl = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Show the latest so many.")] = 50,
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the jobs, latest first."""
    from tunery.reports.data import sums
    from tunery.reports.format import as_text, duration, milliseconds, new_table, ratio
    from tunery.store import open_store

    with open_store(store or daemon_store(socket), create=False, keep=False) as opened:
        found = opened.jobs(limit)
    if json:
        emit({"jobs": [summary(status) for status in found]})
        return
    table = new_table("job", "network", "state", "#trials", "#time", "#untuned ms", "#tuned ms", "#speed-up", "begun")
    for status in found:
        before, after = sums(status.tasks)
        table.add_row(
            status.job_id, str(status.request.get("name", "")), status.state.value, str(status.spend.trials),
            duration(status.spend.wall_s), milliseconds(before), milliseconds(after), ratio(before, after),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created_at)),
        )  # fmt: skip
    say(as_text(table, width()) if found else "no jobs yet; start one with `tunery tune MODEL --budget 10min`")
    if any(task.unreached for status in found for task in status.tasks):
        say("latencies are sums of the tasks that a job reached, as `tunery jobs show` lists them")


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
    if url := server_of(server):
        from tunery.web.client import connect

        with connect(url) as service:
            print_job(service.job(job), as_json=json)
        return
    from tunery.reports.data import plain, task_data
    from tunery.reports.format import as_text, duration
    from tunery.reports.job import host_seconds
    from tunery.reports.text import cost_lines, filter_lines, tasks_table
    from tunery.store import open_store

    with open_store(store or daemon_store(socket), create=False, keep=False) as opened:
        status = opened.job(job)
        events = opened.events.after(job_id=job)
    answers, hosts = [event.payload for event in events if event.kind == "answer"], host_seconds(events)
    answer = answers[-1] if answers else None
    if json:
        more = {"remaining": plain(status.remaining), "outlook": plain(status.outlook)}
        tasks = [task_data(task) for task in status.tasks]
        emit({**summary(status), **more, "request": status.request, "tasks": tasks, "answer": answer, "hosts": hosts})
        return
    say(f"job {status.job_id}: {status.state.value}  {status.message}".rstrip())
    say("  ".join(f"{key}={value}" for key, value in status.request.items() if value not in {None, "", "{}"}))
    if status.tasks:
        say(as_text(tasks_table(status.tasks), width()))
    for name, value in (answer or {}).items():
        say(f"{name}: {value}")
    stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in status.spend.stage_s.items())
    say("\n".join([*filter_lines(status), *cost_lines(status), *([f"of workers  {stages}"] if stages else [])]))
    for host, kinds in hosts.items() if len(hosts) > 1 else ():
        say(f"of {host}  " + ", ".join(f"{kind} {duration(seconds)}" for kind, seconds in kinds.items()))


@app.command("submit", epilog="Example: tunery jobs submit resnet18.onnx --budget 10min --priority 2")
def submit(
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
        str,
        typer.Option("--kind", help="tune, compile, bench, query, extract, calibrate or collect."),
    ] = "tune",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="What a job of that kind is given: output=net.tunery."),
    ] = None,
    owner: Annotated[str, typer.Option("--owner", help="Whose share of the machine it uses; else its own.")] = "",
    weight: Annotated[float, typer.Option("--weight", help="How large that share is beside others'.")] = 1.0,
    priority: Annotated[int, typer.Option("--priority", help="0 to 10; each step doubles the share.")] = 0,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the job to end.")] = False,
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Give a job to the daemon and follow it; it goes on without us."""
    from tunery.domain.request import ShareRequest

    request = options.make_request(
        model, target=target, budget=budget, effort=effort, store="", threads=threads, shapes=shape, seed=seed,
        dialect=dialect, prices=prices, latency_target=latency_target, trust=trust,
    )  # fmt: skip
    request = replace(request, kind=kind, options=options.job_options(option or []))
    claim = ShareRequest(owner, weight, priority)
    daemon = daemon_at(socket)
    if detach:
        report(daemon.submit(request, claim), as_json=json)
        return
    with followed(verbose=verbose) as live:
        status = daemon.submit(request, claim, live.began, live.show)
    report(status, as_json=json)


@app.command("cancel", epilog="Example: tunery jobs cancel 3f2a9c01b7de")
def cancel(
    job: JobId,
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """End a job of the daemon for good; what it has measured is kept."""
    report(daemon_at(socket).act("cancel", job), as_json=json)


@app.command("pause", epilog="Example: tunery jobs pause 3f2a9c01b7de")
def pause(
    job: JobId,
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Let a job of the daemon wait until it is resumed."""
    report(daemon_at(socket).act("pause", job), as_json=json)


@app.command("resume", epilog="Example: tunery jobs resume 3f2a9c01b7de")
def resume(
    job: JobId,
    *,
    store: options.StoreUrl = "",
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the daemon to end it.")] = False,
    socket: Socket = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Go on with a job, in the daemon if one runs, else here; nothing that was measured is measured again."""
    from tunery.cli.tune import run
    from tunery.domain import JobState
    from tunery.service.codec import request_of
    from tunery.store import open_store

    daemon = daemon_at(socket)
    if daemon.listens() and (not store or daemon.store() == store):
        with followed(verbose=verbose) as live:
            live.began(job)
            status = daemon.act("resume", job, None if detach else live.show)
        report(status, as_json=json)
        return
    with open_store(store, create=False) as opened:
        status = opened.job(job)
    if status.state in {JobState.DONE, JobState.CANCELLED}:
        raise UsageError(f"job {job} is {status.state}; to go further, tune its model again: what is known is used")
    if (kind := status.request.get("kind", "tune")) != "tune":
        raise UsageError(f"job {job} is a {kind}: give that command again, or let a daemon do it (`tunery serve`)")
    run(request_of(status, store), None, (), as_json=json, verbose=verbose, job_id=job)
