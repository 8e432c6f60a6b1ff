"""Runs of the fake dialect on the real local engine, in this process or in one of its own that may be killed."""

import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from scheduler_tools import replay, validate

from tunery.costmodels import BoostedModel, Dataset, FeatureRows, registry
from tunery.costmodels.columns import TASK_COLUMNS
from tunery.domain import Budget, Mode, Origin, Outcome, Record, Task
from tunery.domain.request import Progress, Request, TuneReport
from tunery.engines.local import nursery
from tunery.runtime.runtime import Runtime
from tunery.service.session import tune
from tunery.store import open_store
from tunery.testing.fake_dialect import FakeDialect

PATIENCE_S = 120.0
_MARK = "TUNERY_TEST_FAMILY"


def request_in(
    directory: Path, source: str, budget: str = "40trials", threads: int = 1, target: str = "native"
) -> Request:
    store = str(directory / "store.db")
    return Request(
        source,
        target=target,
        dialect="fake",
        threads=threads,
        budget=Budget.parse(budget),
        effort="standard",
        store=store,
    )


def run_in(
    directory: Path,
    source: str,
    budget: str = "40trials",
    threads: int = 1,
    target: str = "native",
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> TuneReport:
    return tune(request_in(directory, source, budget, threads, target), on_progress, stop)


def register_model() -> None:
    """Register a model of the fake dialect, whatever it predicts; it expects every build to be quick."""
    rng = np.random.default_rng(0)
    layout = FakeDialect().layout().with_columns(TASK_COLUMNS)
    dataset, rows = Dataset(layout), rng.random((40, len(layout.columns))).astype(np.float32)
    for i, row in enumerate(rows):
        dataset.add("t", str(i), row, 1.0 + float(row[0]))
    card = registry.new_card(
        dialect="fake", compiler="fake 1.0", target="fake", recipe={}, data={}, metrics=(), passed=True
    )
    registry.register(
        card, BoostedModel.fit(dataset).with_build_cost(FeatureRows(rows, layout), np.full(len(rows), 0.01))
    )


def records_in(directory: Path, *modes: Mode) -> list[Record]:
    with open_store(str(directory / "store.db")) as store:
        return store.records(modes=modes or None)


def raced(directory: Path) -> Counter[tuple[str, str]]:
    """How often each candidate of the search was raced, by task and candidate."""
    if not (directory / "store.db").exists():
        return Counter()
    records = records_in(directory, Mode.RACE)
    found = [record.candidate for record in records if record.measurement.outcome is not Outcome.FILTERED]
    return Counter((c.task_key, c.key) for c in found if c.origin is not Origin.BASELINE)


def outcomes_of(report: TuneReport) -> Counter[str]:
    total: Counter[str] = Counter()
    for state in report.job.tasks:
        total.update(state.outcomes)
    return total


def builds(runtime: Runtime) -> Counter[str]:
    """How many builds were made, by host."""
    return Counter(span.worker.partition("/")[0] for span in runtime.dispatch.spans if span.kind == "build")


def task_named(report: TuneReport, name: str) -> Task:
    return next(task for task in report.tasks if task.workload.name == name)


def os_core_s() -> float:
    """CPU seconds of this process and of all its children that have ended, by the operating system."""
    nursery.end()  # a zygote that waits for the next engine is not counted before it ends
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@contextmanager
def runtimes(patch: Callable[[Runtime], None] = lambda _: None) -> Iterator[list[Runtime]]:
    """Collect the runtimes that are made meanwhile, each given to `patch` first."""
    import tunery.runtime.opening as opening

    made: list[Runtime] = []
    original = opening.Runtime

    def make(*args: object, **more: object) -> Runtime:
        runtime = original(*args, **more)  # type: ignore[arg-type]
        patch(runtime)
        made.append(runtime)
        return runtime

    opening.Runtime = make  # type: ignore[misc, assignment]
    try:
        yield made
    finally:
        opening.Runtime = original  # type: ignore[misc]


def expect_nothing_held(runtime: Runtime) -> None:
    """Nothing is held, every worker can be had again, and the log tells the same story twice."""
    validate(runtime.dispatch.scheduler)
    assert runtime.dispatch.scheduler.snapshot().running == runtime.dispatch.scheduler.snapshot().ready == 0
    assert sorted(worker for pool in runtime.pools.by_role.values() for worker in pool.idle) == sorted(
        runtime.pools.everyone()
    )
    assert runtime.dispatch.waiting == {}
    assert runtime.dispatch.pinned == {}
    validate(replay(runtime.dispatch.scheduler.log))


def start(directory: Path, source: str, trials: int) -> subprocess.Popen[str]:
    """Tune in a process of its own; all its descendants carry the directory as a mark."""
    places = {"TUNERY_STORE": str(directory / "store.db"), "TUNERY_CACHE": str(directory / "cache")}
    command = [sys.executable, "-m", "tunery", "tune", source, "--dialect", "fake", "--threads", "1"]
    return subprocess.Popen(
        [*command, "--budget", f"{trials}trials", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory,
        env=os.environ | places | {_MARK: str(directory)},
    )  # fmt: skip


def family(directory: Path) -> list[psutil.Process]:
    """Return the living processes that carry the mark, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(_MARK) == str(directory)
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def is_agent(process: psutil.Process) -> bool:
    """Say whether a process is an agent, not one that reaches it."""
    try:
        return process.cmdline()[-3:] == ["tunery", "agent", "--stdio"]
    except psutil.Error:  # it has ended
        return False


def role_of(process: psutil.Process) -> str:
    """Return `builder`, `zygote`, ... by the log a process prints to; "main" for the one that has none."""
    try:
        log = Path(f"/proc/{process.pid}/fd/1").readlink().name
    except OSError:
        return ""
    if log.startswith("memfd:tunery-zygote"):
        return "zygote"
    match = re.match(r"([a-z]+)-[a-z0-9]+(\.previous)?\.log", log)
    return match[1] if match else "main"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
