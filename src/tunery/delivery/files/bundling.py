"""Bundles: a compiled network in a directory that runs without Python."""

import os
import shutil
import tempfile
from pathlib import Path

from tunery._errors import UsageError
from tunery._extras import compiler_parts
from tunery.delivery.files.loading import Trusted, opened, undamaged
from tunery.dialects import NetworkCompiler, get_dialect, onnxruntime
from tunery.domain.request import DEFAULT_DIALECT


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
