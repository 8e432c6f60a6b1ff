"""Messages over a stream socket: a JSON header and a body of bytes, behind their lengths."""

import json
import socket
import struct
from collections import deque
from typing import Any

_LENGTHS = struct.Struct("<QI")
_CHUNK = 1 << 18
_MOST_HEAD, _MOST_BODY = 1 << 24, 1 << 36  # bytes; a length beyond is no length

_USAGE = ("wall_s", "cpu_s")
"""What every message of a worker tells: the seconds since its start."""

Frame = tuple[dict[str, Any], bytes]


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    head = json.dumps(header).encode()
    return b"".join((_LENGTHS.pack(len(body), len(head)), head, body))


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Write one message, waiting until it is taken."""
    connection.sendall(pack(header, body))


def receive(connection: socket.socket) -> Frame | None:
    """Read one message, waiting for it; None when the other side is gone."""
    lengths = _exactly(connection, _LENGTHS.size)
    if lengths is None:
        return None
    body_size, head_size = _LENGTHS.unpack(lengths)
    head = _exactly(connection, head_size)
    body = _exactly(connection, body_size)
    return None if head is None or body is None else (json.loads(head), bytes(body))


def _exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = connection.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return data


class Channel:
    """The parent's end: never waits, so a worker that stops in the middle of a message cannot hold up the others."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Queue a packed message and write what the socket takes now."""
        self._outgoing.append(memoryview(message))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes; a closed other side is noticed by reading."""
        while self._outgoing:
            try:
                sent = self.connection.send(self._outgoing[0][: 4 * _CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()
                return
            if sent == len(self._outgoing[0]):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = self._outgoing[0][sent:]

    def read(self) -> tuple[list[Frame], bool]:
        """Return the messages that are complete by now, and whether the other side is still there."""
        there = True
        for _ in range(64):  # a bounded turn: the loop has other workers and deadlines to see to
            try:
                data = self.connection.recv(_CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                there = False
                break
            self._incoming += data
        return self._complete(), there

    def _complete(self) -> list[Frame]:
        frames: list[Frame] = []
        while len(self._incoming) >= _LENGTHS.size:
            body_size, head_size = _LENGTHS.unpack_from(self._incoming)
            if head_size > _MOST_HEAD or body_size > _MOST_BODY:
                raise ValueError("a message of an impossible size")
            head_end = _LENGTHS.size + head_size
            end = head_end + body_size
            if len(self._incoming) < end:
                break
            view = memoryview(self._incoming)
            head, body = bytes(view[_LENGTHS.size : head_end]), bytes(view[head_end:end])
            view.release()
            del self._incoming[:end]
            frames.append((_header(head), body))
        return frames

    def close(self) -> None:
        """Close the socket and forget what was not written."""
        self._outgoing.clear()
        self.connection.close()


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not (isinstance(header, dict) and all(isinstance(header.get(key), float | int) for key in _USAGE)):
        raise ValueError("a message that says nothing")
    return header
