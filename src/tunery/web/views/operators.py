"""What is known of operators: the best of each by device and dialect."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from pydantic import BaseModel

from tunery.reports.data import plain
from tunery.reports.records import device_names, operator_data, pattern_of
from tunery.store import KnownOperator, Store
from tunery.web._bodies import at
from tunery.web._service import ADMIN, Reader, TheService

router = APIRouter(prefix="/v1", tags=["operators"])
_PAGE, _MOST = 100, 500
_TRIED, _BODY = 2000, 20_000


class OperatorOut(BaseModel):
    """An operator on one device, by one dialect; seconds for one call, null where nothing verified is known.

    `operator` is its key in all dialects, null where it has none.
    """

    operator: str | None
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


class OperatorDetail(BaseModel):
    """One operator: what is known `everywhere` of it, in other dialects and on other devices, the `networks` that hold
    it, its latest `candidates` (`score` is the cost model's, higher is faster), and the `parameters` of the best."""

    name: str
    kind: str
    task: str
    networks: list[str]
    everywhere: list[OperatorOut]
    candidates: list[dict[str, Any]]
    parameters: str


@router.get("/operators")
async def operators(  # noqa: PLR0917 - what FastAPI reads of a request
    service: TheService,
    caller: Reader,
    text: Annotated[str, Query(max_length=100, description="What the name or the kind holds.")] = "",
    operator: Annotated[str, Query(max_length=2000, description="An operator key, parts of one, or its start.")] = "",
    workload: Annotated[
        list[Annotated[str, Query(max_length=128)]] | None,
        Query(max_length=_MOST, description="Workloads' keys: those, and what has the same operator keys."),
    ] = None,
    cursor: Annotated[str, Query(pattern="^[0-9]{0,9}$")] = "",
    limit: Annotated[int, Query(ge=1, le=_MOST)] = _PAGE,
) -> OperatorPage:
    """List operators with the best that is known of each; those that the account's own jobs have measured."""
    whose = None if caller.role == ADMIN else caller.account.name
    skip = int(cursor or 0)
    pattern = pattern_of(operator) if operator else None

    def ask(store: Store) -> tuple[list[KnownOperator], dict[str, str]]:
        found = store.operators(
            account=whose, text=text, pattern=pattern, workloads=workload, skip=skip, limit=limit + 1
        )
        return found, device_names(store)

    found, names = await service.store.read(ask)
    shown = [_shown(one, names) for one in found[:limit]]
    return OperatorPage(operators=shown, next=str(skip + limit) if len(found) > limit else None)


def _shown(one: KnownOperator, names: dict[str, str]) -> OperatorOut:
    return OperatorOut(**{**operator_data(one, names), "last_at": at(one.last_at)})


@router.get("/operators/{task}")
async def operator(
    task: Annotated[str, InPath(pattern="^[0-9a-f]{4,16}$")], service: TheService, caller: Reader
) -> OperatorDetail:
    """Show one operator: its candidates, where else it is used, and its best on all devices and in all dialects."""
    whose = None if caller.role == ADMIN else caller.account.name

    def ask(store: Store) -> OperatorDetail:
        found, names = store.tasks_like(task, whose)[0], device_names(store)
        known = store.operators(account=whose, workloads=[found.workload.key], limit=_MOST)
        mine = [one for one in known if one.task_key == found.key and one.best_s is not None]
        best = min(mine, key=lambda one: one.best_s or 0.0, default=None)
        record = store.best(found.key, best.provenance) if best else []
        return OperatorDetail(
            name=found.workload.name, kind=found.workload.kind, task=found.key,
            networks=sorted(set(store.networks_with(found.workload.key, whose).values())),
            everywhere=[_shown(one, names) for one in known],
            candidates=[{**plain(one), "at": at(one.at)} for one in store.tried(found.key, whose, _TRIED)],
            parameters=record[0].candidate.body[:_BODY] if record else "",
        )  # fmt: skip

    return await service.store.read(ask)
