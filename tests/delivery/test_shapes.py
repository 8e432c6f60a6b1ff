"""A file for several shapes: the weights are there once, and a call runs what was compiled for its inputs."""

import gc
import json
import os
import platform
import re
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery._archive import Archive, new_archive
from tunery._errors import UsageError
from tunery.delivery.files.inspection import inspect
from tunery.delivery.files.signing import create_key
from tunery.dialects import Array, NetworkCompiler, get_dialect
from tunery.domain.request import CompileOptions, Request
from tunery.models import prepare
from tunery.service.session import bench, compile_model, extract

pytestmark = pytest.mark.tvm

LESSER = '{"kind": "llvm", "mcpu": "x86-64"}'
WEIGHTS = (np.random.default_rng(0).standard_normal((192, 160)) * 0.1).astype(np.float32)
BIAS = np.arange(160, dtype=np.float32)


def model(path: Path) -> Path:
    """Write `relu(x @ w + b)` for rows in any number."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "rows", [value("x", TensorProto.FLOAT, ("batch", 192))], [value("y", TensorProto.FLOAT, ("batch", 160))],
        [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(BIAS, "b")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def rows(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, 192)).astype(np.float32)


def check(network: Callable[..., Sequence[Array]], *counts: int) -> None:
    for count in counts:
        [found] = network(rows(count))
        np.testing.assert_allclose(found, np.maximum(rows(count) @ WEIGHTS + BIAS, 0), rtol=1e-4, atol=1e-4)


class Foreign:
    """An array whose shape is a method, as that of ONNX Runtime's OrtValue is."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def __dlpack__(self, **asked: Any) -> Any:
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_arrays_of_others_have_shapes_too(files: list[Path]) -> None:
    network = tunery.load_compiled(files[3])
    for count in (4, 4):
        np.testing.assert_array_equal(network(Foreign(rows(count)))[0], network(rows(count))[0])


def compiled(place: Path, source: Path, batch: int, target: str = "native", threads: int = 1) -> Path:
    dialect, path = get_dialect("metaschedule"), place / f"{batch}-{threads}.tunery"
    scratch = place / f"{batch}-{threads}.model"
    scratch.mkdir()
    network = prepare(str(source), {"batch": (batch,)}, scratch)
    NetworkCompiler.of(dialect).compile(network, dialect.resolve_target(target, threads), {}, path)
    return path


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files for 1, 4 and 16 rows, and one of them all."""
    place = tmp_path_factory.mktemp("shapes")
    source = model(place / "rows.onnx")
    alone = [compiled(place, source, batch) for batch in (1, 4, 16)]
    return [*alone, tunery.combine(alone, place / "all.tunery")]


def test_a_call_runs_what_was_compiled_for_its_shape(files: list[Path]) -> None:
    network = tunery.load_compiled(files[-1])
    check(network, 4, 1, 16, 4, 16, 1)
    place = np.empty((4, 160), np.float32)
    [found] = network(rows(4), out=[place])
    assert np.shares_memory(found, place)
    check(lambda x: [place], 4)
    assert network.time([rows(16)], 2) > 0
    assert network.profile([rows(1)])


def test_weights_are_there_once(files: list[Path]) -> None:
    found = inspect(files[-1])
    assert found.members["weights.bin"] < 1.05 * 4 * (WEIGHTS.size + BIAS.size)
    assert [one.inputs[0][1] for one in found.shapes] == [[1, 192], [4, 192], [16, 192]]


def test_another_shape_is_refused_in_one_sentence_that_lists_those_that_are_taken(files: list[Path]) -> None:
    network = tunery.load_compiled(files[-1])
    with pytest.raises(UsageError, match="2, 192") as caught:
        network(rows(2))
    assert all(f"[{count}, 192]" in str(caught.value) for count in (1, 4, 16))
    for wrong in ([], [rows(1), rows(1)], [rows(1).astype(np.float64)], [np.zeros((4, 7), np.float32)], [[1.0]],
                  [{"x": rows(1)}]):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            network(*wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError):
        network(rows(4), out=[np.empty((1, 160), np.float32)])


def test_a_session_shows_which_size_is_free(files: list[Path]) -> None:
    with tunery.InferenceSession(files[-1]) as session:
        assert [one.shape for one in (*session.get_inputs(), *session.get_outputs())] == [[None, 192], [None, 160]]
        check(lambda x: session.run(None, {"x": x}), 1, 16)


def test_what_takes_the_place_of_a_file_does_not_matter_once_it_is_loaded(files: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "net.tunery"
    shutil.copy(files[-1], file)
    network = tunery.load_compiled(file)
    file.unlink()
    file.write_bytes(b"something else")
    check(network, 16, 4, 1)


def rewritten(file: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a copy with another second shape in its manifest."""
    with Archive(file) as archive, new_archive(path) as made:
        for name in archive.sizes:
            made.copy(archive, name, name)
        parts = json.loads(archive.manifest_bytes)["parts"]
        change(parts[1])
        made.finish(*parts)
    return path


