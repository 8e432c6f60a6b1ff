import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from fake_tools import inputs_of, kernel_of, right, tasks_of

from tunery._archive import ArchiveError
from tunery._errors import DialectError, ModelError, TargetError
from tunery.devices import open_device
from tunery.dialects import Observation, get_dialect
from tunery.domain import Network, Outcome, Target, Task
from tunery.testing.dialect_contract import DialectContract
from tunery.testing.fake_dialect import FakeDialect, fake_network
from tunery.testing.fake_dialect._space import FEATURES


class TestFakeContract(DialectContract):
    kernels = 4

    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> FakeDialect:
        return FakeDialect()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls) -> Network:
        return fake_network("fake:contract?frozen=1&weights=4,2")

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: FakeDialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def cost_model(cls) -> str:
        return json.dumps({"weights": [1.0] * FEATURES})


class TestFakeContractOnAnEmptySpace(TestFakeContract):
    @pytest.fixture(scope="class")
    @classmethod
    def task(cls, tasks: list[Task]) -> Task:
        return next(task for task in tasks if not task.tunable)


def test_entry_point_finds_the_dialect() -> None:
    assert isinstance(get_dialect("fake"), FakeDialect)


@pytest.mark.parametrize(
    "source",
    [
        "fake:", "zoo:x", "fake:x?speed=1", "fake:x?tasks=two", "fake:x?tasks=-1", "fake:x?real=yes", "fake:x?hang=1.5",
        "fake:x?hang=a", "fake:x?ops=conv", "fake:x?weights=0", "fake:x?space=4x4", "fake:x?baseline_fault=no",
        "fake:x?levels=0", "fake:x?tasks", "fake:x?noise=", "fake:x?faults=1",
    ],
)  # fmt: skip
def test_a_malformed_source_is_refused(source: str) -> None:
    with pytest.raises(ModelError):
        fake_network(source)


def test_equal_options_give_equal_networks_and_shared_tasks() -> None:
    dialect = FakeDialect()
    target = dialect.resolve_target("native", 1)
    one, two = fake_network("fake:a?noise=0.1&seed=3"), fake_network("fake:b?seed=3&noise=0.1")
    assert one.digest == two.digest
    larger = fake_network("fake:c?seed=3&noise=0.1&tasks=4")
    assert larger.digest != one.digest
    shared = {task.key for task in dialect.extract(one, target)} & {
        task.key for task in dialect.extract(larger, target)
    }
    assert len(shared) == 3


def test_network_scripts_shape_extraction() -> None:
    tasks = tasks_of("tasks=5&frozen=2&weights=3,1&ops=argmax,gather")
    assert sorted(task.workload.name for task in tasks if not task.tunable) == ["argmax_6", "gather_5"]
    assert {task.workload.name: task.weight for task in tasks}["argmax_2"] == 3
    assert tasks_of("tasks=0") == []
    with pytest.raises(DialectError, match="cannot import"):
        tasks_of("unsupported=1")


def test_nothing_is_proposed_where_there_is_nothing_to_tune() -> None:
    (task,) = tasks_of("tasks=0&frozen=1")
    assert FakeDialect().open(task, [], None, 0).propose(8) == []


@pytest.mark.parametrize("spec", [
    "fake:1", '{"kind": "fake", "cores": 4}', "[]", "3", "[" * 100_000,
    *(f'{{"kind": "fake", "speed": {speed}}}' for speed in ("0", "-1", "NaN", "9e18", "Infinity", "9" * 4000)),
])  # fmt: skip
def test_incomplete_targets_are_refused(spec: str) -> None:
    with pytest.raises(TargetError, match="fake-fast"):
        FakeDialect().resolve_target(spec, 1)
    with pytest.raises(TargetError, match="threads"):
        FakeDialect().resolve_target("native", 0)


def test_target_and_threads_decide_speed_and_optimum() -> None:
    dialect = FakeDialect()
    (one,), (four,), (fast,) = (
        tasks_of("tasks=1"),
        tasks_of("tasks=1", threads=4),
        tasks_of("tasks=1", spec="fake-fast"),
    )
    latencies = [dialect.latency_s(task, dialect.baseline(task)) for task in (one, four, fast)]
    assert latencies == pytest.approx([800e-6, 200e-6, 200e-6])
    assert len({dialect.best(task) for task in (one, four, fast)}) == 3


def test_the_landscape_has_ties_local_optima_and_a_known_best() -> None:
    dialect = FakeDialect()
    (task,) = tasks_of("tasks=1&best_us=50&spread=10&space=12x12x8")
    grid = np.array([dialect.latency_s(task, dialect.candidate(task, i)) for i in range(12 * 12 * 8)]).reshape(
        12, 12, 8
    )
    best = dialect.best(task)
    assert best is not None
    assert dialect.latency_s(task, best) == grid.min() == pytest.approx(50e-6)
    assert grid.max() == pytest.approx(500e-6)
    assert len(np.unique(grid)) < grid.size / 3
    inner = grid[1:-1, 1:-1, 1:-1]
    lower = np.ones(inner.shape, bool)
    for axis, shift in ((axis, shift) for axis in range(3) for shift in (-1, 1)):
        lower &= inner < np.roll(grid, shift, axis)[1:-1, 1:-1, 1:-1]
    assert lower.sum() >= 2


def test_search_beats_random_and_resumes_without_repeating() -> None:
    dialect = FakeDialect()
    (task,) = tasks_of("tasks=1")
    history: list[Observation] = []
    for _ in range(10):
        batch = dialect.open(task, history, None, 0).propose(16)
        history += [Observation(candidate, Outcome.OK, dialect.latency_s(task, candidate)) for candidate in batch]
    assert len({told.candidate.key for told in history}) == 160
    best = min(told.latency_s or 1.0 for told in history)
    space = sorted(dialect.latency_s(task, dialect.candidate(task, index)) for index in range(2048))
    assert best <= space[12]


