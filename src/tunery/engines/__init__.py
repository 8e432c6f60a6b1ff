"""Engines run stages in workers. Our own are there by name, others by the entry point group `tunery.engines`."""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from tunery._errors import UsageError
from tunery.engines._base import Engine, HostUse, OnUsage, Role, WorkerSpec

if TYPE_CHECKING:
    from tunery.engines.joined import JoinedEngine
    from tunery.engines.local.engine import LocalEngine
    from tunery.engines.remote.engine import AgentEngine

__all__ = [
    "AgentEngine",
    "Engine",
    "HostUse",
    "JoinedEngine",
    "LocalEngine",
    "OnUsage",
    "Role",
    "WorkerSpec",
    "engine_class",
]

_GROUP = "tunery.engines"
_CLASSES = {
    "AgentEngine": "tunery.engines.remote.engine",
    "JoinedEngine": "tunery.engines.joined",
    "LocalEngine": "tunery.engines.local.engine",
}
"""Loaded when they are first asked for: every worker imports this module, and needs none of them."""
_OURS = {
    "local": "tunery.engines.local.engine:LocalEngine",
    "ray": "tunery.engines.ray.engine:RayEngine",
}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def engine_class(name: str) -> type[Engine]:
    """Return the class of the engine called `name`; one with an address, `ray://HOST:PORT`, goes by its scheme."""
    entries = {entry.name: entry for entry in entry_points(group=_GROUP)}
    entries |= {ours: EntryPoint(ours, place, _GROUP) for ours, place in _OURS.items()}
    kind = name.partition("://")[0]
    if kind not in entries:
        known = ", ".join(sorted(entries))
        raise UsageError(f"unknown engine {name!r} in the variable TUNERY_ENGINE; installed: {known}")
    found: type[Engine] = entries[kind].load()
    return found