def test_a_shape_that_cannot_be_loaded_is_one_sentence_and_leaves_no_file_open(
    files: list[Path], tmp_path: Path
) -> None:
    def said(dialect: object) -> str:
        bad = rewritten(files[-1], tmp_path / f"{dialect}", lambda told: told.update(dialect=dialect))
        with pytest.raises(UsageError) as caught:
            tunery.load_compiled(bad)(rows(4))
        return str(caught.value)

    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for dialect in (5, "none", "fake", "onnxruntime"):
        text = said(dialect)
        assert "\n" not in text
        assert "/dev/fd" not in text
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_shape_that_needs_what_is_not_installed_says_so(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tunery.load_compiled(files[-1])
    check(network, 1)
    for name in ("onnxruntime", "other"):
        missing = ModuleNotFoundError("there is none", name=name)
        monkeypatch.setattr(type(get_dialect("metaschedule")), "load_network", Mock(side_effect=missing))
        with pytest.raises(UsageError, match=name) as caught:
            network(rows(4))
        assert "\n" not in str(caught.value)


def test_a_file_for_several_shapes_can_be_signed(files: list[Path], tmp_path: Path) -> None:
    public = create_key(tmp_path / "key")
    signed = tunery.combine(files[:2], tmp_path / "signed.tunery", sign=tmp_path / "key")
    check(tunery.load_compiled(signed, trusted=public), 1, 4)
    with pytest.raises(UsageError):
        tunery.load_compiled(files[-1], trusted=public)


def test_what_cannot_be_put_together_is_said_in_one_sentence(files: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again.tunery"
    shutil.copy(files[1], again)
    for given in ([files[0], files[1], again], [files[0], files[-1]]):
        with pytest.raises(UsageError) as caught:
            tunery.combine(given, tmp_path / "made.tunery")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "made.tunery").exists()


@pytest.fixture(scope="module", name="lesser")
def _lesser(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files for 1 and 4 rows and any processor of this kind, with two threads."""
    if platform.machine() != "x86_64":
        pytest.skip("the lesser target is one of x86")
    place = tmp_path_factory.mktemp("lesser")
    source = model(place / "rows.onnx")
    return [compiled(place, source, batch, LESSER, 2) for batch in (1, 4)]


def test_a_file_holds_several_shapes_for_several_targets(files: list[Path], lesser: list[Path], tmp_path: Path) -> None:
    best = tunery.combine(files[:2], tmp_path / "best.tunery")
    for given in ([*files[:2], *lesser], [best, *lesser], [best, tunery.combine(lesser, tmp_path / "lesser.tunery")]):
        whole = tunery.combine(given, tmp_path / "whole.tunery")
        network = tunery.load_compiled(whole)
        assert network.threads == 1  # that of the best target
        check(network, 4, 1, 4)
        found = inspect(whole)
        assert [one.inputs[0][1] for one in found.shapes] == [[1, 192], [4, 192]]
        assert [one.threads for one in found.targets] == [1, 2]
        assert found.members["weights.bin"] < 1.1 * 4 * (WEIGHTS.size + BIAS.size)
    again = needing(whole, tmp_path / "again.tunery")
    network = tunery.load_compiled(again)
    assert network.threads == 2
    check(network, 1, 4)
    for wrong in ([*files[:2], lesser[0]], [*files[:2], *lesser, files[0]], [whole, files[2]], [whole, best]):
        with pytest.raises(UsageError) as caught:
            tunery.combine(wrong, tmp_path / "wrong.tunery")
        assert "\n" not in str(caught.value)
    if shutil.which("gcc"):
        assert sums_from_c(whole, tmp_path / "a") == pytest.approx(sums_from_c(again, tmp_path / "b"), rel=1e-4)


def needing(file: Path, path: Path) -> Path:
    """Copy a file whose best targets need an instruction that no such processor has."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                for part in manifest["parts"]:
                    part["instructions"] += ["sve"] * (part["threads"] == 1)
                data = json.dumps(manifest).encode()
            new.writestr(name, data)
    return path


@pytest.mark.slow
def test_a_model_is_compiled_for_several_shapes(tmp_path: Path, let_win: Callable[..., None]) -> None:
    source = model(tmp_path / "rows.onnx")
    request = Request(str(source), {"batch": (1,)}, threads=1, store=str(tmp_path / "s.db"),
                      more_shapes=({"batch": (4,)},))  # fmt: skip
    let_win("tunery", "onnxruntime")
    report, network = compile_model(request, tmp_path / "a.tunery", CompileOptions(predict=True))
    assert [one.by_onnxruntime for one in report.shapes] == [False, True]
    assert network.inputs[0].shape == (-1, 192)
    held = tunery.load_compiled(tmp_path / "a.tunery")
    check(held, 1, 4)
    with pytest.raises(UsageError, match=r"\[4, 192\]"):
        held(rows(2))
    let_win("tunery")
    report, _ = compile_model(request, tmp_path / "b.tunery", CompileOptions(predict=True, any_shape=True))
    assert not any(one.by_onnxruntime for one in report.shapes)
    free = tunery.load_compiled(tmp_path / "b.tunery")
    with tunery.InferenceSession(tmp_path / "b.tunery") as session:
        assert session.get_inputs()[0].shape == ["batch", 192]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(free, 4, 1)
    with pytest.warns(UserWarning, match=r"\[3, 192\]") as told:
        check(free, 3, 7, 3)
    assert len(told) == 1
    with pytest.raises(UsageError):
        bench(request)
    with pytest.raises(UsageError):
        compile_model(request, tmp_path / "c.tunery", CompileOptions(predict=True, targets=("native",)))
    assert sorted(one.name for one in tmp_path.iterdir() if one.suffix == ".tunery") == ["a.tunery", "b.tunery"]
    if platform.machine() == "x86_64":
        report, _ = compile_model(
            request, tmp_path / "c.tunery", CompileOptions(predict=True, any_shape=True, targets=(LESSER,))
        )
        assert report.targets == ("native", LESSER)
        found = inspect(tmp_path / "c.tunery")
        assert (len(found.shapes), len(found.targets)) == (3, 2)
        with pytest.warns(UserWarning, match=r"\[3, 192\]"):
            check(tunery.load_compiled(tmp_path / "c.tunery"), 1, 4, 3)


def test_shapes_that_change_the_number_of_dimensions_are_refused_in_one_sentence(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Squeeze", ["r"], ["y"])], "squeezed",
        [value("x", TensorProto.FLOAT, ("batch", 1, 8))], [value("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    source = tmp_path / "squeezed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    request = Request(str(source), {"batch": (1,)}, threads=1, store=str(tmp_path / "s.db"),
                      more_shapes=({"batch": (4,)},))  # fmt: skip
    with pytest.raises(UsageError, match=r"'y' is \[8\] or \[4, 8\]") as caught:
        extract(request)
    assert "\n" not in str(caught.value)


def test_equal_tasks_of_several_shapes_are_one(tmp_path: Path) -> None:
    source = model(tmp_path / "rows.onnx")
    request = Request(str(source), {"batch": (1,)}, threads=1, store=str(tmp_path / "s.db"),
                      more_shapes=({"batch": (4,)}, {"x": (4, 192)}))  # fmt: skip
    found = extract(request)
    one, four, same = found.parts
    assert [task.key for task in four.tasks] == [task.key for task in same.tasks]
    assert {task.key for task in found.tasks} == {task.key for each in (one, four) for task in each.tasks}
    weights = {task.key: task.weight for task in found.tasks}
    assert all(weights[task.key] >= 2 * task.weight for task in four.tasks)


def sums_from_c(file: Path, directory: Path) -> list[float]:
    """Return the sums of the outputs for ones, shape by shape, as the example in C prints them."""
    place = tunery.bundle(file, directory)
    assert (place / "network" / "weights.bin").stat().st_size < 1.1 * 4 * (WEIGHTS.size + BIAS.size)
    command = ["gcc", "example.c", "-Iinclude", "-Llib", "-ltunery", "-Wl,-rpath,$ORIGIN/lib", "-Wl,-rpath-link,lib"]
    subprocess.run([*command, "-o", "example"], cwd=place, check=True)
    done = subprocess.run([place / "example", place / "network"], capture_output=True, text=True, check=True)
    return [float(text) for text in re.findall(r"sum (\S+)", done.stdout)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_a_bundle_runs_each_shape_from_c(files: list[Path], tmp_path: Path) -> None:
    once = float(np.maximum(WEIGHTS.sum(axis=0) + BIAS, 0).sum())
    assert sums_from_c(files[-1], tmp_path / "bundle") == pytest.approx([once, 4 * once, 16 * once], rel=1e-4)
