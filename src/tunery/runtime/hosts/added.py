"""The hosts that the user has added, as hosts of an engine: those of now, and those of later."""

import logging
import threading

from tunery._errors import EngineError, UsageError
from tunery._settings import hosts_file
from tunery.blobs import Blobs
from tunery.engines import AgentEngine, JoinedEngine
from tunery.engines.remote.registry import added_hosts

_LOOK_S = 1.0
_log = logging.getLogger(__name__)


class AddedHosts:
    """Has the hosts that were added join an engine; with `follow` those too that are added later, until `close`.

    One that is removed leaves, one whose command was changed is reached by the new one.
    """

    def __init__(self, engine: JoinedEngine, blobs: Blobs, *, follow: bool) -> None:
        self._engine, self._blobs = engine, blobs
        self._agents: dict[str, AgentEngine] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(_state(),), name="tunery-added", daemon=True)
        self._look()
        if follow:
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self, known: object) -> None:
        while not self._over.wait(_LOOK_S):
            if (state := _state()) == known:
                continue
            known = state
            try:
                self._look()
            except (UsageError, EngineError) as error:
                _log.warning("the hosts that were added are not followed: %s", error)

    def _look(self) -> None:
        """Take in which hosts there are now."""
        commands = {host.name: host.connect for host in added_hosts()}
        for name in [name for name in self._agents if name not in commands and name in self._engine.hosts]:
            self._engine.leave(name)
            self._agents[name].give_up("it was removed")
        for name, connect in commands.items():
            if name in self._agents:
                self._engine.come_back(name)
                self._agents[name].reach_by(connect)
            else:
                agent = AgentEngine(name, connect, self._blobs)
                try:
                    self._engine.add(name, agent)
                except EngineError:
                    agent.close()
                    raise
                self._agents[name] = agent


def _state() -> tuple[int, ...] | None:
    try:
        found = hosts_file().stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
