"""Where a command is carried out: by a service, this user's own or one on the network, or here with added hosts."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console.commands import Result, output_path, remark

if TYPE_CHECKING:
    from tunery.cli.console.live import LiveLine
    from tunery.domain import JobStatus
    from tunery.domain.request import Request
    from tunery.store import Store
    from tunery.web.client import ServiceClient, Watcher

Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Let this service do it, where `tunery login` was given a token.")
]
_MOST_EVENTS = 1_000_000
Socket = Annotated[str, typer.Option("--socket", metavar="FILE", help="Where your own service listens.")]


def server_of(given: str, *instead: str) -> str:
    """Return the URL of the service that a command is for: `given`, else TUNERY_SERVER; "" for none.

    What the command was told `instead`, a store or a socket of this machine, comes before the variable.
    """
    from tunery._settings import settings

    if given and any(instead):
        raise UsageError(
            "--store and --socket are for this machine, not for a service; leave them out, or leave out --server"
        )
    return given or ("" if any(instead) else settings().server)


def say_hosts() -> list[str]:
    from tunery.engines.remote.registry import added_hosts

    names = [host.name for host in added_hosts()]
    if names:
        remark(f"hosts in use beside this machine: {', '.join(names)} (see `tunery hosts list`)")
    return names


def network_path(request: "Request", output: str) -> Path:
    """Return the file that `-o` names; in a directory, its name is that of the model."""
    from tunery.reports.format import file_name

    return output_path(output, file_name(Path(request.model.rpartition(":")[2]).stem, request))


def service_at(server: str, socket: str) -> "ServiceClient":
    """Return the service on the network that a command is for, or else this user's own."""
    from tunery._settings import socket_path
    from tunery.web.client import ServiceClient, connect, logged_in

    if url := server_of(server, socket):
        return connect(url)
    try:
        return ServiceClient.local(socket_path(socket))
    except UsageError as error:
        if url := logged_in():
            raise UsageError(f"{error}, or use the one that you logged in to with --server {url}") from None
        raise


def own_service(socket: str) -> "ServiceClient | None":
    from tunery._settings import socket_path

    if not (path := socket_path(socket)).exists():
        return None  # nothing of it is imported
    from tunery.web.client import ServiceClient

    try:
        return ServiceClient.local(path)
    except UsageError:
        return None


def answered(url: str, request: "Request", *, create: bool = True, verbose: bool) -> dict[str, Any]:
    """Return what a job of the request's kind answers: at the service `url`, or done here where that is "".

    Here its store is created if need be, unless `create` is False.
    """
    if not url:
        from tunery.service.session import Session

        with Session(request.store, create=create, keep=False) as session:
            return dict(session.answer(request))
    from tunery.web.client import There, connect

    with connect(url) as service, watching(service, verbose=verbose) as watcher:
        return There(service, watcher).answer(request)


@contextmanager
def watching(
    service: "ServiceClient", *, verbose: bool, output: Path | None = None, force: bool = False
) -> "Iterator[Watcher]":
    """Show the job that is done in the block as it goes; a Ctrl-C ends the watching, not the job.

    It says how to come back, and to have the job's file at `output`.
    """
    from tunery.web.client import Watcher

    with followed(verbose=verbose, server=service.name, output=output, force=force) as live:
        yield Watcher(remark, live.began, live.show)


class Follower:
    """Shows a job as it goes: of this user's service, or of the one at `server`; `fetch` are options of a file's."""

    def __init__(self, live: "LiveLine", server: str, fetch: Sequence[str]) -> None:
        self._live, self._job = live, ""
        self._options = [*fetch, *(["--server", server] if server else [])]

    def began(self, job_id: str) -> None:
        self._job = job_id
        remark(f"job {job_id}; Ctrl-C leaves it running")

    def show(self, kind: str, data: dict[str, Any]) -> None:
        from tunery.web.client import progress_of

        if (progress := progress_of(kind, data)) is not None:
            self._live.show(progress)

    def left(self) -> None:
        self._live.close()
        if self._job:
            again = shlex.join(["tunery", "jobs", "watch", self._job, *self._options])
            remark(f"job {self._job} goes on; come back with `{again}`")


