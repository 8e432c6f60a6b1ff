"""What a client may send, and how long it may take: nobody holds the service by being large, slow or silent."""

import asyncio
import os
import socket
import struct
from contextvars import ContextVar
from functools import partial
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BYTES = 1 << 18
_BODY_S, _AGAIN_S = 30.0, 0.5
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BodyLimit:
    """Bounds the size of a request's body, and the time that it takes to come; uploads have bounds of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bounded = scope["type"] == "http" and not (scope["method"] == "PUT" and scope["path"].startswith("/v1/blobs/"))
        await self._app(scope, _Bounded(receive) if bounded else receive, send)


class _Bounded:
    """The body of one request as it comes."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = MOST_BYTES
        self._until = asyncio.get_running_loop().time() + _BODY_S
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the request did not come within {_BODY_S:.0f} s; send it again") from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"a request of more than {MOST_BYTES} bytes is refused")
        self._whole = not message.get("more_body", False)
        return message


_LONG_S, _MOST_LONG, _WAIT_S, _MOST_WAITING = 1.0, 2, 20.0, 256
_turn: ContextVar["RequestTurn"] = ContextVar("_turn")


class Line:
    """The requests of an account, or those of a client without a known token: one has its turn, the others wait for it.

    Whoever sends many at once waits for their own, and the next one of others is answered beside one of them. One that
    takes long lets the next begin; so do waits and streams (`end_turn`), which are counted, as uploads are.
    """

    def __init__(self) -> None:
        self.free, self.long, self.waiting = asyncio.Semaphore(), 0, 0

    @property
    def is_full(self) -> bool:
        return self.waiting >= _MOST_WAITING


def end_turn() -> None:
    """Let the next request begin: this one waits from now on, or is slow by nature."""
    if turn := _turn.get(None):
        turn.end()


class RequestTurn:
    """A request's turn in its line, between `begin` and `end`."""

    def __init__(self, line: Line) -> None:
        self._line, self._is_long = line, False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Wait for the turn; raise TimeoutError where too many wait, or none comes for long."""
        if self._line.is_full:
            raise TimeoutError
        self._line.waiting += 1
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._line.free.acquire()
        finally:
            self._line.waiting -= 1
        _turn.set(self)
        self._watch()

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LONG_S, self._let_next)

    def _let_next(self) -> None:
        if self._line.long >= _MOST_LONG:
            self._watch()
            return
        self._is_long = True
        self._line.long += 1
        self._line.free.release()

    def end(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._is_long:
            self._line.long -= 1
        else:
            self._line.free.release()


class PatientConnection(H11Protocol):
    """A connection that ends where its client is too slow to say what it wants, or is another user's on our socket.

    A request's head has to come within two times `head_s`, and what is left of a body that was refused within `rest_s`
    of the answer.
    """

    head_s, rest_s = 10.0, 2.0

    def connection_made(self, transport: Any) -> None:
        """Begin, unless another user has come through a socket that should be ours alone."""
        super().connection_made(transport)
        if not _is_ours(transport.get_extra_info("socket")):
            transport.abort()
            return
        if (connection := transport.get_extra_info("socket")).family != socket.AF_UNIX:
            # Else a body that follows its head waits 40 ms for the client to acknowledge that.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.loop.call_later(self.head_s, self._look, None)

    def on_response_complete(self) -> None:
        """Let the client read why its body is refused: ended at once, it would find a reset connection."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(self.rest_s, self._end_refused, self.cycle)

    def _end_refused(self, refused: object) -> None:
        if self.cycle is refused and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def _look(self, before: object, *, again: bool = False) -> None:
        """End the connection where no request has come since the last look, and none is being answered.

        What came while the service was busy may not be read yet: it is looked for once more.
        """
        if self.transport.is_closing():
            return
        if not (self.cycle is None or self.cycle.response_complete) or self.cycle is not before:
            self.loop.call_later(self.head_s, self._look, self.cycle)
        elif not again:
            self.loop.call_later(_AGAIN_S, partial(self._look, before, again=True))
        else:
            if self.cycle is None or self.conn.trailing_data[0]:
                self.transport.write(_TOO_LATE)
            self.transport.close()


def _is_ours(connection: Any) -> bool:
    """Tell whether a peer may talk to us: on a Unix socket, only root and the user that we run as."""
    if connection is None or connection.family != socket.AF_UNIX:
        return True
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", told)[1] in {0, os.geteuid()}
