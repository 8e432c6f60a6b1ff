"""Who pays for a stage: what it used goes to the ledger by job, task, stage and outcome."""

from tunery.runtime.runtime import Reservation
from tunery.store import Charge
from tunery.tuning.account import PricedCharge
from tunery.tuning.context import Context


def bill(  # noqa: PLR0917 - the fields of a charge
    context: Context,
    task_key: str,
    stage: str,
    outcome: str,
    used: Reservation,
    count: int = 1,
    *,
    device: bool = False,
    helped: bool = False,
) -> PricedCharge:
    """Return the bill for all of what was used; `device` says whether its share of the device was held meanwhile.

    `helped` says that it went into a candidate that was its task's best when it was measured.
    """
    device_s = used.wall_s * used.share if device else 0.0
    one = Charge(
        context.job_id, task_key, stage, outcome, used.wall_s, used.core_s, device_s,
        count=max(count, 1), helped=helped, host=used.host,
    )  # fmt: skip
    return PricedCharge(one, used.wall_s * used.cores)


async def charge(  # noqa: PLR0917 - the fields of a charge
    context: Context, task_key: str, stage: str, outcome: str, grant: Reservation, count: int
) -> None:
    """Charge all that a grant used, where no record comes of it."""
    await context.account.post([bill(context, task_key, stage, outcome, grant, count)])
