"""What every request has at hand: the manager, the uploads, and who asks."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from tunery._errors import StoreError
from tunery.domain import JobStatus
from tunery.domain.request import MOST_PRIORITY
from tunery.service.manager import JobManager
from tunery.store import AsyncStore, StoredAccount, StoredToken, patience_s
from tunery.web._hub import Hub
from tunery.web._limits import Line, RequestTurn, end_turn
from tunery.web._problems import RefusedError, problem
from tunery.web._tokens import digest_of, is_whole

READER, USER, DEVELOPER, ADMIN = "reader", "user", "developer", "admin"
ROLES = (READER, USER, DEVELOPER, ADMIN)
"""What an account or a token may do: look; submit and control jobs; send code that runs with the service's rights;
manage accounts. Each includes those before it."""
_PATIENCE_S, _ALIVE_S = 3.0, 5.0
_MOST_STREAMS = 32
_TOO_MANY = "too many calls are made at once; wait for answers before the next"
_LOOK_UP_S, _MOST_LOOKED_UP = 4.0, 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """One running service: `files` is the directory of uploads and of what is delivered.

    Dialects of a test kit are open to accounts of a `scripted` one only.
    A `local` one is for the user who runs it, and for nobody else: it needs no token, and may name files of theirs.
    One file of records is imported at a time, by who holds `record_import`: each takes long, and keeps a reader busy.
    A job with a key of its client's is submitted by who holds its lock in `keyed`, one POST at a time.
    `streams` counts those of each account, `coming` the bytes of its uploads under way; `notes` are entries of the
    audit log on their way to the store; `looked_up` says when a token was last what it was when its stream began,
    `tokens` in which of the `lines` a request with one waits for its turn.
    """

    manager: JobManager
    files: Path
    hub: Hub
    local: bool = False
    scripted: bool = False
    record_import: asyncio.Lock = field(default_factory=asyncio.Lock)
    keyed: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    streams: Counter[str] = field(default_factory=Counter)
    coming: Counter[str] = field(default_factory=Counter)
    notes: set[asyncio.Task[None]] = field(default_factory=set)
    looked_up: dict[StoredToken, tuple[float, bool]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    lines: WeakValueDictionary[str, Line] = field(default_factory=WeakValueDictionary)

    @property
    def hidden(self) -> Path | None:
        return None if self.local else self.files

    @property
    def store(self) -> AsyncStore:
        return self.manager.store


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the account, what its token lets it do, and the token (None: the user of a local service)."""

    account: StoredAccount
    role: str
    token: StoredToken | None = None

    def may_see(self, status: JobStatus) -> bool:
        return self.role == ADMIN or status.request.get("queue_owner") == self.account.name


async def service_of(request: Request) -> AsyncIterator[Service]:
    """Have the service that a request came to: in its turn, and with a store that is waited for for seconds only."""
    if b"%00" in request.scope["query_string"]:
        raise RefusedError(422, "request", "a text of the query holds a NUL character; leave it out")
    service: Service = request.app.state.service
    began_s = time.monotonic()
    patience_s.set(_PATIENCE_S)
    if service.local:
        yield service
        return
    turn = RequestTurn(service.lines.setdefault(_whose(service, request.scope), Line()))
    try:
        await turn.begin()
    except TimeoutError:
        await service.store.check_answers(_PATIENCE_S - (time.monotonic() - began_s))
        raise RefusedError(429, "turns", _TOO_MANY) from None
    patience_s.set(_PATIENCE_S - (time.monotonic() - began_s))
    try:
        yield service
    finally:
        turn.end()


def _whose(service: Service, scope: Scope) -> str:
    token = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
    return service.tokens.get(token) or (scope["client"] or ("",))[0]


