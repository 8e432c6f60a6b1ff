"""What an engine and an agent say to each other, and what may be believed of it.

The agent begins with `MAGIC`, behind whatever the login shell printed, and the frame `hello`; the engine answers with
`welcome`. Blobs cross in chunks, between which other frames go first.

    to the agent      welcome start call kill place hold free want chunk fetch release ping check close
    from the agent    hello usage answer wanted chunk stored held pong checked refused
"""

import hashlib
import math
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tunery._errors import BlobError, HostError
from tunery.blobs import Blobs, check_digest
from tunery.domain import Measurement, Task, TensorSpec
from tunery.engines._loop import FrameError

PROTOCOL = 2
MAGIC = b"\0tunery agent\0\n"
# Of a second of one core, twice what the fastest can: two products of 16 numbers in each of 6e9 cycles, four times as
# many as Winograd's convolutions count for; eight times as many narrow ones; two loads and two stores of 64 bytes.
_PLAIN_FLOP, _NARROW_FLOP, _MOVED_BYTES = 3e12, 2.5e13, 1.5e12
_FASTEST_GPU, _GPU_DIALECTS = (2e16, 3e13), frozenset({"cuda", "opencl"})
_CALL_S = 2e-9  # of a call that does nothing


def check_told(result: object, task: Task | None) -> None:
    """Check the numbers of what a worker of another host answers: nothing else looks at them before they are used."""
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
    """Return less than any processor takes for a task: at twice the operations, and bytes read or written, of the
    fastest. What looks only some numbers up has fewer operations than numbers, and is not said to read them all."""
    workload = task.workload
    plain = all(spec.dtype in {"float32", "float64"} for spec in workload.arguments)
    cores = max(task.target.threads, 1)
    operations, moved = _FASTEST_GPU if task.target.dialect in _GPU_DIALECTS else (
        cores * (_PLAIN_FLOP if plain else _NARROW_FLOP), cores * _MOVED_BYTES
    )  # fmt: skip
    outputs = workload.output_specs
    inputs = workload.arguments[: len(workload.arguments) - len(outputs)]
    read = inputs if workload.flop >= sum(spec.size for spec in inputs) else ()
    return max(workload.flop / operations, _bytes(read) / moved, _bytes(outputs) / moved, _CALL_S)


def _bytes(specs: Sequence[TensorSpec]) -> float:
    return sum(spec.size * (int(bits[0]) if (bits := re.findall(r"\d+", spec.dtype)) else 8) / 8 for spec in specs)


class Receiver:
    """The blobs that one side of a pipe is receiving; used on the thread that reads the pipe."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._open: dict[str, tuple[IO[bytes], Any]] = {}
        self._failed: dict[str, str] = {}

    def take(self, header: dict[str, Any], body: bytes) -> tuple[str, str] | None:
        """Take a chunk; after the last one return the blob and why it could not be kept, "" where it was. A blob that
        the other side does not have any more is no failure: whoever asks for it will find it missing."""
        digest = header.get("blob")
        if not isinstance(digest, str):
            raise FrameError("a chunk of no blob")
        try:
            check_digest(digest)
        except BlobError as error:
            raise FrameError(str(error)) from None
        if header.get("missing"):
            self._drop(digest)
            return digest, ""
        if "failed" in header:
            self._failed[digest] = f"the other host cannot read it: {header['failed']}"
        try:
            self._write(digest, body)
            if header.get("last"):
                self._keep(digest)
        except OSError as error:
            self._failed[digest] = f"cannot write blob {digest} on this host: {error.strerror}"
        except BlobError as error:
            self._failed[digest] = str(error)
        if not header.get("last"):
            return None
        self._drop(digest)
        return digest, self._failed.pop(digest, "")

    def close(self) -> None:
        for digest in list(self._open):
            self._drop(digest)
        self._stack.close()

    def _write(self, digest: str, body: bytes) -> None:
        if digest in self._failed:
            return
        if self._directory is None:
            self._directory = self._stack.enter_context(self._blobs.scratch())
        if digest not in self._open:
            self._open[digest] = (self._directory / digest).open("wb"), hashlib.sha256()
        file, hashed = self._open[digest]
        file.write(body)
        hashed.update(body)

    def _keep(self, digest: str) -> None:
        if digest in self._failed:
            return
        assert self._directory is not None
        file, hashed = self._open[digest]
        file.close()
        if hashed.hexdigest() != digest:
            raise FrameError(f"the bytes of blob {digest} are others")
        self._blobs.put(self._directory / digest, temporary=True, move=True)

    def _drop(self, digest: str) -> None:
        opened = self._open.pop(digest, None)
        if opened is not None and self._directory is not None:
            with suppress(OSError):  # the disk is full, which was said
                opened[0].close()
            (self._directory / digest).unlink(missing_ok=True)
