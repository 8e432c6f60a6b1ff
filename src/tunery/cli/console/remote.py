"""Where a command is carried out: by a service, this user's own or one on the network, or here with added hosts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError, WorkError
from tunery.cli.console.following import followed
from tunery.cli.console.output import output_path, remark

if TYPE_CHECKING:
    from tunery.domain.request import Request
    from tunery.web.client import ServiceClient, Watcher

Server = Annotated[
    str, typer.Option("--server", metavar="URL", help="Let this service do it, where `tunery login` was given a token.")
]
Socket = Annotated[str, typer.Option("--socket", metavar="FILE", help="Where your own service listens.")]


def server_of(given: str, *instead: str) -> str:
    """Return the URL of the service that a command is for: `given`, else TUNERY_SERVER; "" for none.

    What the command was told `instead`, a store or a socket of this machine, comes before the variable.

    Raises:
        UsageError: it was told both.
    """
    from tunery._settings import settings

    if given and any(instead):
        raise UsageError(
            "--store and --socket are for this machine, not for a service; leave them out, or leave out --server"
        )
    return given or ("" if any(instead) else settings().server)


def say_hosts() -> list[str]:
    """Say which hosts are used beside this machine, where any were added, and return their names."""
    from tunery.engines.remote.registry import added_hosts

    names = [host.name for host in added_hosts()]
    if names:
        remark(f"hosts in use beside this machine: {', '.join(names)} (see `tunery hosts list`)")
    return names


def fetched_file(request: "Request", output: str, *, force: bool) -> Path:
    """Return where a service's compiled network goes, once it is known that it may go there.

    Raises:
        UsageError: it may not.
    """
    from tunery._outputs import NETWORK, check_output

    path = network_path(request, output)
    check_output(path, NETWORK, inputs=[] if ":" in request.model else [Path(request.model)], force=force)
    return path


def network_path(request: "Request", output: str) -> Path:
    """Return the file that `-o` names; in a directory, its name is that of the model.

    Raises:
        UsageError: it names a directory that is not there.
    """
    from tunery.reports.format import file_name

    return output_path(output, file_name(Path(request.model.rpartition(":")[2]).stem, request))


def service_at(server: str, socket: str) -> "ServiceClient":
    """Return the service on the network that a command is for, or else this user's own.

    Raises:
        UsageError: there is none, or it is another user's.
    """
    from tunery._settings import socket_path
    from tunery.web.client import ServiceClient, connect

    url = server_of(server, socket)
    return connect(url) if url else ServiceClient.local(socket_path(socket))


def service_or_none(server: str, socket: str, store: str) -> "ServiceClient | None":
    """Return the service that knows the jobs which a command is about; None where they are in a store of ours."""
    if server_of(server, socket, store):
        return service_at(server, socket)
    return None if store else own_service(socket)


def own_service(socket: str) -> "ServiceClient | None":
    """Return the service that this user runs, None where none does."""
    from tunery._settings import socket_path

    if not (path := socket_path(socket)).exists():
        return None  # nothing of it is imported
    from tunery.web.client import ServiceClient

    try:
        return ServiceClient.local(path)
    except UsageError:
        return None


def own_store(socket: str) -> str:
    """Return the URL of the store of this user's service; "" where none runs."""
    service = own_service(socket)
    if service is None:
        return ""
    with service:
        return str(service.about()["store"])


def answered(url: str, request: "Request", *, create: bool = True, verbose: bool) -> dict[str, Any]:
    """Return what a job of the request's kind answers: at the service `url`, or done here where that is "".

    Here its store is created if need be, unless `create` is False.

    Raises:
        WorkError: it has failed, or was paused or cancelled.
    """
    if not url:
        from tunery.service.session import Session

        with Session(request.store, create=create, keep=False) as session:
            return dict(session.answer(request))
    from tunery.domain import JobState
    from tunery.web.client import connect, run_there

    with connect(url) as service, watching(service, verbose=verbose) as watcher:
        status, answer = run_there(service, request, watcher)
    if status.state is not JobState.DONE:
        raise WorkError(f"job {status.job_id} is {status.state.value}; it has no answer")
    return answer


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
