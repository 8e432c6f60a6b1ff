"""Who pays for a stage: what it used goes to the ledger by job, task, stage and outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunery.domain import Outcome
from tunery.jobs.context import Context
from tunery.jobs.runtime import Grant
from tunery.store import Charge


@dataclass(frozen=True, slots=True)
class Charged:
    """One candidate's share of a stage."""

    outcome: Outcome
    wall_s: float
    core_s: float = 0.0


def charge(  # noqa: PLR0917 - the fields of a charge
    context: Context, task_key: str, stage: str, outcome: str, grant: Grant, count: int, *, device: bool = False
) -> None:
    """Charge all that a grant used; `device` says whether the device was held meanwhile."""
    device_s = grant.wall_s if device else 0.0
    context.store.charge(
        context.job_id, task_key, stage, outcome, grant.wall_s, grant.core_s, device_s, count=max(count, 1)
    )


def charge_by_outcome(
    context: Context,
    task_key: str,
    stage: str,
    spent: Sequence[Charged],
    rate: float | None = None,
    *,
    device: bool = False,
) -> None:
    """Charge candidates' shares of a stage by their outcome; `rate` turns wall seconds into core-seconds."""
    by_outcome: dict[Outcome, list[Charged]] = {}
    for one in spent:
        by_outcome.setdefault(one.outcome, []).append(one)
    charges = []
    for outcome, ones in by_outcome.items():
        wall_s = sum(one.wall_s for one in ones)
        core_s = wall_s * rate if rate is not None else sum(one.core_s for one in ones)
        device_s = wall_s if device else 0.0
        charges.append(
            Charge(context.job_id, task_key, stage, outcome.value, wall_s, core_s, device_s, count=len(ones))
        )
    context.store.charge_all(charges)
