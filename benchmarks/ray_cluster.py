"""A Ray cluster of this machine alone: a head and raylets, each at a loopback address of its own."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

MARK = "TUNERY_TEST_FAMILY"
_PATIENCE_S = 180.0


class Cluster:
    """Starts the head at once; all its processes carry `place`, which is short, as a mark until `close` ends them.

    Whoever makes one sets the variable `MARK` to `place` first: Ray passes it on to what it starts.
    """

    def __init__(self, place: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._place = place
        self.start_head()

    def start_head(self) -> None:
        """Start the head, also after it was killed."""
        self._start("--head", "--node-ip-address", "127.0.0.1", "--port", str(self.port),
                    "--include-dashboard", "false", "--temp-dir", str(self._place / "ray"))  # fmt: skip

    def start_node(self, address: str) -> None:
        """Start a node, at an address such as 127.0.0.2."""
        self._start("--address", self.address, "--node-ip-address", address)

    def _start(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--num-cpus", "1",
                   "--object-store-memory", "80000000", "--disable-usage-stats"]  # fmt: skip
        end = time.monotonic() + _PATIENCE_S
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
            # Nodes of a head that was killed take a while to end, and hold its address.
            if "already running" not in done.stderr or time.monotonic() > end:
                break
        assert done.returncode == 0, done.stdout + done.stderr

    def kill_node(self, address: str) -> None:
        """Kill a node's raylet."""
        self._kill("raylet", f"--node_ip_address={address}")

    def kill_head(self) -> None:
        """Kill the head's server."""
        self._kill("gcs_server", "")

    def _kill(self, program: str, argument: str) -> None:
        found = [process for process in self._family() if _runs(process, program, argument)]
        assert found
        for process in found:
            process.kill()

    def close(self) -> None:
        """Kill all that carries the mark but this process."""
        while left := self._family():
            for process in left:
                process.kill()
            psutil.wait_procs(left, _PATIENCE_S)

    def _family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(MARK) == str(self._place) and process.pid != os.getpid()
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


def _runs(process: psutil.Process, program: str, argument: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:  # it has ended
        return False
    return bool(words) and words[0].endswith(f"/{program}") and (not argument or argument in words)
