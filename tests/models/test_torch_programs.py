"""Saved torch programs: data unless trusted, converted in a process that has no rights and outlives nobody."""

import ctypes
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunery import models as frontends
from tunery._errors import ModelError
from tunery.domain import Environment
from tunery.engines import LocalEngine, Role, WorkerSpec
from tunery.models.torch._archive import CodeInProgramError, copy_data

needs_torch = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "onnxscript")), reason="torch is not installed"
)

_SAVE = """
import sys, torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5)).eval()
batch = torch.export.Dim("batch", min=1, max=64)
torch.export.save(torch.export.export(net, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: batch},)), sys.argv[1])
"""
# What `torch.export.save` writes, as far as it is checked: one operator, a size, and the nesting of the arguments.
_SPEC = '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]'
_PROGRAM = {
    "graph_module": {
        "graph": {
            "nodes": [{"target": "torch.ops.aten.relu.default", "inputs": [], "metadata": {"stack_trace": "a(b)\n"}}],
            "tensor_values": {"x": {"sizes": [{"as_expr": {"expr_str": "2*Symbol('s31', integer=True)", "hint": {}}}]}},
        },
        "module_call_graph": [{"fqn": "", "signature": {"in_spec": _SPEC, "out_spec": _SPEC}}],
    },
    "range_constraints": {"2*s31": {"min_val": 2, "max_val": 128}},
    "guards_code": ["L['x'].size()[0] <= 64"],
    "torch_version": "2.13.0+cpu",
}


def archive(path: Path, program: object, constants: object = None, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as made:
        made.writestr("net/archive_format", "pt2")
        made.writestr("net/models/model.json", json.dumps(program))
        made.writestr("net/data/constants/model_constants_config.json", json.dumps({"config": constants or {}}))
        made.writestr("net/data/weights/weight_0", bytes(8))
        made.writestr("net/data/aotinductor/model/evil.so", b"\x7fELF")
    return path


def changed(change: Callable[[Any], object]) -> Any:
    program = json.loads(json.dumps(_PROGRAM))
    change(program)
    return program


def first(program: Any, *, part: str) -> Any:
    return program["graph_module"]["graph"][part]


def test_a_program_is_copied_without_what_is_no_data(tmp_path: Path) -> None:
    copy_data(archive(tmp_path / "net.pt2", _PROGRAM), tmp_path / "copy.pt2")
    with zipfile.ZipFile(tmp_path / "copy.pt2") as copy:
        names = {name.partition("/")[2] for name in copy.namelist()}
        assert {"archive_format", "models/model.json", "data/weights/weight_0"} < names
        assert not any("aotinductor" in name for name in names)
        [program] = [json.loads(copy.read(name)) for name in copy.namelist() if name.endswith("model.json")]
    assert program["guards_code"] == []
    assert first(program, part="nodes")[0] == {"target": "torch.ops.aten.relu.default", "inputs": [], "metadata": {}}


@pytest.mark.parametrize(
    "hostile",
    [
        changed(lambda p: first(p, part="nodes")[0].update(target="torch.os.system")),
        changed(lambda p: first(p, part="nodes")[0].update(target="torch.ops.load_library")),
        changed(lambda p: first(p, part="nodes")[0].update(target="torch.ops.aten.from_file.default")),
        changed(lambda p: first(p, part="nodes")[0].update(target="_operator.methodcaller")),
        changed(lambda p: first(p, part="nodes")[0].update(name="x=print(1)")),
        changed(lambda p: first(p, part="tensor_values").update({"x, y=print(1)": {}})),
        *(
            changed(
                lambda p, text=text: first(p, part="tensor_values")["x"]["sizes"][0]["as_expr"].update(expr_str=text)
            )
            for text in ("__import__('os').system('id')", "exec('print(1)')", "Symbol('s1').name", "[x for x in (1,)]")
        ),
        changed(
            lambda p: first(p, part="tensor_values")["x"]["sizes"][0]["as_expr"].update(hint={"as_int": "exec('1')"})
        ),
        changed(lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(in_spec=json.dumps([
            1, {"type": "collections.defaultdict", "children_spec": [],
                "context": json.dumps({"default_factory_module": "os", "default_factory_name": "abort"})},
        ]))),
        changed(lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(in_spec=json.dumps([
            1, {"type": "builtins.dict", "children_spec": [],
                "context": json.dumps([{"__enum__": True, "fqn": "os:abort", "name": "x"}])},
        ]))),
    ],
)  # fmt: skip
def test_text_that_torch_would_run_is_refused(hostile: object, tmp_path: Path) -> None:
    with pytest.raises(CodeInProgramError):
        copy_data(archive(tmp_path / "net.pt2", hostile), tmp_path / "copy.pt2")


@pytest.mark.parametrize("name", ["custom_obj_0", "opaque_obj_0", "../weights/weight_0"])
def test_objects_of_the_author_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CodeInProgramError):
        copy_data(archive(tmp_path / "net.pt2", _PROGRAM, {"c": {"path_name": name}}), tmp_path / "copy.pt2")


