"""Machines of a network: namespaces of this one, each with an interface, a file system for its files and an sshd."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from cable import Cable
from job_tools import wait_until

_NEEDED = {"ip": "iproute2", "ssh": "openssh-client", "sshd": "openssh-server"}
_SSHD = """
Port 22
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
"""


def needs_namespaces() -> None:
    """Skip where no machine can be made, and say why."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = sorted({package for program, package in _NEEDED.items() if shutil.which(program, path=path) is None})
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    if missing:
        pytest.skip(f"needs {' and '.join(missing)} (Debian, Ubuntu: apt-get install {' '.join(missing)})")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/net/tun, to make interfaces")
    done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs the right to make namespaces: {done.stderr.strip()}")


def run(*words: object) -> str:
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True).stdout


class Machine:
    """A machine at `address`, which reaches this one at `gateway`.

    Its agents keep their files below `files`, a file system of `disk_bytes`.
    """

    def __init__(self, number: int, place: Path, keys: Path, disk_bytes: int) -> None:
        self.name = f"tun{os.getpid()}n{number}"
        self.address, self.gateway = f"10.213.{number}.2", f"10.213.{number}.1"
        self._near, self._far = f"{self.name}a", f"{self.name}b"
        self._place, self._keys = place, keys
        self.files = place / self.name
        self.files.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs", self.files)
        run("ip", "netns", "add", self.name)
        self.cable = Cable(self._near, self._far)
        run("ip", "link", "set", self._far, "netns", self.name)
        for at, words in (
            ((), f"address add {self.gateway} peer {self.address} dev {self._near}"),
            ((), f"link set {self._near} up"),
            (("-netns", self.name), f"address add {self.address} peer {self.gateway} dev {self._far}"),
            (("-netns", self.name), f"link set {self._far} up"),
            (("-netns", self.name), "link set lo up"),
        ):
            run("ip", *at, *words.split())
        self._server: subprocess.Popen[bytes] | None = None
        self.start_server()

    def start_server(self) -> None:
        """Start sshd, also after it was killed; its /run is its own."""
        config = self._place / "sshd.conf"
        config.write_text(_SSHD.format(keys=self._keys))
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        script = f"mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec {sshd} -D -e -f {shlex.quote(str(config))}"
        with (self._place / f"{self.name}.log").open("ab") as log:
            self._server = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "sh", "-c", script], stdout=log, stderr=log, start_new_session=True
            )
        ready = [*self.ssh(), "true"]
        wait_until(lambda: subprocess.run(ready, capture_output=True, check=False).returncode == 0)

    def ssh(self) -> list[str]:
        """Return the command that runs what follows it on this machine."""
        options = {
            "IdentityFile": self._keys / "user", "UserKnownHostsFile": self._keys / "known", "BatchMode": "yes",
            "StrictHostKeyChecking": "yes", "HostKeyAlias": "machine", "ConnectTimeout": "5",
        }  # fmt: skip
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", *words, f"root@{self.address}"]

    def connect(self, python: str = sys.executable, **variables: str) -> str:
        """Return a connect command of this machine, whose agent has these further variables."""
        places = {name: str(self.files) for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "TMPDIR")}
        variables = {**places, "PYTHONPATH": os.pathsep.join(sys.path), "TUNERY_LOAD_WATCH": "off", **variables}
        agent = ["env", *(f"{name}={value}" for name, value in variables.items()), python, "-m", "tunery"]
        return shlex.join([*self.ssh(), *agent, "agent", "--stdio"])

    def processes(self) -> list[psutil.Process]:
        """Return the machine's living processes but its sshd that listens, and those that end on their own."""
        found = []
        for pid in map(int, run("ip", "netns", "pids", self.name).split()):
            try:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE and (self._server is None or pid != self._server.pid):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def agents(self) -> list[psutil.Process]:
        """Return the agents that run here."""
        found = []
        for process in self.processes():
            try:
                if process.cmdline()[-2:] == ["agent", "--stdio"] and "sshd" not in process.name():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill_server(self) -> None:
        """Kill every sshd, with the connections that it serves."""
        for process in self.processes():
            try:
                if process.name() == "sshd":
                    process.kill()
            except psutil.Error:
                continue
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def close(self) -> None:
        """End everything on the machine, and the machine."""
        for process in [*self.processes(), *([] if self._server is None else [psutil.Process(self._server.pid)])]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        if self._server is not None:
            self._server.wait()
        self.cable.close()
        run("ip", "netns", "del", self.name)
        run("umount", "--lazy", self.files)


@contextmanager
def machines(place: Path, count: int, disk_bytes: int = 1 << 28) -> Iterator[Sequence[Machine]]:
    """Give so many machines that this one reaches by ssh, with keys made for it."""
    keys = place / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name)
    (keys / "known").write_text(f"machine {(keys / 'host.pub').read_text()}")
    made: list[Machine] = []
    try:
        for number in range(count):
            made.append(Machine(number + 1, place, keys, disk_bytes))  # noqa: PERF401 - each is closed, also alone
        yield made
    finally:
        for machine in made:
            machine.close()
