"""What is known of operators: the best of each by device and dialect."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from tunery.store import KnownOperator, Store
from tunery.web._bodies import at
from tunery.web._service import ADMIN, Reader, TheService

router = APIRouter(prefix="/v1", tags=["operators"])
_PAGE, _MOST = 100, 500


class OperatorOut(BaseModel):
    """An operator on one device, by one dialect; seconds for one call, null where nothing verified is known."""

    name: str
    kind: str
    task: str
    workload: str
    target: str
    dialect: str
    compiler: str
    device: str
    device_name: str
    records: int
    last_at: datetime
    best: str | None
    best_s: float | None
    baseline_s: float | None
    final: bool


class OperatorPage(BaseModel):
    """Some operators, by kind and name; `next` is the cursor of those that come after."""

    operators: list[OperatorOut]
    next: str | None


@router.get("/operators")
async def operators(
    service: TheService,
    caller: Reader,
    text: Annotated[str, Query(max_length=100, description="What the name or the kind holds.")] = "",
    cursor: Annotated[str, Query(pattern="^[0-9]{0,9}$")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _PAGE,
) -> OperatorPage:
    """List operators with the best that is known of each; those that the account's own jobs have measured."""
    whose = None if caller.role == ADMIN else caller.account.name
    skip = int(cursor or 0)

    def ask(store: Store) -> tuple[list[KnownOperator], dict[str, str]]:
        names = {device.fingerprint: str(device.facts.get("name", "")) for device in store.devices.find()}
        return store.operators(account=whose, text=text, skip=skip, limit=limit + 1), names

    found, names = await service.store.read(ask)
    shown = [_shown(one, names) for one in found[:limit]]
    return OperatorPage(operators=shown, next=str(skip + limit) if len(found) > limit else None)


def _shown(one: KnownOperator, names: dict[str, str]) -> OperatorOut:
    where = one.provenance
    return OperatorOut(
        name=one.name, kind=one.kind, task=one.task_key, workload=one.workload_key, target=one.target,
        dialect=where.dialect, compiler=where.compiler, device=where.device,
        device_name=names.get(where.device, ""), records=one.records, last_at=at(one.last_at), best=one.best,
        best_s=one.best_s, baseline_s=one.baseline_s, final=one.mode == "final",
    )  # fmt: skip
