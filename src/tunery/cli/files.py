"""Commands about compiled files: what one says of itself, its bundle for C, several in one, and keys to sign them."""

from collections.abc import Iterator
from dataclasses import replace
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tunery.cli.console import options
from tunery.cli.console.commands import Result, command
from tunery.cli.console.remote import Server

if TYPE_CHECKING:
    from tunery.delivery.files.inspection import CompiledFile, FileOrigin, Inspection


@command("bundle", "bundle resnet18.tunery -o resnet18-bundle")
def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A compiled network.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new directory to write.")],
    trusted: options.Trusted = None,
    runtime: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Libraries of another kind of machine, or the wheels that hold them."),
    ] = None,
) -> Result:
    """Write a network, its runtime libraries, a C header and an example to a directory that needs no Python."""
    from tunery.delivery.files.combining import bundle as write

    directory = write(file, output, trusted=trusted or None, runtime=runtime)
    size = sum(one.stat().st_size for one in directory.rglob("*") if one.is_file())
    said = f"written to {directory} ({size / 1e6:.1f} MB); its README says how to build the example"
    return Result({"directory": directory, "size_bytes": size}, [said])


@command("combine", "combine old.tunery new.tunery -o resnet18.tunery")
def combine(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Compiled networks, for different processors.")
    ],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write the network.")],
    force: options.Force = False,
    sign: options.Sign = "",
    trusted: options.Trusted = None,
) -> Result:
    """Put files of one network for different processors into one, of which the best is loaded."""
    from tunery.delivery.files.combining import combine as write

    path = write(files, output, trusted=trusted or None, force=force, sign=sign or None)
    size = path.stat().st_size
    said = f"written to {path} ({size / 1e6:.1f} MB); `tunery inspect` lists its targets"
    return Result({"path": path, "size_bytes": size}, [said])


@command("keys create", "keys create team.key")
def create_keys(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub becomes the public one.")],
) -> Result:
    """Make an ed25519 key pair: the private key signs compiled networks, the public one is for who loads them."""
    from tunery.delivery.files.signing import create_key

    public = create_key(file)
    said = [
        f"private key written to {file}: keep it to yourself, and sign with `tunery compile MODEL --sign FILE`",
        f"public key written to {public}: for whoever loads what you sign",
    ]
    return Result({"private": file, "public": public}, said)


@command("inspect", "inspect resnet18.tunery")
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A compiled network; with --server a job that has one.")],
    *,
    trusted: options.Trusted = None,
    server: Server = "",
    verbose: bool = False,
) -> Result:
    """Show what a compiled file is made of and where it comes from; nothing of it is run."""
    from tunery.delivery.files.inspection import inspect as read
    from tunery.delivery.files.inspection import said_in

    inspection = _of_job(str(file), server, trusted or None) if server else read(file, trusted or None)
    lines = (f"{name:<13} {text.translate(_ONE_LINE)}" for name, text in _lines(inspection, verbose=verbose))
    return Result(said_in(inspection), lines, int(bool(inspection.damaged)))


def _of_job(job: str, server: str, trusted: "list[Path] | None") -> "Inspection":
    from tunery.delivery.files.inspection import inspect as read
    from tunery.web.client import connect

    with TemporaryDirectory() as folder, connect(server) as service:
        path = Path(folder) / f"{job:.12}.tunery"
        service.download(job, path)
        return replace(read(path, trusted), path=path.name)


_ONE_LINE = str.maketrans({"\n": "\\n", "\r": "\\r"})
"""A text of the file is one line, and cannot pass for another one of ours."""


