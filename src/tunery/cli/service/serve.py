"""`tunery serve`: jobs of this user, or of accounts; `tunery agent`: the workers of this host for another."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import command, emit, remark, say
from tunery.cli.console.remote import Socket

if TYPE_CHECKING:
    from tunery.web.server import Place


class LogFormat(StrEnum):
    """How the service writes its log: warnings as text, or all of it as JSON, one object a line."""

    TEXT = "text"
    JSON = "json"


@command("agent", "agent --stdio", prints=False)
def agent(
    stdio: Annotated[bool, typer.Option("--stdio", help="Talk over the standard input and output.")] = False,
) -> None:
    """Run this host's workers for a tunery on another host, which starts this command: see `tunery hosts add`."""
    from tunery._settings import cache_directory
    from tunery.engines.remote.agent import serve_stdio

    if not stdio:
        raise UsageError("an agent talks over its standard input and output only: write `tunery agent --stdio`")
    raise typer.Exit(serve_stdio(cache_directory()))


@command("serve", "serve --listen 127.0.0.1:7433")
def serve(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="For accounts with tokens; else for you alone.")
    ] = "",
    certificate: Annotated[str, typer.Option("--tls-certificate", metavar="FILE", help="Of TLS, in PEM.")] = "",
    key: Annotated[str, typer.Option("--tls-key", metavar="FILE", help="The certificate's private key.")] = "",
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front of it has TLS.")] = False,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0.0, help="Delete older events, uploads and compiled files; 0: never.")
    ] = 0.0,
    store: options.StoreUrl = "",
    engine: options.Engine = "",
    strategy: Annotated[
        str, typer.Option("--strategy", help="Who goes first; a wrong name lists the strategies.")
    ] = "predictive",
    socket: Socket = "",
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="How the log on standard error is written; json: an object a line."),
    ] = LogFormat.TEXT,
    json: bool = False,
) -> None:
    """Run jobs for whoever submits them, until Ctrl-C; unfinished jobs go on with the next start."""
    from tunery._settings import cache_directory, choose_engine, socket_path
    from tunery.web.server import Place, parse_place, serve_user

    choose_engine(engine)
    tell: Callable[[str], None] = remark
    if log_format is LogFormat.JSON:
        from tunery.service.logs import log_json

        tell = log_json()
    if not listen and (certificate or key or behind_proxy or keep_days):
        raise UsageError(
            "--tls-certificate, --tls-key, --behind-proxy and --keep-days are for --listen HOST:PORT; give it as well"
        )
    if listen and socket:
        raise UsageError("--socket is for your own service; leave it out, or leave out --listen")
    if listen:
        place = Place(*parse_place(listen), certificate, key, behind_proxy=behind_proxy)
        _listen(store, place, strategy, keep_days, tell, as_json=json)
        return
    path = socket_path(socket)

    def ready(jobs: list[str]) -> None:
        if json:
            emit({"socket": path, "resumed": jobs})
        else:
            tell(f"listening at {path}" + (f"; going on with {len(jobs)} jobs" if jobs else ""))

    serve_user(store, path, cache_directory() / "service", strategy, ready)


def _listen(
    store: str, place: "Place", strategy: str, keep_days: float, tell: Callable[[str], None], *, as_json: bool
) -> None:
    from tunery._sandbox import lacking
    from tunery._settings import cache_directory, settings
    from tunery.web.server import serve as serve_accounts

    def ready(url: str, token: str, jobs: list[str]) -> None:
        if parts := lacking():
            taken = "taken all the same" if settings().unconfined_kernels else "refused"
            tell(f"this machine lacks {' and '.join(parts)}: kernels of accounts are {taken}")
        if as_json:
            emit({"url": url, "token": token or None, "resumed": jobs})
            return
        if token:
            say(f"{token}\nis the token of the first account, admin; it is shown this once")
        tell(f"listening at {url}" + (f"; going on with {len(jobs)} jobs" if jobs else ""))

    serve_accounts(store, place, cache_directory() / "service", strategy, ready, keep_days)
