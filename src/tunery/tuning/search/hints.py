"""Candidates that records of another device, version or store call fast: tried first, and believed in nothing."""

from tunery._errors import DialectError, EngineError
from tunery.domain import Candidate, Task
from tunery.engines import Role
from tunery.store import Store
from tunery.tuning.calls import stage
from tunery.tuning.context import Context

HINTS = 12
_OFFERS = 3  # of each compatible device and version of the compiler
_DEADLINE_S = 60.0
_LOST = 2  # workers that may be lost to such candidates


async def hinted(context: Context, task: Task) -> list[Candidate]:
    """Return the candidates that others call fast for a task, under the keys of the programs that they are.

    First those that were the best on a compatible device, or by another version of the compiler, then those of imported
    records. What does not fit the task, or may not be used, is left out.
    """
    device = await context.runtime.device()

    def ask(store: Store) -> list[str]:
        known = store.devices.of_type(device.fingerprint, device.as_facts())
        offers = store.offers([task.key], context.provenance, known, _OFFERS)[task.key]
        bodies = [offer.record.candidate.body for offer in offers]
        return list(dict.fromkeys([*bodies, *store.hints(task.key, context.provenance, HINTS)]))[:HINTS]

    bodies = await context.store.read(ask)
    if not bodies:
        return []
    found: dict[str, Candidate] = {}
    lost = 0
    async with stage(context, task, "build", Role.BUILDER, 0) as grant:
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
    await context.charge(task.key, "build", "", grant, 0)
    return list(found.values())
