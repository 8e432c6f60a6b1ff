"""What accounts have used in a month: by outcome, and what of it was in vain."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as InPath
from pydantic import BaseModel

from tunery.reports.spending import by_outcome, helpless, sums, tried
from tunery.store import Charge, Store
from tunery.web._service import ADMIN, Reader, TheService

router = APIRouter(prefix="/v1", tags=["people"])
Month = Annotated[str, InPath(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")]


class Amounts(BaseModel):
    """What something has cost; `count` is of candidates, `worker_s` of all workers; `joules` null where unknown."""

    name: str
    count: int
    worker_s: float
    core_s: float
    device_s: float
    joules: float | None
    modelled: bool
    money: dict[str, float]


class AccountMonth(BaseModel):
    """An account's month; `vain_share` is the share of the core-seconds for candidates that did not help."""

    account: str
    month: str
    jobs: int
    total: Amounts
    outcomes: list[Amounts]
    stages: list[Amounts]
    vain_share: float | None


@router.get("/usage/{month}")
async def of_month(month: Month, service: TheService, caller: Reader) -> list[AccountMonth]:
    """Show what jobs have cost in a month (`2026-11`): the caller's, an administrator all accounts'."""
    year, number = int(month[:4]), int(month[5:])
    since = datetime(year, number, 1, tzinfo=UTC).timestamp()
    until = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()
    whose = None if caller.role == ADMIN else caller.account.name

    def ask(store: Store) -> tuple[dict[str, list[Charge]], dict[str, int]]:
        return store.usage(since, until, whose), store.count_jobs(since, until, whose)

    charges, jobs = await service.store.read(ask)
    return [_shown(name, month, jobs.get(name, 0), charges.get(name, [])) for name in sorted({*jobs, *charges})]


def _shown(account: str, month: str, jobs: int, charges: list[Charge]) -> AccountMonth:
    counts = tried(charges)
    total: dict[str, Any] = {"name": "all", "count": 0, "worker_s": 0, "core_s": 0, "device_s": 0, "joules": None,
                             "modelled": False, "money": {}}  # fmt: skip
    total |= next(iter(sums(charges, lambda _: "all")), {})
    total["count"] = sum(counts.values())
    vain = helpless(charges)
    return AccountMonth(
        account=account, month=month, jobs=jobs, total=Amounts(**total),
        outcomes=[Amounts(**row) for row in by_outcome(charges, counts)],
        stages=[Amounts(**row) for row in sums(charges, lambda charge: charge.stage)],
        vain_share=vain[-1]["core_share"] if vain else None,
    )  # fmt: skip
