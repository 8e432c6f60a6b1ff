"""Runs beside us as the one driver in a Ray cluster; `python -m tunery.engines.ray._bridge ADDRESS SOCKET`.

Whoever dials its Unix socket says in one line what he wants: `nodes` is told the names of the cluster's other nodes, as
one line of JSON whenever they change; `agent NAME` talks to an agent that is started on that node, byte by byte. Ray
carries bytes only. The agent is a process of its own there: it ends when the actor before it does, with its node.

It is a process because a Ray driver ends with the head of its cluster, at a time of its own choice.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from typing import Any

_READ = 1 << 20
_POLL_S = 0.5
_MOST_LINE = 4096
_SAID = 300


class AgentPipe:
    """An agent on a node, for the driver: an actor with one thread that reads and one that writes."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "tunery", "agent", "--stdio"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True,
        )  # fmt: skip

    def read(self) -> bytes:
        assert self._agent.stdout is not None
        return os.read(self._agent.stdout.fileno(), _READ)

    def write(self, data: bytes) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.write(data)
        self._agent.stdin.flush()


class Bridge:
    """Serves the socket; every call of `ray` that may take long runs on a thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._here = ray.get_runtime_context().get_node_id()
        # No CPU is asked for: builds are ours to place, and an actor must not wait until others' are done.
        self._pipe = ray.remote(num_cpus=0, max_concurrency=2, max_restarts=0)(AgentPipe)

    def nodes(self) -> dict[str, str]:
        """Return the names of the nodes that are up and their ids; the one that we run on is left out."""
        alive = [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] != self._here]
        names: dict[str, str] = {}
        for node in sorted(alive, key=lambda node: str(node["NodeID"])):
            name = node.get("NodeName") or node["NodeManagerAddress"]
            names[f"{name}-{node['NodeID'][:8]}" if name in names else name] = node["NodeID"]
        return names

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            what, _, name = (await reader.readline()).decode().strip().partition(" ")
            if what == "nodes":
                await self._tell_nodes(writer)
            elif what == "agent":
                await self._pass_on(name, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def _tell_nodes(self, writer: asyncio.StreamWriter) -> None:
        told = None
        while True:
            names = sorted(await asyncio.to_thread(self.nodes))
            if names != told:
                told = names
                writer.write(json.dumps(names).encode() + b"\n")
                await writer.drain()
            await asyncio.sleep(_POLL_S)

    async def _pass_on(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = (await asyncio.to_thread(self.nodes)).get(name)
        if node is None:
            return
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._pipe.options(scheduling_strategy=where).remote()
        try:
            listening = asyncio.create_task(self._listen(actor, writer))
            telling = asyncio.create_task(self._tell(actor, reader))
            _, left = await asyncio.wait((listening, telling), return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            await asyncio.gather(listening, telling, return_exceptions=True)
        finally:
            self._ray.kill(actor)

    async def _listen(self, actor: Any, writer: asyncio.StreamWriter) -> None:
        while data := await actor.read.remote():
            writer.write(data)
            await writer.drain()

    async def _tell(self, actor: Any, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_READ):
            await actor.write.remote(data)


def end_with_input() -> None:
    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


async def serve(address: str, socket: str) -> None:
    import ray

    ray.init(address=address, namespace="tunery", log_to_driver=False, logging_level="ERROR")
    server = await asyncio.start_unix_server(Bridge(ray).talk, socket, limit=_MOST_LINE)
    async with server:
        await server.serve_forever()


def main() -> None:
    end_with_input()
    try:
        asyncio.run(serve(*sys.argv[1:3]))
    except Exception as error:  # noqa: BLE001 - its last line is what the user is told
        print(" ".join(f"{type(error).__name__}: {error}".split())[:_SAID], file=sys.stderr)  # noqa: T201
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
