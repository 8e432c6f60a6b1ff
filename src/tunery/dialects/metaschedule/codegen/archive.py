"""A compiled network's file: a zip of a shared object, weights, and a manifest of what it needs and what it must be.

The library is checked before the linker sees it: one that was cut short would end the process, one for another TVM may.
"""

import hashlib
import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tunery._errors import UsageError
from tunery.dialects.metaschedule.codegen.weights import Weight, read_weights, write_weights
from tunery.domain import Network, Target

LIBRARY = "network.so"
_MANIFEST, _FORMAT, _WITHOUT_WEIGHTS = "manifest.json", 3, 2
"""A file of format 3 may have weights beside its library; how these are prepared on loading is part of the format."""
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")


def manifest_of(
    network: Network, target: Target, coverage: Mapping[str, str | None], kernels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what a file says of its network.

    `coverage` maps workload keys to the candidates that were used, `kernels` the library's functions to workload keys.
    """
    return {
        "dialect": target.dialect,
        "network": network.name,
        "digest": network.digest,
        "threads": target.threads,
        "target": dict(target.config),
        "inputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.inputs],
        "outputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.outputs],
        "coverage": dict(coverage),
        "kernels": dict(kernels or {}),
    }


def write_archive(file: Path, manifest: Mapping[str, Any], library: Path, weights: Sequence[Weight] = ()) -> None:
    """Write `library`, the weights and the manifest, with the versions it needs and the library's digest, to `file`."""
    whole = {"format": _FORMAT, **manifest, "versions": _installed(), "library": _seal(library)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        if weights:
            whole["weights"] = write_weights(archive, weights)
        archive.writestr(_MANIFEST, json.dumps(whole, indent=1))
        archive.write(library, LIBRARY)


def read_archive(path: Path, directory: Path) -> tuple[dict[str, Any], list[Any]]:
    """Put the library into `directory` and return manifest and weights, once all are known to be sound and to run here.

    Raises:
        UsageError: it was written for other versions of TVM or of this format, or the library is not what was written.
        Exception: of many kinds (`zipfile.BadZipFile`, `KeyError`, `ValueError`), where it is damaged otherwise.
    """
    with zipfile.ZipFile(path) as archive:
        manifest: dict[str, Any] = json.loads(archive.read(_MANIFEST))
        again = f"write it again with `tunery compile MODEL -o {shlex.quote(str(path))}`"
        if manifest["format"] not in {_FORMAT, _WITHOUT_WEIGHTS}:
            raise UsageError(f"{path} has format {manifest['format']}, not {_FORMAT}; {again}")
        if manifest["versions"] != _installed():
            raise UsageError(
                f"{path} was compiled with {_listed(manifest['versions'])}, and runs with nothing else, but "
                f"{_listed(_installed())} is installed; {again}"
            )
        archive.extract(LIBRARY, directory)
        if manifest["library"] != _seal(directory / LIBRARY):
            raise UsageError(f"{path} is damaged: its library is not what was written; {again}")
        return manifest, read_weights(archive, manifest["weights"]) if "weights" in manifest else []


def _installed() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES}


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {number}" for name, number in versions.items())


def _seal(library: Path) -> dict[str, Any]:
    with library.open("rb") as file:
        return {"bytes": library.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
