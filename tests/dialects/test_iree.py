"""IREE behind the contract, where its environment is installed: `make test-iree` installs it and runs these."""

import os
import re
import resource
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from metaschedule_models import small_network

import tunery
from tunery._archive import Archive
from tunery._errors import DialectError, ModelError, TargetError
from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Array, Kernel, TaskSource, get_dialect
from tunery.dialects.iree import IreeDialect
from tunery.dialects.iree.kernel import Module
from tunery.dialects.iree.tools import compile_module, cpu_flags, native_processor
from tunery.domain import Budget, DeviceDescription, Network, Target
from tunery.domain.request import CompileOptions, Request
from tunery.measuring.inputs import make_inputs
from tunery.models import prepare
from tunery.service.session import Session
from tunery.store import open_store
from tunery.testing.dialect_contract import DialectContract

PLACE = os.environ.get("TUNERY_TEST_IREE", "")
BOARD = DeviceDescription(
    "cpu", "a board", (0, 1), {"arch": "aarch64", "vendor": "0x41", "model": "0xd08", "vector": ["asimd"]}
)
pytestmark = [
    pytest.mark.iree,
    pytest.mark.skipif(not PLACE, reason="needs IREE's environment: run `make test-iree`, which installs it"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's data directory with the environment that was installed for the tests."""
    place = tmp_path_factory.mktemp("data")
    (place / "tunery").mkdir()
    (place / "tunery" / "environments").symlink_to(PLACE)
    return place


@pytest.fixture(scope="module", autouse=True)
def _there_for_shared_fixtures(data: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(data))
        yield


@pytest.fixture(autouse=True)
def _there(_own_places: None, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(data))


class TestIree(DialectContract):
    kernels = 2

    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> IreeDialect:
        return IreeDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, tmp_path_factory: pytest.TempPathFactory) -> Network:
        return small_network(tmp_path_factory.mktemp("network"))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: IreeDialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def other_device(cls) -> DeviceDescription:
        return BOARD


def test_code_for_an_arm_device_is_for_what_it_has() -> None:
    dialect = IreeDialect()
    assert dialect.resolve_target_of("native", 2, BOARD).config["mcpu"] == "cortex-a72"
    other = replace(BOARD, facts={**BOARD.facts, "vendor": "", "vector": ["asimd", "asimddp"]})
    config = dialect.resolve_target_of("native", 2, other).config
    assert (config["mcpu"], config["mattr"]) == ("generic", ["+neon", "+dotprod"])
    for spec in (
        '{"kind": "llvm-cpu", "mcpu": "cortex-a76"}', '{"kind": "llvm-cpu", "mcpu": "generic", "mattr": ["+sve"]}',
        '{"kind": "llvm-cpu", "mcpu": "znver4"}', '{"kind": "llvm-cpu", "mcpu": "cortex-a72", "mtriple": "riscv64"}',
    ):  # fmt: skip
        with pytest.raises(TargetError):
            dialect.resolve_target_of(spec, 2, BOARD)


def test_what_iree_does_not_have_is_one_sentence(tmp_path: Path) -> None:
    dialect = IreeDialect()
    with pytest.raises(TargetError, match="no-such-cpu"):
        dialect.resolve_target('{"kind": "llvm-cpu", "mcpu": "no-such-cpu"}', 1)
    network = small_network(tmp_path)
    model = onnx.load(network.path)
    model.graph.node[1].op_type, model.graph.node[1].domain = "NoSuchOperator", "some.where"
    onnx.save(model, network.path)
    with pytest.raises((ModelError, DialectError), match="NoSuchOperator") as caught:
        dialect.extract(network, dialect.resolve_target("native", 1))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["dense", "conv2d"])
def test_a_tuned_task_is_what_the_compiler_makes_and_right(kind: str, tmp_path: Path) -> None:
    """Every proposed configuration that builds computes what IREE's default does."""
    dialect, device = IreeDialect(), open_device("cpu")
    target = dialect.resolve_target("native", 1)
    tasks = [task for task in dialect.extract(small_network(tmp_path), target) if task.tunable]
    [task] = [task for task in tasks if task.workload.kind == kind]
    inputs = DialectContract.inputs(task, 0)
    expected = run(dialect.load(task, dialect.build(task, dialect.reference(task), tmp_path), device), inputs)
    binaries = set()
    for candidate in dialect.open(task, (), None, 0).propose(4):
        built = dialect.build(task, candidate, tmp_path)
        binaries.add(built.path.read_bytes())
        DialectContract.check(run(dialect.load(task, built, device), inputs), expected, task.workload.output_specs)
    assert len(binaries) > 1, "configurations change nothing"