def test_a_compressed_archive_is_not_unpacked(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "net.pt2", _PROGRAM, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="compressed"):
        copy_data(bomb, tmp_path / "copy.pt2")


_SHUT_IN = """
import os, pathlib, socket, sys
from tunery import _sandbox
here, secret = map(pathlib.Path, sys.argv[1:])
_sandbox.enter(map(pathlib.Path, sys.path), [here], _sandbox.FILES)
(here / "written").write_text("")
for name, act in {
    "secret": secret.read_text,
    "outside": lambda: secret.write_text(""),
    "tcp": lambda: socket.create_connection(("127.0.0.1", 9), 1),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
}.items():
    try:
        act()
        print(name, "done")
    except ConnectionRefusedError:
        print(name, "reached")
    except OSError:
        print(name, "barred")
"""


@pytest.mark.attack
def test_a_process_that_is_shut_in_has_no_network_and_no_files_of_others(tmp_path: Path) -> None:
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)) < 4:
        pytest.skip("this kernel, or a container, has no Landlock")
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "secret").write_text("")
    found = subprocess.run(
        [sys.executable, "-c", _SHUT_IN, str(here), str(tmp_path / "secret")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout.split("\n")  # fmt: skip
    assert {"secret barred", "outside barred", "tcp barred"} <= set(found)
    assert (here / "written").exists()


def test_the_converter_ends_when_its_parent_is_gone() -> None:
    code = "from tunery.models.torch import _export as t; t._end_with_parent()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(2.0)
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.close()
        assert child.wait(30) == 1
        assert child.stderr.read() == b""


@pytest.fixture(name="program", scope="module")
def _program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    subprocess.run([sys.executable, "-c", _SAVE, str(path)], check=True)
    return path


@needs_torch
def test_a_saved_program_is_prepared_once(program: Path, tmp_path: Path) -> None:
    network = frontends.prepare(str(program), {}, tmp_path / "out")
    assert network.name == "net"
    assert [spec.shape for spec in (*network.inputs, *network.outputs)] == [(1, 3, 8, 8), (1, 5)]
    assert frontends.prepare(str(program), {}, tmp_path / "out") == network


@needs_torch
def test_a_worker_that_may_not_import_torch_prepares_a_program(program: Path, tmp_path: Path) -> None:
    with LocalEngine(tmp_path / "logs") as engine:
        spec = WorkerSpec(
            Role.IMPORTER, "tunery.runtime.services.importer:Preparer", environment=Environment(forbidden=("torch",))
        )
        network = engine.call(engine.start(spec), "load", str(program), {}, deadline_s=120).result()
    assert network.inputs[0].shape == (1, 3, 8, 8)


class _Evil:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.marker, "w")


@needs_torch
def test_a_pickle_runs_only_with_trust(program: Path, tmp_path: Path) -> None:
    hostile, marker = tmp_path / "net.pt2", tmp_path / "marker"
    with zipfile.ZipFile(program) as given, zipfile.ZipFile(hostile, "w") as made:
        for entry in given.infolist():
            data = given.read(entry)
            if entry.filename.endswith("model_weights_config.json"):
                config = json.loads(data)
                for payload in config["config"].values():
                    payload["use_pickle"] = True
                data = json.dumps(config).encode()
            elif "/weights/weight_" in entry.filename:
                pickled = io.BytesIO()
                pickle.dump(_Evil(str(marker)), pickled)
                data = pickled.getvalue()
            made.writestr(entry.filename, data)
    with pytest.raises(ModelError, match="add --trust"):
        frontends.prepare(str(hostile), {}, tmp_path / "out")
    assert not marker.exists()
    with pytest.raises(ModelError, match="torch cannot convert"):  # it ran, and is no weight
        frontends.prepare(str(hostile), {}, tmp_path / "out", trust=True)


@needs_torch
def test_what_torch_cannot_load_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"PK" + bytes(100))
    with pytest.raises(ModelError, match="torch cannot convert"):
        frontends.prepare(str(tmp_path / "net.pt2"), {}, tmp_path)
