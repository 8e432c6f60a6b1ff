"""One run of a host's connect command, with the agent that it reached."""

import contextlib
import hashlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from tunery._errors import BlobError, HostError
from tunery.blobs import Blobs, check_digest
from tunery.domain import HostFacts
from tunery.engines.remote._protocol import MAGIC, PROTOCOL, FrameReader, FrameWriter, ProtocolError


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


AGENT = ("tunery", "agent", "--stdio")
_MOST_GREETING_BYTES = 1 << 16
_END_S = 1.0  # three such waits and the link's last one are less than what a command may take to end
_log = logging.getLogger(__name__)
_MOST_SHARE, _START_S = 4.0, 60.0  # a host may have more cores than it grants; its agent runs before it is connected
_TAIL_BYTES = 2048


def agent_command(connect: str) -> list[str]:
    """Return the words of a connect command with those that start the agent, unless it ends with them already.

    >>> agent_command("ssh -p 2222 pi@host")
    ['ssh', '-p', '2222', 'pi@host', 'tunery', 'agent', '--stdio']
    """
    try:
        words = shlex.split(connect)
    except ValueError as error:
        raise HostError(f"the connect command {connect!r} cannot be read: {error}") from None
    if not words:
        raise HostError('a host needs a connect command, such as --connect "ssh pi@10.0.0.7"')
    return words if words[-2:] == list(AGENT[1:]) else [*words, *AGENT]


class AgentConnection:
    """Starts the command at once; `talk` runs on a thread and says what came, at last `gone` with the reason.

    Raises:
        HostError: the command cannot be started.
    """

    def __init__(self, command: list[str], blobs: Blobs) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise HostError(f"cannot run {command[0]!r}: {error.strerror}; check the host's connect command") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reader = FrameReader(self._process.stdout.fileno())
        self.writer = FrameWriter(self._process.stdin.fileno())
        self._receiver = Receiver(blobs)
        self._began_s = time.monotonic()
        self.there: set[str] = set()
        """The blobs that the agent is known to have and keep."""
        self.sending: dict[str, list[Any]] = {}
        """Blobs on their way, with what waits for them."""
        self.fetching: dict[str, list[Any]] = {}
        self.started: set[str] = set()

    def most_cpu_s(self, cores: int) -> float:
        """Return how many CPU seconds the host's processes cannot have used since it was connected, generously."""
        return _MOST_SHARE * max(cores, 1) * (time.monotonic() - self._began_s + _START_S)

    def talk(
        self,
        greeted: Callable[[HostFacts], None],
        heard: Callable[[dict[str, Any], bytes], None],
        received: Callable[[str, str], None],
        gone: Callable[[HostError, bool], None],
    ) -> None:
        """Read until the end; `gone` hears why, and whether another try would end the same way."""
        try:
            facts = self._greeting()
            greeted(facts)
            while (frame := self._reader.read()) is not None:
                header, body = frame
                if header["do"] == "chunk":
                    whole = self._receiver.take(header, body)
                    if whole is not None:
                        received(*whole)
                elif header["do"] == "refused":
                    gone(HostError(str(header.get("why"))), False)
                    return
                else:
                    heard(header, body)
            gone(HostError("the connection to its agent ended" + self._last_words()), False)
        except ProtocolError as error:
            gone(HostError(f"its agent sent {error}"), False)
        except HostError as error:
            gone(error, True)
        except Exception as error:  # noqa: BLE001 - whatever a frame makes go wrong is the host's fault
            gone(HostError(f"its agent sent what cannot be: {error!r}"), False)
        finally:
            self._receiver.close()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._errors.close()

    @property
    def said(self) -> str:
        """What the command has said that is no frame, shortened; "" for nothing."""
        return self._reader.unread

    @property
    def no_greeting(self) -> str:
        """Why a greeting that has not come for a while will not; "" if it may, as from a slow board."""
        if self._reader.begins(MAGIC):
            return "it was cut off"
        code = self._process.poll()
        return "" if code is None else f"the command ended with exit code {code}, and its output is held open"

    def _greeting(self) -> HostFacts:
        """Read the agent's first words."""
        try:
            before = self._reader.skip_to(MAGIC, _MOST_GREETING_BYTES)
        except ProtocolError as error:
            raise ProtocolError(f"no greeting but {error}: does the command start `tunery agent --stdio`?") from None
        if before is None:
            said = self.said and f" after it said {self.said}"
            raise ProtocolError(f"nothing{said}{self._last_words()}")
        frame = self._reader.read()
        if frame is None:
            raise ProtocolError("nothing behind its greeting" + self._last_words())
        header, _ = frame
        theirs = header.get("protocol"), header.get("version")
        try:
            facts = TypeAdapter(HostFacts).validate_python(header) if theirs[0] == PROTOCOL else None
        except ValidationError as error:
            raise ProtocolError(f"facts that cannot be: {error.errors()[0]['msg']}") from None
        ours = _version()
        if facts is None or facts.version != ours:
            build = "the same build of " if theirs[1] == ours else ""
            raise HostError(
                f"its agent is tunery {theirs[1]} with protocol {theirs[0]}, this is {ours} with {PROTOCOL}: "
                f"install {build}tunery {ours} there"
            )
        return facts

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
            if said := [line for line in lines if line]:
                return f": {said[-1][:300]}"
        code = self._process.returncode
        return "" if code is None else f": the command ended with exit code {code}"

    def end(self, *, orderly: bool) -> None:
        """End the command; where it is `orderly` the agent is asked to end first."""
        if orderly:
            self.writer.send({"do": "close"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self.writer.end(_END_S):
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # another user's, as behind sudo, whose agent goes on
            _log.warning("process %d, of a connect command, cannot be ended from here", self._process.pid)


def _version() -> str:
    from importlib.metadata import version

    return version("tunery")


def open_blob(blobs: Blobs, digest: str) -> IO[bytes] | None:
    from tunery._errors import TuneryError

    try:
        return Path(blobs.get(digest)).open("rb")
    except (TuneryError, OSError):
        return None


def on_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """Start a thread that does not keep the program alive."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
