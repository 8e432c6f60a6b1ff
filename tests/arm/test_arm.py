"""ARM end to end: an agent on an emulated machine, whose processor is of another kind than this one's."""

import json
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import emulated
import numpy as np
import onnx
import onnxruntime
import pytest
from byte_products import data, expected, with_dots, write_product
from cross_gcc import cross_lacking
from job_tools import family, outcomes_of, records_in, request_in, wait_until
from onnx import TensorProto, helper, numpy_helper

from tunery._errors import UsageError
from tunery.delivery.files.combining import bundle, combine
from tunery.delivery.files.loading import load_compiled
from tunery.dialects import NetworkCompiler, get_dialect
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.domain import Budget, CheckState, DeviceDescription, JobState, Mode, Outcome
from tunery.domain.request import CompileOptions, Request
from tunery.engines import AgentEngine, Engine, OnUsage
from tunery.engines.remote.checking import check_host
from tunery.engines.remote.registry import add_host
from tunery.models import prepare, zoo
from tunery.service.session import Session, tune
from tunery.store import open_store
from tunery.testing.engine_contract import EngineContract
from tunery.testing.fake_blobs import FakeBlobs

pytestmark = pytest.mark.timeout(900)
PI, CPU, COMPILER = "pi", "cortex-a72", "aarch64-linux-gnu-gcc"
MACHINE = Path(os.environ["TUNERY_TEST_ARM"])
IREE = Path(os.environ.get("TUNERY_TEST_IREE", ""), "iree")
WITH_IREE = [
    pytest.mark.iree,
    pytest.mark.skipif(not (IREE / "bin").exists(), reason="needs IREE's environment, which `make test-iree` installs"),
]
RUN = """
import sys, json, numpy, tunery
network = tunery.load_compiled(sys.argv[1])
given = numpy.load(sys.argv[2])
made = network(*(given[name] for name in sorted(given.files)))
numpy.savez(sys.argv[3], *(made if isinstance(made, (list, tuple)) else [made]))
assert "tvm" not in sys.modules, "the compiler was loaded"
"""


class TestAgentOnArm(EngineContract):
    def make(self, on_usage: OnUsage) -> Engine:
        return AgentEngine(PI, emulated.agent(MACHINE, CPU), FakeBlobs(), on_usage)


@pytest.fixture
def pi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Add the host `pi`, with directories of its own; its processes carry the test's mark."""
    monkeypatch.setenv("TUNERY_TEST_FAMILY", str(tmp_path))
    place = tmp_path / PI
    place.mkdir()
    places = " ".join(f"{name}={place}" for name in ("TUNERY_CACHE", "XDG_DATA_HOME", "TMPDIR"))
    add_host(PI, f"env {places} {emulated.agent(MACHINE, CPU)}")
    return place


def convolutions(path: Path) -> None:
    """A stem, a depthwise and a pointwise convolution, a residual sum, pooling and a dense layer."""
    rng = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "depth"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, group=16),
        helper.make_node("Clip", ["c", "low", "high"], ["d"]),
        helper.make_node("Conv", ["d", "point"], ["e"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["e", "b"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["h"]),
        helper.make_node("MatMul", ["h", "dense"], ["i"]),
        helper.make_node("Softmax", ["i"], ["y"]),
    ]
    constants = [
        weight("stem", 16, 3, 3, 3), weight("depth", 16, 1, 3, 3), weight("point", 16, 16, 1, 1),
        weight("dense", 16, 10), numpy_helper.from_array(np.float32(0.0), "low"),
        numpy_helper.from_array(np.float32(6.0), "high"),
    ]  # fmt: skip
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10]),
    ]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def bert(path: Path) -> None:
    """BERT-tiny, a batch of one."""
    model = onnx.load_model_from_string(zoo.graph("bert-tiny"))
    zoo.fill(model, "bert-tiny")
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("dialect", "make", "trials", "refusal"),
    [
        ("metaschedule", convolutions, 24, "compiled for a processor with neon"),
        ("metaschedule", bert, 36, "compiled for a processor with neon"),
        pytest.param("iree", convolutions, 8, "compiled for aarch64", marks=WITH_IREE),
    ],
)
def test_a_network_is_tuned_there_and_its_file_runs_there(
    dialect: str, make: Callable[[Path], None], trials: int, refusal: str, pi: Path, tmp_path: Path
) -> None:
    (tmp_path / "data" / "tunery").mkdir(parents=True)
    (tmp_path / "data" / "tunery" / "environments").symlink_to(IREE.parent)
    make(tmp_path / "m.onnx")
    budget, store = Budget.parse(f"{trials}trials"), str(tmp_path / "store.db")
    request = Request(str(tmp_path / "m.onnx"), dialect=dialect, threads=2, budget=budget, store=store, on=PI)
    with Session(store) as session:
        report = session.tune(request, lambda _: None, threading.Event())
        compiled, _ = session.compile(request, tmp_path / "out.tunery", CompileOptions(predict=True))
    assert report.job.state is JobState.DONE
    finals = records_in(tmp_path, Mode.FINAL)
    assert {record.measurement.outcome for record in finals} == {Outcome.OK}
    with open_store(store) as opened:
        [measured_on] = {record.provenance.device for record in finals}
        assert opened.devices.facts(measured_on)["arch"] == "aarch64"
    assert compiled.max_abs_error is not None
    with pytest.raises(UsageError, match=refusal):
        load_compiled(tmp_path / "out.tunery")
    compare(tmp_path / "m.onnx", tmp_path / "out.tunery", tmp_path)
    wait_until(lambda: len(family(tmp_path)) == 0)


