"""Zygotes that are there before their engine, and workers from one that has imported nothing."""

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tunery.domain import Environment
from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.engines.local import nursery as ahead

pytestmark = pytest.mark.jobs

ROGUE = WorkerSpec(Role.BUILDER, "engine_services:Rogue")
PRELOAD = Environment(preload=("colorsys",))  # a module that nothing else imports
LEFT_ALONE = """
from tunery.domain import Environment
from tunery.engines.local import nursery as ahead
ahead.start(Environment())
ahead.start(Environment())
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
    zygote = ahead._waiting[PRELOAD.key]
    with LocalEngine() as engine:
        worker, bare = (engine.start(replace(ROGUE, environment=each)) for each in (PRELOAD, Environment()))
        assert parent(engine, worker) == zygote.pid
        assert parent(engine, bare) != zygote.pid
        assert ask(engine, worker, "loaded", "colorsys")
        assert not ask(engine, bare, "loaded", "colorsys")
    assert not psutil.Process(zygote.pid).children()


def test_a_closed_engine_leaves_its_zygote_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead.end()
    with LocalEngine() as engine:
        first = parent(engine, engine.start(ROGUE))
    monkeypatch.setenv("TUNERY_TEST_SEEN", "now")
    monkeypatch.chdir(tmp_path)
    with LocalEngine() as engine:
        worker = engine.start(ROGUE)
        assert parent(engine, worker) == first
        assert ask(engine, worker, "surroundings", "TUNERY_TEST_SEEN") == f"now in {tmp_path}"
        used_s, all_s = engine.own_cpu_s(), psutil.Process(first).cpu_times().user
        assert used_s < all_s, "what it used before is the earlier engine's"
    monkeypatch.syspath_prepend(tmp_path)
    with LocalEngine() as engine:
        assert parent(engine, engine.start(ROGUE)) != first, "modules are looked for elsewhere"


def test_one_that_has_died_meanwhile_is_replaced() -> None:
    ahead.start(PRELOAD)
    zygote = ahead._waiting[PRELOAD.key]
    zygote.kill()
    zygote._process.wait()
    with LocalEngine() as engine:
        assert ask(engine, engine.start(replace(ROGUE, environment=PRELOAD)), "loaded", "colorsys")


def test_its_log_tells_why_it_could_not_start() -> None:
    environment = Environment(preload=("no_such_module_anywhere",))
    ahead.start(environment)
    zygote = ahead._waiting[environment.key]
    zygote._process.wait(60)
    assert "no_such_module_anywhere" in zygote.log.read_text()
    assert ahead.take(environment) is None


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
