"""Compilers behind one contract, found through the entry point group `tunery.dialects`."""

from importlib.metadata import entry_points

from tunery._errors import UsageError
from tunery.dialects._artifacts import Built, open_built, store_built
from tunery.dialects._base import Codegen, Dialect, NetworkCompiler, RecordChecker, Space, TaskSource
from tunery.dialects._loaded import Array, Compiled, CompiledNetwork, Kernel
from tunery.dialects._search import Observation, Proposer, Suggestions

__all__ = [
    "Array",
    "Built",
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
    "open_built",
    "store_built",
]

_GROUP = "tunery.dialects"


def get_dialect(name: str) -> Dialect:
    """Return a new instance of the dialect called `name`.

    Raises:
        UsageError: no installed dialect has that name.
    """
    check_dialect(name)
    [entry] = entry_points(group=_GROUP, name=name)
    dialect: Dialect = entry.load()()
    return dialect


def check_dialect(name: str) -> None:
    """Check a dialect's name without loading it.

    Raises:
        UsageError: no installed dialect has that name.
    """
    names = {entry.name for entry in entry_points(group=_GROUP)}
    if name not in names:
        raise UsageError(f"unknown dialect {name!r}; installed: {', '.join(sorted(names))}")
