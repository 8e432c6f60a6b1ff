"""What the commands that talk to the daemon have in common."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery.cli.console.output import emit, remark, say

if TYPE_CHECKING:
    from tunery.cli.console.live import LiveLine
    from tunery.domain import JobStatus
    from tunery.domain.request import Progress
    from tunery.service.client import Client

Socket = Annotated[str, typer.Option("--socket", metavar="FILE", help="Where the daemon listens.")]


def daemon_at(socket: str) -> "Client":
    """Return a client of the daemon at `socket`, or at its usual place."""
    from tunery.service._wire import socket_path
    from tunery.service.client import Client

    return Client(socket_path(socket))


def daemon_store(socket: str) -> str:
    """Return the store of the daemon, "" where none runs."""
    daemon = daemon_at(socket)
    return daemon.store() if daemon.listens() else ""


class Follower:
    """Shows a job as it goes: of the daemon, or of the service at `server`."""

    def __init__(self, live: "LiveLine", server: str) -> None:
        self._live, self._job, self._server = live, "", server

    def began(self, job_id: str) -> None:
        """Note the job's id, and say it."""
        self._job = job_id
        remark(f"job {job_id}; Ctrl-C leaves it running")

    def show(self, progress: "Progress") -> None:
        """Show the latest progress."""
        self._live.show(progress)

    def left(self) -> None:
        """Say how to come back."""
        self._live.close()
        if self._job:
            where = f" --server {shlex.quote(self._server)}" if self._server else ""
            remark(f"job {self._job} goes on; see `tunery jobs show {self._job}{where}`")


@contextmanager
def followed(*, verbose: bool, server: str = "") -> Iterator[Follower]:
    """Follow a job in the block; a Ctrl-C ends the following, not the job."""
    from tunery.cli.console.live import LiveLine

    with LiveLine(verbose=verbose) as live:
        follower = Follower(live, server)
        try:
            yield follower
        except KeyboardInterrupt:
            follower.left()
            raise typer.Exit(130) from None


def report(status: "JobStatus", *, as_json: bool) -> None:
    """Print how a job stands; one that failed makes the command fail."""
    from tunery.domain import JobState
    from tunery.reports.data import sums
    from tunery.reports.format import duration, milliseconds

    if as_json:
        emit(summary(status))
    else:
        before, after = sums(status.tasks)
        what = "sum of tasks reached" if any(task.unreached for task in status.tasks) else "sum of tasks"
        gain = f", {what} {milliseconds(after)} ms (untuned {milliseconds(before)})" if after else ""
        spent = f"{status.spend.trials} trials in {duration(status.spend.wall_s)}"
        say(
            f"job {status.job_id}: {status.state.value}, {spent}{gain}" + (f": {status.message}" * bool(status.message))
        )
    if status.state is JobState.FAILED:
        raise typer.Exit(1)


def summary(status: Any) -> dict[str, Any]:
    """Return a job as JSON shows it in a list."""
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
