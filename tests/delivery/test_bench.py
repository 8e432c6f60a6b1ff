"""Whole networks beside ONNX Runtime: what counts as the same outputs, and that nothing else is handed out."""

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tunery
from tunery._errors import CrashError, UsageError, WorkError
from tunery.blobs.directory import DirectoryBlobs
from tunery.delivery.comparing import contestants
from tunery.delivery.comparing.bench import used_shares
from tunery.delivery.comparing.compare import ExpectedSet, Output
from tunery.delivery.comparing.contestants import Contestant, OriginalModel
from tunery.delivery.ladder import KnownTask
from tunery.dialects import Array, get_dialect
from tunery.domain import HERE, Candidate, Choice, Network, Rung, Target, Task, TensorSpec, Workload
from tunery.domain.request import BenchReport, CompileOptions, Progress, Request
from tunery.engines import WorkerSpec
from tunery.reports.comparison import bench_text
from tunery.runtime.importing import ImportedModel, both
from tunery.runtime.runtime import Runtime
from tunery.service.session import Session
from tunery.service.session import bench as compare_networks
from tunery.tuning.work import Work

bench = importlib.import_module("tunery.delivery.comparing.compare")  # `tunery.jobs` has a function of that name
_GOOD = np.linspace(-4.0, 4.0, 9, dtype=np.float32)


def checked_error(
    network: str, ours: Sequence[Output], theirs: Sequence[Output], rounding: Sequence[float] = ()
) -> float:
    few = [0.0 if "float" in dtype else 0.01 for dtype, _, _ in theirs]
    return bench.checked_error(network, ours, ExpectedSet(0, theirs, rounding or few))


def _outputs(*arrays: np.ndarray) -> Sequence[Output]:
    return [(str(a.dtype), a.shape, a.tobytes()) for a in arrays]


def _changed(index: int, value: float) -> np.ndarray:
    array = _GOOD.copy()
    array[index] = value
    return array


def test_of_a_random_output_type_and_rank_are_compared_alone() -> None:
    """How long a vocoder's sound is hangs on the numbers that it draws."""
    ours = [("float32", (1, 3), bytes(12))]
    assert checked_error("n", ours, [("float32", (1, 5), b"")]) == 0.0
    for theirs in (("float32", (3,), b""), ("float32", (1, 0), b""), ("int64", (1, 5), b"")):
        with pytest.raises(WorkError):
            checked_error("n", ours, [theirs])


def test_rounding_is_admitted_and_reported() -> None:
    assert checked_error("n", _outputs(_GOOD + np.float32(1e-4)), _outputs(_GOOD)) == pytest.approx(1e-4, rel=0.01)
    assert checked_error("n", _outputs(_GOOD * 0), _outputs(_GOOD * 0)) == 0.0


@pytest.mark.parametrize(
    "ours",
    [_changed(3, 0.5), _changed(0, np.nan), _changed(0, np.inf), _GOOD.reshape(3, 3), _GOOD * 0, _GOOD[::-1].copy()],
)
def test_what_is_not_rounding_is_refused(ours: np.ndarray) -> None:
    with pytest.raises(WorkError, match="ONNX Runtime"):
        checked_error("n", _outputs(_GOOD, ours), _outputs(_GOOD, _GOOD))


def test_infinities_in_the_same_places_are_equal() -> None:
    masked = _changed(0, -np.inf)
    assert checked_error("n", _outputs(masked), _outputs(masked)) == 0.0


