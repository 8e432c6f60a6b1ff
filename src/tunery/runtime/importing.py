"""From a model to tasks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tunery._errors import DialectError, EngineError, ModelError, UsageError, WorkError, tells_of_memory
from tunery.dialects import extractor
from tunery.domain import Network, Target, Task, merged_network, merged_tasks
from tunery.domain.request import Request
from tunery.engines import Role
from tunery.runtime import worker_bytes
from tunery.runtime.runtime import Reservation, Runtime
from tunery.store import AsyncStore

IMPORT_DEADLINE_S = 1800.0
FileStamp = tuple[int, int, int, int]

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class ImportedModel:
    """A model made ready for a target, and what that took; `stamp` is its file's as it was read (None: no file).

    `elsewhere` says by node of the network why ONNX Runtime runs it. Of a request with several bindings of shapes,
    `parts` has the model for each, and all else is of them together: equal tasks are one, with the sum of its calls.
    """

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
        """The prepared files of the model, which are held for whoever imported it."""
        return tuple(blob for one in self.parts or (self,) for blob in one.network.blobs)

    def has_changed(self) -> bool:
        """Return whether the model's file was written, replaced or deleted since it was read."""
        if self.stamp is None:
            return False
        source = self.network.source
        beside = self.network.beside.items()
        return stamp_of(source) != self.stamp or any(
            stamp_of(str(Path(source).parent / name)) != tuple(stamp) for name, stamp in beside
        )


def together(parts: Sequence[ImportedModel]) -> ImportedModel:
    """Return a model for several bindings of its shapes.

    Raises:
        UsageError: an input or output has not as many dimensions with one as with another.
    """
    network = merged_network([part.network for part in parts])
    tasks = merged_tasks(task for part in parts for task in part.tasks)
    return replace(
        parts[0], network=network, tasks=tasks, elsewhere=network.elsewhere, parts=tuple(parts),
        wall_s=sum(part.wall_s for part in parts), core_s=sum(part.core_s for part in parts),
    )  # fmt: skip


def stamp_of(model: str) -> FileStamp | None:
    """Return what changes whenever a model's file is written or replaced; None where there is none."""
    try:
        found = Path(model).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


async def import_model(  # noqa: PLR0917 - who imports what, where to
    runtime: Runtime,
    store: AsyncStore,
    request: Request,
    job_id: str,
    begun: Callable[[], None] = lambda: None,
    used: list[Reservation] | None = None,
    prepared: Callable[[Network], None] = lambda _: None,
    extracting: Callable[[Target, str], None] = lambda *_: None,
) -> ImportedModel:
    """Prepare the model and extract its tasks, or read them from the store if this very network was seen before.

    `begun` is called once the model and the target are known to be meant: from then on it takes its time. `used` gets
    the grants of its stages, also where it fails. `prepared` is called with the network before its tasks are known,
    `extracting` with the target and the compiler where nobody has extracted them before. The network's file is there
    until the runtime releases it. Of a request with several bindings of shapes, `prepared` and `extracting` are called
    for each.

    Raises:
        UsageError: the model, the shapes or the target are wrong; a ModelError if the compiler lacks an operator.
        WorkError: a worker failed.
    """
    used = [] if used is None else used
    if request.more_shapes:
        return together([
            await import_model(runtime, store, one, job_id, begun, used, prepared, extracting)
            for one in request.each_shape
        ])  # fmt: skip
    unsure = {"model", "target"}
    stamp, mine = stamp_of(request.model), len(used)

    def meant(what: str) -> None:
        unsure.discard(what)
        if not unsure:
            begun()

    try:
        # The model is read while the compiler, which takes the longer, is still being imported.
        network, (target, compiler) = await both(
            _load(runtime, request, job_id, meant, used), _resolve(runtime, request, job_id, meant, used)
        )
        prepared(network)
        key = (network.digest, target.key, extractor(target.dialect, compiler))
        tasks, elsewhere = await store.read(lambda opened: (opened.load_tasks(*key), opened.load_elsewhere(*key)))
        if is_new := tasks is None:
            extracting(target, compiler)
            async with _stage(runtime, job_id, "import", Role.IMPORTER, used) as grant:
                tasks, elsewhere = await runtime.call(
                    grant.worker, "extract", network, target, deadline_s=IMPORT_DEADLINE_S, tries=3
                )
        imported = ImportedModel(network, target, compiler, tuple(tasks or ()), stamp=stamp, elsewhere=elsewhere)
        if is_new:
            await keep(store, imported)
    except UsageError:
        raise
    except (DialectError, EngineError) as error:
        raise _refusal(request.model, error) from error
    finally:
        runtime.claim(-sum(grant.core_s for grant in used[mine:]))  # whoever asked for the import is to pay now
    grants = used[mine:]
    wall_s = max(grant.wall_s for grant in grants[:2]) + sum(grant.wall_s for grant in grants[2:])
    core_s = sum(grant.core_s for grant in grants)
    return replace(imported, network=replace(network, elsewhere=elsewhere), wall_s=wall_s, core_s=core_s)


