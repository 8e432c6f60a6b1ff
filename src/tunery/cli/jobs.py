"""`tunery jobs`: what was asked for, and how it stands."""

import time
from typing import Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli import _options as options
from tunery.cli._output import emit, say, width

app = typer.Typer(help="List, show and resume jobs.", no_args_is_help=False)
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `tunery jobs list` shows it.")]


@app.command("list", epilog="Example: tunery jobs list")
def list_(
    store: options.StoreUrl = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show the latest so many.")] = 50,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """List the jobs, latest first."""
    from tunery._report import as_text, duration, milliseconds, new_table, ratio, total
    from tunery.store import open_store

    with open_store(store) as opened:
        found = opened.jobs(limit)
    if json:
        emit({"jobs": [_summary(status) for status in found]})
        return
    table = new_table("job", "network", "state", "#trials", "#time", "#untuned ms", "#tuned ms", "#speed-up", "begun")
    for status in found:
        before, after = total(status.tasks, "baseline_s"), total(status.tasks, "best_s")
        table.add_row(
            status.job_id, str(status.request.get("name", "")), status.state.value, str(status.spend.trials),
            duration(status.spend.wall_s), milliseconds(before), milliseconds(after), ratio(before, after),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created_at)),
        )  # fmt: skip
    say(as_text(table, width()) if found else "no jobs yet; start one with `tunery tune MODEL --budget 10min`")


@app.command("show", epilog="Example: tunery jobs show 3f2a9c01b7de")
def show(
    job: JobId,
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Show a job: what was asked for, its tasks, and what it has spent."""
    from tunery._report import as_text, duration, task_data, tasks_table
    from tunery.store import open_store

    with open_store(store) as opened:
        status = opened.job(job)
    if json:
        emit({**_summary(status), "request": status.request, "tasks": [task_data(task) for task in status.tasks]})
        return
    say(f"job {status.job_id}: {status.state.value}  {status.message}".rstrip())
    say("  ".join(f"{key}={value}" for key, value in status.request.items() if value not in {None, "", "{}"}))
    say(as_text(tasks_table(status.tasks), width()))
    stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in status.spend.stage_s.items())
    say(f"{status.spend.trials} trials in {duration(status.spend.wall_s)}" + (f" ({stages})" if stages else ""))


@app.command("resume", epilog="Example: tunery jobs resume 3f2a9c01b7de")
def resume(
    job: JobId,
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Go on with a job that was stopped; nothing that was measured is measured again."""
    from tunery.cli.tune import run
    from tunery.domain import JobState
    from tunery.jobs.session import request_of
    from tunery.store import open_store

    with open_store(store) as opened:
        status = opened.job(job)
    if status.state is JobState.DONE:
        raise UsageError(f"job {job} is done; to go further, tune its model again: what is known is used")
    run(request_of(status, store), None, (), as_json=json, verbose=verbose, job_id=job)


def _summary(status: Any) -> dict[str, Any]:
    return {
        "job": status.job_id,
        "network": status.request.get("name"),
        "model": status.request.get("model"),
        "status": status.state,
        "message": status.message,
        "spend": status.spend,
        "created_at": status.created_at,
        "updated_at": status.updated_at,
    }
