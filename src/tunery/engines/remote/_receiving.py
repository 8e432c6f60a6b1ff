"""Blobs that come in chunks: written beside the others, and put among them when they are whole."""

import hashlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from tunery._errors import BlobError
from tunery.blobs import Blobs, check_digest
from tunery.engines.remote._protocol import ProtocolError


class Receiver:
    """The blobs that one side of a pipe is receiving; used on the thread that reads the pipe."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._open: dict[str, tuple[IO[bytes], Any]] = {}
        self._failed: dict[str, str] = {}

    def take(self, header: dict[str, Any], body: bytes) -> tuple[str, str] | None:
        """Take a chunk; after the last one return the blob and why it could not be kept, "" where it was.

        A blob that the other side does not have any more is no failure: whoever asks for it will find it missing.
        """
        digest = header.get("blob")
        if not isinstance(digest, str):
            raise ProtocolError("a chunk of no blob")
        try:
            check_digest(digest)
        except BlobError as error:
            raise ProtocolError(str(error)) from None
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
            raise ProtocolError(f"the bytes of blob {digest} are others")
        self._blobs.put(self._directory / digest, temporary=True, move=True)

    def _drop(self, digest: str) -> None:
        opened = self._open.pop(digest, None)
        if opened is not None and self._directory is not None:
            with suppress(OSError):  # the disk is full, which was said
                opened[0].close()
            (self._directory / digest).unlink(missing_ok=True)