@pytest.mark.parametrize("other", [np.inf, np.nan])
def test_another_infinity_or_nan_in_its_place_is_refused(other: float) -> None:
    with pytest.raises(WorkError, match="another infinity"):
        checked_error("n", _outputs(_changed(0, other)), _outputs(_changed(0, -np.inf)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.where(np.arange(200) < 2, 1, np.arange(200)), np.arange(200)),  # two scores of 200 were nearly equal
        (np.arange(3), np.arange(3, dtype=np.int32)),
        (np.arange(3, dtype=np.uint8) + 1, np.arange(3, dtype=np.uint8)),  # a step of rounding
        (np.array([True, False]), np.array([True, False])),
    ],
)
def test_integers_are_equal_but_for_few(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert checked_error("n", _outputs(_GOOD, ours), _outputs(_GOOD, theirs)) == 0.0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (np.array([3, 7]), np.array([7, 3])),
        (np.where(np.arange(200) < 4, -1, np.arange(200)), np.arange(200)),
        (np.array([2**60], np.int64), np.array([2**60 + 1], np.int64)),
        (np.arange(3, dtype=np.uint8) + 2, np.arange(3, dtype=np.uint8)),
        (np.array([True, False]), np.array([True, True])),
        (np.arange(3), np.arange(3, dtype=np.float32)),
    ],
)
def test_other_integers_are_refused(ours: np.ndarray, theirs: np.ndarray) -> None:
    with pytest.raises(WorkError, match=r"output 1 has .* integers unequal|another shape or type"):
        checked_error("n", _outputs(_GOOD, ours), _outputs(_GOOD, theirs))


def test_integers_that_no_rounding_reaches_are_equal() -> None:
    ours, theirs = (_outputs(np.where(np.arange(200) < few, 1, np.arange(200))) for few in (3, 2))
    assert checked_error("n", ours, theirs, [0.01]) == 0.0
    with pytest.raises(WorkError, match="integers unequal"):
        checked_error("n", ours, theirs, [0.0])


def test_of_a_network_that_quantises_a_few_of_its_own_roundings_are_allowed() -> None:
    ours = _GOOD + np.float32(0.04 * np.abs(_GOOD).max())
    with pytest.raises(WorkError):
        checked_error("n", _outputs(ours), _outputs(_GOOD))
    own = 0.02 * float(np.abs(_GOOD).max())
    assert checked_error("n", _outputs(ours), _outputs(_GOOD), [own]) > own
    with pytest.raises(WorkError):
        checked_error("n", _outputs(_GOOD * 2), _outputs(_GOOD), [100 * own])


