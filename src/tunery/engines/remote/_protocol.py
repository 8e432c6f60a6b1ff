"""Frames between an engine and an agent: a JSON header and a body of bytes behind their lengths, none too large.

The agent begins with `MAGIC`, behind whatever the login shell printed, and the frame `hello`; the engine answers with
`welcome`. `do` in a header says what a frame is. Blobs cross in chunks, between which other frames go first.

    to the agent      welcome start call kill place hold free want chunk fetch release ping check close
    from the agent    hello usage answer wanted chunk stored held pong checked
"""

import contextlib
import json
import math
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from tunery._errors import HostError
from tunery.domain import Measurement, Task

PROTOCOL = 2
MAGIC = b"\0tunery agent\0\n"
MOST_HEADER_BYTES = 1 << 20
MOST_BODY_BYTES = 1 << 28
_LENGTHS = struct.Struct("<QI")
_READ = _CHUNK = 1 << 18
# Of a second of one core, twice what the fastest can: two products of 16 numbers in each of 6e9 cycles, four times as
# many as Winograd's convolutions count for; eight times as many narrow ones; two stores of 64 bytes.
_PLAIN_FLOP, _NARROW_FLOP, _WRITTEN_BYTES = 3e12, 2.5e13, 1.5e12
_FASTEST_GPU, _GPU_DIALECTS = (2e16, 3e13), frozenset({"cuda", "opencl"})
_CALL_S = 2e-9  # of a call that does nothing

Frame = tuple[dict[str, Any], bytes]


class ProtocolError(Exception):
    """What came over the pipe is no frame; the message says what it is instead."""


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return one frame."""
    head = json.dumps(header).encode()
    if len(head) > MOST_HEADER_BYTES or len(body) > MOST_BODY_BYTES:
        raise ValueError(f"{len(head) + len(body)} bytes are too many for one call to another host; use a blob")
    return b"".join((_LENGTHS.pack(len(body), len(head)), head, body))


def seconds_of(value: object, most_s: float) -> float:
    """Return a time that the other side tells, in seconds."""
    if not isinstance(value, float | int) or not 0 <= value <= most_s:
        raise ProtocolError(f"a time of {value!r:.40} s, where at most {most_s:.0f} s can be")
    return float(value)


def check_told(result: object, task: Task | None) -> None:
    """Check the numbers of what a worker of another host answers: nothing else looks at them before they are used.

    Raises:
        HostError: they cannot be.
    """
    least_s = 0.0 if task is None else least_latency_s(task)
    for told in result if isinstance(result, Sequence) else (result,):
        if not isinstance(told, Measurement):
            continue
        spent_s = (told.build_s, told.measure_s)
        if not all(least_s <= sample < math.inf for sample in told.samples_s):
            raise HostError(
                f"it tells of a run of {min(told.samples_s):.3g} s, and the work takes {least_s:.3g} s at least: "
                "look at its clock and at who runs it, and add it again"
            )
        error = told.verification.max_error if told.verification else 0.0
        if not all(0 <= number < math.inf for number in (*spent_s, error)):
            raise HostError(
                f"it tells of {(*spent_s, error)}, which no run takes; look at who runs it, and add it again"
            )


def least_latency_s(task: Task) -> float:
    """Return less than any processor takes for a task: at twice the operations, and bytes written, of the fastest."""
    workload = task.workload
    plain = all(spec.dtype in {"float32", "float64"} for spec in workload.arguments)
    cores = max(task.target.threads, 1)
    operations, written = _FASTEST_GPU if task.target.dialect in _GPU_DIALECTS else (
        cores * (_PLAIN_FLOP if plain else _NARROW_FLOP), cores * _WRITTEN_BYTES
    )  # fmt: skip
    numbers = sum(math.prod(spec.shape) for spec in workload.output_specs)  # of a byte each at least
    return max(workload.flop / operations, numbers / written, _CALL_S)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class FrameReader:
    """Takes frames from a descriptor; memory is taken as bytes arrive, never because a length says so."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def skip_to(self, mark: bytes, most: int) -> bytes | None:
        """Read over up to `most` bytes and `mark`; return what was before it, or None at the end of the file.

        What is before it never holds the byte that it begins with.
        """
        while (at := self._buffer.find(mark)) < 0:
            begun = self._buffer.find(mark[:1])
            if len(self._buffer) > most or (begun >= 0 and not mark.startswith(self._buffer[begun:])):
                raise ProtocolError(_shown(bytes(self._buffer)))
            if not self._fill():
                return None
        before = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        return before

    def begins(self, mark: bytes) -> bool:
        """Return whether a part of `mark` has come that `skip_to` waits to be completed."""
        return mark[0] in self._buffer

    @property
    def unread(self) -> str:
        return _shown(bytes(self._buffer)) if self._buffer else ""

    def read(self) -> Frame | None:
        """Wait for a frame; None at the end of the file."""
        if not self._has(_LENGTHS.size):
            return None
        body_size, head_size = _LENGTHS.unpack_from(self._buffer)
        if head_size > MOST_HEADER_BYTES or body_size > MOST_BODY_BYTES:
            raise ProtocolError(f"a frame of {head_size} and {body_size} bytes, which is too large: {self.unread}")
        head_end = _LENGTHS.size + head_size
        if not self._has(head_end + body_size):
            return None
        view = memoryview(self._buffer)
        head, body = bytes(view[_LENGTHS.size : head_end]), bytes(view[head_end : head_end + body_size])
        view.release()
        del self._buffer[: head_end + body_size]
        try:
            header = json.loads(head, parse_constant=_no_number)
        except ValueError:
            raise ProtocolError(f"a frame whose header is not JSON: {_shown(head)}") from None
        if not isinstance(header, dict) or not isinstance(header.get("do"), str):
            raise ProtocolError(f"a frame that does not say what it is: {_shown(head)}")
        return header, body

    def _has(self, size: int) -> bool:
        while len(self._buffer) < size:
            if not self._fill():
                return False
        return True

    def _fill(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ)
        except OSError:
            data = b""
        self._buffer += data
        return bool(data)