def test_a_linear_cost_model_ranks_proposals() -> None:
    dialect = FakeDialect()
    (task,) = tasks_of("tasks=1")
    width = len(dialect.layout().columns)
    weights = [0.0] * width
    weights[1] = 1.0
    proposer = dialect.open(task, [], None, 0)
    assert all(candidate.score is None for candidate in proposer.propose(8))
    proposer.learn(f'{{"weights": {weights}}}')
    scores = [candidate.score for candidate in proposer.propose(8)]
    assert all(left is not None and right is not None and left >= right for left, right in pairwise(scores))
    assert scores[-1] is not None
    assert scores[-1] > 0.5
    proposer.learn("tree\nversion=v4")
    assert proposer.learned == 2
    assert len(proposer.propose(8)) == 8


@pytest.mark.parametrize(("options", "known"), [("exhaust=5", 5), ("space=2x2x2", 8)])
def test_the_proposer_is_exhausted(options: str, known: int) -> None:
    (task,) = tasks_of(f"tasks=1&{options}")
    proposer = FakeDialect().open(task, [], None, 0)
    first = proposer.propose(3)
    rest = proposer.propose(100)
    assert len({candidate.key for candidate in first + rest}) == known
    assert proposer.propose(1) == []
    history = [Observation(candidate, Outcome.OK, 1e-3) for candidate in first]
    assert len(FakeDialect().open(task, history, None, 1).propose(100)) == known - 3


def test_samples_are_noisy_but_deterministic(tmp_path: Path) -> None:
    (task,) = tasks_of("tasks=1&noise=0.05")
    runs = []
    for _ in range(2):
        kernel = kernel_of(task, 7, tmp_path)
        kernel.bind(inputs_of(task))
        runs.append([kernel.time(2) / 2 for _ in range(200)])
    true = FakeDialect().latency_s(task, FakeDialect().candidate(task, 7))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 200
    assert median(runs[0]) == pytest.approx(true, rel=0.02)
    assert np.std(runs[0]) / true == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize(("options", "expected"), [("drift=1", 1.2), ("burst=1.0&burst_factor=4", 4.0), ("burst=0", 1)])
def test_drift_and_bursts_slow_samples(options: str, expected: float, tmp_path: Path) -> None:
    (task,) = tasks_of(f"tasks=1&noise=0&{options}")
    kernel = kernel_of(task, 7, tmp_path)
    kernel.bind(inputs_of(task))
    samples = [kernel.time(1) for _ in range(201)]
    true = FakeDialect().latency_s(task, FakeDialect().candidate(task, 7))
    assert samples[200] / true == pytest.approx(expected)


@pytest.mark.parametrize("spin", [0, 1])
def test_real_kernels_take_their_time(spin: int, tmp_path: Path) -> None:
    (task,) = tasks_of(f"tasks=1&real=1&best_us=5000&noise=0&spin={spin}")
    kernel = kernel_of(task, 0, tmp_path)
    kernel.bind(inputs_of(task))
    started = time.perf_counter()
    reported = kernel.time(2)
    assert 0.01 <= reported <= time.perf_counter() - started


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_torn_artifact_is_refused(content: str, tmp_path: Path) -> None:
    dialect = FakeDialect()
    (task,) = tasks_of("tasks=1")
    built = dialect.build(task, dialect.baseline(task), tmp_path)
    built.path.write_text(content)
    with pytest.raises(DialectError):
        dialect.load(task, built, open_device("cpu"))
    with pytest.raises(ArchiveError):
        dialect.run_compiled(str(built.path), [])


def test_a_compiled_network_runs_and_carries_its_faults(tmp_path: Path) -> None:
    dialect = FakeDialect()
    network = fake_network("fake:run?frozen=1&one_off=9&weights=1,5")
    target = dialect.resolve_target("native", 1)
    tasks = {task.workload.name: task for task in dialect.extract(network, target)}
    inputs = DialectContract.inputs
    given = [array for name in sorted(tasks, key=lambda name: name[-1]) for array in inputs(tasks[name], 0)]
    outputs = []
    for index in (8, 9):
        chosen = {tasks["matmul_0"].workload.key: dialect.candidate(tasks["matmul_0"], index)}
        compiled = dialect.compile(network, target, chosen, tmp_path / f"{index}.net")
        outputs.append(dialect.run_compiled(compiled.path, given))
    assert [(one.shape, str(one.dtype)) for one in outputs[0]] == [(spec.shape, spec.dtype) for spec in network.outputs]
    expected = right(tasks["matmul_0"], inputs(tasks["matmul_0"], 0), tmp_path)[0]
    assert np.allclose(outputs[0][0], expected, 1e-4, 1e-5)
    assert (~np.isclose(outputs[1][0], expected, atol=0.5)).sum() == 1
    with pytest.raises(DialectError, match="not to compile"):
        dialect.compile(fake_network("fake:x?compile_fails=1"), target, {}, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_scripted_durations_pass_in_wall_time(tmp_path: Path) -> None:
    dialect = FakeDialect()
    for stage in ("extract_s", "propose_s", "build_s", "load_s", "run_s", "compile_s"):
        started = time.perf_counter()
        network = fake_network(f"fake:slow?tasks=1&{stage}=0.05")
        target = dialect.resolve_target("native", 1)
        (task,) = dialect.extract(network, target)
        dialect.open(task, [], None, 0).propose(1)
        kernel = kernel_of(task, 0, tmp_path)
        kernel.bind(inputs_of(task))
        kernel.run()
        dialect.compile(network, target, {}, tmp_path / "out")
        assert time.perf_counter() - started >= 0.05, stage