async def keep(store: AsyncStore, imported: ImportedModel) -> None:
    """Store a model's network, its tasks, and where its nodes run, in place of an earlier answer."""
    await store.write(
        lambda opened: opened.save_tasks(
            imported.network, imported.tasks, target=imported.target,
            compiler=extractor(imported.target.dialect, imported.compiler), elsewhere=imported.elsewhere,
        )
    )  # fmt: skip


def _refusal(model: str, error: DialectError | EngineError) -> ModelError | WorkError:
    """Return what is to be told of an import that has failed."""
    if tells_of_memory(str(error)) or (isinstance(error, EngineError) and error.out_of_memory):
        limit = worker_bytes(Role.IMPORTER) / 1e9
        return ModelError(
            f"{model!r} needs more memory than the {limit:.3g} GB that an import may take on this machine; "
            "check the sizes of its constants and inputs, or use a machine with more"
        )
    if isinstance(error, DialectError):  # this model cannot be had with this compiler, however often it is tried
        return ModelError(f"{error}; export it with other operators or another opset, or replace that part")
    return WorkError(f"importing {model} failed: {error}")


@asynccontextmanager
async def _stage(
    runtime: Runtime, job_id: str, kind: str, role: Role, used: list[Reservation]
) -> AsyncIterator[Reservation]:
    """Hold a worker; what it used is claimed until the import ends, for other jobs charge what nobody claims."""
    grant: Reservation | None = None
    try:
        async with runtime.stage(job_id, kind, role) as grant:
            used.append(grant)
            yield grant
    finally:
        runtime.claim(grant.core_s if grant else 0.0)


async def _load(
    runtime: Runtime, request: Request, job_id: str, meant: Callable[[str], None], used: list[Reservation]
) -> Network:
    async with _stage(runtime, job_id, "prepare", Role.PREPARER, used) as grant:
        await runtime.call(grant.worker, "check", request.model, deadline_s=IMPORT_DEADLINE_S, tries=3)
        meant("model")
        network: Network = await runtime.call(
            grant.worker, "load", request.model, request.shapes, request.trust,
            deadline_s=IMPORT_DEADLINE_S, tries=3,
        )  # fmt: skip
    for blob in network.blobs:
        runtime.hold(blob)
    return network


async def _resolve(
    runtime: Runtime, request: Request, job_id: str, meant: Callable[[str], None], used: list[Reservation]
) -> tuple[Target, str]:
    device = [await runtime.device()] if runtime.builds_for_another_kind else []
    async with _stage(runtime, job_id, "import", Role.IMPORTER, used) as grant:
        target, compiler = await runtime.call(
            runtime.target_worker or grant.worker,
            "target",
            request.target,
            runtime.threads,
            *device,
            deadline_s=IMPORT_DEADLINE_S,
            tries=3,
        )
    meant("target")
    return target, compiler


async def resolve_target(runtime: Runtime, request: Request, job_id: str) -> Target:
    """Return the request's target, and nothing of its model.

    Raises:
        UsageError: the target is wrong.
        WorkError: a worker failed.
    """
    used: list[Reservation] = []
    try:
        target, _ = await _resolve(runtime, request, job_id, lambda _: None, used)
    except (DialectError, EngineError) as error:
        raise WorkError(f"reading the target {request.target} failed: {error}") from error
    finally:
        runtime.claim(-sum(grant.core_s for grant in used))
    return target


async def both(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Do two things at once; the first that fails ends the other, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(one), group.create_task(other)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()
