"""What the contract suite does to dialects, kernels and arrays, apart from what it asserts about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tunery.devices import ConstantBuffers, Device, open_device
from tunery.dialects import (
    Array,
    Capability,
    Codegen,
    Compiled,
    CrossCompiler,
    Dialect,
    Kernel,
    NetworkCompiler,
    Observation,
    RecordChecker,
    RecordWriter,
    Space,
    TaskSource,
)
from tunery.domain import Candidate, DeviceDescription, Network, Outcome, Target, Task, TensorSpec
from tunery.testing.fake_device import FakeDevice

try:
    import pytest
except ImportError as error:  # pragma: no cover - only without pytest
    raise ImportError("the contract suite needs pytest: pip install pytest") from error

_TIMED = (Outcome.OK, Outcome.ABANDONED, Outcome.WRONG_RESULT)


class WholeDialect(Dialect, TaskSource, Space, Codegen, CrossCompiler, NetworkCompiler, RecordChecker, RecordWriter):
    """A dialect with all capabilities: for a type checker alone, as a test says which of them it needs."""


def needs(*capabilities: type[Capability]) -> pytest.MarkDecorator:
    """Skip a test for a dialect without one of the capabilities."""
    return pytest.mark.usefixtures(*(f"needs_{capability.__name__}" for capability in capabilities))


def _required(capability: type[Capability]) -> Any:
    def check(dialect: Dialect) -> None:
        if not isinstance(dialect, capability):
            pytest.skip(f"{dialect.name} cannot {capability.ability}")

    return pytest.fixture(scope="class", name=f"needs_{capability.__name__}")(staticmethod(check))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A task's baseline, loaded, with inputs, and the reference's outputs for them and for those of the seed 1."""

    task: Task
    kernel: Kernel
    inputs: list[Array]
    expected: list[Array]
    expected_of_others: list[Array]