def _lines(found: "Inspection", *, verbose: bool) -> Iterator[tuple[str, str]]:
    from tunery.delivery.files.inspection import tensors
    from tunery.domain import Target

    file = found.file
    yield "file", f"{found.path} ({_size(found.size_bytes)})"
    yield "network", file.network or "not told"
    yield from _runs(found)
    if file.digest:
        yield "model", file.digest
    yield "dialect", file.dialect
    for one in found.targets:
        if one.target and one.threads is not None:
            shown = dumps(one.target) if verbose else str(Target(one.dialect, one.target, one.threads))
            yield "target", shown + (_use(one, file) if len(found.targets) > 1 or one.lacking else "")
    yield from _needs(found)
    if found.shapes:
        yield from (("shapes", text) for one in found.shapes for text in _shapes(one))
    else:
        yield from (("input", text) for text in tensors(file.inputs))
        yield from (("output", text) for text in tensors(file.outputs))
    yield from _parameters(file)
    yield "members", ", ".join(f"{name} {_size(count)}" for name, count in found.members.items()) or "none"
    if found.damaged:
        yield "damaged", f"{', '.join(found.damaged)}: not what was written; compile it again, it cannot be loaded"
    if file.segments:
        yield "segments", f"{len(file.segments)} that ONNX Runtime runs, {_size(sum(file.segments))}"
    if file.origin is None:
        yield "origin", "not told: an earlier version of tunery wrote it"
    else:
        yield from _origin(file.origin, whole=file.dialect == "onnxruntime")
    if verbose:
        yield from (("candidate", f"{key}  {used or 'compiler-default'}") for key, used in file.coverage.items())
    yield (
        "signature",
        {
            "none": "none",
            "unchecked": "by whom is not known: name a public key with --trusted",
            "trusted": "by a key that you trust",
        }[found.signature],
    )


def _needs(found: "Inspection") -> Iterator[tuple[str, str]]:
    file = found.file
    if file.threads:
        yield "threads", f"{found.threads} here of {file.threads}, unless the call that loads it says otherwise"
    if file.versions:
        yield "needs", ", ".join(f"{name} {number}" for name, number in file.versions.items())


def _runs(found: "Inspection") -> Iterator[tuple[str, str]]:
    from tunery.delivery.files.inspection import tensors

    for one in found.shapes or [found.file]:
        if one.origin and one.origin.verdict:
            which = f" for {', '.join(tensors(one.inputs))}" if len(found.shapes) > 1 else ""
            yield "runs", one.origin.verdict.headline.removeprefix("runs: ") + which


def _parameters(file: "CompiledFile") -> Iterator[tuple[str, str]]:
    """Say what was chosen for a user's own kernel, and what its author had chosen where that is another value."""
    said = []
    for name, value in file.parameters.items():
        before = file.default.get(name, value)
        said.append(f"{name} = {value}{'' if before == value else f' (default {before})'}")
    if said:
        yield "parameters", ", ".join(said)


def _shapes(one: "CompiledFile") -> Iterator[str]:
    from tunery.delivery.files.inspection import tensors

    if one.accepts is None:
        yield f"{', '.join(tensors(one.inputs))} -> {', '.join(tensors(one.outputs))}"
        return
    for shapes in one.accepts:
        named = (f"{name}{shape}" for (name, _, _), shape in zip(one.inputs, shapes, strict=False))
        yield f"{', '.join(named)}, in ONNX Runtime"
    if one.others:
        yield "all others, in ONNX Runtime"


def _use(one: "CompiledFile", chosen: "CompiledFile") -> str:
    if one.lacking:
        return f"  not here: this processor lacks {', '.join(one.lacking[:4])}"
    return "  used here" if one is chosen else "  not used: another is better here"


def _origin(origin: "FileOrigin", *, whole: bool) -> Iterator[tuple[str, str]]:
    yield "written by", f"tunery {origin.tunery}"
    yield "compiler", origin.compiler
    yield "device", f"{origin.device.name}, {origin.device.cores} cores  {origin.device.fingerprint}"
    counts = [f"{count} {rung}" for rung, count in origin.rungs.items()]
    counts += [f"{origin.elsewhere} nodes in ONNX Runtime"] if origin.elsewhere else []
    yield "operators", ", ".join(counts) or "not told"
    checked = origin.verified
    yield (
        "verified",
        f"{checked.outputs} output{'s' * (checked.outputs != 1)} against {checked.against}, largest deviation "
        f"{checked.max_abs_error:.3g}, on "
        f"{', '.join(checked.inputs)} inputs{f', {len(checked.left_out)} kinds fail there' if checked.left_out else ''}"
        if checked
        else "nothing to compare: ONNX Runtime runs it whole"
        if whole
        else "not compared with ONNX Runtime",
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
