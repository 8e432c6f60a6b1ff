"""One file of several: a network for several targets, or several shapes, with one copy of its weights."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tunery._archive import (
    FILES,
    INSTRUCTIONS,
    MEMBERS,
    MOST_SHAPES,
    MOST_TARGETS,
    SHAPES,
    TARGETS,
    Archive,
    ArchiveError,
    new_archive,
    open_archive,
)
from tunery._errors import UsageError
from tunery.dialects.metaschedule.loading.archive import FORMAT, LIBRARY, SEGMENTS
from tunery.dialects.metaschedule.loading.weights import WEIGHTS, write_shared

_SHARED = ("dialect", "network", "versions")
_OF_TARGETS = ("digest", "inputs", "outputs")
"""What the files of several targets share beside that."""


def combine(files: Mapping[Path, str], output: Path) -> None:
    """Write a file for all targets, or all shapes, of these files, given with their manifests' digests, to a new file.

    Raises:
        UsageError: they are not of one network for different processors or shapes, or one is damaged or too old.
        OSError: the file cannot be written.
    """
    try:
        _combine(files, output)
    except ArchiveError as error:
        names = ", ".join(map(str, files))
        raise UsageError(f"one of {names} is damaged: {error}; write it again with `tunery compile`") from error


def _combine(files: Mapping[Path, str], output: Path) -> None:
    with ExitStack() as stack:
        archives = [stack.enter_context(open_archive(path, digest)) for path, digest in files.items()]
        kind = SHAPES if len({_shapes(archive) for archive in archives}) > 1 else TARGETS
        shared = _SHARED if kind == SHAPES else (*_SHARED, *_OF_TARGETS)
        _check([*files], archives, shared)
        (_check_shapes if kind == SHAPES else _check_targets)([*files], archives)
        with new_archive(output) as made:
            with made.member(WEIGHTS) as member:
                weights = write_shared(member, [_weights_of(archive) for archive in archives])
            several = []
            for number, (archive, told) in enumerate(zip(archives, weights, strict=True)):
                own = {name: value for name, value in archive.manifest.items() if name not in {*shared, MEMBERS}}
                names = [name for name in (LIBRARY, SEGMENTS) if name in archive.sizes]
                own[FILES] = {name: made.copy(archive, name, f"{number}/{name}") for name in names}
                if told["arrays"]:
                    own["weights"] = told
                several.append(own)
            # The format is for versions that do not know such files; each part has its own.
            made.finish({**{name: archives[0].manifest[name] for name in shared}, "format": kind, kind: several})


def _shapes(archive: Archive) -> str:
    return json.dumps(archive.manifest["inputs"])


def _weights_of(archive: Archive) -> tuple[memoryview, Sequence[Mapping[str, Any]]]:
    told = archive.manifest.get("weights")
    return (archive.map(WEIGHTS), told["arrays"]) if told else (memoryview(b""), [])


def _check(paths: Sequence[Path], archives: Sequence[Archive], shared: Sequence[str]) -> None:
    """Check that files are of one network, and each of one part of it.

    Raises:
        UsageError: they are not.
    """
    for path, archive in zip(paths, archives, strict=True):
        manifest, first = archive.manifest, archives[0].manifest
        if len(archive.targets) > 1 or archive.shapes:
            what = "shapes" if archive.shapes else "targets"
            raise UsageError(f"{path} holds several {what} already; combine the files that it was made of")
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} is of an earlier version; write it again with `tunery compile`, then combine")
        odd = next((name for name in shared if manifest[name] != first[name]), "")
        if odd:
            what = {"versions": "was compiled with other versions of TVM"}.get(odd, f"has another {odd}")
            raise UsageError(f"{path} {what} than {paths[0]}; combine files of one network, compiled alike")


def _check_shapes(paths: Sequence[Path], archives: Sequence[Archive]) -> None:
    """Check that files are for different shapes of the same inputs.

    Raises:
        UsageError: they are not.
    """
    if len(paths) > MOST_SHAPES:
        raise UsageError(f"a file holds at most {MOST_SHAPES} shapes, and these are {len(paths)}; leave some out")
    first, found = archives[0].manifest, dict[str, Path]()
    for path, archive in zip(paths, archives, strict=True):
        for side in ("inputs", "outputs"):
            theirs, ours = ([(n, len(s), d) for n, s, d in of[side]] for of in (archive.manifest, first))
            if theirs != ours:
                raise UsageError(f"{path} has other {side} than {paths[0]}; combine files of one network")
        if archive.manifest.get(INSTRUCTIONS) != first.get(INSTRUCTIONS):
            raise UsageError(
                f"{path} is for another processor than {paths[0]}, and for other shapes; combine files that differ in "
                "one of both"
            )
        if other := found.get(_shapes(archive)):
            raise UsageError(
                f"{other} and {path} are for the same shapes, so one of them would never run; leave it out"
            )
        found[_shapes(archive)] = path


def _check_targets(paths: Sequence[Path], archives: Sequence[Archive]) -> None:
    """Check that files are for different processors.

    Raises:
        UsageError: they are not.
    """
    if len(paths) > MOST_TARGETS:
        raise UsageError(f"a file holds at most {MOST_TARGETS} targets, and these are {len(paths)}; leave some out")
    needs: dict[frozenset[str], Path] = {}
    for path, archive in zip(paths, archives, strict=True):
        needed = frozenset(map(str, archive.manifest.get(INSTRUCTIONS, ())))
        if needed in needs:
            raise UsageError(
                f"{needs[needed]} and {path} need the same instructions, so one of them would never run; leave it out"
            )
        needs[needed] = path