def test_outputs_before_a_quantisation_are_compared_as_strictly_as_others(tmp_path: Path) -> None:
    blobs, x = DirectoryBlobs(tmp_path / "blobs"), TensorSpec("x", (1, 3, 6, 6), "float32")
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "c": rng.uniform(1, 2, (4, 1, 1)).astype(np.float32),
        "scale": np.array(0.1, np.float32), "zero": np.array(99, np.uint8),
    }  # fmt: skip
    floats = [("Conv", ["x", "w"], "QuantizeLinear_free"), ("Mul", ["QuantizeLinear_free", "c"], "before")]
    steps = [("QuantizeLinear", ["before", "scale", "zero"], "q"), ("DequantizeLinear", ["q", "scale", "zero"], "d"),
             ("Add", ["before", "d"], "behind")]  # fmt: skip

    def rounding(nodes: Sequence[tuple[str, list[str], str]], outputs: Sequence[str]) -> list[float]:
        graph = helper.make_graph(
            [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "n")
        return OriginalModel(blobs.put(tmp_path / "n"), 1, [x], {}, seed=17, blobs=blobs).expected(1)[0][2]

    assert rounding(floats, ["before"]) == [0.0]
    before, behind = rounding([*floats, *steps], ["before", "behind"])
    assert before == 0.0 < behind  # the optimiser multiplies the weights by c, which changes both


def test_a_step_of_a_quantised_output_is_rounding_where_a_sum_lies_at_its_edge(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17]>
        g (float[4] x) => (float[4] y) <float scale = {0.1}, uint8 zero = {128}> {
            q = QuantizeLinear(x, scale, zero)
            y = DequantizeLinear(q, scale, zero)
        }""")
    onnx.save(model, tmp_path / "n")
    np.savez(tmp_path / "given.npz", **{"0/x": np.full(4, 0.25, np.float32), "1/x": np.full(4, 0.21, np.float32)})
    blobs, x = DirectoryBlobs(tmp_path / "blobs"), TensorSpec("x", (4,), "float32")
    given = blobs.put(tmp_path / "given.npz")
    original = OriginalModel(blobs.put(tmp_path / "n"), 1, [x], {}, seed=17, blobs=blobs, given=given)
    (_, _, [edge], _), (_, _, [middle], _) = original.expected(2)
    assert edge == pytest.approx(0.1)
    assert middle == 0.0


@pytest.mark.tvm
def test_a_comparison_says_whose_turn_it_is_and_how_long_it_goes_on(tmp_path: Path) -> None:
    seen: list[Progress] = []
    request = Request("zoo:mlp-mnist", threads=1, store=str(tmp_path / "s.db"))
    report = compare_networks(request, ("onnxruntime", "untuned"), 0.1, on_progress=seen.append)
    assert report.latency_s.keys() == {"tunery", "untuned", "onnxruntime"}
    steps = [f"{progress.phase} {progress.current}" for progress in seen]
    assert steps[:4] == ["importing ", "compiling tunery", "compiling untuned code", "comparing outputs"]
    assert [step.partition(",")[0] for step in steps[4:7]] == [
        "comparing tunery", "comparing untuned code", "comparing ONNX Runtime",
    ]  # fmt: skip
    assert steps[-1].endswith("turn 7 of 7")
    left = [progress.remaining_s for progress in seen[3:]]
    assert left[0] == bench.predicted_s(("onnxruntime", "untuned"), 0.1)
    assert None not in left


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Give one set of workers to the tests that compile."""
    with Session(str(tmp_path_factory.mktemp("session") / "s.db")) as session:
        yield session


@pytest.mark.tvm
def test_other_files_are_timed_beside_and_what_they_compute_is_looked_at(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request("zoo:mlp-mnist", threads=1)
    file = tmp_path / "mlp.tunery"
    session.compile(request, file)

    def checked(network: str, *_: object) -> float:
        seen.append(network)
        if len(seen) == 4:  # ONNX Runtime, tunery's file twice, then the first of the others
            raise WorkError("it differs")
        return 0.0

    seen: list[str] = []
    monkeypatch.setattr(bench, "checked_error", checked)
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    report = session.bench(request, ("torch",), 0.1, file, others={"stock": file, "10 s": file})
    assert report.latency_s.keys() == {"tunery", "stock", "10 s"}
    assert report.wrong == ("stock",)
    assert "not installed" in report.absent["torch"]
    assert "torch eager took no part: torch is not installed" in bench_text(report)


@pytest.mark.tvm
def test_indices_out_of_range_are_refused_and_networks_compared_on_the_inputs_that_a_user_gives(
    session: Session, tmp_path: Path
) -> None:
    table = numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(4, 2), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["row"]), helper.make_node("Exp", ["row"], ["y"])], "g",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["many"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["many", 2])], [table],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    asked = Request(str(tmp_path / "g.onnx"), {"index": (3,)}, threads=1)
    session.compile(asked, tmp_path / "g", CompileOptions(onnxruntime="never"))
    network = tunery.load_compiled(tmp_path / "g")
    assert network(np.array([-4, 3, 0]))[0].shape == (3, 2)
    for index in (4, -5, 99):
        with pytest.raises(UsageError, match=f"index {index} of a table of 4 rows"):
            network(np.array([0, index, 0]))
    for index in (3, 99):
        np.savez(tmp_path / f"{index}.npz", index=np.full(3, index))
        request = replace(asked, options={"inputs": str(tmp_path / f"{index}.npz")})
        if index == 99:  # no row of the table
            with pytest.raises(WorkError, match=r"runs g on: given 0: .*idx=99"):
                session.bench(request, ("onnxruntime",), 0.1, tmp_path / "g")
        else:
            assert session.bench(request, ("onnxruntime",), 0.1, tmp_path / "g").max_abs_error < 1e-5


