"""The nodes of a Ray cluster as further hosts: they join and leave while jobs run."""

import contextlib
import importlib.util
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from typing_extensions import override

from tunery._errors import HostError, UsageError
from tunery._extras import pip_install
from tunery._settings import settings
from tunery.blobs import Blobs
from tunery.domain import HERE
from tunery.engines.joined import JoinedEngine
from tunery.engines.local.engine import LocalEngine
from tunery.engines.ray import _bridge, _relay
from tunery.engines.remote._link import Timing
from tunery.engines.remote.engine import AgentEngine

_log = logging.getLogger(__name__)
_JOIN_S = 60.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 15.0
_LOOK_S = 0.05
_END_S = 5.0


class RayEngine(JoinedEngine):
    """This host's local engine, and an agent on each other node of the Ray cluster at `address`.

    Ray is only the transport: it starts an agent on a node and passes bytes between it and us. `address` is what
    `ray.init` takes: "auto" is the cluster of the node that we run on. A head that dies is waited for, as a host is.

    Example:
        with RayEngine("auto", scratch, blobs) as engine:
            engine.watch(lambda host: print(host, engine.facts(host)))
    """

    grows = True

    def __init__(self, address: str, scratch: Path, blobs: Blobs, timing: Timing | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError(f"Ray is not installed here: {pip_install('ray')}")
        super().__init__({HERE: LocalEngine.open(scratch, blobs)})
        self._address, self._home, self._timing = address, blobs, timing
        self._place = Path(tempfile.mkdtemp(prefix="tunery-ray-"))
        self._socket = self._place / "bridge"
        self._agents: dict[str, AgentEngine] = {}
        self._bridge: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._joined = threading.Event()
        self._known = self._heard_nodes = False
        self._passed_over = set[str]()
        self._why = "it has not answered yet"
        self._following = threading.Thread(target=self._follow, name="tunery-ray", daemon=True)
        self._following.start()
        if not self._joined.wait(_JOIN_S) or not self._known:
            self.close()
            raise HostError(f"the Ray cluster {address!r} cannot be used: {self._why}")

    @classmethod
    @override
    def open(cls, scratch: Path, blobs: Blobs) -> Self:
        chosen = settings().engine
        return cls(chosen if "://" in chosen else "auto", scratch, blobs)

    @override
    def close(self) -> None:
        self._over.set()
        self._end_bridge()
        self._following.join()  # no node joins from here on
        super().close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _follow(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._over.is_set():
            self._heard_nodes = False
            with contextlib.suppress(OSError):
                self._talk()
            self._end_bridge()
            if self._heard_nodes:
                retry_s = _FIRST_RETRY_S
            if self._known and not self._over.is_set():
                _log.warning("the Ray cluster is away: %s", self._why)
            self._joined.set()  # the first try is over, well or not
            self._over.wait(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _talk(self) -> None:
        self._socket.unlink(missing_ok=True)
        with tempfile.TemporaryFile() as errors:
            command = [sys.executable, "-P", "-m", _bridge.__name__, self._address, str(self._socket)]
            self._bridge = bridge = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            try:
                with socket.socket(socket.AF_UNIX) as line:
                    self._dial(line, bridge)
                    line.sendall(b"nodes\n")
                    with line.makefile("rb") as lines:
                        for names in lines:
                            self._heard(json.loads(names))
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    bridge.wait(1.0)
                errors.seek(0)
                said = [words for words in errors.read().decode(errors="replace").splitlines() if words.strip()]
                self._why = said[-1].strip()[:300] if said else "the process that had joined it has ended"

    def _dial(self, line: socket.socket, bridge: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + _JOIN_S
        while time.monotonic() < until_s and bridge.poll() is None and not self._over.is_set():
            with contextlib.suppress(OSError):
                line.connect(str(self._socket))
                return
            self._over.wait(_LOOK_S)
        raise OSError("it cannot be joined")

    def _heard(self, names: list[str]) -> None:
        for name in names:
            if name in self._agents:
                self._agents[name].try_again()
                continue
            if name in self.hosts or "/" in name:
                if name not in self._passed_over:
                    _log.warning("the Ray node %s is not used: a host is called so already, or none may be", name)
                    self._passed_over.add(name)
                continue
            words = [sys.executable, "-I", "-S", str(_relay.__file__), str(self._socket), name, "agent", "--stdio"]
            self._agents[name] = AgentEngine(name, shlex.join(words), self._home, timing=self._timing)
            self.add(name, self._agents[name])
        self._known = self._heard_nodes = True
        self._joined.set()

    def _end_bridge(self) -> None:
        bridge = self._bridge
        if bridge is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(bridge.pid, signal.SIGKILL)
        bridge.wait(_END_S)
        if bridge.stdin is not None:
            bridge.stdin.close()
