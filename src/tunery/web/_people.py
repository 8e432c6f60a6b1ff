"""Accounts, tokens and what they have used."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import asdict
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi import Path as InPath
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunery._errors import StoreError, UsageError
from tunery.domain import JobState
from tunery.reports.spending import sums, tried
from tunery.service.budgets.months import DAY_S, month
from tunery.store import DELETED, DISABLED, AuditEntry, Charge, Store, StoredAccount, StoredToken
from tunery.web._bodies import AccountChange, AccountIn, AuditOut, NewToken, TokenIn, TokenOut, UsageOut, at
from tunery.web._files import compiled_of, drop_blobs
from tunery.web._problems import RefusedError, check_match, revision
from tunery.web._service import ADMIN, ROLES, Admin, Caller, Reader, Service, TheService
from tunery.web._tokens import digest_of, new_token

router = APIRouter(prefix="/v1", tags=["people"])
_log = logging.getLogger(__name__)
Name = Annotated[str, InPath(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")]


@router.get("/me")
async def me(caller: Reader) -> StoredAccount:
    """Show the caller's account."""
    return caller.account


@router.get("/accounts")
async def accounts(service: TheService, _: Admin) -> list[StoredAccount]:
    """List the accounts."""
    return await service.store.read(lambda store: store.accounts.all())


@router.post("/accounts", status_code=201)
async def create(account: AccountIn, service: TheService, _: Admin) -> StoredAccount:
    """Create an account."""
    made = StoredAccount(**account.model_dump())
    await service.store.write(lambda store: store.accounts.create(made))
    return made


@router.get("/accounts/{name}")
async def account(name: Name, response: Response, service: TheService, caller: Reader) -> StoredAccount:
    """Show an account."""
    _check_own(caller, name)
    return _tagged(response, await service.store.read(lambda store: store.accounts.get(name)))


@router.patch("/accounts/{name}", responses={412: {"description": "Somebody else has changed it since: look again."}})
async def change(
    name: Name,
    account: AccountChange,
    response: Response,
    service: TheService,
    _: Admin,
    if_match: Annotated[str, Header(max_length=200)] = "",
) -> StoredAccount:
    """Change an account; what is left out stays. `If-Match` takes the ETag of `GET`."""
    values = account.model_dump(exclude_unset=True)
    if account.state == DISABLED:
        await _end_jobs(service, name, service.manager.pause)

    def write(store: Store) -> StoredAccount:
        check_match(if_match, repr(store.accounts.get(name)))
        return store.accounts.change(name, values, keep_one=ADMIN)

    return _tagged(response, await service.store.write(write))


@router.delete("/accounts/{name}", status_code=204)
async def delete(name: Name, service: TheService, _: Admin) -> None:
    """Delete an account: its jobs end, its tokens and files go; records and costs stay, and nobody gets its name."""
    found = await service.store.read(lambda store: store.accounts.uploads(name))
    await service.store.write(lambda store: store.accounts.change(name, {"state": DELETED}, keep_one=ADMIN))
    await _end_jobs(service, name, service.manager.cancel)
    await drop_blobs(service, name, [one.digest for one in found])
    await asyncio.to_thread(shutil.rmtree, compiled_of(service.files, name), ignore_errors=True)


async def _end_jobs(service: Service, account: str, end: Callable[[str], Awaitable[None]]) -> None:
    def unfinished(store: Store) -> list[str]:
        states = (JobState.QUEUED, JobState.RUNNING, JobState.STOPPED, JobState.PAUSED)
        return [job.job_id for state in states for job in store.jobs(account=account, state=state)]

    for job_id in await service.store.read(unfinished):
        with suppress(UsageError):  # it has ended meanwhile, or is paused already
            await end(job_id)


@router.get("/audit")
async def audit(
    service: TheService,
    _: Admin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
) -> list[AuditOut]:
    """List what accounts have done, latest first: all calls but those that only look."""
    await asyncio.gather(*service.notes)
    found = await service.store.read(lambda store: store.accounts.audit(limit, before))
    return [AuditOut(**{**asdict(entry), "at": at(entry.at)}) for entry in found]


