"""A bundle runs a compiled network from C and C++, without Python."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from model_in_parts import in_parts

import tunery
from tunery._errors import DialectError, UsageError
from tunery.delivery import judging
from tunery.delivery.files.combining import bundle
from tunery.dialects import NetworkCompiler, get_dialect
from tunery.dialects.metaschedule.bundling import bundle as writing
from tunery.dialects.metaschedule.loading.library import versions
from tunery.dialects.onnxruntime import OnnxRuntimeDialect
from tunery.domain.request import CompileOptions, Request
from tunery.models import prepare
from tunery.service.session import compile_model

CHROOT = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
NATIVE = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module", name="made")
def _made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A compiled file and its bundle."""
    place = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:

        async def ours(*_: object) -> list[tuple[float, float]]:
            return [(1e-6, 1.0)]

        patch.setattr(judging, "time_in_turns", ours)
        request = Request("zoo:mlp-mnist", threads=2, store=str(place / "s.db"))
        compile_model(request, place / "mlp.tunery", CompileOptions(predict=True))
    return place / "mlp.tunery", bundle(place / "mlp.tunery", place / "bundle")


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program without any variable of this process's."""
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env={}, capture_output=True, text=True, timeout=120, check=False
    )


def built(place: Path, compiler: str) -> Path:
    """Return a bundle's example, compiled as C or C++."""
    program = place / f"example-{compiler}"
    language = ["-x", "c++"] if compiler == "g++" else []
    done = subprocess.run(
        [
            compiler, "-Wall", "-Wextra", "-Werror", *language, "example.c", "-Iinclude", "-Llib", "-ltunery",
            "-Wl,-rpath,$ORIGIN/lib", "-Wl,-rpath-link,lib", "-o", program,
        ], cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return program


def expected_sums(file: Path) -> list[float]:
    network = tunery.load_compiled(file)
    return [float(one.sum()) for one in network(*(np.ones(spec.shape, spec.dtype) for spec in network.inputs))]


@NATIVE
@pytest.mark.tvm
@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_bundle_runs_from_c_and_cpp_wherever_it_is_copied_to(
    compiler: str, made: tuple[Path, Path], tmp_path: Path
) -> None:
    built(made[1], compiler)
    copy = tmp_path / "elsewhere"
    shutil.copytree(made[1], copy)
    done = run(copy / f"example-{compiler}", copy / "network", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sums = [float(text) for text in re.findall(r"sum (\S+)", done.stdout)]
    assert sums == pytest.approx(expected_sums(made[0]), rel=1e-4)


@NATIVE
@pytest.mark.tvm
def test_a_bundle_without_its_libraries_says_so(made: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "copy"
    shutil.copytree(made[1], place)
    program = built(place, "gcc")
    for library in (place / "lib").glob("libtvm*"):
        content = library.read_bytes()
        for damage in (None, b"no library"):
            library.unlink()
            if damage:
                library.write_bytes(damage)
            done = run(program, place / "network")
            assert (done.returncode, done.stderr.count("\n")) == (1, 1)
            assert library.name in done.stderr
            library.write_bytes(content)
    assert run(program, place / "network").returncode == 0


@NATIVE
@pytest.mark.tvm
@pytest.mark.skipif(os.geteuid() != 0 or not CHROOT, reason="only root may change its root")
def test_a_bundle_runs_in_a_root_without_python(made: tuple[Path, Path], tmp_path: Path) -> None:
    program = built(made[1], "gcc")
    root = tmp_path / "root"
    shutil.copytree(made[1], root / "bundle")
    needed = run("ldd", program, *(made[1] / "lib").glob("*.so")).stdout
    for library in {Path(one) for one in re.findall(r"(/\S+)", needed) if one.startswith(("/lib", "/usr"))}:
        place = root / str(library).removeprefix("/").rstrip(":")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    assert not [one for one in root.rglob("*") if "python" in one.name]
    # Without /proc a program does not know where it is, so it is told where its libraries are.
    command = [str(CHROOT), str(root), f"/bundle/{program.name}", "/bundle/network"]
    done = subprocess.run(
        command, env={"LD_LIBRARY_PATH": "/bundle/lib"}, capture_output=True, text=True, timeout=120, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine lets nobody change the root")
    assert done.returncode == 0, done.stderr
    assert "sum" in done.stdout


@NATIVE
@pytest.mark.tvm
@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no CMake")
def test_cmake_finds_a_bundle(made: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(example C)\nfind_package(tunery REQUIRED)\n"
        f"add_executable(example {made[1] / 'example.c'})\ntarget_link_libraries(example tunery::tunery)\n"
    )
    for command in (["-S", ".", "-B", "build", f"-Dtunery_DIR={made[1] / 'lib/cmake/tunery'}"], ["--build", "build"]):
        done = subprocess.run(["cmake", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert run(tmp_path / "build" / "example", made[1] / "network").returncode == 0


@NATIVE
@pytest.mark.tvm
def test_a_bundle_runs_what_onnx_runtime_runs_of_a_network(tmp_path: Path) -> None:
    dialect, file = get_dialect("metaschedule"), tmp_path / "parts.tunery"
    network = prepare(in_parts(tmp_path / "parts.onnx"), {}, tmp_path)
    NetworkCompiler.of(dialect).compile(network, dialect.resolve_target("native", 2), {}, file)
    place = bundle(file, tmp_path / "bundle")
    program = built(place, "gcc")
    done = run(program, place / "network")
    assert done.returncode == 0, done.stderr
    sums = [float(text) for text in re.findall(r"sum (\S+)", done.stdout)]
    assert sums == pytest.approx(expected_sums(file), rel=1e-4)
    assert sums[0]
    damages = {"network/0/segments.bin": b"", "lib/libonnxruntime.so.1": b"no library"}
    for name, content in damages.items():
        kept = (place / name).read_bytes()
        (place / name).write_bytes(content)
        done = run(program, place / "network")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        (place / name).write_bytes(kept)


@NATIVE
@pytest.mark.tvm
def test_the_example_in_cpp_runs(made: tuple[Path, Path], tmp_path: Path) -> None:
    source, program = Path(__file__).parents[2] / "examples" / "program.cpp", tmp_path / "program"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", source, f"-I{made[1]}/include", f"-L{made[1]}/lib",
               "-ltunery", f"-Wl,-rpath,{made[1]}/lib", f"-Wl,-rpath-link,{made[1]}/lib", "-o", program]  # fmt: skip
    subprocess.run(command, check=True)
    done = run(program, made[1] / "network")
    assert done.returncode == 0, done.stderr
    assert "40 bytes" in done.stdout
    wrong = run(program, tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)


MISUSED = """
import ctypes, sys, threading
c = ctypes.CDLL(sys.argv[1] + "/lib/libtunery.so")
c.tunery_open.restype, c.tunery_error.restype = ctypes.c_void_p, ctypes.c_char_p
c.tunery_shape.restype = ctypes.POINTER(ctypes.c_int64)
for _ in range(2):
    c.tunery_close(ctypes.c_void_p(c.tunery_open((sys.argv[1] + "/network").encode(), 1)))
assert not [line for line in open("/proc/self/maps") if sys.argv[1] + "/network/" in line]
network = ctypes.c_void_p(c.tunery_open((sys.argv[1] + "/network").encode(), 1))
assert network.value, c.tunery_error()
place = ctypes.create_string_buffer(1 << 20)
size = ctypes.c_size_t
for wrong in (
    lambda: c.tunery_run(network), lambda: c.tunery_run(None),
    lambda: c.tunery_bind_input(network, 9, place, size(4)), lambda: c.tunery_bind_input(network, -1, place, size(4)),
    lambda: c.tunery_bind_input(network, 0, place, size(4)), lambda: c.tunery_bind_input(None, 0, place, size(4)),
    lambda: c.tunery_bind_output(network, 0, None, size(40)), lambda: c.tunery_bind_output(network, 0, place, size(1)),
    lambda: c.tunery_set_shape(None, None, 0), lambda: c.tunery_set_shape(network, None, 2),
    lambda: c.tunery_set_shape(network, (ctypes.c_int64 * 2)(3, 784), 2), lambda: c.tunery_set_shape(network, None, -1),
):
    assert wrong() == -1
    print(c.tunery_error().decode())
for directory in sys.argv[2:]:
    assert not c.tunery_open(directory.encode(), 1)
    why = c.tunery_error().decode()
    assert c.tunery_bind_input(None, 0, place, size(4)) == c.tunery_run(None) == -1 and c.tunery_error().decode() == why
    print(why)
assert not c.tunery_open(None, 1) and not c.tunery_open((sys.argv[1] + "/network").encode(), -1)
assert c.tunery_shapes(network) == 1 and c.tunery_shape(network, 0)[:2] == [1, 784] and not c.tunery_shape(network, 1)
assert c.tunery_set_shape(network, (ctypes.c_int64 * 2)(1, 784), 2) == 0
assert not c.tunery_input(network, 5) and not c.tunery_output(network, -1)
said = []
other = threading.Thread(target=lambda: said.append(c.tunery_error().decode()))
other.start()
other.join()
assert said == [""]  # a failure is told to its own thread
c.tunery_close(network)
c.tunery_close(None)
"""


FORKED = """
import ctypes, os, sys
c = ctypes.CDLL(sys.argv[1] + "/lib/libtunery.so")
c.tunery_open.restype, c.tunery_error.restype = ctypes.c_void_p, ctypes.c_char_p
x, y = (ctypes.c_float * 784)(*range(784)), (ctypes.c_float * 10)()
def ran(network):
    assert network.value, c.tunery_error()
    assert not c.tunery_bind_input(network, 0, x, ctypes.c_size_t(ctypes.sizeof(x)))
    assert not c.tunery_bind_output(network, 0, y, ctypes.c_size_t(ctypes.sizeof(y)))
    return list(y) if not c.tunery_run(network) else c.tunery_error().decode()
opened = lambda: ctypes.c_void_p(c.tunery_open((sys.argv[1] + "/network").encode(), 2))
network = opened()
expected = ran(network)
child = os.fork()
if not child:
    found = ran(network)
    fine = found == expected or "open it again" in found
    os._exit(0 if fine and ran(opened()) == expected else 1)
assert os.waitpid(child, 0)[1] == 0
assert ran(network) == expected
"""


@NATIVE
@pytest.mark.tvm
def test_a_process_forks_between_calls(made: tuple[Path, Path], whole: Path, tmp_path: Path) -> None:
    for place in (made[1], bundle(whole, tmp_path / "whole")):
        done = run(sys.executable, "-c", FORKED, place)
        assert done.returncode == 0, done.stderr


@NATIVE
@pytest.mark.tvm
def test_mistakes_and_damage_are_one_sentence_each(made: tuple[Path, Path], tmp_path: Path) -> None:
    text = (made[1] / "network" / "0" / "network.txt").read_text()
    damages = {
        "version": text.replace("tunery-network 2", "tunery-network 3"), "kind": "something else\n", "empty": "",
        "foreign": text + f"needs {'neon' if platform.machine() == 'x86_64' else 'avx2'}\n",
        "rank": text.replace("input float32 ", "input float32 -"),
        "weights": re.sub(r"weight \d+", "weight 640000000", text), "dtype": text.replace("float32", "float99"),
        "arity": "\n".join(line for line in text.splitlines() if not line.startswith("weight")) + "\n",
        "many": text + "output float32 0 y\n" * 4096,
    }  # fmt: skip
    places = [tmp_path / "missing", tmp_path / "file"]
    places[1].write_text("")
    for name, content in damages.items():
        if content != text:
            places.append(tmp_path / name)
            shutil.copytree(made[1] / "network", places[-1])
            (places[-1] / "0" / "network.txt").write_text(content)
    for name in ("weights.bin", "0/network.so"):
        for how in ("gone", "cut", *(["alien"] if name == "0/network.so" else [])):
            places.append(tmp_path / f"{Path(name).name}-{how}")
            shutil.copytree(made[1] / "network", places[-1])
            whole = (places[-1] / name).read_bytes()
            (places[-1] / name).unlink()
            if how == "alien":  # the machine of an ELF file: S/390
                (places[-1] / name).write_bytes(whole[:18] + b"\x16" + whole[19:])
            if how == "cut":
                (places[-1] / name).write_bytes(whole[: len(whole) // 2])
    done = run(sys.executable, "-c", MISUSED, made[1], *places)
    assert done.returncode == 0, done.stderr + done.stdout
    said = done.stdout.splitlines()
    assert len(said) == 12 + len(places)
    assert all(10 < len(one) < 1000 for one in said)


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that ONNX Runtime runs whole."""
    dialect, place = OnnxRuntimeDialect(), tmp_path_factory.mktemp("whole")
    network = prepare("zoo:mlp-mnist", {}, place)
    dialect.compile(network, dialect.resolve_target("native", 1), {}, place / "net.tunery")
    return place / "net.tunery"


@NATIVE
@pytest.mark.tvm
def test_a_bundle_runs_a_network_that_onnx_runtime_runs_whole(whole: Path, tmp_path: Path) -> None:
    place = bundle(whole, tmp_path / "bundle")
    program = built(place, "gcc")
    done = run(program, place / "network")
    assert done.returncode == 0, done.stderr
    sums = [float(text) for text in re.findall(r"sum (\S+)", done.stdout)]
    assert sums == pytest.approx(expected_sums(whole), rel=1e-4)
    for damage in (b"", b"no model"):
        (place / "network" / "model.onnx").write_bytes(damage)
        done = run(program, place / "network")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@pytest.mark.tvm
def test_libraries_of_another_machine_come_from_a_directory(made: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("none", "empty", "torn", "newer"):
        (tmp_path / name).mkdir()
    (tmp_path / "torn" / "x.whl").write_bytes(b"no wheel")
    for library in (made[1] / "lib").glob("libtvm*"):
        shutil.copy(library, tmp_path / "newer")
    (tmp_path / "newer" / "apache_tvm-99.0.dist-info").mkdir()
    (tmp_path / "newer" / "apache_tvm-99.0.dist-info" / "METADATA").touch()
    (tmp_path / "none").rmdir()
    for name in ("none", "empty", "torn", "newer"):
        with pytest.raises(UsageError) as caught:
            bundle(made[0], tmp_path / "bundle", runtime=tmp_path / name)
        assert "\n" not in str(caught.value)
    with zipfile.ZipFile(tmp_path / "empty" / "rotten.whl", "w") as wheel:
        wheel.writestr("tvm_ffi/lib/libtvm_ffi.so", b"code")
        wheel.writestr("tvm/libtvm_runtime.so", b"code")
    rotten = (tmp_path / "empty" / "rotten.whl").read_bytes().replace(b"code", b"rust", 1)
    (tmp_path / "empty" / "rotten.whl").write_bytes(rotten)
    with pytest.raises(UsageError, match=r"rotten\.whl is damaged"):
        bundle(made[0], tmp_path / "bundle", runtime=tmp_path / "empty")
    (tmp_path / "newer" / "apache_tvm-99.0.dist-info" / "METADATA").unlink()
    for name, number in versions().items():
        described = tmp_path / "newer" / f"{name.replace('-', '_')}-{number}.dist-info"
        described.mkdir()
        (described / "METADATA").touch()
    if shutil.which("gcc"):
        assert (bundle(made[0], tmp_path / "bundle", runtime=tmp_path / "newer") / "lib" / "libtunery.so").exists()


@pytest.mark.tvm
def test_what_the_library_has_no_room_for_is_refused(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_MOST_LINES", {"weight": 1})
    with pytest.raises(DialectError, match="weights, and a bundle holds at most 1;"):
        bundle(made[0], tmp_path / "bundle")
    monkeypatch.setattr(writing, "_MOST_PARTS", 0)
    with pytest.raises(UsageError, match="more than 0 pairs"):
        bundle(made[0], tmp_path / "bundle")
    assert not any(tmp_path.iterdir())


INTERRUPTED = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include "tunery.h"
static tunery_network *network;
static volatile sig_atomic_t refused;
static void handle(int number) { (void)number; if (tunery_run(network)) refused = 1; }
int main(int count, char **arguments) {
  struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
  network = tunery_open(arguments[count - 1], 1);
  tunery_bind_input(network, 0, calloc(1, tunery_input(network, 0)->bytes), tunery_input(network, 0)->bytes);
  signal(SIGALRM, handle);
  setitimer(ITIMER_REAL, &often, NULL);
  while (!refused) tunery_run(network);
  setitimer(ITIMER_REAL, &never, NULL);
  puts(tunery_error());
  return tunery_run(network);
}
"""


@NATIVE
@pytest.mark.tvm
def test_a_signals_handler_that_calls_the_network_it_interrupts_is_told(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "interrupted.c").write_text(INTERRUPTED)
    command = ["gcc", "interrupted.c", f"-I{made[1]}/include", f"-L{made[1]}/lib", "-ltunery", "-o", "interrupted",
               f"-Wl,-rpath,{made[1]}/lib", f"-Wl,-rpath-link,{made[1]}/lib"]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True)
    done = run(tmp_path / "interrupted", made[1] / "network")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert len(done.stdout) > 20


def test_what_cannot_be_bundled_is_said(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.tunery"
    shutil.copy(whole, file)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    for source, place in ((file, tmp_path / "full"), (tmp_path / "missing", tmp_path / "new"), (file, file)):
        with pytest.raises(UsageError):
            bundle(source, place)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full", "net.tunery"]
    assert (tmp_path / "full" / "mine").read_text() == "kept"
