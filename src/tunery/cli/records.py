"""`tunery records`: the store's upkeep."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunery._errors import UsageError
from tunery.cli.console import options
from tunery.cli.console.commands import Only, Result, command, output_path
from tunery.cli.console.remote import Server, server_of, source
from tunery.domain.request import Request

if TYPE_CHECKING:
    from tunery.domain import Task


@command("records stats", "records stats --json")
def stats(store: options.StoreUrl = "", server: Server = "") -> Result:
    """Count what the store holds."""
    with source(server, store) as known:
        counts = known.record_counts()

    def lines() -> Iterator[str]:
        yield f"{counts['place']}: {counts['records']} records, {counts['size_bytes'] / 1e6:.1f} MB"
        yield "{tasks} tasks of {workloads} workloads, {networks} networks, {jobs} jobs".format(**counts)
        for title in ("outcomes", "devices", "compilers"):
            if counts[title]:
                yield f"{title}: {_counts(counts[title])}"

    return Result(counts, lines())


@command("records export", "records export records.jsonl")
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
    format_name: Annotated[
        str, typer.Option("--format", help="Write one kernel's records as kernel-tuner (a cache) or t4 has them.")
    ] = "",
    task: Annotated[str, typer.Option("--task", help="With --format: this task's, by its key or its start.")] = "",
    force: options.Force = False,
    request: Annotated[Request, Only("store", "dialect")],
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Write records to a file that another store can import, as JSON lines; or a dataset as Parquet."""
    path, key, store = output_path(file), None, request.store
    if parquet and (account or network or sign or server):
        raise UsageError("a dataset is made of all records here; leave out --account, --network, --sign and --server")
    if sign:
        from tunery.delivery.files.signing import read_key

        key = read_key(Path(sign))
    if format_name or task:
        if parquet or account or network or sign or server:
            raise UsageError("--format is for the records of one task here; of the others it takes --task alone")
        return _export_format(path, store, format_name, task, force=force)
    if parquet:
        return _export_dataset(path, store, request.dialect, force=force, any_compiler=any_compiler, verbose=verbose)
    from tunery._outputs import RECORDS, check_output

    with source(server, store) as known:
        check_output(path, RECORDS, inputs=known.files, force=force)
        count = known.export_records(path, network, account)
    if key is not None:
        from tunery.delivery.files.signing import sign_file

        sign_file(path, key)
    return Result({"records": count, "path": path}, [f"{count} records written to {path}"])


def _export_format(path: Path, store_url: str, format_name: str, key: str, *, force: bool) -> Result:
    """Write a task's records on the device that has most of them, in the words of another program."""
    from tunery._outputs import RESULTS, whole_file
    from tunery.dialects import RecordWriter, get_dialect
    from tunery.reports.records import device_names
    from tunery.store import file_of, open_store

    if not format_name:
        raise UsageError("--task is for one task's records in another format; give --format as well")
    with open_store(store_url, create=False, keep=False) as store:
        found = store.tasks_like(key) if key else _kernels(store.tasks())
        if len(found) != 1:
            shown = "".join(f", {one.workload.name} {one.key}" for one in found[:4])
            raise UsageError(f"a file in the format {format_name} is of one task, and {len(found)} are here{shown}; "
                             "name one with --task KEY")  # fmt: skip
        records, names = store.records(found[0].key), device_names(store)
    [task] = found
    writer = RecordWriter.of(get_dialect(task.target.dialect))
    devices = Counter(record.provenance.device for record in records)
    device = max(devices, key=lambda one: (devices[one], one), default="")
    mine = [record for record in records if record.provenance.device == device]
    text = writer.write_records(task, mine, names.get(device) or device, format_name)
    kept_in = file_of(store_url)
    with whole_file(path, RESULTS, inputs=[kept_in] if kept_in else [], force=force) as file:
        file.write(text.encode())
    said = f"{len(mine)} records of {task.workload.name} written to {path}"
    return Result({"records": len(mine), "path": path}, [said])


def _kernels(tasks: "list[Task]") -> "list[Task]":
    from tunery.dialects import RecordWriter, get_dialect

    writers = {name: isinstance(get_dialect(name), RecordWriter) for name in {one.target.dialect for one in tasks}}
    return [one for one in tasks if writers[one.target.dialect]]


def _export_dataset(file: Path, store: str, dialect: str, *, force: bool, any_compiler: bool, verbose: bool) -> Result:
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
    said = [
        f"{len(table)} candidates of {len(table.groups)} tasks written to {file}, described in {card}",
        *(f"left out: {count} candidates {reason}" for reason, count in table.left_out.items() if count),
    ]
    data: dict[str, Any] = {
        "candidates": len(table), "tasks": len(table.groups), "left_out": table.left_out, "path": file, "card": card,
    }  # fmt: skip
    return Result(data, said)


@command("records import", "records import records.jsonl")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `tunery records export` wrote.")],
    *,
    trusted: Annotated[
        str, typer.Option("--trusted", metavar="KEY", help="Refuse what FILE.sig does not sign by this public key.")
    ] = "",
    store: options.StoreUrl = "",
    server: Server = "",
) -> Result:
    """Take in the records of a file as hints for later searches; those that are here already are not doubled.

    What a file says is not believed: a candidate is checked, built, verified and timed here before it is delivered.
    """
    if trusted:
        from tunery.delivery.files.signing import check_file, read_public_key

        check_file(file, read_public_key(Path(trusted)))
    if url := server_of(server, store):
        from tunery.web.client import connect

        with connect(url) as service:
            taken = service.import_records(file)
    else:
        from tunery.reports.data import plain
        from tunery.runtime.record_checks import import_records

        taken = plain(import_records(store, file))
    said = [f"{taken['added']} records added, {taken['known']} were known"]
    for reason, count in taken["reasons"].items():
        said.append(f"refused: {count} {'record' if count == 1 else 'records'} {reason}")
    return Result(taken, said)


@command("records prune", "records prune --keep 20")
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, max=10**9, help="How many candidates stay for each task.")],
    task: Annotated[str, typer.Option("--task", help="Only this task's records, by its key.")] = "",
    store: options.StoreUrl = "",
) -> Result:
    """Delete all but the fastest candidates' records; what is forgotten may be paid for again."""
    from tunery.store import open_store

    with open_store(store, create=False) as opened:
        if task:
            opened.task(task)  # a task that is not there is a mistake, not nothing to do
        removed = opened.prune(task or None, keep=keep)
    return Result({"removed": removed}, [f"{removed} records deleted"])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