@pytest.mark.tvm
def test_onnx_runtime_runs_a_network_that_it_runs_faster(
    session: Session, tmp_path: Path, let_win: Callable[[str], None]
) -> None:
    request = Request("zoo:mlp-mnist", threads=1)
    outputs = []
    for winner in ("tunery", "onnxruntime"):
        let_win(winner)
        report, network = session.compile(request, tmp_path / winner)
        loaded = tunery.load_compiled(tmp_path / winner)
        assert bool(report.elsewhere) == (winner == "onnxruntime")
        assert bool(report.coverage) == (winner == "tunery")
        assert [spec.shape for spec in loaded.outputs] == [spec.shape for spec in network.outputs]
        x = np.linspace(-1, 1, loaded.inputs[0].size, dtype=np.float32).reshape(loaded.inputs[0].shape)
        assert loaded.time([x], 2) > 0
        outputs.append(loaded(x))
        with pytest.raises(UsageError):
            loaded(x, x)
    np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-4)
    data = (tmp_path / "onnxruntime").read_bytes()
    (tmp_path / "onnxruntime").write_bytes(data.replace(b"Gemm", b"Gemn").replace(b"MatMul", b"MatMun"))
    with pytest.raises(UsageError):
        tunery.load_compiled(tmp_path / "onnxruntime")


@pytest.mark.tvm
def test_a_compiled_network_was_checked_and_onnx_runtime_runs_one_that_is_wrong(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, let_win: Callable[[str], None]
) -> None:
    let_win("tunery")
    request = Request("zoo:mlp-mnist", threads=1)
    output = tmp_path / "mlp.tunery"
    report, _ = session.compile(request, output)
    assert report.max_abs_error is not None
    assert report.max_abs_error < 1e-4
    assert not report.elsewhere

    def other_inputs(runtime: Runtime, service: str, path: Path, network: Network, **more: int) -> str:
        monkeypatch.setattr(bench, "SEED", len(service))
        unfinished.extend(path.name for path in tmp_path.iterdir() if path.name.startswith("."))
        return start(runtime, service, path, network, **more)

    start, unfinished = bench._start, list[str]()
    monkeypatch.setattr(bench, "_start", other_inputs)
    report, _ = session.compile(request, output)
    assert any("does not compute" in why for why in report.elsewhere.values())
    assert not report.coverage
    assert report.max_abs_error == 0
    assert unfinished == [], "killed now, it would leave this beside the result"


class Workers:
    """Stands in for the runtime and its engine: each contestant answers, but what `fails` holds raises."""

    threads, measure_cores, measure_host = 1, None, HERE
    environment = get_dialect("metaschedule").environment()
    measuring_environment, host_facts, foreign = environment.measuring(), None, None
    spec = SimpleNamespace(device="cpu")

    def __init__(self, *fails: tuple[str, str]) -> None:
        self.engine, self.pools, self.fails = self, self, fails
        self.calls, self.killed = Counter[tuple[str, str]](), list[str]()

    def start(self, spec: WorkerSpec) -> str:
        name = spec.settings.get("blob") or Path(spec.settings["path"]).name
        if spec.service.endswith("OriginalModel"):
            return f"{name} as read"
        return f"{name} of torch" if "tvm" in spec.environment.forbidden else name

    def kill(self, worker: str) -> None:
        self.killed.append(worker)

    async def call(self, worker: str, method: str, *args: object, deadline_s: float) -> Any:
        assert worker not in self.killed
        self.calls[worker, method] += 1
        if (worker, f"{method} {self.calls[worker, method]}") in self.fails:
            raise CrashError(f"{worker} was killed by\nSIGSEGV")
        if method == "profile":
            return {"dense": 2e-3, "softmax": 1e-3}
        if method == "expected":
            return [(0, _outputs(_GOOD), [0.0], "")]
        return _outputs(_GOOD) if method == "outputs" else [1e-3]


