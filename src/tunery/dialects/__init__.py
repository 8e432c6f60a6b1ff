"""Compilers behind one contract, found through the entry point group `tunery.dialects`."""

from importlib.metadata import entry_points

from tunery._errors import UsageError
from tunery.dialects._base import Array, Compiled, CompiledNetwork, Dialect, Kernel, Proposer, Told

__all__ = ["Array", "Compiled", "CompiledNetwork", "Dialect", "Kernel", "Proposer", "Told", "get_dialect"]


def get_dialect(name: str) -> Dialect:
    """Return a new instance of the dialect called `name`.

    Raises:
        UsageError: no installed dialect has that name.
    """
    found = entry_points(group="tunery.dialects")
    for entry in found:
        if entry.name == name:
            dialect: Dialect = entry.load()()
            return dialect
    raise UsageError(f"unknown dialect {name!r}; installed: {', '.join(sorted(entry.name for entry in found))}")
