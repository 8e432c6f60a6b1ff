"""`tunery hosts`: other machines that build and measure."""

from contextlib import suppress
from typing import Annotated

import typer

from tunery.cli.console.commands import Result, command, remark, say
from tunery.cli.console.remote import Server, server_of

HostName = Annotated[str, typer.Argument(metavar="NAME", help="What the host is called here.")]
Connect = Annotated[
    str, typer.Option("--connect", metavar="COMMAND", help='What reaches it, such as "ssh pi@10.0.0.7".')
]


_NONE = 'no hosts yet; add one: tunery hosts add NAME --connect "ssh USER@HOST"'


@command("hosts add", 'hosts add pi4 --connect "ssh pi@10.0.0.7"')
def add(
    name: HostName,
    connect: Connect,
    *,
    trust: Annotated[
        bool, typer.Option("--trust", help="Load what it builds as our own; otherwise it is only measured, confined.")
    ] = False,
) -> Result:
    """Add a host that any command reaches; `tunery agent --stdio` is appended to it."""
    from dataclasses import asdict

    from tunery.engines.remote.registry import add_host, added_hosts

    before = next((host.connect for host in added_hosts() if host.name == name), "")
    added = add_host(name, connect, trusted=trust)
    done = f"{name} has another command, not {before!r} any more" if before not in ("", connect) else f"{name} is added"
    said = (
        f"{done}: jobs build there from now on, those of a running service too; "
        f"`tunery hosts check {name}` says whether it is ready"
    )
    return Result(asdict(added), [said])


@command("hosts list", "hosts list")
def list_(
    server: Server = "",
) -> Result:
    """List the hosts that were added; with --server, the machines that work for a service."""
    if url := server_of(server):
        from tunery.reports.format import duration
        from tunery.web.client import connect

        with connect(url) as service:
            found = service.hosts()
        lines = []
        for one in found:
            waiting = ", ".join(f"{count} {kind}" for kind, count in one["queue"].items())
            load = f"{one['busy']} of {one['granted']} cores busy" if one["granted"] else ""
            did = f"{duration(one['core_s'])} of core time so far" if one.get("core_s") else ""
            others = f"{one['others']:.1f} used by others" if one.get("others") else ""
            said = ", ".join(filter(None, (load, others, did)))
            told = (one["name"], one["state"], said, waiting and f"waiting: {waiting}", one["trouble"])
            lines.append("  ".join(filter(None, told)))
        return Result({"hosts": found}, lines)
    from dataclasses import asdict

    from tunery._errors import StoreError
    from tunery.engines.remote.registry import added_hosts
    from tunery.reports.format import duration
    from tunery.store import open_store

    hosts = added_hosts()
    used: dict[str, float] = {}
    with suppress(StoreError), open_store(create=False, keep=False) as store:  # the list needs none
        used = {host: sums.core_s for host, sums in store.ledger_by_host().items()}
    lines = []
    for host in hosts:
        did = f"  {duration(used[host.name])} of core time so far" if host.name in used else ""
        lines.append(f"{host.name}  {host.connect}{'  trusted' * host.trusted}{did}")
    return Result({"hosts": [{**asdict(host), "core_s": used.get(host.name, 0.0)} for host in hosts]}, lines or [_NONE])


@command("hosts check", "hosts check pi4")
def check(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One host; all where none is named.")] = "",
    *,
    json: bool = False,
) -> Result:
    """Connect to hosts and say in plain words what is missing there: each line says ok, absent, warn or fail."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from tunery.blobs import DirectoryBlobs
    from tunery.domain import CheckState
    from tunery.engines.remote.checking import check_host
    from tunery.engines.remote.registry import added_hosts, host_named

    hosts = added_hosts()
    chosen = (host_named(name, hosts),) if name else hosts
    found = {}
    for host in chosen:
        if not json:
            remark(f"connecting to {host.name}")
        with TemporaryDirectory() as folder, DirectoryBlobs(Path(folder)) as blobs:
            found[host.name] = list(check_host(host.name, host.connect, blobs))
        for one in () if json else found[host.name]:
            say(f"{one.state.value:<6} {host.name} {one.name:<9} {one.found}{'; ' + one.advice if one.advice else ''}")
    if not (found or json):
        say(_NONE)
    failed = any(one.state is CheckState.FAIL for checks in found.values() for one in checks)
    return Result({"ok": not failed, "hosts": found}, (), int(failed))


@command("hosts remove", "hosts remove pi4")
def remove(
    name: HostName,
) -> Result:
    """Forget a host; nothing is changed there, and a running service leaves it."""
    from tunery.engines.remote.registry import remove_host

    remove_host(name)
    return Result({"removed": name}, [f"{name} is removed"])