def run(kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    kernel.bind(inputs)
    kernel.run()
    return kernel.outputs()


def test_a_job_ends_with_a_network_that_is_right(tmp_path: Path) -> None:
    """Whole job: workers in IREE's environment, the network checked against ONNX Runtime."""
    network = small_network(tmp_path)
    request = Request(
        network.path, dialect="iree", threads=1, budget=Budget.parse("6trials"), store=str(tmp_path / "store.db")
    )
    with Session(request.store) as session:
        report = session.tune(request)
        session.compile(request, tmp_path / "small.tunery", CompileOptions(predict=True))
    assert report.job.spend.trials > 0
    inputs = make_inputs(network.inputs, 0)
    theirs = onnxruntime.InferenceSession(network.path).run(None, {"image": inputs[0], "ids": inputs[1]})
    np.testing.assert_allclose(tunery.load_compiled(tmp_path / "small.tunery")(*inputs)[0], theirs[0], 1e-3, 1e-3)


@pytest.mark.tvm
def test_one_budget_over_two_compilers_gives_the_faster_network_and_operators_of_one_key(tmp_path: Path) -> None:
    """Each compiler's workers in their own environment; what both compute has one key in the store."""
    store = str(tmp_path / "store.db")
    request = Request(
        "zoo:mlp-mnist", dialect="metaschedule,iree", threads=1, budget=Budget.parse("24trials"), store=store
    )
    with Session(store) as session:
        report = session.tune(request)
        compiled, network = session.compile(request, tmp_path / "mlp.tunery", CompileOptions(predict=True))
    assert {task.dialect for task in report.job.tasks if task.measured} == {"metaschedule", "iree"}
    latencies = {one.dialect: one.latency_s for one in compiled.dialects}
    assert latencies.keys() == {"metaschedule", "iree"}
    assert all(latencies.values()), compiled.dialects
    delivered = [one for one in compiled.dialects if not one.by_onnxruntime]
    assert not delivered or compiled.latency_s == min(one.latency_s for one in delivered if one.latency_s)
    loaded = tunery.load_compiled(tmp_path / "mlp.tunery")
    assert [spec.shape for spec in loaded.outputs] == [spec.shape for spec in network.outputs]
    with open_store(store) as opened:
        keys: dict[str, set[str]] = {}
        for task in opened.tasks():
            if task.workload.operator:
                keys.setdefault(task.workload.operator, set()).add(task.target.dialect)
    assert {"metaschedule", "iree"} in keys.values()


def test_a_delivered_network_holds_what_stock_iree_takes(tmp_path: Path) -> None:
    """The module, IREE's own tuning spec where it won, and the command that makes one of the other."""
    dialect = IreeDialect()
    target = dialect.resolve_target("native", 1)
    network = small_network(tmp_path)
    tasks = {task.workload.key: task for task in dialect.extract(network, target) if task.tunable}
    chosen = {key: dialect.open(task, (), None, 0).propose(1)[0] for key, task in tasks.items()}
    compiled = dialect.compile(network, target, chosen, tmp_path / "network.bin")
    place = tmp_path / "bundle"
    place.mkdir()
    with Archive(tmp_path / "network.bin") as archive:
        dialect.bundle(archive, place)
    names = {path.name for path in place.iterdir()}
    assert {"network.vmfb", "README.md", "tuning.mlir"} <= names
    spec = dialect.texts(tmp_path / "network.bin")[".mlir"]
    assert "__kernel_config" in spec
    (tmp_path / "tuning.mlir").write_text(spec)
    for line in spec.splitlines():
        if line.startswith("// iree-"):
            program, *words = shlex.split(line.removeprefix("// "))
            subprocess.run([Path(PLACE) / "iree" / "bin" / program, *words], cwd=tmp_path, check=True)
    assert (tmp_path / "network.vmfb").stat().st_size > 0
    assert set(compiled.coverage.values()) <= {None, *(one.key for one in chosen.values())}


@pytest.mark.parametrize("graph", ["main_graph", "torch-jit-export", "é"])
def test_a_network_of_any_name_and_types_becomes_tasks_and_runs(graph: str, tmp_path: Path) -> None:
    """Images of bytes, and an output whose size the values decide."""
    product = onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "product")
    nodes = [
        onnx.helper.make_node("Cast", ["image"], ["numbers"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("MatMul", ["numbers", "product"], ["scores"]),
        onnx.helper.make_node("NonZero", ["scores"], ["places"]),
    ]
    values = [
        onnx.helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("image", onnx.TensorProto.UINT8, [8, 8]),
            ("places", onnx.TensorProto.INT64, [2, "n"]),
        )
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, graph, values[:1], values[1:], [product]),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    network = prepare(str(tmp_path / "model.onnx"), {}, tmp_path)
    dialect = IreeDialect()
    target = dialect.resolve_target("native", 1)
    assert [task.tunable for task in dialect.extract(network, target)].count(True) == 1
    dialect.compile(network, target, {}, tmp_path / "network.bin")
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    [places] = load_compiled(tmp_path / "network.bin")(image)
    np.testing.assert_array_equal(places, np.stack(np.nonzero(image)))


POINTS = [
    onnx.helper.make_node("Conv", ["x", "w1", "b1"], ["a"], kernel_shape=[1, 1]),
    onnx.helper.make_node("Clip", ["a", "low", "high"], ["b"]),
    onnx.helper.make_node("Conv", ["b", "w2", "b2"], ["c"], kernel_shape=[1, 1]),
    onnx.helper.make_node("Add", ["c", "x"], ["d"]),
    onnx.helper.make_node("Relu", ["d"], ["e"]),
    onnx.helper.make_node("Conv", ["e", "w3", "b3"], ["f"], kernel_shape=[1, 1], strides=[2, 2]),
    onnx.helper.make_node("Relu", ["f"], ["y"]),
]
WINDOWS = [
    onnx.helper.make_node("Conv", ["x", "w0", "b0"], ["z"], kernel_shape=[1, 1]),
    onnx.helper.make_node("Relu", ["z"], ["a"]),
    onnx.helper.make_node("Conv", ["a", "d1", "b1"], ["b"], kernel_shape=[3, 3], pads=[1] * 4, group=40),
    onnx.helper.make_node("Clip", ["b", "low", "high"], ["c"]),
    onnx.helper.make_node("Conv", ["c", "k2"], ["d"], kernel_shape=[3, 3], pads=[1] * 4),
    onnx.helper.make_node("Add", ["a", "d"], ["e"]),
    onnx.helper.make_node("Relu", ["e"], ["f"]),
    onnx.helper.make_node("Conv", ["f", "k3", "b2"], ["g"], kernel_shape=[3, 1], strides=[2, 2]),
    onnx.helper.make_node("Sigmoid", ["g"], ["h"]),
    onnx.helper.make_node("Mul", ["g", "h"], ["y"]),
]


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("nodes", "window", "image", "result", "weights"),
    [
        (POINTS, "1x1", (1, 16, 12, 12), (1, 40, 6, 6), {
            "w1": (24, 16, 1, 1), "b1": (24,), "w2": (16, 24, 1, 1), "b2": (16,), "w3": (40, 16, 1, 1), "b3": (40,),
        }),
        (WINDOWS, "3x[13]", (1, 16, 6, 6), (1, 24, 2, 3), {
            "w0": (40, 16, 1, 1), "b0": (40,), "d1": (40, 1, 3, 3), "b1": (40,), "k2": (40, 40, 3, 3),
            "k3": (24, 40, 3, 1), "b2": (24,),
        }),
    ],
)  # fmt: skip
def test_convolutions_of_both_compilers_have_one_key(
    nodes: list[onnx.NodeProto], window: str, image: tuple[int, ...], result: tuple[int, ...],
    weights: dict[str, tuple[int, ...]], tmp_path: Path,
) -> None:  # fmt: skip
    """Those that are one dispatch, with places for windows, and those that are several, each with what is behind."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape) for name, shape in weights.items()} | {"low": 0.0, "high": 6.0}
    constants = [onnx.numpy_helper.from_array(np.float32(array), name) for name, array in arrays.items()]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", image), ("y", result))
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], constants),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    network = prepare(str(tmp_path / "model.onnx"), {}, tmp_path)
    keys = []
    for name in ("iree", "metaschedule"):
        dialect = get_dialect(name)
        tasks = TaskSource.of(dialect).extract(network, dialect.resolve_target("native", 1))
        operators = [task.workload.operator or "" for task in tasks]
        keys.append({one for one in operators if re.match(rf"conv2d:.*w=\d+x\d+x{window}\b", one)})
    assert keys[0] == keys[1]
    assert len(keys[0]) == 3


@pytest.mark.parametrize("threads", [1, 2])
def test_a_module_keeps_its_memory_from_call_to_call_and_gives_it_back_at_its_end(threads: int, tmp_path: Path) -> None:
    """What lies between the two products has 64 MiB, more than the C library keeps."""
    product = "linalg.matmul ins(%{}, %{} : {}, {}) outs(%{} : {}) -> {}".format
    small, wide, long, between = ("tensor<64x8xf32>", "tensor<8x262144xf32>", "tensor<262144x8xf32>",
                                  "tensor<64x262144xf32>")  # fmt: skip
    text = f"""
    func.func @main(%x: {small}, %a: {wide}, %b: {long}) -> {small} {{
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : {between}
      %f = linalg.fill ins(%zero : f32) outs(%e : {between}) -> {between}
      %p = {product("x", "a", small, wide, "f", between, between)}
      %g = tensor.empty() : {small}
      %h = linalg.fill ins(%zero : f32) outs(%g : {small}) -> {small}
      %y = {product("p", "b", between, long, "h", small, small)}
      return %y : {small}
    }}"""
    path = tmp_path / "products.vmfb"
    compile_module(text, cpu_flags({"mcpu": native_processor()}), path)
    module = Module(path.read_bytes(), "main", 1)
    module.give([np.ones(shape, np.float32) for shape in ((64, 8), (8, 1 << 18), (1 << 18, 8))])
    module.call(3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    module.call(3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000  # one call's 64 MiB are 16,384 pages
    held = psutil.Process().memory_info().rss
    del module
    assert held - psutil.Process().memory_info().rss > 60 << 20
