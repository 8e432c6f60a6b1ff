"""Engines run stages: `LocalEngine` in this machine's processes, `InlineEngine` in this one, for tests."""

from tunery.engines._base import Engine, OnUsage, Role, WorkerSpec
from tunery.engines.inline import InlineEngine
from tunery.engines.local.engine import LocalEngine

__all__ = ["Engine", "InlineEngine", "LocalEngine", "OnUsage", "Role", "WorkerSpec"]
