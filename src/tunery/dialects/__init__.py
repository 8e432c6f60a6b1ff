"""Compilers behind one contract, found through the entry point group `tunery.dialects`."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tunery._errors import UsageError
from tunery.dialects._artifacts import Built, open_built, store_built
from tunery.dialects._base import Capability, Codegen, Dialect, NetworkCompiler, RecordChecker, Space, TaskSource
from tunery.dialects._loaded import Array, Compiled, CompiledNetwork, Kernel
from tunery.dialects._nodes import node_labels
from tunery.dialects._search import Observation, Proposer, Suggestions
from tunery.domain import Network

__all__ = [
    "Array",
    "Built",
    "Capability",
    "Codegen",
    "Compiled",
    "CompiledNetwork",
    "Dialect",
    "Kernel",
    "NetworkCompiler",
    "Observation",
    "Proposer",
    "RecordChecker",
    "Space",
    "Suggestions",
    "TaskSource",
    "check_dialect",
    "get_dialect",
    "installed_dialects",
    "named_dialect",
    "node_labels",
    "open_built",
    "own_network",
    "store_built",
]

_GROUP = "tunery.dialects"


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


def installed_dialects() -> list[str]:
    """Return the names of all installed dialects; none is loaded."""
    return sorted(_entries())


@cache
def _entries() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=_GROUP)}  # reads files of all that is installed


def own_network(model: str) -> Network | None:
    """Return the network of a dialect's own that a model's name, `DIALECT:...`, is for; None where it is for no such.

    Raises:
        UsageError: the dialect has no networks.
        ModelError: it has no such network.
    """
    name = named_dialect(model)
    return None if name is None else TaskSource.of(get_dialect(name)).own_network(model)


def named_dialect(model: str) -> str | None:
    """Return the dialect whose own network a model's name is for, None where it is a file or one of the zoo."""
    name, colon, _ = model.partition(":")
    return name if colon and name in installed_dialects() else None
