"""The process that workers are forked from: it imports what they all need, runs nothing, and outlives none of them. It
is told over a packet socket to fork (`{"fork": key}` with the worker's end of its channel) or to end all workers
(`{"rest": true}`), and answers with events: `up` once; `forked` with a process id and a pidfd, or `refused`; `exit` for
every process it reaps, the worker itself (`leader`) and what the worker left behind; `resting` when it has no workers
any more. End of file on the socket, or the death of the thread that started it, ends all descendants and then the
zygote."""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Never

import psutil

from tunery.engines.local import _worker
from tunery.engines.local._process import adopt_orphans, die_with_parent, kill_group


def main(control_fd: int, parent: int, preload: Sequence[str], forbidden: Sequence[str]) -> None:
    """Preload, then fork workers until the parent is gone; nobody here or there may import what is forbidden."""
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    for name in forbidden:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # what the import statement takes for "absent"
    gc.disable()  # modules stay: to look for garbage among them took a tenth of their import
    for name in preload:
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise touch, and so copy, every page shared with the zygote
    with socket.socket(fileno=control_fd) as control:
        _Zygote(control).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and taking a compiler's libraries apart would keep the caller waiting


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.workers: dict[int, str] = {}  # every leader's pid, kept after its death: its group may outlive it
        self.alive: set[int] = set()
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.ending = False
        self.pid = os.getpid()

    def run(self) -> None:
        signal.set_wakeup_fd(self.wake_w)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        self._tell({"event": "up", "worker": ""})
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(self.wake_r, selectors.EVENT_READ)
            while not self.ending:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.wake_r in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_r, 4096)
                    self._reap()
                if self.control in ready and not self._serve(selector):
                    break
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._end_all()

    def _terminate(self, *_: object) -> None:
        self.ending = True

    def _serve(self, selector: selectors.BaseSelector) -> bool:
        """Handle one request; False when the parent is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 4096, 1)
        except OSError:
            return False
        if not data:
            return False
        request = json.loads(data)
        if "rest" in request:
            self._end_all()
            self.workers.clear()
            self._tell({"event": "resting", "worker": ""})
            return True
        worker = request["fork"]
        channel = socket.socket(fileno=fds[0])
        try:
            pid = os.fork()
        except OSError as error:
            self._tell({"event": "refused", "worker": worker, "why": str(error)})
            channel.close()
            return True
        if pid == 0:
            self._become_worker(selector, channel)
        channel.close()
        self.workers[pid] = worker
        self.alive.add(pid)
        pidfd = os.pidfd_open(pid)
        self._tell({"event": "forked", "worker": worker, "pid": pid}, pidfd)
        os.close(pidfd)
        return True

    def _become_worker(self, selector: selectors.BaseSelector, channel: socket.socket) -> Never:
        code = 1
        try:
            os.setsid()  # its own group, so that a kill reaches the compilers and linkers it starts
            die_with_parent(self.pid, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            selector.close()
            self.control.close()
            os.close(self.wake_r)
            os.close(self.wake_w)
            code = _worker.main(channel)
        except BaseException:  # noqa: BLE001 - nothing may return into the zygote's loop
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Report every child that has ended. A leader's group is killed before its process id can be used again."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            leader = pid in self.alive
            group = pid
            if leader:
                kill_group(pid)
            else:
                with contextlib.suppress(ProcessLookupError):
                    group = os.getpgid(pid)
            _, status, usage = os.wait4(pid, 0)
            self.alive.discard(pid)
            if leader:
                self._end_strays()
            self._tell({
                "event": "exit", "worker": self.workers.get(group, ""), "leader": leader,
                "code": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime,
                "peak_bytes": usage.ru_maxrss << 10,
            })  # fmt: skip

    def _end_strays(self) -> None:
        """End what a worker that is gone has left in sessions of its own, which its group did not reach."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if child.pid not in self.alive and os.getsid(child.pid) not in self.alive:
                    child.kill()

    def _end_all(self) -> None:
        """End every descendant; those whose parent ended before them are our children by now."""
        me = psutil.Process()
        while children := me.children(recursive=True):
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()

    def _tell(self, message: dict[str, Any], *fds: int) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; the loop will see it
            socket.send_fds(self.control, [json.dumps(message).encode()], fds)