class ContractFixtures:
    """What the tests of the contract share; `dialect`, `network` and `target` come from the author's class."""

    proposals = 4
    """Candidates asked for at a time."""
    kernels = 3
    """Tasks whose baseline and reference are built and run."""
    rtol, atol = 1e-3, 1e-4
    """How far a baseline's floats may lie from the reference's."""
    garbage = "{no candidate}"
    """A candidate body that the compiler cannot read."""
    heeds: frozenset[str] = frozenset()
    """Parameters that a dialect need not have a use for, and that make a difference here, as `open.warm_start`."""

    needs_task_source = _required(TaskSource)
    needs_space = _required(Space)
    needs_codegen = _required(Codegen)
    needs_cross_compiler = _required(CrossCompiler)
    needs_network_compiler = _required(NetworkCompiler)
    needs_record_checker = _required(RecordChecker)
    needs_record_writer = _required(RecordWriter)

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, dialect: Dialect) -> Network:
        """A small network; an author of a dialect that takes tasks from networks gives one."""
        assert not isinstance(dialect, TaskSource), "the contract needs a fixture `network`"
        pytest.skip(f"{dialect.name} takes no networks")

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, dialect: WholeDialect, network: Network, target: Target) -> list[Task]:
        """All tasks of the network; an author of a dialect that takes no networks gives some."""
        return dialect.extract(network, target)

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls, tasks: list[Task]) -> Task:
        """The task that is searched: the tunable one with the least work."""
        tunable = [task for task in tasks if task.tunable]
        assert tunable, "the contract needs a network with at least one tunable task"
        return min(tunable, key=lambda task: task.workload.flop)

    @pytest.fixture(scope="class")
    @classmethod
    def other_task(cls, tasks: list[Task], task: Task) -> Task:
        """Another task of the network that can be searched, the same one where there is none."""
        return next((each for each in tasks if each.tunable and each.key != task.key), task)

    @pytest.fixture(scope="class")
    @classmethod
    def other_network(cls, network: Network) -> Network:
        """Another small network; the same one unless the author gives one."""
        return network

    @pytest.fixture(scope="class")
    @classmethod
    def other_target(cls, target: Target) -> Target:
        """A target that differs from `target` in anything that affects code."""
        return replace(target, threads=target.threads + 1)

    @pytest.fixture(scope="class")
    @classmethod
    def proposed(cls, dialect: WholeDialect, task: Task) -> list[Candidate]:
        """What a new search proposes first, with seed 0."""
        return dialect.open(task, [], None, 0).propose(cls.proposals)

    @pytest.fixture(scope="class")
    @classmethod
    def cost_model(cls, dialect: WholeDialect, task: Task) -> str:
        """A cost model as text: one that was trained on the dialect's features, if it has such."""
        return cls._model(dialect, task, lambda number: 1e-3 * (1 + number))

    @pytest.fixture(scope="class")
    @classmethod
    def other_cost_model(cls, dialect: WholeDialect, task: Task) -> str:
        """One that prefers what the other does not."""
        return cls._model(dialect, task, lambda number: 1e-3 * (6 * cls.proposals - number))

    @classmethod
    def _model(cls, dialect: WholeDialect, task: Task, latency_s: Callable[[int], float]) -> str:
        from tunery.costmodels import BoostedModel, Dataset, with_task

        candidates = dialect.open(task, [], None, 0).propose(6 * cls.proposals)
        features = dialect.features(task, candidates) if len(candidates) > cls.proposals else None
        if features is None:
            return "{}"
        rows = with_task(features, task)
        dataset = Dataset(rows.layout)
        for number, (candidate, row) in enumerate(zip(candidates, rows, strict=True)):
            dataset.add(task.key, candidate.key, row, latency_s(number))
        return BoostedModel.fit(dataset).dumps()

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Device:
        """The device that kernels are loaded for: this machine's CPU, unless the author names another."""
        return open_device("cpu")

    @pytest.fixture(scope="class")
    @classmethod
    def other_device(cls, device: Device) -> DeviceDescription:
        """A device of another host that code is made for: one like this, unless the author gives another."""
        return device.describe()

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(
        cls, dialect: WholeDialect, device: Device, tasks: list[Task], tmp_path_factory: pytest.TempPathFactory
    ) -> list[Loaded]:
        """Baselines of a few tasks, beside what the reference computes."""
        directory = tmp_path_factory.mktemp("loaded")
        found = []
        for task in tasks[: cls.kernels]:
            inputs = cls.inputs(task, seed=0)
            references = [load(dialect, task, dialect.reference(task), directory, device) for _ in range(2)]
            kernel = load(dialect, task, dialect.baseline(task), directory, device)
            expected, others = map(outputs_of, references, (inputs, cls.inputs(task, seed=1)))
            found.append(Loaded(task, kernel, inputs, expected, others))
        return found

    @pytest.fixture(scope="class")
    @classmethod
    def compiled(
        cls,
        dialect: WholeDialect,
        network: Network,
        target: Target,
        tasks: list[Task],
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Compiled:
        """The network, compiled with the first task's baseline as its choice, and a choice for a foreign workload."""
        chosen = dialect.baseline(tasks[0])
        foreign = replace(chosen, task_key="0" * 16)
        output = tmp_path_factory.mktemp("compiled") / "network.bin"
        compiled = dialect.compile(network, target, {tasks[0].workload.key: chosen, "0" * 16: foreign}, output)
        assert Path(compiled.path) == output, f"asked for {output}, got {compiled.path}"
        return compiled

    @staticmethod
    def inputs(task: Task, seed: int) -> list[Array]:
        """Return inputs for a task: normal floats, and integers of 0 and 1, which are in range as any index."""
        rng = np.random.default_rng(seed)
        return [random_array(spec, rng) for spec in task.workload.input_specs]

    @staticmethod
    def check_calls(time: Callable[[int], float]) -> None:
        """Check that many calls take longer than one; of each the fastest of a few counts."""
        one_s = min(time(1) for _ in range(5))
        calls = max(64, min(4096, round(0.01 / one_s)))
        assert min(time(calls) for _ in range(3)) > 4 * one_s, f"{calls} calls took as long as one"

    @classmethod
    def check(cls, found: Sequence[Array], expected: Sequence[Array], specs: Sequence[TensorSpec]) -> None:
        """Compare outputs: floats within the class's tolerance, all else exactly."""
        for one, other, spec in zip(found, expected, specs, strict=True):
            message = f"output {spec.name}"
            if is_float(one):
                left, right = one.astype(np.float64), other.astype(np.float64)
                assert np.isfinite(left).all(), f"{message} holds NaN or infinity"
                np.testing.assert_allclose(left, right, cls.rtol, cls.atol, err_msg=message)
            else:
                np.testing.assert_array_equal(one, other, err_msg=message)


def load(dialect: WholeDialect, task: Task, candidate: Candidate, directory: Path, device: Device) -> Kernel:
    """Build and load a candidate."""
    return dialect.load(task, dialect.build(task, candidate, directory), device)


def outputs_of(kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    """Return a kernel's outputs for these inputs, written into poisoned buffers."""
    kernel.bind(inputs)
    kernel.poison()
    kernel.run()
    return kernel.outputs()


def random_array(spec: TensorSpec, rng: np.random.Generator) -> Array:
    """Return an array that fits a spec."""
    dtype = _dtype(spec.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    return rng.standard_normal(spec.shape).astype(dtype)


class NoDevice(FakeDevice):
    """A device of a kind that no dialect knows."""

    kind = "none"


class AlignedZeros(ConstantBuffers):
    """Zeros at a multiple of 64 bytes, for `Kernel.use_cold_constants`; counts what was taken."""

    taken = 0

    def take(self, shape: Sequence[int], dtype: str) -> Array:
        """Return new ones."""
        self.taken += 1
        kind = _dtype(dtype)
        room = np.zeros(int(np.prod(shape)) * kind.itemsize + 64, np.uint8)
        start = -room.ctypes.data % 64
        return room[start : start + len(room) - 64].view(kind).reshape(tuple(shape))


def is_float(array: Array) -> bool:
    """Tell whether an array holds floats, those that NumPy does not know (bfloat16) included."""
    return array.dtype.kind not in "biu"


def is_poison(array: Array) -> Array:
    """Tell for each element whether it holds the poison of its type; there is none for booleans."""
    if is_float(array):
        return np.isnan(array.astype(np.float64))
    if array.dtype.kind == "b":
        return np.ones(array.shape, bool)
    return np.asarray(array == np.iinfo(array.dtype.name).min)


def tell_tale(candidates: Sequence[Candidate], outcomes: Sequence[Outcome]) -> list[Observation]:
    """Return outcomes, in turn, for candidates; those that were timed get different latencies."""
    told = []
    for number, candidate in enumerate(candidates):
        outcome = outcomes[number % len(outcomes)]
        told.append(Observation(candidate, outcome, 1e-3 * (number + 1) if outcome in _TIMED else None))
    return told


def keys(candidates: Sequence[Candidate]) -> list[str]:
    """Return the candidates' keys, in order."""
    return [candidate.key for candidate in candidates]


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
