"""A thread that waits for descriptors, for what other threads post, and for the nearest deadline; and its channels. A
channel carries frames: a JSON header and a body of bytes behind their lengths. `do` in a header says what it is."""

import contextlib
import json
import math
import os
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any, NoReturn

from tunery._errors import EngineError

MOST_HEADER_BYTES = 1 << 20
MOST_BODY_BYTES, MOST_SENT_BYTES = 1 << 36, 1 << 28  # the latter to and from another host


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_LENGTHS = struct.Struct("<QI")
_LEAST_READ, _READ = 1 << 14, 1 << 18
_CHUNKS = 16  # of a blob in one turn: others wait as well

Frame = tuple[dict[str, Any], bytes]


class FrameError(Exception):
    """What came is no frame, or none that can be; the message says what it is instead."""


def pack(header: dict[str, Any], body: bytes = b"", most: int = MOST_BODY_BYTES) -> bytes:
    """Return one frame; ValueError where the body has more than `most` bytes."""
    head = json.dumps(header).encode()
    if len(head) > MOST_HEADER_BYTES or len(body) > most:
        raise ValueError(f"{len(head) + len(body)} bytes are too many for one call to another host; use a blob")
    return b"".join((_LENGTHS.pack(len(body), len(head)), head, body))


def seconds_of(value: object, most_s: float = math.inf) -> float:
    if not isinstance(value, float | int) or not 0 <= value <= most_s:
        raise FrameError(f"a time of {value!r:.40} s, where at most {most_s:.0f} s can be")
    return float(value)


class FrameReader:
    """Takes frames from a descriptor; memory is taken as bytes arrive, never because a length says so. With a `mark`,
    all before it is passed over, which must not hold the byte that the mark begins with, nor more than `most_before`
    bytes."""

    def __init__(
        self, descriptor: int, most_body: int = MOST_BODY_BYTES, mark: bytes = b"", most_before: int = 1 << 16
    ) -> None:
        self._descriptor, self._most_body, self.mark, self._most_before = descriptor, most_body, mark, most_before
        self._buffer, self._missing, self.may_have_more = bytearray(), 0, False

    def read(self) -> Frame | None:
        while (frame := self.next()) is None:
            if not self.fill():
                return None
        return frame

    def fill(self) -> bool:
        """Take what has come; False at the end of the file, BlockingIOError where there is nothing yet."""
        size = max(_LEAST_READ, min(self._missing, _READ))
        try:
            data = os.read(self._descriptor, size)
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        self._buffer += data
        self.may_have_more = len(data) == size
        return bool(data)

    def next(self) -> Frame | None:
        """Return the next frame that has come, None where it is not complete."""
        buffer = self._buffer
        if (self.mark and not self._passed_mark()) or len(buffer) < _LENGTHS.size:
            return None
        body_size, head_size = _LENGTHS.unpack_from(buffer)
        if head_size > MOST_HEADER_BYTES or body_size > self._most_body:
            raise FrameError(f"a frame of {head_size} and {body_size} bytes, which is too large: {self.unread}")
        head_end = _LENGTHS.size + head_size
        end = head_end + body_size
        self._missing = end - len(buffer)
        if self._missing > 0:
            return None
        with memoryview(buffer) as view:
            head, body = bytes(view[_LENGTHS.size : head_end]), bytes(view[head_end:end])
        del buffer[:end]
        try:
            header = _DECODER.decode(head.decode())
        except (ValueError, RecursionError):
            raise FrameError(f"a frame whose header is not JSON: {_shown(head)}") from None
        if not isinstance(header, dict) or not isinstance(header.get("do"), str):
            raise FrameError(f"a frame that does not say what it is: {_shown(head)}")
        return header, body

    def _passed_mark(self) -> bool:
        buffer, mark = self._buffer, self.mark
        start = buffer.find(mark)
        if start < 0:
            begun = buffer.find(mark[:1])
            if len(buffer) > self._most_before or (begun >= 0 and not mark.startswith(buffer[begun:])):
                raise FrameError(_shown(bytes(buffer)))
            return False
        del buffer[: start + len(mark)]
        self.mark = b""
        return True

    @property
    def begins(self) -> bool:
        return bool(self.mark) and self.mark[0] in self._buffer

    @property
    def unread(self) -> str:
        return _shown(bytes(self._buffer)) if self._buffer else ""


