"""Zygotes that are there before their engine, and workers from one that has imported nothing."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.engines.local import ahead

ROGUE = "engine_services:Rogue"
PRELOAD = "colorsys"  # a module that nothing else imports
LEFT_ALONE = """
from tunery.engines.local import ahead
ahead.start(None)
ahead.start(None)
[nursery] = ahead._waiting.values()
print(nursery.pid, flush=True)
"""


def ask(engine: LocalEngine, worker: str, method: str, *args: object) -> object:
    return engine.call(worker, method, *args, deadline_s=120).result(120)


def parent(engine: LocalEngine, worker: str) -> int:
    pid = ask(engine, worker, "pid")
    assert isinstance(pid, int)
    return psutil.Process(pid).ppid()


def test_an_engine_takes_over_what_was_started_for_it() -> None:
    ahead.start(PRELOAD)
    zygote = ahead._waiting[PRELOAD]
    with LocalEngine(preload=PRELOAD) as engine:
        worker, bare = (engine.start(WorkerSpec(Role.BUILDER, ROGUE, bare=bare)) for bare in (False, True))
        assert parent(engine, worker) == zygote.pid
        assert parent(engine, bare) != zygote.pid
        assert ask(engine, worker, "loaded", PRELOAD)
        assert not ask(engine, bare, "loaded", PRELOAD)
    assert not psutil.pid_exists(zygote.pid)
    assert ahead.take(PRELOAD) is None


def test_one_that_has_died_meanwhile_is_replaced() -> None:
    ahead.start(PRELOAD)
    zygote = ahead._waiting[PRELOAD]
    zygote.kill()
    zygote._process.wait()
    with LocalEngine(preload=PRELOAD) as engine:
        assert ask(engine, engine.start(WorkerSpec(Role.BUILDER, ROGUE)), "loaded", PRELOAD)


def test_its_log_tells_why_it_could_not_start() -> None:
    ahead.start("no_such_module_anywhere")
    zygote = ahead._waiting["no_such_module_anywhere"]
    zygote._process.wait(60)
    assert "no_such_module_anywhere" in zygote.log.read_text()
    assert ahead.take("no_such_module_anywhere") is None


@pytest.mark.parametrize("end", ["", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_nobody_takes_over_ends_with_the_process_and_leaves_no_file(end: str, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE + end], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == (-9 if end else 0), ran.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(ran.stdout)).wait(120)
    assert not list(tmp_path.iterdir())
