"""A compiled network's file: a zip of a shared object, weights, and a manifest of what it needs and what it must be.
The library is checked before the linker sees it: one that was cut short would end the process, one for another TVM
may."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from tunery._archive import (
    FILES,
    INSTRUCTIONS,
    MOST_SHAPES,
    MOST_TARGETS,
    Archive,
    ArchiveError,
    ArchiveWriter,
    lacking_in,
    new_archive,
)
from tunery._errors import UsageError
from tunery.dialects.metaschedule.loading import library
from tunery.dialects.metaschedule.loading.weights import WEIGHTS, Weight, map_weights, write_shared, write_weights
from tunery.domain import Network, Target

LIBRARY, SEGMENTS = "network.so", "segments.bin"
FORMAT = 1
"""How weights are prepared on loading, and what code calls, are part of it."""
_SHARED = ("dialect", "network", "versions")
_OF_SHAPE = ("digest", "inputs", "outputs")
"""What the targets of one set of shapes share beside that."""


def manifest_of(
    network: Network, target: Target, coverage: Mapping[str, str | None], kernels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what a file says of its network. `coverage` maps workload keys to the candidates that were used, `kernels`
    the library's functions to workload keys."""
    return {
        "dialect": target.dialect,
        "network": network.name,
        "digest": network.digest,
        "threads": target.threads,
        "target": dict(target.config),
        "inputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.inputs],
        "outputs": [[spec.name, list(spec.shape), spec.dtype] for spec in network.outputs],
        "rows": {name: taken.rows for name, taken in network.ranges.items() if taken.rows},
        "coverage": dict(coverage),
        "kernels": dict(kernels or {}),
    }


def write_archive(
    file: Path,
    manifest: Mapping[str, Any],
    code: Path,
    weights: Sequence[Weight] = (),
    segments: Sequence[bytes] = (),
) -> str:
    """Write `code`, the weights, the models of segments and the manifest, with the versions it needs, to a new file.
    Return the file's SHA-256. The manifest has the segments' lengths; they are written one behind the other."""
    whole = {"format": FORMAT, **manifest, "versions": library.versions()}
    with new_archive(file) as archive:
        if weights:
            with archive.member(WEIGHTS) as member:
                whole["weights"] = write_weights(member, weights)
        if segments:
            whole["segments"] = [len(one) for one in segments]
            with archive.member(SEGMENTS) as member:
                for one in segments:
                    member.write(one)
        archive.add(LIBRARY, code)
        archive.finish(whole)
    return archive.digest


def read_archive(
    archive: Archive, directory: Path, *, anywhere: bool = False
) -> tuple[Mapping[str, Any], list[Any], list[bytes]]:
    """Put the library into `directory`; return manifest, weights and segments once all are known to be sound."""
    path, manifest = archive.path, archive.manifest
    again = f"`tunery compile MODEL -o {shlex.quote(str(path))}`"
    if manifest["format"] != FORMAT:
        raise UsageError(f"{path} has format {manifest['format']!r:.20}, not {FORMAT}; write it again with {again}")
    if manifest["versions"] != library.versions():
        raise UsageError(
            f"{path} was compiled with {_listed(manifest['versions'])}, and runs with nothing else, but "
            f"{_listed(library.versions())} is installed; write it again with {again}"
        )
    if missing := [] if anywhere else lacking_in(manifest):
        raise UsageError(
            f"{path} was compiled for a processor with {', '.join(missing[:4]):.80}, which this one lacks; compile it "
            f"here: {again}"
        )
    archive.extract(LIBRARY, directory / LIBRARY)
    segments = _read_segments(archive) if "segments" in manifest else []
    weights = map_weights(archive.map(WEIGHTS), manifest["weights"]["arrays"]) if "weights" in manifest else []
    return manifest, weights, segments


def _read_segments(archive: Archive) -> list[bytes]:
    lengths = archive.manifest["segments"]
    if not isinstance(lengths, list) or not all(type(length) is int and length > 0 for length in lengths):
        raise ArchiveError("the lengths of its segments are no numbers")
    content = archive.read(SEGMENTS)
    if sum(lengths) != len(content):
        raise ArchiveError(f"its {SEGMENTS} is not as long as it says")
    ends = list(accumulate(lengths))
    return [content[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _listed(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{name:.40} {number:.40}" for name, number in [*versions.items()][:4])


def combine(parts: Sequence[Archive], writer: ArchiveWriter) -> list[dict[str, Any]]:
    """Write the members of parts for different targets and shapes; return what to say of them."""
    _check(parts)
    with writer.member(WEIGHTS) as member:
        weights = write_shared(member, [
            (part.map(WEIGHTS), part.manifest["weights"]["arrays"]) if "weights" in part.manifest
            else (memoryview(b""), []) for part in parts
        ])  # fmt: skip
    manifests = []
    for number, (part, arrays) in enumerate(zip(parts, weights, strict=True)):
        manifest = writer.copy_part(part, str(number), without=WEIGHTS)
        if arrays["arrays"]:
            manifest["weights"] = arrays
            manifest[FILES][WEIGHTS] = WEIGHTS
        manifests.append(manifest)
    return manifests


def _shapes(part: Archive) -> str:
    return json.dumps(part.manifest["inputs"])


def _instructions(part: Archive) -> frozenset[str]:
    return frozenset(map(str, part.manifest.get(INSTRUCTIONS, ())))


def _check(parts: Sequence[Archive]) -> None:
    """Check that parts are of one network, each for other shapes or another processor, and that none is missing."""
    shapes, targets = (list(dict.fromkeys(map(of, parts))) for of in (_shapes, _instructions))
    for what, count, most in (("shapes", len(shapes), MOST_SHAPES), ("targets", len(targets), MOST_TARGETS)):
        if count > most:
            raise UsageError(f"a file holds at most {most} {what}, and these are {count}; leave some out")
    by_both: dict[tuple[str, frozenset[str]], Archive] = {}
    by_shapes: dict[str, Archive] = {}
    for part in parts:
        _check_alike(part, parts[0], _SHARED)
        _check_alike(part, by_shapes.setdefault(_shapes(part), part), _OF_SHAPE)
        for side in ("inputs", "outputs"):
            theirs, ours = (
                [(name, len(shape), dtype) for name, shape, dtype in one.manifest[side]] for one in (part, parts[0])
            )
            if theirs != ours:
                raise UsageError(f"{part.path} has other {side} than {parts[0].path}; combine files of one network")
        other = by_both.setdefault((_shapes(part), _instructions(part)), part)
        if other is not part:
            raise UsageError(
                f"{other.path} and {part.path} need the same instructions for the same shapes, so one of them would "
                "never run; leave it out"
            )
    if len(by_both) < len(shapes) * len(targets):
        missing = next(
            part for shape, part in by_shapes.items() if any((shape, needed) not in by_both for needed in targets)
        )
        raise UsageError(
            f"the shapes of {missing.path} are not there for all of these processors; compile every shape for each"
        )


def _check_alike(part: Archive, first: Archive, shared: Sequence[str]) -> None:
    if part.manifest["format"] != FORMAT:
        raise UsageError(f"{part.path} is of an earlier version; write it again with `tunery compile`, then combine")
    odd = next((name for name in shared if part.manifest[name] != first.manifest[name]), "")
    if odd:
        what = {"versions": "was compiled with other versions of TVM"}.get(odd, f"has another {odd}")
        raise UsageError(f"{part.path} {what} than {first.path}; combine files of one network, compiled alike")
