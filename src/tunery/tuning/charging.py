"""Who pays for a stage: what it used goes to the ledger by job, task, stage and outcome."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunery.domain import Candidate, Outcome
from tunery.runtime.pools import Reservation
from tunery.store import Charge
from tunery.tuning.account import PricedCharge
from tunery.tuning.context import Context


@dataclass(frozen=True, slots=True)
class Charged:
    """One candidate's share of a stage; `helped` says that it was its task's best when it was measured.

    `aside` is the candidate, if its share was set aside until now.
    """

    outcome: Outcome
    wall_s: float
    core_s: float = 0.0
    helped: bool = False
    aside: Candidate | None = None


def charge(  # noqa: PLR0917 - the fields of a charge
    context: Context, task_key: str, stage: str, outcome: str, grant: Reservation, count: int, *, device: bool = False
) -> None:
    """Charge all that a grant used; `device` says whether its share of the device was held meanwhile."""
    device_s = grant.wall_s * grant.share if device else 0.0
    one = Charge(
        context.job_id, task_key, stage, outcome, grant.wall_s, grant.core_s, device_s, count=max(count, 1)
    )  # fmt: skip
    context.account.post([PricedCharge(one, grant.wall_s * grant.cores)])


def charge_by_outcome(
    context: Context,
    task_key: str,
    stage: str,
    spent: Sequence[Charged],
    grant: Reservation | None = None,
    *,
    device: bool = False,
) -> None:
    """Charge candidates' shares of a stage by their outcome.

    The core-seconds of `grant`, where one is given, are shared out by wall time, whatever the candidates say.
    """
    groups: dict[tuple[Outcome, bool], list[Charged]] = {}
    for one in spent:
        groups.setdefault((one.outcome, one.helped), []).append(one)
    rate = grant.core_s / max(sum(one.wall_s for one in spent), 1e-9) if grant else None
    bills = []
    for (outcome, helped), ones in groups.items():
        wall_s = sum(one.wall_s for one in ones)
        core_s = wall_s * rate if rate is not None else sum(one.core_s for one in ones)
        device_s = wall_s * grant.share if device and grant else 0.0
        made = Charge(
            context.job_id, task_key, stage, outcome.value, wall_s, core_s, device_s, count=len(ones), helped=helped
        )
        bills.append(PricedCharge(made, wall_s * (grant.cores if grant else 1)))
    context.account.take_back(one.aside for one in spent if one.aside)
    context.account.post(bills)