@dataclass(frozen=True, slots=True)
class _Stream:
    digest: str
    file: IO[bytes]


class FrameWriter:
    """Writes frames on a thread of its own: nobody waits for the pipe, and a blob's chunks let other frames pass."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._frames: deque[bytes] = deque()
        self._streams: deque[_Stream] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="tunery-frames", daemon=True)
        self._thread.start()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queue a frame."""
        self.send_packed(pack(header, body))

    def send_packed(self, frame: bytes) -> None:
        with self._changed:
            self._frames.append(frame)
            self._changed.notify()

    def stream(self, digest: str, file: IO[bytes]) -> None:
        """Queue a blob, whose file is closed when it is sent."""
        with self._changed:
            self._streams.append(_Stream(digest, file))
            self._changed.notify()

    def end(self, wait_s: float) -> bool:
        """Write the frames that are queued, then nothing more; return whether that is done within so many seconds."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (data := self._next()) is not None:
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:  # the other side is gone, which is noticed by reading
                with self._changed:
                    self._ending = True
                    self._frames.clear()
                    self._close_streams()
                return

    def _next(self) -> bytes | None:
        with self._changed:
            while not (self._frames or self._streams or self._ending):
                self._changed.wait()
            if self._frames:
                return self._frames.popleft()
            if not self._streams or self._ending:
                self._close_streams()
                return None
            stream = self._streams[0]
        header: dict[str, Any] = {"do": "chunk", "blob": stream.digest}
        try:
            data = stream.file.read(_CHUNK)
        except OSError as error:
            data, header = b"", {**header, "failed": str(error)}
        if len(data) < _CHUNK:
            header["last"] = True
            stream.file.close()
            with self._changed, contextlib.suppress(IndexError):
                self._streams.popleft()
        return pack(header, data)

    def _close_streams(self) -> None:
        while self._streams:
            self._streams.popleft().file.close()


def frames(reader: FrameReader) -> Iterator[Frame]:
    while (frame := reader.read()) is not None:
        yield frame


def _shown(data: bytes) -> str:
    return repr(data[:80].decode(errors="replace")) + ("..." if len(data) > 80 else "")
