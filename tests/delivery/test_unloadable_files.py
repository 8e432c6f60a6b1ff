"""A file that cannot be loaded here is one sentence: damaged, foreign, forbidden, or without its libraries."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunery
from tunery._errors import TuneryError, UsageError
from tunery.delivery.files.inspection import inspect
from tunery.dialects import NetworkCompiler, get_dialect
from tunery.domain.request import CompileOptions, Request
from tunery.models import prepare
from tunery.service.session import compile_model

DIALECTS = ["onnxruntime", pytest.param("metaschedule", marks=pytest.mark.tvm)]
READERS: list[Callable[[Path], object]] = [
    tunery.load_compiled, tunery.InferenceSession, inspect, lambda path: tunery.bundle(path, path.with_suffix(".dir")),
]  # fmt: skip


@pytest.fixture(scope="module", name="file", params=DIALECTS)
def _file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("file")
    dialect, path = get_dialect(request.param), place / f"{request.param}.tunery"
    network = prepare("zoo:mlp-mnist", {}, place)
    NetworkCompiler.of(dialect).compile(network, dialect.resolve_target("native", 1), {}, path)
    return path


@pytest.fixture(scope="module", name="pair")
def _pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two files with weights, for different processors."""
    place = tmp_path_factory.mktemp("pair")
    one, other = place / "one.tunery", place / "other.tunery"
    request = Request("zoo:mlp-mnist", threads=1, store=f"sqlite:///{place / 'store.db'}")
    compile_model(request, one, CompileOptions(predict=True))
    assert inspect(one).members["weights.bin"] > 0
    return one, rewritten(one, other, lambda _, manifest: manifest["parts"][0]["instructions"].pop())


def refused(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(TuneryError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_cut_short_anywhere_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        starts = [info.header_offset for info in archive.infolist()] + [archive.start_dir]
    places = {0, 1, 30, len(whole) - 1, len(whole) - 22, len(whole) // 3}
    places |= {start + more for start in starts for more in (-1, 0, 1, 40)}
    cut = tmp_path / "cut"
    for place in sorted(places & set(range(len(whole)))):
        cut.write_bytes(whole[:place])
        for read in READERS:
            refused(read, cut)


def rewritten(file: Path, path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], object]) -> Path:
    """Write a copy with other members or another manifest, and digests that fit."""
    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(members, manifest)
    manifest["members"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()
    }
    with zipfile.ZipFile(path, "w") as new:
        for name, data in {**members, "manifest.json": json.dumps(manifest).encode()}.items():
            new.writestr(name, data)
    return path


def test_a_newer_format_is_refused(file: Path, tmp_path: Path) -> None:
    newer = rewritten(file, tmp_path / "newer", lambda _, manifest: manifest["parts"][0].update(format=99))
    assert "99" in refused(tunery.load_compiled, newer)


@pytest.mark.tvm
def test_code_for_another_system_is_refused(file: Path, tmp_path: Path) -> None:
    if "metaschedule" not in file.name:
        pytest.skip("it has no code")

    def foreign(members: dict[str, bytes], _: dict[str, object]) -> None:
        code = bytearray(members["network.so"])
        code[18] = 0x16 if code[18] != 0x16 else 0x3E  # the machine of an ELF file: that of S/390
        members["network.so"] = bytes(code)

    path = rewritten(file, tmp_path / "foreign", foreign)
    assert str(path) in refused(tunery.load_compiled, path)


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "an offset beyond any file": lambda manifest: manifest["weights"]["arrays"][0].update(offset=10**30),
    "a shape without an end": lambda manifest: manifest["weights"]["arrays"][0].update(shape=[10**12, 10**6]),
    "a shape of words": lambda manifest: manifest["weights"]["arrays"][0].update(shape="much"),
    "a type that is none": lambda manifest: manifest["weights"]["arrays"][0].update(dtype="V9999999"),
    "weights that are a number": lambda manifest: manifest.update(weights=5),
    "instructions that are a number": lambda manifest: manifest.update(instructions=5),
    "a list of formats": lambda manifest: manifest.update(format=[5]),
    "words for threads": lambda manifest: manifest.update(threads="many"),
    "versions in a list": lambda manifest: manifest.update(versions=[1]),
}


@pytest.mark.tvm
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the lesser target is one of x86")
@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_manifest_says_is_not_believed(what: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    path = rewritten(one, tmp_path / "lies", lambda _, manifest: HOSTILE[what](manifest["parts"][0]))
    refused(lambda bad: tunery.load_compiled(tunery.combine([bad, other], tmp_path / "made")), path)
    refused(lambda bad: tunery.load_compiled(tunery.combine([other, bad], tmp_path / "made")), path)
    for read in (tunery.load_compiled, lambda bad: tunery.bundle(bad, tmp_path / "made.dir")):
        with suppress(TuneryError):  # what it says may be of no use to this reader
            read(path)


@pytest.mark.tvm
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the lesser target is one of x86")
def test_a_damaged_file_is_not_combined_with_a_sound_one(pair: tuple[Path, Path], tmp_path: Path) -> None:
    one, other = pair
    assert inspect(tunery.combine(pair, tmp_path / "both")).members["weights.bin"] > 0
    cut = tmp_path / "cut"
    whole = one.read_bytes()
    for place in (0, 30, len(whole) // 3, len(whole) - 22, len(whole) - 1):
        cut.write_bytes(whole[:place])
        refused(lambda bad: tunery.combine([bad, other], tmp_path / "made"), cut)
        refused(lambda bad: tunery.combine([other, bad], tmp_path / "made"), cut)
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read_is_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(file.read_bytes())
    path.chmod(0)
    for read in READERS:
        refused(read, path)


@pytest.mark.parametrize("missing", ["onnxruntime", "tvm_ffi", "tvm"])
def test_a_missing_library_is_named(missing: str, file: Path, tmp_path: Path) -> None:
    if (missing == "onnxruntime") != ("onnxruntime" in file.name):
        pytest.skip("it needs another")
    (tmp_path / missing).mkdir()
    (tmp_path / missing / "__init__.py").write_text("" if missing == "tvm" else f"raise ImportError(name={missing!r})")
    code = "import sys, tunery\ntry: tunery.load_compiled(sys.argv[1])\nexcept tunery.UsageError as e: print(e)"
    search = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], env=os.environ | {"PYTHONPATH": search}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    needed = {"tvm": "libtvm_runtime.so"}.get(missing, missing)
    assert needed in line.replace(str(file), "")
    assert "damaged" not in line


@pytest.mark.tvm
def test_without_a_place_for_its_code_a_file_is_not_called_damaged(file: Path) -> None:
    if "metaschedule" not in file.name:
        pytest.skip("its code is ONNX Runtime's")
    code = (
        "import resource, sys, tunery\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try:\n    tunery.load_compiled(sys.argv[1])\nexcept tunery.UsageError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True, check=True)
    assert "TMPDIR" in done.stdout
    assert (done.stdout.count("\n"), "damaged" in done.stdout) == (1, False)


def test_a_closed_session_says_so(file: Path) -> None:
    with tunery.InferenceSession(file) as session:
        [given] = session.get_inputs()
        feed = {given.name: np.ones(given.shape, np.float32)}
        [kept] = session.run(None, feed)
    for call in (lambda: session.run(None, feed), session.get_inputs, session.get_outputs):
        with pytest.raises(UsageError) as caught:
            call()
        assert "\n" not in str(caught.value)
    session.close()
    np.testing.assert_array_equal(kept, tunery.InferenceSession(file).run(None, feed)[0])