class AuditNotes:
    """Notes each call of an account that does more than look, unless it was refused for what it said."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        await self._app(scope, receive, sent)
        caller = scope.get("state", {}).get("caller")
        if (
            caller is None
            or scope["method"] in {"GET", "HEAD"}
            or HTTPStatus.BAD_REQUEST <= status != HTTPStatus.FORBIDDEN
        ):
            return
        source, action = (scope["client"] or ("",))[0], f"{scope['method']} {scope['path']}"
        entry = AuditEntry(caller.account.name, source, action, status)
        service: Service = scope["app"].state.service
        note = asyncio.create_task(_note(service, entry), context=Context())  # the next call waits for no write
        service.notes.add(note)
        note.add_done_callback(service.notes.discard)


async def _note(service: Service, entry: AuditEntry) -> None:
    try:
        await service.store.write(lambda store: store.accounts.note(entry))
    except StoreError as error:
        _log.error("%s of %s was not noted: %s", entry.action, entry.account, error)


def _tagged(response: Response, account: StoredAccount) -> StoredAccount:
    response.headers["ETag"] = f'"{revision(repr(account))}"'
    return account


@router.get("/accounts/{name}/tokens")
async def tokens(name: Name, service: TheService, caller: Reader) -> list[TokenOut]:
    """List an account's tokens, without their texts."""
    _check_own(caller, name)
    found = await service.store.read(lambda store: store.accounts.tokens(name))
    return [TokenOut.of(token) for token in found]


@router.post("/accounts/{name}/tokens", status_code=201)
async def add_token(name: Name, token: TokenIn, service: TheService, caller: Reader) -> NewToken:
    """Make a token, which ends no later than the one that makes it. Its text is in this answer and nowhere else."""
    _check_own(caller, name)
    if ROLES.index(token.role) > ROLES.index(caller.role):
        raise RefusedError(403, "role", f"a token of the role {caller.role} cannot make one of the role {token.role}")
    maker = caller.token if caller.account.name == name else None
    until = caller.token.expires_at if caller.token else None
    return await service.store.write(lambda store: make_token(store, name, token, until, maker))


def make_token(
    store: Store, name: str, token: TokenIn, until: float | None = None, maker: StoredToken | None = None
) -> NewToken:
    """Make a token of an account that ends by `until` (database's clock; None: as it says), and with its maker."""
    store.accounts.get(name)
    text, lifetime_s = new_token(), None if token.days is None else token.days * DAY_S
    made_by = "" if maker is None else maker.digest
    stored = StoredToken(digest_of(text), name, token.label, token.role, expires_at=until, made_by=made_by)
    shown = TokenOut.of(store.accounts.add_token(stored, lifetime_s))
    return NewToken(**shown.model_dump(), token=text)


@router.delete("/accounts/{name}/tokens/{token}", status_code=204)
async def drop_token(
    name: Name, token: Annotated[str, InPath(pattern="^[0-9a-f]{12}$")], service: TheService, caller: Reader
) -> None:
    """End a token, with those it made but the caller's; one with an end, or of a smaller role, ends only itself."""
    _check_own(caller, name)
    mine = caller.token
    if (
        mine is not None
        and name == caller.account.name
        and (caller.role != caller.account.role or mine.expires_at is not None)
        and not mine.digest.startswith(token)
    ):
        raise RefusedError(403, "role", "this token ends no other; use one without an end and of the account's own "
                           f"role, {caller.account.role}")  # fmt: skip
    await service.store.write(lambda store: store.accounts.drop_token(name, token, "" if mine is None else mine.digest))


@router.get("/usage")
async def usage(service: TheService, caller: Reader, account: Annotated[str, Query(max_length=63)] = "") -> UsageOut:
    """Show what an account's jobs of this month have cost; other accounts' only an administrator sees."""
    name = account or caller.account.name
    _check_own(caller, name)
    if account:
        await service.store.read(lambda store: store.accounts.get(name))  # else nobody would learn of a slip of the pen
    return await month_of(service, name)


async def month_of(service: Service, account: str) -> UsageOut:
    now = datetime.now(UTC)
    first, until = month(now)

    def ask(store: Store) -> tuple[list[Charge], int]:
        charges = store.usage(first, until, account).get(account, [])
        return charges, store.count_jobs(first, until, account).get(account, 0)

    charges, jobs = await service.store.read(ask)
    total: dict[str, Any] = {"worker_s": 0.0, "core_s": 0.0, "joules": None, "money": {}}
    total |= next(iter(sums(charges, lambda _: "all")), {})
    return UsageOut(
        account=account, month=now.strftime("%Y-%m"), jobs=jobs, money=total["money"],
        trials=sum(tried(charges).values()), worker_s=total["worker_s"], core_s=total["core_s"],
        joules=total["joules"] or 0.0,
    )  # fmt: skip


def _check_own(caller: Caller, name: str) -> None:
    if caller.role != ADMIN and name != caller.account.name:
        raise RefusedError(404, "not-found", f"there is no account {name!r}")
