"""`tunery records`: the store's upkeep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.output import emit, output_path, say
from tunery.cli.console.remote import Server, server_of

app = typer.Typer(help="Count, export, import and prune records.", no_args_is_help=False)


@app.command("stats", epilog="Example: tunery records stats --json")
def stats(
    store: options.StoreUrl = "",
    server: Server = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Count what the store holds."""
    from tunery.reports.data import plain

    if url := server_of(server, store):
        from tunery.web.client import connect

        with connect(url) as service:
            found = {**service.record_counts(), "place": service.url}
    else:
        from tunery.store import open_store

        with open_store(store, create=False, keep=False) as opened:
            found = plain(opened.stats())
    if json:
        emit(found)
        return
    say(f"{found['place']}: {found['records']} records, {found['size_bytes'] / 1e6:.1f} MB")
    say("{tasks} tasks of {workloads} workloads, {networks} networks, {jobs} jobs".format(**found))
    for title in ("outcomes", "devices", "compilers"):
        if found[title]:
            say(f"{title}: {_counts(found[title])}")


@app.command("export", epilog="Example: tunery records export records.jsonl")
def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")],
    *,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write a dataset to train on (features and latencies), not the records.")
    ] = False,
    any_compiler: Annotated[
        bool, typer.Option("--any-compiler", help="With --parquet: records made by other compiler versions too.")
    ] = False,
    account: Annotated[str, typer.Option("--account", help="Only what this account's jobs have measured.")] = "",
    network: Annotated[str, typer.Option("--network", help="Only the tasks of the network of this name.")] = "",
    sign: Annotated[str, typer.Option("--sign", metavar="KEY", help="Sign it, in FILE.sig, with this key.")] = "",
    force: options.Force = False,
    store: options.StoreUrl = "",
    server: Server = "",
    dialect: options.DialectName = options.DIALECT,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write records to a file that another store can import, as JSON lines; or a dataset as Parquet."""
    path, key = output_path(file), None
    if parquet and (account or network or sign or server):
        raise UsageError("a dataset is made of all records here; leave out --account, --network, --sign and --server")
    if sign:
        from tunery.delivery.signing import read_key

        key = read_key(Path(sign))
    if parquet:
        _export_dataset(path, store, dialect, force=force, any_compiler=any_compiler, json=json, verbose=verbose)
        return
    if url := server_of(server, store):
        if account:
            raise UsageError("a service gives an account its own records; leave out --account")
        from tunery._outputs import RECORDS, check_output
        from tunery.web.client import connect

        check_output(path, RECORDS, force=force)
        with connect(url) as service:
            count = service.export_records(path, network)
    else:
        from tunery.store import open_store

        with open_store(store, create=False, keep=False) as opened:
            count = opened.export_records(path, account=account or None, network=network, force=force)
    if key is not None:
        from tunery.delivery.signing import sign_file

        sign_file(path, key)
    if json:
        emit({"records": count, "path": path})
    else:
        say(f"{count} records written to {path}")


def _export_dataset(
    file: Path, store: str, dialect: str, *, force: bool, any_compiler: bool, json: bool, verbose: bool
) -> None:
    from tunery.cli.console.live import LiveLine
    from tunery.costmodels.training.parquet import check_dataset_output, write_parquet
    from tunery.costmodels.training.replay import load
    from tunery.costmodels.training.train import facts
    from tunery.store import file_of

    kept_in = file_of(store)
    inputs = [kept_in] if kept_in else []
    check_dataset_output(file, inputs=inputs, force=force)
    with LiveLine(verbose=verbose) as live:
        table = load(store, dialect, lambda text: live.say(text, phase="features"), any_compiler=any_compiler)
    card = write_parquet(table, file, facts(table), inputs=inputs, force=force)
    if json:
        emit({"candidates": len(table), "tasks": len(table.groups), "left_out": table.left_out, "path": file,
              "card": card})  # fmt: skip
        return
    say(f"{len(table)} candidates of {len(table.groups)} tasks written to {file}, described in {card}")
    for reason, count in table.left_out.items():
        if count:
            say(f"left out: {count} candidates {reason}")


@app.command("import", epilog="Example: tunery records import records.jsonl")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `tunery records export` wrote.")],
    trusted: Annotated[
        str, typer.Option("--trusted", metavar="KEY", help="Refuse what FILE.sig does not sign by this public key.")
    ] = "",
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Take in the records of a file as hints for later searches; those that are here already are not doubled.

    What a file says is not believed: a candidate is checked, built, verified and timed here before it is delivered.
    """
    from tunery.runtime.record_checks import import_records

    if trusted:
        from tunery.delivery.signing import check_file, read_public_key

        check_file(file, read_public_key(Path(trusted)))
    taken = import_records(store, file)
    if json:
        emit(taken)
        return
    say(f"{taken.added} records added, {taken.known} were known")
    for reason, count in taken.reasons.items():
        say(f"refused: {count} {'record' if count == 1 else 'records'} {reason}")


@app.command("prune", epilog="Example: tunery records prune --keep 20")
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, max=10**9, help="How many candidates stay for each task.")],
    task: Annotated[str, typer.Option("--task", help="Only this task's records, by its key.")] = "",
    store: options.StoreUrl = "",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the error handler
) -> None:
    """Delete all but the fastest candidates' records; what is forgotten may be paid for again."""
    from tunery.store import open_store

    with open_store(store, create=False) as opened:
        if task:
            opened.task(task)  # a task that is not there is a mistake, not nothing to do
        removed = opened.prune(task or None, keep=keep)
    if json:
        emit({"removed": removed})
    else:
        say(f"{removed} records deleted")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
