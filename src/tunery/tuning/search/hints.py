"""Candidates that another store's records call fast: tried first, and believed in nothing."""

from tunery._errors import DialectError, EngineError
from tunery.domain import Candidate, Task
from tunery.engines import Role
from tunery.tuning.calls import stage
from tunery.tuning.charging import charge
from tunery.tuning.context import Context

HINTS = 12
_DEADLINE_S = 60.0
_LOST = 2  # workers that may be lost to such candidates


async def hinted(context: Context, task: Task) -> list[Candidate]:
    """Return the candidates that imported records of a task call fast, under the keys of the programs that they are.

    What does not fit the task, or may not be used, is left out.
    """
    bodies = await context.store.read(lambda store: store.hints(task.key, context.provenance, HINTS))
    if not bodies:
        return []
    found: dict[str, Candidate] = {}
    lost = 0
    async with stage(context, task, "build", Role.BUILDER, len(bodies)) as grant:
        for body in bodies:
            try:
                candidate: Candidate = await context.runtime.call(
                    grant.worker, "identify", task, body, deadline_s=_DEADLINE_S
                )
            except DialectError:
                continue
            except EngineError:
                lost += 1
                if lost == _LOST:
                    break
                continue
            found.setdefault(candidate.key, candidate)
    await charge(context, task.key, "build", "", grant, 0)
    return list(found.values())