def working(workers: Any, source: str = "zoo:n") -> Work:
    """Return the work of a job on these workers, which has read a network; without a store."""
    no_store: Any = None
    network = Network("n", source, "d", "", (), (), 0, "n.onnx")
    imported = ImportedModel(network, Target("fake", {}, 1), "", ())
    return Work(workers, no_store, Request("n"), "job", imported=imported)


def _compared(workers: Workers, *against: str, **others: str) -> BenchReport:
    files = {"tunery": "tuned", **others}
    return asyncio.run(bench.compare(working(workers), files, ("onnxruntime", *against), 0.1))


@pytest.mark.parametrize("when", ["outputs 1", "samples 3"])
def test_an_untuned_network_that_crashes_costs_only_itself(when: str) -> None:
    workers = Workers(("plain", when))
    report = _compared(workers, "untuned", untuned="plain")
    assert report.latency_s.keys() == {"tunery", "onnxruntime"}
    assert [spread.samples for spread in report.latency_s.values()] == [7, 7]
    assert report.absent == {"untuned": "plain was killed by SIGSEGV"}
    assert "untuned code took no part: plain was killed by SIGSEGV" in bench_text(report)
    assert workers.killed == ["n.onnx as read", "plain"]
    assert workers.calls["plain", "samples"] <= 3


def test_torch_that_crashes_in_the_middle_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: object())
    report = _compared(Workers(("zoo:n of torch", "samples 2")), "torch")
    assert report.latency_s.keys() == {"tunery", "onnxruntime"}
    assert "SIGSEGV" in report.absent["torch"]


def test_torch_has_no_part_in_a_network_of_a_users_own_file() -> None:
    """Whether it is installed or not: to install it would not help."""
    work = working(Workers(), "some/where/n.onnx")
    report = asyncio.run(bench.compare(work, {"tunery": "tuned"}, ("torch", "torch-compiled"), 0.1))
    assert report.absent.keys() == {"torch", "torch-compiled"}
    for reason in report.absent.values():
        assert "n.onnx" in reason
        assert "install" not in reason


def test_a_file_that_crashes_is_named_by_its_label() -> None:
    with pytest.raises(bench.ContestantError, match="stock cannot be run: file was killed") as raised:
        _compared(Workers(("file", "samples 2")), stock="file")
    assert raised.value.label == "stock"


def test_who_is_compared_with_must_run() -> None:
    with pytest.raises(CrashError):
        _compared(Workers(("n.onnx", "samples 1")))


def test_a_profile_that_fails_costs_the_sum_of_kernels_alone() -> None:
    assert _compared(Workers()).kernels_s == pytest.approx(3e-3)
    report = _compared(Workers(("tuned", "profile 1")))
    assert report.kernels_s is None
    assert report.latency_s.keys() == {"tunery", "onnxruntime"}


def test_what_linking_waits_for_may_fail_and_ends_the_rest() -> None:
    ended = []

    async def fails() -> int:
        await asyncio.sleep(0)
        raise WorkError("no")

    async def runs() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return "done"

    async def gives() -> int:
        return 1

    with pytest.raises(WorkError, match=r"^no$"):
        asyncio.run(both(runs(), fails()))
    assert ended == [True]
    assert asyncio.run(both(gives(), gives())) == (1, 1)


def test_a_default_that_was_timed_is_no_latency_of_a_file_that_predicts_in_its_place() -> None:
    target = Target("fake", {}, 1)
    tasks = tuple(Task(Workload(key, key, "dense", "", (), 0, 1.0), target) for key in ("tuned", "looked-at"))
    known = [
        KnownTask(task, Choice(task.key, Rung.EXACT, Candidate("c", task.key, ""), 1e-3), untried=untried)
        for task, untried in zip(tasks, (False, True), strict=True)
    ]
    found = used_shares(known)
    assert [(share.name, share.latency_s) for share in found] == [("tuned", 1e-3), ("looked-at", None)]


