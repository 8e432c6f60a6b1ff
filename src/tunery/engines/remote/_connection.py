"""One run of a host's connect command, with the agent that it reached."""

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from tunery._errors import HostError
from tunery.blobs import Blobs
from tunery.domain import HostFacts
from tunery.engines._loop import MOST_SENT_BYTES, Channel, FrameError, FrameReader, Loop
from tunery.engines._table import Call, Worker
from tunery.engines.remote._protocol import MAGIC, PROTOCOL, Receiver

AGENT = ("tunery", "agent", "--stdio")
_END_S = 1.0  # three such waits and the link's last one are less than what a command may take to end
_log = logging.getLogger(__name__)
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


@dataclass(slots=True, eq=False)
class RemoteWorker(Worker):
    """A worker as it is wished, and what the agent has said of it; sums over earlier connections are `past`."""

    blobs: tuple[str, ...] = ()
    pid: int | None = None
    past_generations: int = 0
    cpu_s: float = 0.0


class AgentConnection:
    """Starts the command at once; `heard` takes the agent's frames, `ended` why no more will come."""

    def __init__(
        self,
        command: list[str],
        blobs: Blobs,
        loop: Loop,
        heard: Callable[[dict[str, Any], bytes], None],
        ended: Callable[[HostError], None],
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise HostError(f"cannot run {command[0]!r}: {error.strerror}; check the host's connect command") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        descriptors = self._process.stdout.fileno(), self._process.stdin.fileno()
        self.began_s = time.monotonic()
        self.receiver = Receiver(blobs)
        self._reader = FrameReader(descriptors[0], MOST_SENT_BYTES, MAGIC)
        self.there: set[str] = set()
        """The blobs that the agent is known to have and keep."""
        self.sending: dict[str, list[tuple[RemoteWorker, Call]]] = {}
        """Blobs on their way, with what waits for them."""
        self.fetching: dict[str, list[tuple[RemoteWorker, Call]]] = {}
        self.started: set[str] = set()
        self.greeted = False
        self.channel = Channel(loop, self._reader, descriptors, heard, lambda error: ended(self._why(error)))

    def _why(self, error: FrameError | None) -> HostError:
        if error is not None and self._reader.mark:
            return HostError(f"its agent sent no greeting but {error}: does the command start `tunery agent --stdio`?")
        if error is not None:
            return HostError(f"its agent sent {error}")
        if self.greeted:
            return HostError("the connection to its agent ended" + self._last_words())
        said = self.said and f" after it said {self.said}"
        return HostError(f"its agent sent nothing{said}{self._last_words()}")

    @property
    def said(self) -> str:
        """What the command has said that is no frame, shortened; "" for nothing."""
        return self._reader.unread

    @property
    def no_greeting(self) -> str:
        """Why a greeting that has not come for a while will not; "" if it may, as from a slow board."""
        if self._reader.begins:
            return "it was cut off"
        code = self._process.poll()
        return "" if code is None else f"the command ended with exit code {code}, and its output is held open"

    def greet(self, header: dict[str, Any]) -> HostFacts:
        theirs = header.get("protocol"), header.get("version")
        try:
            facts = TypeAdapter(HostFacts).validate_python(header) if theirs[0] == PROTOCOL else None
        except ValidationError as error:
            raise FrameError(f"facts that cannot be: {error.errors()[0]['msg']}") from None
        ours = version("tunery")
        if facts is None or facts.version != ours:
            build = "the same build of " if theirs[1] == ours else ""
            raise HostError(
                f"its agent is tunery {theirs[1]} with protocol {theirs[0]}, this is {ours} with {PROTOCOL}: "
                f"install {build}tunery {ours} there"
            )
        self.greeted = True
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
            self.channel.send({"do": "close"})
            self.channel.finish(_END_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.channel.close()
        self.receiver.close()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # another user's, as behind sudo, whose agent goes on
            _log.warning("process %d, of a connect command, cannot be ended from here", self._process.pid)
