"""The agent: runs this host's local engine for an engine on another host, which talks to it over a pipe. It ends, and
all workers with it, at the end of its input, when nothing is heard for several keep-alives, and at a frame that is
none. What the workers print goes to their logs, what libraries print here to the standard error."""

import asyncio
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tunery._errors import BlobError, BlobNotFoundError, TuneryError
from tunery._locks import DeviceLock
from tunery._settings import settings
from tunery.blobs import Blobs, DirectoryBlobs
from tunery.devices import device_class
from tunery.domain import Environment, HostFacts
from tunery.engines._base import Role, WorkerSpec
from tunery.engines._loop import MOST_SENT_BYTES, Channel, FrameError, FrameReader, Loop, pack
from tunery.engines._payload import error_to_data
from tunery.engines.local.engine import LocalEngine
from tunery.engines.remote._protocol import MAGIC, PROTOCOL, Receiver
from tunery.engines.remote.facts import host_checks, host_facts

MISSED_KEEP_ALIVES = 4
"""After as many intervals without a word the other side counts as gone."""
_LAST_WORDS_S = 5.0


def serve_stdio(cache: Path) -> int:
    """Be this host's agent on the standard input and output until the other side is gone; return the exit code. `cache`
    is where blobs live. Nothing else is read from, or written to, the two streams."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    with DirectoryBlobs(cache / "blobs") as blobs, LocalAgent(reading, writing, blobs, cache / "measuring.lock") as one:
        return one.serve()


class LocalAgent:
    """One conversation: frames come from `reading` and go to `writing`."""

    def __init__(self, reading: int, writing: int, blobs: Blobs, device_lock: Path) -> None:
        self._descriptors = reading, writing
        self._blobs, self._receiver = blobs, Receiver(blobs)
        self._stack = ExitStack()
        logs = self._stack.enter_context(blobs.scratch())  # of an agent that is killed, the next one removes it
        self._engine = LocalEngine(logs, on_usage=self._used, blobs=blobs)
        self._names: dict[str, str] = {}  # the other side's name of a worker, ours
        self._theirs: dict[str, str] = {}
        self._device = _DeviceTurns(device_lock)
        self._heard_s, self._keep_alive_s = time.monotonic(), math.inf
        self._code: int | None = None
        self._loop = Loop(self._due_s, self._watch, self._fault)

    def __enter__(self) -> "LocalAgent":
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine.close()
        self._device.close()
        self._receiver.close()
        self._stack.close()

    def serve(self) -> int:
        os.write(self._descriptors[1], MAGIC)
        facts = host_facts()
        self._others = device_class("cpu").foreign_load(facts.cores) if settings().load_watch else None
        reader = FrameReader(self._descriptors[0], MOST_SENT_BYTES)
        self._channel = Channel(self._loop, reader, self._descriptors, self._handle, self._end)
        said = TypeAdapter(HostFacts).dump_python(facts, mode="json")
        self._send({"do": "hello", "protocol": PROTOCOL, **said})
        self._loop.run(lambda: self._code is not None)
        return self._code or 0

    def _due_s(self) -> float:
        return max(0.0, self._heard_s + MISSED_KEEP_ALIVES * self._keep_alive_s - time.monotonic())

    def _watch(self) -> None:
        """End this process when the other side has been silent for too long; the kernel ends the workers with it."""
        if self._due_s() <= 0:
            self._engine.close()
            self._blobs.close()
            os._exit(1)

    def _fault(self, error: Exception) -> None:
        raise error

    def _end(self, error: FrameError | None) -> None:
        self._code = 0 if error is None else 1
        if error is not None:
            self._channel.send({"do": "refused", "why": f"the agent got {error}"})
            self._channel.finish(_LAST_WORDS_S)

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame, on any thread; ValueError where it is too large."""
        frame = pack(header, body, MOST_SENT_BYTES)
        self._loop.post(lambda: self._channel.send_packed(frame))

    def _handle(self, header: dict[str, Any], body: bytes) -> None:
        self._heard_s = time.monotonic()
        if header["do"] == "close":
            self._code = 0
            return
        known: Mapping[str, Callable[[dict[str, Any], bytes], None]] = {
            "welcome": self._welcome, "start": self._start, "call": self._call, "kill": self._kill,
            "place": self._place, "want": self._want, "chunk": self._chunk, "fetch": self._fetch,
            "release": self._release, "hold": self._hold, "free": self._free, "ping": self._ping, "check": self._check,
        }  # fmt: skip
        try:
            known[header["do"]](header, body)
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"a frame that it does not understand ({header['do']!r}: {error!r})") from error

    def _welcome(self, header: dict[str, Any], _body: bytes) -> None:
        self._keep_alive_s = float(header["keep_alive_s"])

    def _start(self, header: dict[str, Any], body: bytes) -> None:
        spec = dict(header["spec"])
        environment = Environment(**spec.pop("environment"))
        made = WorkerSpec(**{**spec, "role": Role(spec["role"]), "cores": tuple(spec["cores"]),
                             "environment": environment})  # fmt: skip
        name = self._engine.start_encoded(made, header["settings"], body)
        self._names[header["worker"]], self._theirs[name] = name, header["worker"]

    def _call(self, header: dict[str, Any], body: bytes) -> None:
        deadline_s = math.inf if header["deadline_s"] is None else float(header["deadline_s"])
        name = self._names[header["worker"]]
        call = self._engine.call_encoded(name, header["method"], int(header["count"]), body, deadline_s)
        call.add_done_callback(partial(self._answer, header["id"], name))

    def _answer(self, number: int, name: str, call: Future[bytes]) -> None:
        error = call.exception()
        header = {"do": "answer", "id": number, "failed": error is not None, **self._state(name)}
        body = call.result() if error is None else json.dumps(error_to_data(error)).encode()
        try:
            self._send(header, body)
        except ValueError as large:
            data = error_to_data(TuneryError(str(large)))
            self._send({**header, "failed": True}, json.dumps(data).encode())

    def _state(self, name: str) -> dict[str, Any]:
        return {
            "worker": self._theirs[name], "generation": self._engine.generation(name),
            "cpu_s": self._engine.cpu_s(name), "pid": self._engine.pid(name),
        }  # fmt: skip

    def _used(self, name: str, method: str, wall_s: float, cpu_s: float) -> None:
        self._send({
            "do": "usage", "worker": self._theirs.get(name, name), "method": method, "wall_s": wall_s, "cpu_s": cpu_s,
        })  # fmt: skip

    def _kill(self, header: dict[str, Any], _body: bytes) -> None:
        self._engine.kill(self._names[header["worker"]])

    def _place(self, header: dict[str, Any], _body: bytes) -> None:
        self._engine.place(self._names[header["worker"]], tuple(map(int, header["cores"])))

    def _want(self, header: dict[str, Any], _body: bytes) -> None:
        here = True
        try:
            self._blobs.get(header["blob"])
        except TuneryError:
            here = False
        self._send({"do": "wanted", "blob": header["blob"], "here": here})

    def _chunk(self, header: dict[str, Any], body: bytes) -> None:
        whole = self._receiver.take(header, body)
        if whole is not None:
            self._send({"do": "stored", "blob": whole[0], "failed": whole[1]})

    def _fetch(self, header: dict[str, Any], _body: bytes) -> None:
        try:
            file = self._blobs.get(header["blob"]).open("rb")
        except BlobNotFoundError:  # somebody has released one of the same content meanwhile
            self._send({"do": "chunk", "blob": header["blob"], "missing": True})
        except (TuneryError, OSError) as error:
            self._send({"do": "chunk", "blob": header["blob"], "last": True, "failed": str(error)})
        else:
            self._channel.stream(header["blob"], file)

    def _release(self, header: dict[str, Any], _body: bytes) -> None:
        with contextlib.suppress(BlobError):
            self._blobs.release(header["blob"])

    def _hold(self, header: dict[str, Any], _body: bytes) -> None:
        def told(done: Future[None]) -> None:
            if not done.cancelled():
                error = done.exception()
                self._send({"do": "held", "id": header["id"], "failed": "" if error is None else str(error)})

        self._device.take(header["id"]).add_done_callback(told)

    def _free(self, header: dict[str, Any], _body: bytes) -> None:
        self._device.give_back(header["id"])

    def _ping(self, _header: dict[str, Any], _body: bytes) -> None:
        own_s = self._engine.own_cpu_s() + time.process_time()
        used = {theirs: self._engine.cpu_s(name) for theirs, name in self._names.items()}
        others = 0.0 if self._others is None else self._others.taken()
        self._send({
            "do": "pong", "clock_s": time.time(), "own_cpu_s": own_s, "cpu_s": used, "others_cores": others
        })  # fmt: skip

    def _check(self, header: dict[str, Any], _body: bytes) -> None:
        measuring = bool(header["measuring"])

        def look() -> None:
            found = json.dumps([asdict(check) for check in host_checks(measuring=measuring)]).encode()
            self._send({"do": "checked"}, found)

        threading.Thread(target=look, name="tunery-checks", daemon=True).start()


class _DeviceTurns:
    """The right to measure on this host, by the numbers of those who hold it or wait for it."""

    def __init__(self, path: Path) -> None:
        self._lock = DeviceLock(path)
        self._loop = asyncio.new_event_loop()
        self._held: dict[int, Future[None]] = {}
        self._stacks: dict[int, AsyncExitStack] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="tunery-device", daemon=True)
        self._thread.start()

    def take(self, number: int) -> Future[None]:
        self._held[number] = taken = asyncio.run_coroutine_threadsafe(self._take(number), self._loop)
        return taken

    async def _take(self, number: int) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self._lock.held())
        self._stacks[number] = stack

    def give_back(self, number: int) -> None:
        """Let go of the device, or wait for it no longer."""
        taken = self._held.pop(number, None)
        if taken is not None:
            taken.cancel()
            asyncio.run_coroutine_threadsafe(self._give_back(number), self._loop)

    async def _give_back(self, number: int) -> None:
        stack = self._stacks.pop(number, None)
        if stack is not None:
            await stack.aclose()

    def close(self) -> None:
        for taken in self._held.values():
            taken.cancel()
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)
        self._thread.join()
        self._loop.close()
