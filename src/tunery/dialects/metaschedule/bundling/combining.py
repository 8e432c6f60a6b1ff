"""One file of several: a network for several targets, with one copy of its weights."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tunery._archive import (
    FILES,
    INSTRUCTIONS,
    MEMBERS,
    MOST_TARGETS,
    TARGETS,
    Archive,
    ArchiveError,
    new_archive,
    open_archive,
)
from tunery._errors import UsageError
from tunery.dialects.metaschedule.loading.archive import FORMAT, LIBRARY, SEGMENTS
from tunery.dialects.metaschedule.loading.weights import WEIGHTS, write_shared

_SHARED = ("dialect", "network", "digest", "inputs", "outputs", "versions")
_SEVERAL = "targets"
"""The format of such a file, for versions that do not know it; each target has its own."""


def combine(files: Mapping[Path, str], output: Path) -> None:
    """Write a file for all targets of these files, given with their manifests' digests, to a new file.

    Raises:
        UsageError: they are not of one network for different processors, or one is damaged or too old.
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
        _check([*files], archives)
        with new_archive(output) as made:
            with made.member(WEIGHTS) as member:
                weights = write_shared(member, [_weights_of(archive) for archive in archives])
            targets = []
            for number, (archive, told) in enumerate(zip(archives, weights, strict=True)):
                own = {name: value for name, value in archive.manifest.items() if name not in {*_SHARED, MEMBERS}}
                names = [name for name in (LIBRARY, SEGMENTS) if name in archive.sizes]
                own[FILES] = {name: made.copy(archive, name, f"{number}/{name}") for name in names}
                if told["arrays"]:
                    own["weights"] = told
                targets.append(own)
            shared = {name: archives[0].manifest[name] for name in _SHARED}
            made.finish({**shared, "format": _SEVERAL, TARGETS: targets})


def _weights_of(archive: Archive) -> tuple[memoryview, Sequence[Mapping[str, Any]]]:
    told = archive.manifest.get("weights")
    return (archive.map(WEIGHTS), told["arrays"]) if told else (memoryview(b""), [])


def _check(paths: Sequence[Path], archives: Sequence[Archive]) -> None:
    """Check that files may be put into one.

    Raises:
        UsageError: they may not.
    """
    if len(paths) > MOST_TARGETS:
        raise UsageError(f"a file holds at most {MOST_TARGETS} targets, and these are {len(paths)}; leave some out")
    needs: dict[frozenset[str], Path] = {}
    for path, archive in zip(paths, archives, strict=True):
        manifest, first = archive.manifest, archives[0].manifest
        if len(archive.targets) > 1:
            raise UsageError(f"{path} holds several targets already; combine the files that it was made of")
        if manifest["format"] != FORMAT:
            raise UsageError(f"{path} is of an earlier version; write it again with `tunery compile`, then combine")
        odd = next((name for name in _SHARED if manifest[name] != first[name]), "")
        if odd:
            what = {"versions": "was compiled with other versions of TVM"}.get(odd, f"has another {odd}")
            raise UsageError(f"{path} {what} than {paths[0]}; combine files of one network, compiled alike")
        needed = frozenset(map(str, manifest.get(INSTRUCTIONS, ())))
        if needed in needs:
            raise UsageError(
                f"{needs[needed]} and {path} need the same instructions, so one of them would never run; leave it out"
            )
        needs[needed] = path