@contextmanager
def followed(*, verbose: bool, server: str = "", output: Path | None = None, force: bool = False) -> Iterator[Follower]:
    from tunery.cli.console.live import LiveLine

    fetch = [] if output is None else ["-o", str(output), *(["--force"] if force else [])]
    with LiveLine(verbose=verbose) as live:
        follower = Follower(live, server, fetch)
        try:
            yield follower
        except KeyboardInterrupt:
            follower.left()
            raise typer.Exit(130) from None


def stated(status: "JobStatus") -> Result:
    """Return how a job stands; one that failed makes the command fail, as the same would have here."""
    from tunery._errors import error_of
    from tunery.cli.console.failure import exit_code
    from tunery.domain import JobState
    from tunery.reports.data import sums
    from tunery.reports.format import duration, milliseconds

    before, after = sums(status.tasks)
    what = "sum of tasks reached" if any(task.unreached for task in status.tasks) else "sum of tasks"
    gain = f", {what} {milliseconds(after)} ms (untuned {milliseconds(before)})" if after else ""
    spent = f"{status.spend.trials} trials in {duration(status.spend.wall_s)}"
    said = f"job {status.job_id}: {status.state.value}, {spent}{gain}{f': {status.message}' * bool(status.message)}"
    failed = status.state is JobState.FAILED
    return Result(summary(status), [said], exit_code(error_of(status.problem, status.message)) if failed else 0)


def summary(status: Any) -> dict[str, Any]:
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


class Here:
    """What a store of this machine knows, by the methods of a service's client; `files` are what no output replaces."""

    def __init__(self, store: "Store", files: Sequence[Path]) -> None:
        self._store, self.files = store, files

    def statuses(self, limit: int) -> "list[JobStatus]":
        return self._store.jobs(limit)

    def status(self, job_id: str) -> "tuple[JobStatus, dict[str, Any] | None]":
        from tunery.service.kinds import answer_of

        status = self._store.job(job_id)
        return status, answer_of(self._store, status)

    def report(self, job_id: str, path: Path) -> Any:
        from tunery._outputs import PAGE, whole_file
        from tunery.reports.job import job_view
        from tunery.reports.page import job_page

        view = job_view(self._store, job_id)
        with whole_file(path, PAGE, inputs=self.files, force=True) as file:
            file.write(job_page(view).encode())
        return view

    def records(self, key: str) -> list[dict[str, Any]]:
        from tunery.reports.records import best_records

        return best_records(self._store, key)

    def operators(self, operator: str = "", workloads: Sequence[str] = ()) -> list[dict[str, Any]]:
        from tunery.reports.records import best_operators, pattern_of

        return best_operators(self._store, pattern_of(operator) if operator else None, workloads or None)

    def record_counts(self) -> dict[str, Any]:
        from tunery.reports.data import plain

        counts: dict[str, Any] = plain(self._store.stats())
        return counts

    def export_records(self, path: Path, network: str = "", account: str = "") -> int:
        return self._store.export_records(path, account=account or None, network=network, force=True)

    def log(self, job_id: str) -> list[dict[str, Any]]:
        events = self._store.events.after(job_id=job_id, limit=_MOST_EVENTS)
        return [{"id": one.number, **one.payload, "kind": one.kind, "at": one.created_at} for one in events]

    def failures(self, job_id: str) -> list[dict[str, Any]]:
        from tunery.reports.job import MOST_FAILURES, failure_data

        return failure_data(self._store.job(job_id).tasks, self._store.failures(job_id, MOST_FAILURES))

    def spend(self, job_id: str = "", prices: str = "") -> dict[str, Any]:
        from tunery.reports.spending import spend_data

        return spend_data(self._store, job_id, prices=prices)


@contextmanager
def source(server: str, store: str, socket: str | None = None) -> "Iterator[ServiceClient | Here]":
    """Give what knows jobs and records: the service that a command is for, or else a store of this machine.

    A command that takes a `socket` is for this user's own service where one runs, unless it names a store.
    """
    if url := server_of(server, store, socket or ""):
        from tunery.web.client import connect

        service: ServiceClient | None = connect(url)
    else:
        service = None if store or socket is None else own_service(socket)
    if service is not None:
        with service:
            yield service
        return
    from tunery.store import file_of, open_store

    kept_in = file_of(store)
    with open_store(store, create=False, keep=False) as opened:
        yield Here(opened, [kept_in] if kept_in else [])
