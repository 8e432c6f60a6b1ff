"""A host that builds code which does more than it should where it is loaded."""

import os
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import pytest
from job_tools import builds, records_in, runtimes
from onnx import TensorProto, helper

from tunery._sandbox import lacking
from tunery.domain import HERE, Budget, JobState, Mode, Outcome
from tunery.domain.request import CompileOptions, Request
from tunery.engines.remote.registry import add_host
from tunery.service.session import Session

pytestmark = [
    pytest.mark.hostile, pytest.mark.tvm,
    pytest.mark.skipif(bool(lacking()), reason=f"this machine lacks {', '.join(lacking())}"),
]  # fmt: skip

CONSTRUCTOR = """
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = PLACE "/socket"};
    if (getenv("AT_THE_HOST")) return;
    int file = open(PLACE "/canary", O_CREAT | O_WRONLY, 0600);
    if (file >= 0) write(file, "x", 1);
    connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address);
}
"""


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    """Have a linker of the host's add a constructor to all that it links."""
    tools = tmp_path / "tools"
    tools.mkdir()
    command = ["gcc", "-x", "c", "-", "-c", "-fPIC", "-w", "-o", tools / "more.o"]
    text = f'#define PLACE "{tmp_path}"\n{CONSTRUCTOR}'
    subprocess.run(command, input=text, text=True, check=True)
    linker = subprocess.run(["which", "ld"], capture_output=True, text=True, check=True).stdout.strip()
    (tools / "ld").write_text(f'#!/bin/sh\nexec {linker} "$@" {tools}/more.o\n')
    (tools / "ld").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("trusted", [False, True])
def test_what_a_host_builds_does_nothing_here_unless_the_host_is_trusted(
    place: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = [f"{name}={place / 'far'}" for name in ("TUNERY_CACHE", "XDG_DATA_HOME")]
    path = f"PATH={place}/tools:{os.environ['PATH']}"
    agent = ["env", *variables, "AT_THE_HOST=1", path, sys.executable, "-m", "tunery", "agent", "--stdio"]
    add_host("far", shlex.join(agent), trusted=trusted)
    monkeypatch.setenv("TUNERY_BUILD_HERE", "off")
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.01] * 64 * 64)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), place / "m.onnx")
    request = Request(str(place / "m.onnx"), threads=1, budget=Budget.parse("12trials"), store=str(place / "store.db"))
    with socket.socket(socket.AF_UNIX) as listening, runtimes() as made, Session(request.store) as session:
        listening.bind(str(place / "socket"))
        listening.listen()
        listening.setblocking(False)
        report = session.tune(request, lambda _: None, threading.Event())
        tuned = len(made[0].dispatch.spans)
        session.compile(request, place / "out.tunery", CompileOptions(predict=True))
        try:
            listening.accept()[0].close()
            connected = True
        except BlockingIOError:
            connected = False
    assert report.job.state is JobState.DONE
    assert {record.measurement.outcome for record in records_in(place, Mode.FINAL)} == {Outcome.OK}
    assert builds(made[0])["far"] > builds(made[0]).get(HERE, 0), "nothing of the host's was loaded"
    assert ((place / "canary").exists(), connected) == (trusted, trusted)
    delivered = [span for span in made[0].dispatch.spans[tuned:] if span.kind == "build"]
    assert {span.worker.partition("/")[0] for span in delivered} == {"far" if trusted else HERE}
