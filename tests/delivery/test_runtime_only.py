"""A compiled file runs where models run: with the runtime alone, in threads that come and go, and after a fork."""

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunery.domain.request import CompileOptions, Request
from tunery.service.session import compile_model

pytestmark = pytest.mark.tvm

_LOADED = """
import os, sys, threading
import numpy as np
import tunery

network = tunery.load_compiled(sys.argv[1])
inputs = [np.linspace(-1, 1, spec.size).reshape(spec.shape).astype(spec.dtype) for spec in network.inputs]
expected = [one.copy() for one in network(*inputs)]

def right():
    return all(np.array_equal(a, b) for a, b in zip(network(*inputs), expected, strict=True))
"""
_ALONE = """
heavy = {"tvm", "onnx", "onnxruntime", "sqlalchemy", "pydantic", "scipy", "lightgbm", "psutil", "fastapi",
         "httpx", "cryptography", "typer", "rich", "torch"} & set(sys.modules)
assert not heavy, heavy
mapped = open("/proc/self/maps").read()
assert "libtvm_runtime" in mapped and "libtvm_compiler" not in mapped
"""
_FORK = """
child = os.fork()
if not child:
    os._exit(0 if right() else 1)
assert os.waitpid(child, 0)[1] == 0
assert right()
"""
_THREADS = """
before = len(os.listdir("/proc/self/task"))
wrong = []
for _ in range(20):
    threads = [threading.Thread(target=lambda: right() or wrong.append(1)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert not wrong
assert len(os.listdir("/proc/self/task")) <= before + 4 * len(os.sched_getaffinity(0))
"""
_TORCH = """
import torch
torch.nn.Linear(4, 4)(torch.zeros(2, 4))
assert right()
"""


@pytest.fixture(scope="module", name="compiled")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:

        async def ours(*_: object) -> list[tuple[float, float]]:
            return [(1e-6, 1.0)]

        patch.setattr("tunery.delivery.judging.time_in_turns", ours)
        request = Request("zoo:mlp-mnist", threads=2, store=str(place / "s.db"))
        compile_model(request, place / "mlp.tunery", CompileOptions(predict=True))
    return place / "mlp.tunery"


def run(code: str, file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("code", [_ALONE, _FORK, _THREADS], ids=["alone", "fork", "threads"])
def test_a_compiled_network_runs(code: str, compiled: Path) -> None:
    run(_LOADED + code, compiled)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("code", ["import torch" + _LOADED + _TORCH, _LOADED + _TORCH], ids=["first", "last"])
def test_torch_may_be_in_the_same_process(code: str, compiled: Path) -> None:
    run(code, compiled)


def test_a_forked_process_runs_what_onnx_runtime_runs(tmp_path: Path, let_win: Callable[[str], None]) -> None:
    let_win("onnxruntime")
    compile_model(Request("zoo:mlp-mnist", threads=2, store=str(tmp_path / "s.db")), tmp_path / "mlp.tunery")
    run(_LOADED + _FORK, tmp_path / "mlp.tunery")
