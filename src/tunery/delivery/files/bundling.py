"""Bundles: a compiled network in a directory that runs without Python."""

import os
import shutil
import tempfile
from pathlib import Path

from tunery._errors import UsageError
from tunery.delivery.files.loading import Trusted, identified, undamaged


def bundle(path: str | Path, directory: str | Path, *, trusted: Trusted | None = None) -> Path:
    """Write a compiled network, its runtime libraries and a C header to a new directory, and return that.

    `trusted` is as for `load_compiled`.

    Raises:
        UsageError: the file is no compiled network or a damaged one, it is not signed by a trusted key, or the
            directory exists or cannot be written.
        DialectError: this network cannot run without Python.

    Example:
        tunery.bundle("resnet18.tunery", "resnet18-bundle")
    """
    path, directory = Path(path), Path(directory)
    compiler, digest = identified(path, trusted)
    try:
        if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
            raise UsageError(f"{directory} exists already; name a new directory")
        scratch = Path(tempfile.mkdtemp(prefix=".tunery-", dir=directory.absolute().parent))
        try:
            (scratch / "bundle").mkdir()
            with undamaged(path, OSError):
                compiler.bundle(path, scratch / "bundle", digest)
            os.replace(scratch / "bundle", directory)  # noqa: PTH105 - over an empty directory
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"cannot write the bundle {directory}: {error.strerror}; name another directory") from error
    return directory
