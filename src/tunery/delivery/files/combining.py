"""Files made of compiled files: one for several processors or shapes, and a directory that runs without Python."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tunery._archive import ACCEPTS, Archive, new_archive
from tunery._errors import UsageError
from tunery._extras import compiler_parts
from tunery._outputs import NETWORK, check_output, publish
from tunery.delivery.files.loading import Trusted, opened, undamaged
from tunery.dialects import NetworkCompiler, get_dialect, onnxruntime
from tunery.domain.request import DEFAULT_DIALECT

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def combine(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    trusted: Trusted | None = None,
    force: bool = False,
    sign: str | Path | None = None,
) -> Path:
    """Write one file of compiled files of one network for different processors or shapes, and return its path.

    Loading takes the target that needs the most instructions of those that the processor has. Weights are stored
    once. `trusted` is as for `load_compiled`, `sign` a private key's file; with `force`, `output` may replace a file of
    another kind.

    Example:
        tunery.combine(["resnet18-old.tunery", "resnet18-new.tunery"], "resnet18.tunery")
    """
    paths, output = [Path(file) for file in files], Path(output)
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UsageError("name at least two different compiled files, of one network for different processors")
    inputs = [*paths, *([Path(sign)] if sign else [])]
    check_output(output, NETWORK, inputs=inputs, force=force)
    key = _key(Path(sign)) if sign else None
    with tempfile.TemporaryDirectory(prefix="tunery-") as scratch, ExitStack() as stack:
        archives = [stack.enter_context(opened(path, trusted)) for path in paths]
        # What ONNX Runtime runs of a file for several shapes goes along; a file that it runs whole is of it alone.
        dialects = {next((name for name in _dialects(archive) if name != onnxruntime.NAME), "") for archive in archives}
        if len(dialects) > 1:
            raise UsageError(
                "these files are of different compilers; a file that ONNX Runtime runs whole needs no other: use it "
                "alone"
            )
        made = Path(scratch, "network")
        try:
            combine_archives(archives, made)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}; name another file") from error
        if key:
            from tunery.delivery.files.signing import sign as add_signature

            add_signature(made, key)
        publish(made, output, NETWORK, inputs=inputs, force=force)
    return output


def combine_archives(archives: Sequence[Archive], output: Path) -> None:
    parts = [archive.of(number) for archive in archives for number in range(len(archive.parts))]
    free = [part for part in parts if ACCEPTS in part.manifest]
    if len(free) > 1:
        raise UsageError(
            f"{free[0].path} and {free[1].path} both hold the model for further shapes; compile one of them without "
            "--any-shape"
        )
    compiled = [part for part in parts if part not in free]
    names = Path(" or ".join(str(archive.path) for archive in archives))
    with compiler_parts("combining files"), undamaged(names, OSError), new_archive(output) as writer:
        if len(compiled) > 1:
            compiler = NetworkCompiler.of(get_dialect(str(compiled[0].manifest["dialect"])))
            manifests = compiler.combine(compiled, writer)
        else:
            manifests = [writer.copy_part(part, "0") for part in compiled]
        writer.finish(*manifests, *(writer.copy_part(part, "free") for part in free))


def _dialects(archive: Archive) -> list[str]:
    return [str(part.get("dialect")) for part in archive.parts]


def _key(path: Path) -> "Ed25519PrivateKey":
    with compiler_parts("signing"):
        from tunery.delivery.files.signing import read_key
    return read_key(path)


def bundle(
    path: str | Path, directory: str | Path, *, trusted: Trusted | None = None, runtime: str | Path | None = None
) -> Path:
    """Write a compiled network, its runtime libraries and a C header to a new directory, and return that.

    `trusted` is as for `load_compiled`. `runtime` is a directory with the libraries of another kind of machine, or with
    the wheels that hold them, for a file that was compiled for such a machine.

    Example:
        tunery.bundle("resnet18.tunery", "resnet18-bundle")
    """
    path, directory = Path(path), Path(directory)
    with opened(path, trusted) as archive:
        # Its files say how they are run; what ONNX Runtime runs whole, the default dialect's interface in C runs too.
        names = [str(part.get("dialect")) for part in archive.parts]
        own = next((name for name in names if name != onnxruntime.NAME), DEFAULT_DIALECT)
        compiler = NetworkCompiler.of(get_dialect(own))
        try:
            if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
                raise UsageError(f"{directory} exists already; name a new directory")
            scratch = Path(tempfile.mkdtemp(prefix=".tunery-", dir=directory.absolute().parent))
            try:
                (scratch / "bundle").mkdir()
                with compiler_parts("a bundle"), undamaged(path, OSError):
                    compiler.bundle(archive, scratch / "bundle", Path(runtime) if runtime else None)
                os.replace(scratch / "bundle", directory)  # noqa: PTH105 - over an empty directory
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            raise UsageError(
                f"cannot write the bundle {directory}: {error.strerror}; name another directory"
            ) from error
    return directory
