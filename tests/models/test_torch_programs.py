"""Saved torch programs: converted in a process that never outlives the one that asked."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tunery import models as frontends
from tunery._errors import ModelError

needs_torch = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "onnxscript")), reason="pip install tunery[torch]"
)

_SAVE = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)).eval()
batch = torch.export.Dim("batch", min=1, max=64)
torch.export.save(torch.export.export(net, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: batch},)), sys.argv[1])
"""


def test_the_converter_ends_when_its_parent_is_gone() -> None:
    code = "from tunery.models import _torch_export as t; t._end_with_parent()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(30) == 1


@needs_torch
def test_a_saved_program_is_prepared_once(tmp_path: Path) -> None:
    program = tmp_path / "net.pt2"
    subprocess.run([sys.executable, "-c", _SAVE, str(program)], check=True)
    network = frontends.prepare(str(program), {}, tmp_path / "out")
    assert network.name == "net"
    assert [spec.shape for spec in (*network.inputs, *network.outputs)] == [(1, 3, 8, 8), (1, 5)]
    assert frontends.prepare(str(program), {}, tmp_path / "out") == network


@needs_torch
def test_what_torch_cannot_load_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"PK" + bytes(100))
    with pytest.raises(ModelError, match="torch cannot convert"):
        frontends.prepare(str(tmp_path / "net.pt2"), {}, tmp_path)