def test_rounding_reaches_integers_by_floats_that_are_computed(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[4, 8] x, int64[8] i) => (int64[1, 8] place, bool[4, 8] rest, int64[1, 8] guess, int64[8] sum) {
            place = ArgMax(x)
            up = Relu(x)
            rest = Equal(up, x)
            share = Softmax(x)
            guess = ArgMax(share)
            sum = Mul(i, i)
        }""")
    onnx.save(model, tmp_path / "n")
    blobs = DirectoryBlobs(tmp_path / "blobs")
    inputs = [TensorSpec("x", (4, 8), "float32"), TensorSpec("i", (8,), "int64")]
    original = OriginalModel(blobs.put(tmp_path / "n"), 1, inputs, {}, seed=17, blobs=blobs)
    assert original.expected(1)[0][2] == [0.0, 0.0, 0.01, 0.0]


def test_what_random_numbers_reach_is_random_though_two_runs_may_agree(tmp_path: Path) -> None:
    """As in VITS, whose noise comes of a seed; a Dropout that does not train draws nothing."""
    blobs = DirectoryBlobs(tmp_path / "blobs")
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], seed=1.0),
        helper.make_node("Add", ["x", "noise"], ["noisy"]),
        helper.make_node("Dropout", ["x"], ["kept"]),
    ]
    x, noisy, kept = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "noisy", "kept"))
    graph = helper.make_graph(nodes, "g", [x], [noisy, kept])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "n")
    inputs = [TensorSpec("x", (4,), "float32")]
    contestant = OriginalModel(blobs.put(tmp_path / "n"), 1, inputs, {}, seed=17, blobs=blobs)
    assert [bool(data) for _, _, data in contestant.expected(1)[0][1]] == [False, True]


@pytest.mark.parametrize("level", [0, 4])
def test_products_of_4_bit_weights_round_their_data_where_they_quantise_it(tmp_path: Path, level: int) -> None:
    blobs, x = DirectoryBlobs(tmp_path / "blobs"), TensorSpec("x", (3, 64), "float32")
    rng = np.random.default_rng(3)
    constants = [
        numpy_helper.from_array(rng.integers(0, 256, (32, 2, 16), np.uint8), "w"),
        numpy_helper.from_array(rng.uniform(0.01, 0.02, 64).astype(np.float32), "s"),
    ]
    kind = {"K": 64, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **kind)
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", x.shape), ("y", (3, 32))))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [given], [made], constants)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "n")
    [rounding] = OriginalModel(blobs.put(tmp_path / "n"), 1, [x], {}, seed=17, blobs=blobs).expected(1)[0][2]
    assert rounding > 1e-4 if level else rounding < 1e-5


class Warming(Contestant):
    """What takes 20 ms a run for its first 40 ms after a pause, then 10 ms, by a clock of its own."""

    def __init__(self) -> None:
        super().__init__([], {}, 0)
        self.now_s = self._warm_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def perf_counter_ns(self) -> int:
        return round(1e9 * self.now_s)

    def sleep(self, _: float) -> None:
        """No time is needed for that."""

    def _run(self) -> list[Array]:
        taken_s = 0.02 if self._warm_s < 0.04 else 0.01
        self._warm_s += taken_s
        self.now_s += taken_s
        return []


def test_runs_that_warm_up_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    contestant = Warming()
    monkeypatch.setattr(contestants, "time", contestant)
    taken = contestant.samples(0.1, 1)
    assert taken == pytest.approx([0.01] * len(taken))
    assert len(taken) >= 4
    assert contestant.now_s == pytest.approx(0.1, abs=0.02)
    assert len(contestant.samples(0.001, 3)) == 3
