"""One file of several: a network for several targets, several shapes, or both, with one copy of its weights."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunery._archive import (
    ACCEPTS,
    FILES,
    INSTRUCTIONS,
    MEMBERS,
    MOST_SHAPES,
    MOST_TARGETS,
    SHAPES,
    TARGETS,
    Archive,
    ArchiveError,
    ArchiveWriter,
    new_archive,
    open_archive,
    part_of,
)
from tunery._errors import UsageError
from tunery.dialects.metaschedule.loading.archive import FORMAT, LIBRARY, SEGMENTS
from tunery.dialects.metaschedule.loading.weights import WEIGHTS, write_shared

_SHARED = ("dialect", "network", "versions")
_OF_SHAPE = ("digest", "inputs", "outputs")
"""What the targets of one set of shapes share beside that."""


@dataclass(frozen=True)
class _Part:
    """What one file has for one set of shapes and one target."""

    path: Path
    archive: Archive

    @property
    def shapes(self) -> str:
        return json.dumps(self.archive.manifest["inputs"])

    @property
    def instructions(self) -> frozenset[str]:
        return frozenset(map(str, self.archive.manifest.get(INSTRUCTIONS, ())))


def combine(files: Mapping[Path, str], output: Path) -> None:
    """Write a file for all targets and shapes of these files, given with their manifests' digests, to a new file.

    A model that ONNX Runtime runs for other shapes may be in one of them.
    """
    try:
        with ExitStack() as stack:
            found = [part for path, digest in files.items() for part in _opened(stack, path, digest)]
            free = [part for part in found if ACCEPTS in part.archive.manifest]
            if len(free) > 1:
                raise UsageError(
                    f"{free[0].path} and {free[1].path} both hold the model for further shapes; compile one of them "
                    "without --any-shape"
                )
            parts = [part for part in found if part not in free]
            _check(parts)
            with new_archive(output) as made:
                _write(parts, free, made)
    except ArchiveError as error:
        names = ", ".join(map(str, files))
        raise UsageError(f"one of {names} is damaged: {error}; write it again with `tunery compile`") from error


def _opened(stack: ExitStack, path: Path, digest: str) -> Iterator[_Part]:
    first = stack.enter_context(open_archive(path, digest))
    for shape in range(len(first.shapes) or 1):
        one = stack.enter_context(open_archive(path, part_of(first.digest, shape)))
        for target in range(len(one.targets)):
            yield _Part(path, stack.enter_context(open_archive(path, part_of(first.digest, shape, target))))


def _write(parts: Sequence[_Part], free: Sequence[_Part], made: ArchiveWriter) -> None:
    with made.member(WEIGHTS) as member:
        weights = write_shared(member, [_weights_of(part.archive) for part in parts])
    by_shapes: dict[str, list[dict[str, Any]]] = {}
    for number, (part, told) in enumerate(zip(parts, weights, strict=True)):
        own = {name: value for name, value in part.archive.manifest.items() if name != MEMBERS}
        names = [name for name in (LIBRARY, SEGMENTS) if part.archive.told(name)]
        own[FILES] = {name: made.copy(part.archive, name, f"{number}/{name}") for name in names}
        if told["arrays"]:
            own["weights"] = told
        by_shapes.setdefault(part.shapes, []).append(own)
    entries = [_together(targets, _OF_SHAPE) if len(targets) > 1 else targets[0] for targets in by_shapes.values()]
    others = {WEIGHTS, LIBRARY, SEGMENTS}
    others |= {name for part in parts for name in part.archive.manifest.get(FILES, {}).values()}
    for part in free:
        for name in sorted(part.archive.sizes.keys() - others):
            made.copy(part.archive, name)
        entries.append({name: value for name, value in part.archive.manifest.items() if name != MEMBERS})
    if len(entries) == 1:
        whole = entries[0]
    elif free:  # whose manifest has other facts
        whole = {"dialect": entries[0]["dialect"], "network": entries[0]["network"], "format": SHAPES, SHAPES: entries}
    else:
        whole = _together(entries, _SHARED, SHAPES)
    made.finish(whole)


def _together(several: Sequence[dict[str, Any]], shared: Sequence[str], kind: str = TARGETS) -> dict[str, Any]:
    """Return a manifest of several, without what they share; the format is for versions that do not know such files."""
    shared = (*_SHARED, *shared) if kind == TARGETS else shared
    own = [{name: value for name, value in one.items() if name not in shared} for one in several]
    return {**{name: several[0][name] for name in shared}, "format": kind, kind: own}


def _weights_of(archive: Archive) -> tuple[memoryview, Sequence[Mapping[str, Any]]]:
    told = archive.manifest.get("weights")
    return (archive.map(WEIGHTS), told["arrays"]) if told else (memoryview(b""), [])


def _check(parts: Sequence[_Part]) -> None:
    """Check that parts are of one network, each for other shapes or another processor, and that none is missing."""
    shapes, targets = (
        list(dict.fromkeys(of)) for of in zip(*((one.shapes, one.instructions) for one in parts), strict=True)
    )
    for what, found, most in (("shapes", shapes, MOST_SHAPES), ("targets", targets, MOST_TARGETS)):
        if len(found) > most:
            raise UsageError(f"a file holds at most {most} {what}, and these are {len(found)}; leave some out")
    first, known = parts[0], dict[tuple[str, frozenset[str]], _Part]()
    alike: dict[str, _Part] = {}
    for part in parts:
        _check_alike(part, first, _SHARED)
        _check_alike(part, alike.setdefault(part.shapes, part), _OF_SHAPE)
        for side in ("inputs", "outputs"):
            theirs, ours = (
                [(name, len(shape), dtype) for name, shape, dtype in one.archive.manifest[side]]
                for one in (part, first)
            )
            if theirs != ours:
                raise UsageError(f"{part.path} has other {side} than {first.path}; combine files of one network")
        if other := known.get((part.shapes, part.instructions)):
            raise UsageError(
                f"{other.path} and {part.path} need the same instructions for the same shapes, so one of them would "
                "never run; leave it out"
            )
        known[part.shapes, part.instructions] = part
    if len(known) < len(shapes) * len(targets):
        missing = next(one for one in alike.values() if any((one.shapes, needs) not in known for needs in targets))
        raise UsageError(
            f"the shapes of {missing.path} are not there for all of these processors; compile every shape for each"
        )


def _check_alike(part: _Part, first: _Part, shared: Sequence[str]) -> None:
    """Check that two parts have facts in common, and the newest format."""
    manifest = part.archive.manifest
    if manifest["format"] != FORMAT:
        raise UsageError(f"{part.path} is of an earlier version; write it again with `tunery compile`, then combine")
    odd = next((name for name in shared if manifest[name] != first.archive.manifest[name]), "")
    if odd:
        what = {"versions": "was compiled with other versions of TVM"}.get(odd, f"has another {odd}")
        raise UsageError(f"{part.path} {what} than {first.path}; combine files of one network, compiled alike")