def compare(model: Path, file: Path, directory: Path) -> None:
    """Run a compiled file in a process of the machine, and ONNX Runtime here, on the same inputs."""
    session, rng = onnxruntime.InferenceSession(str(model)), np.random.default_rng(5)
    given = {
        one.name: rng.standard_normal(one.shape).astype(np.float32)
        if one.type == "tensor(float)"
        else rng.integers(0, 2, one.shape)
        for one in session.get_inputs()
    }
    np.savez(directory / "given.npz", **{f"{at:03}": array for at, array in enumerate(given.values())})
    run_there(file, directory)
    with np.load(directory / "made.npz") as made:
        for expected, name in zip(session.run(None, given), made.files, strict=True):
            np.testing.assert_allclose(made[name], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("cpu", "vector", "features"),
    [
        ("cortex-a76", ["asimd", "asimddp"], ["+neon", "+dotprod"]),
        ("max", ["asimd", "asimddp", "i8mm"], ["+neon", "+dotprod", "+i8mm"]),
    ],
)
def test_sums_of_bytes_are_exact_there(
    cpu: str, vector: list[str], features: list[str], kind: str, tmp_path: Path
) -> None:
    dialect = MetaScheduleDialect()
    board = DeviceDescription("cpu", "a board", (0,), {"arch": "aarch64", "vector": vector})
    target = dialect.resolve_target_of(json.dumps({"kind": "llvm", "mcpu": "generic", "mattr": features}), 1, board)
    network = prepare(str(write_product(tmp_path / "m.onnx", kind)), {}, tmp_path)
    chosen = with_dots(dialect, network, target)
    assert chosen
    dialect.compile(network, target, chosen, tmp_path / "out.tunery")
    np.savez(tmp_path / "given.npz", x=data(kind))
    run_there(tmp_path / "out.tunery", tmp_path, cpu)
    with np.load(tmp_path / "made.npz") as made:
        np.testing.assert_array_equal(made["arr_0"], expected(data(kind)))


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no compiler for aarch64")
def test_a_bundle_is_written_here_and_runs_there(tmp_path: Path) -> None:
    convolutions(tmp_path / "m.onnx")
    board = DeviceDescription("cpu", "a board", (0, 1), {"arch": "aarch64", "vector": ["asimd"]})
    dialect, file = get_dialect("metaschedule"), tmp_path / "out.tunery"
    target, network = dialect.resolve_target_of("native", 2, board), prepare(str(tmp_path / "m.onnx"), {}, tmp_path)
    NetworkCompiler.of(dialect).compile(network, target, {}, file)
    with pytest.raises(UsageError, match=r"pip download .*aarch64.* --runtime"):
        bundle(file, tmp_path / "bundle")
    NetworkCompiler.of(dialect).compile(network, dialect.resolve_target("native", 2), {}, tmp_path / "here.tunery")
    both = combine([tmp_path / "here.tunery", file], tmp_path / "both.tunery")
    place = bundle(both, tmp_path / "bundle", runtime=MACHINE / "site")
    command = [COMPILER, "example.c", "-Iinclude", "-Llib", "-ltunery", "-Wl,-rpath,$ORIGIN/lib", "-Wl,-rpath-link,lib"]
    subprocess.run([*command, "-o", "example"], cwd=place, check=True)
    done = subprocess.run(
        [*emulated.program(MACHINE, CPU), place / "example", place / "network"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [made] = onnxruntime.InferenceSession(str(tmp_path / "m.onnx")).run(
        None, {"x": np.ones((1, 3, 16, 16), np.float32)}
    )
    assert float(done.stdout.split("sum ")[1]) == pytest.approx(float(made.sum()), rel=1e-4)
    other = (place / "network" / "0" / "network.txt").read_text().replace("needs neon", "needs avx2")
    (place / "network" / "0" / "network.txt").write_text(other)
    done = subprocess.run(
        [*emulated.program(MACHINE, CPU), place / "example", place / "network"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


SCALE = """
#include <string.h>
void scale(const float *x, float *y) {
    static float kept[N];
    static int calls;
    if (FAULT == 1) { memcpy(y, x, sizeof kept); return; }
    if (FAULT == 2 && calls++) { memcpy(y, kept, sizeof kept); return; }
    if (FAULT == 3) y[1 << 20] = 1;
    if (FAULT == 4) for (volatile int forever = 1; forever;) ;
    for (int j = 0; j < (FAULT ? 1 : TIMES); j++)
#pragma omp parallel for
        for (int i = 0; i < N; i++) y[i] = 3 * x[i];
    memcpy(kept, y, sizeof kept);
}
"""
SCALE_FILE = """
function = "scale"
source = "scale.c"
restrictions = ["FAULT == 0 or TIMES == 1"]
[problem]
N = 4096
[[arguments]]
name = "x"
shape = ["N"]
[[arguments]]
name = "y"
shape = ["N"]
output = true
[parameters]
FAULT = [0, 1, 2, 3, 4]
TIMES = [1, 2, 3, 40]
[default]
FAULT = 0
TIMES = 40
[reference]
numpy = "3 * x"
"""


@pytest.mark.skipif(bool(cross_lacking()), reason=cross_lacking() or "nothing is missing")
def test_a_users_kernel_in_c_is_built_here_and_tuned_and_delivered_there(pi: Path, tmp_path: Path) -> None:
    (tmp_path / "scale.c").write_text(SCALE)
    (tmp_path / "scale.toml").write_text(SCALE_FILE)
    store = str(tmp_path / "store.db")
    request = Request(
        str(tmp_path / "scale.toml"), dialect="kernels", threads=1, budget=Budget.parse("9trials"), store=store, on=PI
    )
    with Session(store) as session:
        report = session.tune(request, lambda _: None, threading.Event())
        compiled, _ = session.compile(request, tmp_path / "scale.tunery", CompileOptions(predict=True))
    [state] = report.job.tasks
    assert (report.job.state, state.parameters["FAULT"]) == (JobState.DONE, 0)
    assert (times := state.parameters["TIMES"]) < 40
    assert {record.measurement.outcome for record in records_in(tmp_path, Mode.FINAL)} == {Outcome.OK}
    with pytest.raises(UsageError, match="aarch64"):
        load_compiled(tmp_path / "scale.tunery")
    given = np.linspace(-1, 1, 4096, dtype=np.float32)
    np.savez(tmp_path / "given.npz", x=given)
    run_there(tmp_path / "scale.tunery", tmp_path)
    with np.load(tmp_path / "made.npz") as made:
        np.testing.assert_allclose(made["arr_0"], 3 * given)
    texts = {Path(one).suffix: one for one in compiled.texts}
    assert f"#define TIMES {times}\n" in Path(texts[".c"]).read_text()
    (tmp_path / "main.c").write_text(
        f'#include "{texts[".h"]}"\n#include <stdio.h>\nfloat x[4096] = {{3}}, y[4096];\n'
        'int main(void) { scale(x, y); printf("%g", y[0]); return 0; }\n'
    )
    command = [COMPILER, "-fopenmp", str(tmp_path / "main.c"), texts[".c"], "-o", str(tmp_path / "main")]
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run(
        [*emulated.program(MACHINE, CPU), tmp_path / "main"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "9"
    wait_until(lambda: len(family(tmp_path)) == 0)


def run_there(file: Path, directory: Path, cpu: str = CPU) -> None:
    """Run a compiled file in a process of the machine, on the arrays in given.npz; its outputs are in made.npz."""
    command = [emulated.python(MACHINE, cpu), "-c", RUN, file, directory / "given.npz", directory / "made.npz"]
    environment = os.environ | {"PYTHONPATH": emulated.path(MACHINE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_crashes_hangs_or_computes_wrong_there_costs_itself_only(pi: Path, tmp_path: Path) -> None:
    source = "fake:faults?tasks=1&segfault=3,17&hang=5&one_off=7,11"
    report = tune(replace(request_in(tmp_path, source, "40trials"), on=PI))
    assert report.job.state is JobState.DONE
    assert outcomes_of(report).keys() >= {"ok"}
    finals = {record.measurement.outcome for record in records_in(tmp_path, Mode.FINAL)}
    assert finals == {Outcome.OK}
    wait_until(lambda: len(family(tmp_path)) == 0)


def test_a_check_says_in_plain_words_what_the_machine_lacks(tmp_path: Path) -> None:
    whole = {check.name: check.state for check in check_host(PI, emulated.agent(MACHINE, CPU), FakeBlobs())}
    named = ("agent", "machine", "devices", "clock", "cache", "versions", "runtime")
    assert whole == dict.fromkeys(named, CheckState.OK) | {"sandbox": CheckState.WARN}  # qemu's user mode has none
    bare = shlex.quote(str(emulated.python(MACHINE, CPU)))
    for paths, lacking in (("", "tunery"), (emulated.TREE / "src", "No module")):
        command = f"env PYTHONPATH={paths} {bare} -m tunery agent --stdio"
        [check] = check_host("bare", command, FakeBlobs())
        assert check.state is CheckState.FAIL
        assert lacking in check.found
        assert check.advice.startswith("install tunery")