def _shown(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace")) + ("..." if len(data) > 80 else "")


class Loop:
    """`due_s` says how long nothing is to be done, `tick` does what is due, `failed` hears of a fault of an action."""

    def __init__(
        self, due_s: Callable[[], float], tick: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._due_s, self._tick, self._failed = due_s, tick, failed
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self.closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self.watch(self._wake, selectors.EVENT_READ, self._on_wake)

    def post(self, action: Callable[[], None], *, last: bool = False) -> bool:
        """Have something done on the loop's thread, unless it is closed; nothing is taken after the `last`."""
        with self._lock:
            if self.closed:
                return False
            self.closed = last
            self._posted.append(action)
            os.eventfd_write(self._wake, 1)
            return True

    def ask(self, action: Callable[[], None]) -> None:
        """Do the same; EngineError where it is closed."""
        if not self.post(action):
            raise EngineError("the engine is closed")

    def watch(self, descriptor: int, events: int, act: Callable[[int], None]) -> None:
        key = self._selector.get_map().get(descriptor)
        if not events:
            if key is not None:
                self._selector.unregister(descriptor)
        elif key is None:
            self._selector.register(descriptor, events, act)
        elif key.events != events or key.data != act:
            self._selector.modify(descriptor, events, act)

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                for key, mask in self._selector.select(min(self._due_s(), 3600.0)):
                    key.data(mask)
                if not is_over():
                    self._tick()
            except Exception as error:  # noqa: BLE001 - whoever waits hears of it, and the next action is done
                self._failed(error)
        with self._lock:
            self.closed = True
            self._selector.close()
            os.close(self._wake)

    def _on_wake(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            try:
                self._posted.popleft()()
            except Exception as error:  # noqa: BLE001 - what was posted behind it is waited for
                self._failed(error)


class Channel:
    """Frames in both directions, on the thread of a loop; nothing waits for the other side. `heard` takes each frame;
    `ended` is told of the end of what comes, None, or of what is no frame. A blob is streamed in frames `chunk`, which
    let other frames pass."""

    def __init__(
        self,
        loop: Loop,
        reader: FrameReader,
        descriptors: tuple[int, int],
        heard: Callable[[dict[str, Any], bytes], None],
        ended: Callable[[FrameError | None], None],
    ) -> None:
        self._loop, self.reader, self._heard, self._ended = loop, reader, heard, ended
        self._reading, self._writing = descriptors
        self._frames: deque[memoryview] = deque()
        self._streams: deque[tuple[str, IO[bytes]]] = deque()
        self._listens, self._closed, self._events = True, False, (0, 0)
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
        self._watch()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        self.send_packed(pack(header, body))

    def send_packed(self, frame: bytes) -> None:
        self._frames.append(memoryview(frame))
        self._flush()

    def stream(self, digest: str, file: IO[bytes]) -> None:
        self._streams.append((digest, file))
        self._flush()

    def read(self) -> None:
        error, there = None, True
        try:
            for _ in range(64):  # a bounded turn: the loop has other channels and deadlines to see to
                try:
                    there = self.reader.fill()
                except BlockingIOError:
                    break
                if not self.reader.may_have_more:
                    break
            while self._listens and (frame := self.reader.next()) is not None:
                self._heard(*frame)
        except FrameError as wrong:
            error = wrong
        if self._listens and (error or not there):
            self._listens = False
            self._watch()
            self._ended(error)

    def close(self) -> None:
        """Leave the descriptors, which are the owner's, and what was not written."""
        self._listens = False
        self._drop()
        self._watch()
        self._closed = True

    def finish(self, within_s: float) -> None:
        """Write the frames that are queued, but no more of the blobs, and wait so long for it."""
        self._drop(frames=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._writing, selectors.EVENT_WRITE)
            until_s = time.monotonic() + within_s
            while self._frames and selector.select(max(0.0, until_s - time.monotonic())):
                self._write()

    def _act(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ:
            self.read()

    def _flush(self) -> None:
        if self._closed:
            self._drop()
        for _ in range(_CHUNKS):
            if not self._frames and self._streams:
                self._frames.append(memoryview(self._chunk()))
            if not self._frames or not self._write():
                break
        self._watch()

    def _write(self) -> bool:
        """Write what is taken now; False where that is not all of a frame."""
        frame = self._frames[0]
        try:
            sent = os.write(self._writing, frame[: 4 * _READ])
        except BlockingIOError:
            return False
        except OSError:  # the other side is gone, which is noticed by reading
            self._drop()
            return False
        if sent == len(frame):
            self._frames.popleft()
        else:
            self._frames[0] = frame[sent:]
        return True

    def _chunk(self) -> bytes:
        digest, file = self._streams[0]
        header: dict[str, Any] = {"do": "chunk", "blob": digest}
        try:
            data = file.read(_READ)
        except OSError as error:
            data, header["failed"] = b"", str(error)
        if len(data) < _READ:
            header["last"] = True
            file.close()
            self._streams.popleft()
        return pack(header, data)

    def _watch(self) -> None:
        reading = selectors.EVENT_READ if self._listens else 0
        writing = selectors.EVENT_WRITE if self._frames or self._streams else 0
        if (reading, writing) == self._events:
            return
        self._events = reading, writing
        if self._reading == self._writing:
            self._loop.watch(self._reading, reading | writing, self._act)
        else:
            self._loop.watch(self._reading, reading, self._act)
            self._loop.watch(self._writing, writing, self._act)

    def _drop(self, *, frames: bool = True) -> None:
        while self._streams:
            self._streams.popleft()[1].close()
        if frames:
            self._frames.clear()
