"""What another host itself is asked: to look at what its workers need, and to keep its device free."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from pydantic import TypeAdapter

from tunery._errors import EngineError, HostError
from tunery.domain import Check
from tunery.engines.remote._connection import Connection
from tunery.engines.remote._link import Link


class Questions:
    """Asks over a link, from any thread; a question fails with LostWorkerError where the host is away or goes."""

    def __init__(self, link: Link, numbers: Iterator[int]) -> None:
        self.connection: Connection | None = None
        """What the link's thread asks over; None while the host is away."""
        self._link, self._numbers = link, numbers
        self._holds: dict[int, Future[Callable[[], None]]] = {}
        self._checks: list[Future[tuple[Check, ...]]] = []

    def check(self, *, measuring: bool = False) -> Future[tuple[Check, ...]]:
        """Have the host look at what its workers need, all of them or those that only run kernels (`measuring`)."""
        future: Future[tuple[Check, ...]] = Future()

        def ask() -> None:
            if self.connection is None:
                future.set_exception(self._link.lost())
            else:
                self._checks.append(future)
                self.connection.writer.send({"do": "check", "measuring": measuring})

        self._link.post(ask)
        return future

    def hold_device(self) -> Future[Callable[[], None]]:
        """Have the host keep its device for the caller, until it calls the future's result."""
        future: Future[Callable[[], None]] = Future()
        number = next(self._numbers)

        def ask() -> None:
            if self.connection is None:
                future.set_exception(self._link.lost())
            else:
                self._holds[number] = future
                self.connection.writer.send({"do": "hold", "id": number})

        self._link.post(ask)
        return future

    def give_up(self, error: EngineError) -> None:
        questions: list[Future[Any]] = [*self._holds.values(), *self._checks]
        self._holds, self._checks = {}, []
        for future in questions:
            if not future.done():
                future.set_exception(error)

    # What the agent says.

    def held(self, header: dict[str, Any], _body: bytes) -> None:
        """Take the answer to `hold_device`."""
        number = header["id"]
        future = self._holds.pop(number, None)
        if future is None:
            return
        if header["failed"]:
            future.set_exception(HostError(header["failed"]))
        elif not future.set_running_or_notify_cancel():
            self._free(number, self.connection)
        else:
            future.set_result(partial(self._let_go, number, self.connection))

    def checked(self, _header: dict[str, Any], body: bytes) -> None:
        found = TypeAdapter(tuple[Check, ...]).validate_json(body)
        asked, self._checks = self._checks, []
        for future in asked:
            future.set_result(found)

    def _let_go(self, number: int, connection: Connection | None) -> None:
        self._link.post_if_open(lambda: self._free(number, connection))

    def _free(self, number: int, connection: Connection | None) -> None:
        if connection is not None and self.connection is connection:
            connection.writer.send({"do": "free", "id": number})
