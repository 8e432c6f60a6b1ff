"""From a model to tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tunery._errors import DialectError, EngineError, ModelError, UsageError, WorkError
from tunery.domain import Network, Target, Task
from tunery.engines import Role
from tunery.jobs._request import Request
from tunery.jobs.runtime import Runtime
from tunery.store import Store

IMPORT_DEADLINE_S = 1800.0


@dataclass(frozen=True)
class Imported:
    """A model made ready for a target, and what that took."""

    network: Network
    target: Target
    compiler: str
    tasks: tuple[Task, ...]
    wall_s: float = 0.0
    core_s: float = 0.0


async def import_model(  # noqa: PLR0917 - who imports what, where to
    runtime: Runtime,
    store: Store,
    request: Request,
    cache: Path,
    job_id: str,
    begun: Callable[[], None] = lambda: None,
) -> Imported:
    """Prepare the model and extract its tasks, or read them from the store if this very network was seen before.

    `begun` is called once the model and the target are known to be meant: from then on it takes its time.

    Raises:
        UsageError: the model, the shapes or the target are wrong; a ModelError if the compiler lacks an operator.
        WorkError: a worker failed, or the model holds nothing that runs on the target.
    """
    async with runtime.stage(job_id, "import", Role.IMPORTER) as grant:
        try:
            target, compiler = await runtime.call(
                grant.worker, "target", request.target, runtime.threads, deadline_s=IMPORT_DEADLINE_S, tries=3
            )
            await runtime.call(grant.worker, "check", request.model, deadline_s=IMPORT_DEADLINE_S, tries=3)
            begun()
            network = await runtime.call(
                grant.worker,
                "load",
                request.model,
                request.shapes,
                cache / "networks",
                deadline_s=IMPORT_DEADLINE_S,
                tries=3,
            )
            tasks = store.load_tasks(network.digest, target.key, compiler)
            if tasks is None:
                tasks = await runtime.call(
                    grant.worker, "extract", network, target, deadline_s=IMPORT_DEADLINE_S, tries=3
                )
                store.save_tasks(network, tasks, target=target, compiler=compiler)
        except UsageError:
            raise
        except DialectError as error:  # this model cannot be had with this compiler, however often it is tried
            raise ModelError(
                f"{error}; export it with other operators or another opset, or replace that part"
            ) from error
        except EngineError as error:
            raise WorkError(f"importing {request.model} failed: {error}") from error
    if not tasks:
        raise WorkError(f"{network.name} has no operator that runs on {target}; there is nothing to tune")
    return Imported(network, target, compiler, tuple(tasks), grant.wall_s, grant.core_s)
