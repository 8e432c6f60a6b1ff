"""A service of this user, of the fake dialect, in a process of its own that may be killed, and what its store holds."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tunery.domain import Budget, JobState, JobStatus, Mode, Origin
from tunery.domain.request import Progress, Request, ShareRequest
from tunery.store import open_store
from tunery.web.client import ServiceClient, status_of, submit

PATIENCE_S = 120.0
MARK = "TUNERY_TEST_FAMILY"


class Client:
    """What the commands do at a socket."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def submit(
        self,
        asked: Request,
        share: ShareRequest,
        on_job: Callable[[str], None] = lambda _: None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> JobStatus:
        with ServiceClient.local(self.path) as service:
            job = submit(service, asked, share)
            on_job(job["id"])
            return status_of(service.follow(job["id"], shown(on_progress)) if on_progress else job)

    def act(self, what: str, job_id: str, *, follow: bool = False) -> JobStatus:
        with ServiceClient.local(self.path) as service:
            job = {} if what == "follow" else service.act(job_id, what)
            return status_of(service.follow(job_id) if follow or what == "follow" else job)


def shown(on_progress: Callable[[Progress], None]) -> Callable[[str, dict[str, Any]], None]:
    def show(kind: str, data: dict[str, Any]) -> None:
        if kind == "progress":
            on_progress(Progress(**data))

    return show


class Daemon:
    """A daemon whose processes carry a mark."""

    def __init__(self, directory: Path, *options: str, store: str = "") -> None:
        self.directory = directory
        self.path = directory / "d.sock"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tunery", "serve", "--socket", str(self.path), *options],
            stderr=subprocess.PIPE, text=True, cwd=directory,
            env=os.environ | {"TUNERY_STORE": store or str(directory / "store.db"),
                              "TUNERY_CACHE": str(directory / "cache"), MARK: str(directory)},
        )  # fmt: skip
        assert self.process.stderr is not None
        self.greeting = self.process.stderr.readline()
        self.client = Client(self.path)

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.directory) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def end(self, number: int = 0) -> int:
        """End it by a signal; by itself it has ended or is about to if there is none."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        wait_until(lambda: not self.family())
        return code


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def request(source: str, trials: int, **more: object) -> Request:
    return Request(source, dialect="fake", threads=1, budget=Budget(trials=trials), **more)  # type: ignore[arg-type]


def state_of(directory: Path, job: str) -> JobState:
    with open_store(str(directory / "store.db")) as store:
        return store.job(job).state


def raced(directory: Path) -> Counter[tuple[str, str]]:
    with open_store(str(directory / "store.db")) as store:
        found = [record.candidate for record in store.records(modes=[Mode.RACE])]
    return Counter((c.task_key, c.key) for c in found if c.origin is not Origin.BASELINE)
