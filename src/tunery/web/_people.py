"""Accounts, tokens and what they have used."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from tunery.store import Store, StoredAccount, StoredToken
from tunery.web._bodies import AccountChange, AccountIn, AccountOut, NewToken, TokenIn, TokenOut, UsageOut
from tunery.web._problems import RefusedError
from tunery.web._service import ADMIN, ROLES, Admin, Caller, Reader, Service, TheService
from tunery.web._tokens import digest_of, new_token

router = APIRouter(prefix="/v1", tags=["people"])
Name = Annotated[str, InPath(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")]
_DAY_S = 86_400.0


@router.get("/me")
async def me(caller: Reader) -> AccountOut:
    """Show the caller's account."""
    return AccountOut.of(caller.account)


@router.get("/accounts")
async def accounts(service: TheService, _: Admin) -> list[AccountOut]:
    """List the accounts."""
    found = await service.store.read(lambda store: store.accounts.all())
    return [AccountOut.of(account) for account in found]


@router.post("/accounts", status_code=201)
async def create(account: AccountIn, service: TheService, _: Admin) -> AccountOut:
    """Create an account."""
    made = StoredAccount(**account.model_dump())
    await service.store.write(lambda store: store.accounts.create(made))
    return AccountOut.of(made)


@router.patch("/accounts/{name}")
async def change(name: Name, account: AccountChange, service: TheService, _: Admin) -> AccountOut:
    """Change an account; what is left out stays."""
    values = account.model_dump(exclude_unset=True)
    return AccountOut.of(await service.store.write(lambda store: store.accounts.change(name, values)))


@router.get("/accounts/{name}/tokens")
async def tokens(name: Name, service: TheService, caller: Reader) -> list[TokenOut]:
    """List an account's tokens, without their texts."""
    _check_own(caller, name)
    found = await service.store.read(lambda store: store.accounts.tokens(name))
    return [TokenOut.of(token) for token in found]


@router.post("/accounts/{name}/tokens", status_code=201)
async def add_token(name: Name, token: TokenIn, service: TheService, caller: Reader) -> NewToken:
    """Make a token. Its text is in this answer and nowhere else."""
    _check_own(caller, name)
    if ROLES.index(token.role) > ROLES.index(caller.role):
        raise RefusedError(403, "role", f"a token of the role {caller.role} cannot make one of the role {token.role}")
    text, lifetime_s = new_token(), None if token.days is None else token.days * _DAY_S
    stored = StoredToken(digest_of(text), name, token.label, token.role)

    def add(store: Store) -> StoredToken:
        store.accounts.get(name)
        return store.accounts.add_token(stored, lifetime_s)

    shown = TokenOut.of(await service.store.write(add))
    return NewToken(**shown.model_dump(), token=text)


@router.delete("/accounts/{name}/tokens/{token}", status_code=204)
async def drop_token(
    name: Name, token: Annotated[str, InPath(pattern="^[0-9a-f]{12}$")], service: TheService, caller: Reader
) -> None:
    """End a token."""
    _check_own(caller, name)
    await service.store.write(lambda store: store.accounts.drop_token(name, token))


@router.get("/usage")
async def usage(service: TheService, caller: Reader, account: Annotated[str, Query(max_length=63)] = "") -> UsageOut:
    """Show what an account's jobs of this month have cost; other accounts' only an administrator sees."""
    name = account or caller.account.name
    _check_own(caller, name)
    return await month_of(service, name)


async def month_of(service: Service, account: str) -> UsageOut:
    """Return what an account's jobs that were submitted this month have cost."""
    now = datetime.now(UTC)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
    every = await service.store.read(lambda store: store.jobs(account=account, since=first))
    money: dict[str, float] = {}
    for status in every:
        if status.spend.money:
            money[status.spend.currency] = money.get(status.spend.currency, 0.0) + status.spend.money
    return UsageOut(
        account=account, month=now.strftime("%Y-%m"), jobs=len(every), money=money,
        trials=sum(status.spend.trials for status in every), wall_s=sum(status.spend.wall_s for status in every),
        core_s=sum(status.spend.core_s for status in every),
        joules=sum(status.spend.joules or 0.0 for status in every),
    )  # fmt: skip


def _check_own(caller: Caller, name: str) -> None:
    if caller.role != ADMIN and name != caller.account.name:
        raise RefusedError(404, "not-found", f"there is no account {name!r}")
