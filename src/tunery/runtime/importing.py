"""From a model to tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tunery.dialects import named_dialect
from tunery.domain import Network, Target, Task, merged_network, merged_tasks

IMPORT_DEADLINE_S = 1800.0
FileStamp = tuple[int, int, int, int]

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class ImportedModel:
    """A model made ready for a target, and what that took; `stamp` is its file's as it was read (None: no file).
    `elsewhere` says by node of the network why ONNX Runtime runs it. Of a request with several bindings of shapes,
    `parts` has the model for each, and all else is of them together: equal tasks are one, with the sum of its calls."""

    network: Network
    target: Target
    compiler: str
    tasks: tuple[Task, ...]
    wall_s: float = 0.0
    core_s: float = 0.0
    stamp: FileStamp | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    parts: "tuple[ImportedModel, ...]" = ()

    @property
    def blobs(self) -> tuple[str, ...]:
        return tuple(blob for one in self.parts or (self,) for blob in one.network.blobs)

    def has_changed(self) -> bool:
        if self.stamp is None:
            return False
        source = self.network.source
        beside = self.network.beside.items()
        return stamp_of(source) != self.stamp or any(
            stamp_of(str(Path(source).parent / name)) != tuple(stamp) for name, stamp in beside
        )


def together(parts: Sequence[ImportedModel]) -> ImportedModel:
    network = merged_network([part.network for part in parts])
    tasks = merged_tasks(task for part in parts for task in part.tasks)
    return replace(
        parts[0], network=network, tasks=tasks, elsewhere=network.elsewhere, parts=tuple(parts),
        wall_s=sum(part.wall_s for part in parts), core_s=sum(part.core_s for part in parts),
    )  # fmt: skip


def stamp_of(model: str) -> FileStamp | None:
    try:
        found = Path(model).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


async def held(
    load: Callable[[], Awaitable[Network]], hold: Callable[[str], bool], release: Callable[[str], None]
) -> Network:
    """Return a network with its blobs held; it is loaded again where others have just released one of them."""
    network = await load()
    there = [hold(blob) for blob in network.blobs]
    if all(there):
        return network
    try:
        again = await load()
        for blob in again.blobs:
            hold(blob)
    finally:
        for blob in network.blobs:
            release(blob)
    return again


async def both(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Do two things at once; the first that fails ends the other, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(one), group.create_task(other)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()


def absolute(model: str) -> str:
    return model if model.startswith("zoo:") or named_dialect(model) else str(Path(model).resolve())
