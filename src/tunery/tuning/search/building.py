"""The builds of one batch, on as many builders as there are."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from tunery.domain import Candidate, Measurement, Task
from tunery.engines import Role
from tunery.runtime.pools import Reservation
from tunery.tuning.calls import call_build, stage
from tunery.tuning.charging import Charged, charge_by_outcome
from tunery.tuning.context import Context
from tunery.tuning.search.races import BuiltCandidate, together

_CHUNK = 4  # candidates a builder takes at once: small enough that the pool ends together


async def build_all(
    payer: Context,
    task: Task,
    candidates: Sequence[Candidate],
    on_failure: Callable[[Candidate, Measurement], object],
) -> list[BuiltCandidate]:
    """Build candidates and return those that built; of each other one `on_failure` hears when it fails.

    A failed build is charged here; that of a candidate that built is deferred until it was raced.
    """
    built: list[BuiltCandidate] = []

    async def one(chunk: Sequence[Candidate]) -> None:
        mine: list[BuiltCandidate] = []
        failed: list[Charged] = []
        grant: Reservation | None = None
        loop = asyncio.get_running_loop()
        try:
            async with stage(payer, task, "build", Role.BUILDER, len(chunk)) as grant:
                for candidate in chunk:
                    started = loop.time()
                    result = await call_build(payer, task, grant.worker, candidate)
                    seconds = loop.time() - started
                    if isinstance(result, Measurement):
                        on_failure(candidate, replace(result, build_s=seconds))
                        failed.append(Charged(result.outcome, seconds))
                    else:
                        mine.append(BuiltCandidate(candidate, result, seconds))
        finally:  # what has failed is a trial, also if a stop cuts the rest short
            used_s = grant.core_s if grant else 0.0
            rate = used_s / max(sum([one.wall_s for one in mine] + [one.wall_s for one in failed]), 1e-9)
            for one in mine:
                built.append(replace(one, core_s=one.wall_s * rate))
                payer.account.defer(one.candidate, one.wall_s * rate)
            lost = [replace(one, core_s=one.wall_s * rate) for one in failed]
            charge_by_outcome(payer, task.key, "build", lost)

    await together([one(candidates[i : i + _CHUNK]) for i in range(0, len(candidates), _CHUNK)])
    return built