class FullLines:
    """Refuses the calls of whoever has too many waiting before more is done for them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service: Service = scope["app"].state.service
        line = service.lines.get(_whose(service, scope))
        answer = problem(429, "turns", _TOO_MANY) if line and line.is_full else self._app
        await answer(scope, receive, send)


_ITS_USER = Caller(StoredAccount("", ADMIN, priority=MOST_PRIORITY), ADMIN)
_bearer = HTTPBearer(auto_error=False, description="A token of `tunery accounts token`.")
TheService = Annotated[Service, Depends(service_of, scope="function")]


async def caller_of(
    request: Request, service: TheService, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    if service.local:
        return _ITS_USER
    if sent is None:
        raise RefusedError(401, "token", "a token is needed; log in with `tunery login URL`")
    if not is_whole(sent.credentials):
        raise RefusedError(401, "token", "this is no whole token; copy it again")
    digest = digest_of(sent.credentials)
    found = await service.store.read(lambda store: store.accounts.who(digest), urgent=True)
    if found is None:
        raise RefusedError(401, "token", "the token is unknown or has expired; ask an administrator for a new one")
    account, token = found
    if len(service.tokens) >= _MOST_LOOKED_UP:
        service.tokens.clear()
    service.tokens[request.headers["authorization"]] = f"account {account.name}"
    caller = request.state.caller = Caller(account, _role(account, token), token)
    return caller


def _role(account: StoredAccount, token: StoredToken) -> str:
    return min(account.role, token.role, key=ROLES.index)


async def still_holds(service: Service, caller: Caller) -> bool:
    """Tell whether a caller's token still is what it was when it came; also while the store cannot be asked."""
    if caller.token is None:
        return True
    digest, now_s = caller.token.digest, time.monotonic()
    looked_s, holds = service.looked_up.get(caller.token, (0.0, True))
    if holds and now_s >= looked_s + _LOOK_UP_S:
        with suppress(StoreError):
            found = await service.store.read(lambda store: store.accounts.who(digest), urgent=True)
            holds = found is not None and _role(*found) == caller.role
        if len(service.looked_up) >= _MOST_LOOKED_UP:
            service.looked_up.clear()
        service.looked_up[caller.token] = now_s, holds
    return holds


@contextmanager
def streaming(service: Service, caller: Caller) -> Iterator[None]:
    name = caller.account.name
    if not service.local and service.streams[name] >= _MOST_STREAMS:
        raise RefusedError(429, "streams", f"{name} has {_MOST_STREAMS} streams, waits and uploads already; end some")
    service.streams[name] += 1
    end_turn()
    try:
        yield
    finally:
        service.streams[name] -= 1


async def lasting(service: Service, caller: Caller, changed: Callable[[float], Awaitable[T]]) -> AsyncIterator[T]:
    """Yield what a wait of at most so many seconds finds, again and again: to the service's or the token's end."""
    now_s = asyncio.get_running_loop().time
    due_s = now_s() + _ALIVE_S
    while not service.hub.closed:
        found = await changed(max(due_s - now_s(), 0.0))
        if now_s() >= due_s:
            if not await still_holds(service, caller):
                return
            due_s = now_s() + _ALIVE_S
        yield found


class Stream(StreamingResponse):
    """Server-sent events for a caller, who has a limited number of such streams."""

    def __init__(self, service: Service, caller: Caller, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._counted = partial(streaming, service, caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._counted():
                await super().__call__(scope, receive, send)
        except RefusedError as error:
            await problem(error.status, error.kind, str(error), error.retry_s)(scope, receive, send)


def at_least(caller: Caller, role: str) -> Caller:
    if ROLES.index(caller.role) < ROLES.index(role):
        raise RefusedError(403, "role", f"this needs the role {role}, and the token has the role {caller.role}")
    return caller


Reader = Annotated[Caller, Depends(caller_of)]


async def _user(caller: Reader) -> Caller:
    return at_least(caller, USER)


async def _developer(caller: Reader) -> Caller:
    return at_least(caller, DEVELOPER)


async def _admin(caller: Reader) -> Caller:
    return at_least(caller, ADMIN)


User = Annotated[Caller, Depends(_user)]
Developer = Annotated[Caller, Depends(_developer)]
Admin = Annotated[Caller, Depends(_admin)]
