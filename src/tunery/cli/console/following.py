"""Following a job of a service, and saying how it stands."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunery.cli.console.output import emit, remark, say

if TYPE_CHECKING:
    from tunery.cli.console.live import LiveLine
    from tunery.domain import JobStatus


class Follower:
    """Shows a job as it goes: of this user's service, or of the one at `server`; `fetch` are options of a file's."""

    def __init__(self, live: "LiveLine", server: str, fetch: Sequence[str]) -> None:
        self._live, self._job = live, ""
        self._options = [*fetch, *(["--server", server] if server else [])]

    def began(self, job_id: str) -> None:
        """Note the job's id, and say it."""
        self._job = job_id
        remark(f"job {job_id}; Ctrl-C leaves it running")

    def show(self, kind: str, data: dict[str, Any]) -> None:
        """Show an event, if it is progress."""
        from tunery.web.client import progress_of

        if (progress := progress_of(kind, data)) is not None:
            self._live.show(progress)

    def left(self) -> None:
        """Say how to come back."""
        self._live.close()
        if self._job:
            again = shlex.join(["tunery", "jobs", "watch", self._job, *self._options])
            remark(f"job {self._job} goes on; come back with `{again}`")


@contextmanager
def followed(*, verbose: bool, server: str = "", output: Path | None = None, force: bool = False) -> Iterator[Follower]:
    """Follow a job in the block, whose file goes to `output`; a Ctrl-C ends the following, not the job."""
    from tunery.cli.console.live import LiveLine

    fetch = [] if output is None else ["-o", str(output), *(["--force"] if force else [])]
    with LiveLine(verbose=verbose) as live:
        follower = Follower(live, server, fetch)
        try:
            yield follower
        except KeyboardInterrupt:
            follower.left()
            raise typer.Exit(130) from None


def report(status: "JobStatus", *, as_json: bool) -> None:
    """Print how a job stands; one that failed makes the command fail, as the same would have here."""
    from tunery._errors import error_of
    from tunery.cli.console.failure import exit_code
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
        raise typer.Exit(exit_code(error_of(status.problem, status.message)))


def summary(status: Any) -> dict[str, Any]:
    """Return a job as JSON shows it in a list."""
    return {
        "job": status.job_id,
        "kind": status.kind,
        "network": status.request.get("name"),
        "model": status.request.get("model"),
        "status": status.state,
        "message": status.message,
        "problem": status.problem,
        "spend": status.spend,
        "created_at": status.created_at,
        "updated_at": status.updated_at,
    }
