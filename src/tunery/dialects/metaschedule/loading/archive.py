"""A compiled network's file: a zip of a shared object, weights, and a manifest of what it needs and what it must be.

The library is checked before the linker sees it: one that was cut short would end the process, one for another TVM may.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunery._archive import Archive, ArchiveError, lacking_in, new_archive, open_archive
from tunery._errors import UsageError
from tunery.dialects.metaschedule.loading.weights import WEIGHTS, Weight, map_weights, write_weights
from tunery.domain import Network, Target

LIBRARY, SEGMENTS = "network.so", "segments.bin"
FORMAT = 1
"""How weights are prepared on loading, and what code calls, are part of it."""


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


def write_archive(
    file: Path,
    manifest: Mapping[str, Any],
    library: Path,
    weights: Sequence[Weight] = (),
    segments: Sequence[bytes] = (),
) -> str:
    """Write `library`, the weights, the models of segments and the manifest, with the versions it needs, to a new file.

    Return the file's SHA-256. The manifest has the segments' lengths; they are written one behind the other.
    """
    whole = {"format": FORMAT, **manifest, "versions": _installed()}
    with new_archive(file) as archive:
        if weights:
            with archive.member(WEIGHTS) as member:
                whole["weights"] = write_weights(member, weights)
        if segments:
            whole["segments"] = [len(one) for one in segments]
            with archive.member(SEGMENTS) as member:
                for one in segments:
                    member.write(one)
        archive.add(LIBRARY, library)
        archive.finish(whole)
    return archive.digest


def read_archive(
    path: Path, directory: Path, digest: str = "", *, anywhere: bool = False
) -> tuple[Mapping[str, Any], list[Any], list[bytes]]:
    """Put the library into `directory`; return manifest, weights and segments once all are known to be sound."""
    again = f"write it again with `tunery compile MODEL -o {shlex.quote(str(path))}`"
    try:
        with open_archive(path, digest) as archive:
            manifest = archive.manifest
            if manifest["format"] != FORMAT:
                raise UsageError(f"{path} has format {manifest['format']!r:.20}, not {FORMAT}; {again}")
            if manifest["versions"] != _installed():
                raise UsageError(
                    f"{path} was compiled with {_listed(manifest['versions'])}, and runs with nothing else, but "
                    f"{_listed(_installed())} is installed; {again}"
                )
            if missing := [] if anywhere else lacking_in(manifest):
                raise UsageError(
                    f"{path} was compiled for a processor with {', '.join(missing[:4]):.80}, which this one lacks; "
                    f"compile it here: `tunery compile MODEL -o {shlex.quote(str(path))}`"
                )
            archive.extract(LIBRARY, directory / LIBRARY)
            segments = _read_segments(archive) if "segments" in manifest else []
            if "weights" not in manifest:
                return manifest, [], segments
            return manifest, map_weights(archive.map(WEIGHTS), manifest["weights"]["arrays"]), segments
    except ArchiveError as error:
        raise UsageError(f"{path} is damaged: {error}; {again}") from error


def _read_segments(archive: Archive) -> list[bytes]:
    """Return the models, whose digest is the manifest's."""
    lengths = archive.manifest["segments"]
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ArchiveError("the lengths of its segments are no numbers")
    with archive.open(SEGMENTS) as file:
        models = [file.read(length) for length in lengths]
    if [len(model) for model in models] != lengths:
        raise ArchiveError(f"its {SEGMENTS} is not as long as it says")
    return models


def _installed() -> dict[str, str]:
    from tunery.dialects.metaschedule.loading.library import versions

    return versions()


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name:.40} {number:.40}" for name, number in [*versions.items()][:4])
