"""Compilers behind one contract, found through the entry point group `tunery.dialects`. The group `tunery.files` says
by a file name's ending which dialect such a model belongs to, if not to all."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path, PurePath

from tunery._errors import UsageError
from tunery.dialects._artifacts import Built, open_built, store_built
from tunery.dialects._base import (
    Capability,
    Codegen,
    CrossCompiler,
    Dialect,
    NetworkCompiler,
    RecordChecker,
    RecordWriter,
    Space,
    TaskSource,
)
from tunery.dialects._loaded import Array, Compiled, CompiledNetwork, Kernel
from tunery.dialects._nodes import GraphNode, Value, graph_nodes, labels
from tunery.dialects._search import Observation, Proposer, Suggestions
from tunery.domain import Network, digest

__all__ = [
    "Array",
    "Built",
    "Capability",
    "Codegen",
    "Compiled",
    "CompiledNetwork",
    "CrossCompiler",
    "Dialect",
    "GraphNode",
    "Kernel",
    "NetworkCompiler",
    "Observation",
    "Proposer",
    "RecordChecker",
    "RecordWriter",
    "Space",
    "Suggestions",
    "TaskSource",
    "Value",
    "check_dialect",
    "extractor",
    "file_dialect",
    "get_dialect",
    "graph_nodes",
    "installed_dialects",
    "is_scripted",
    "labels",
    "named_dialect",
    "open_built",
    "own_network",
    "store_built",
]

_GROUP, _FILES = "tunery.dialects", "tunery.files"


def get_dialect(name: str) -> Dialect:
    """Return a new instance of the dialect called `name`.

    Raises:
        UsageError: no installed dialect has that name.
    """
    check_dialect(name)
    dialect: Dialect = _entries()[name].load()()
    return dialect


def check_dialect(name: str) -> None:
    """Check a dialect's name without loading it.

    Raises:
        UsageError: no installed dialect has that name.
    """
    names = installed_dialects()
    if name not in names:
        raise UsageError(f"unknown dialect {name!r}; installed: {', '.join(names)}")


def is_scripted(model: str, dialects: Iterable[str]) -> bool:
    """Tell whether a model or one of some dialects is of a test kit: what its name holds says what it does."""
    names = {named_dialect(model), *dialects} & _entries().keys()
    return any(_entries()[name].load().scripted for name in names if name)


def installed_dialects() -> list[str]:
    """Return the names of all installed dialects; none is loaded."""
    return sorted(_entries())


@cache
def _entries() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}  # reads files of all that is installed


@cache
def extractor(name: str, compiler: str) -> str:
    """Return by what a dialect extracts tasks: its compiler and its own code, any change of which may give others. It
    is not loaded for that."""
    entry = _entries().get(name)
    spec = find_spec(entry.module) if entry else None
    if spec is None:
        return compiler
    folders = spec.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    return f"{compiler} {digest(*(file.read_bytes() for file in files or [Path(spec.origin or '')]))}"


def own_network(model: str) -> Network | None:
    """Return the network of a dialect's own that a model's name, `DIALECT:...` or a file's, is for; None: for no such.

    Raises:
        UsageError: the dialect has no networks.
        ModelError: it has no such network.
    """
    name = named_dialect(model) or file_dialect(model)
    return None if name is None else TaskSource.of(get_dialect(name)).own_network(model)


def file_dialect(model: str) -> str | None:
    """Return the dialect that a file belongs to by its name's ending, and what it says; None where it may be any's."""
    entry = None if named_dialect(model) else _files().get(PurePath(model).suffix.lower().removeprefix("."))
    if entry is None:
        return None
    return str(entry.load()(model)) if ":" in entry.value else entry.value


@cache
def _files() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_FILES)}


def named_dialect(model: str) -> str | None:
    """Return the dialect whose own network a model's name is for, None where it is a file or one of the zoo."""
    name, colon, _ = model.partition(":")
    return name if colon and name in installed_dialects() else None
