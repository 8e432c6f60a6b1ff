"""The MetaSchedule dialect: the shipped contract, and what is special to it. Runs the real compiler."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from metaschedule_models import small_network

from tunery._errors import DialectError, TargetError
from tunery.delivery.files.loading import load_compiled
from tunery.devices import open_device
from tunery.dialects import Array, Dialect, Observation, get_dialect
from tunery.dialects.metaschedule import MetaScheduleDialect
from tunery.dialects.metaschedule.features.features import FeatureCache
from tunery.dialects.metaschedule.target import instructions
from tunery.domain import DeviceDescription, Network, Origin, Outcome, Target, Task, TensorSpec
from tunery.measuring.inputs import make_inputs
from tunery.runtime.services import ProposerHost
from tunery.testing._dialect_help import AlignedZeros
from tunery.testing.dialect_contract import DialectContract

pytestmark = pytest.mark.tvm


def _as_integers(task: Task) -> tuple[TensorSpec, ...]:
    count = len(task.workload.arguments) - task.workload.outputs
    outputs = (replace(spec, dtype="int32") for spec in task.workload.output_specs)
    return (*task.workload.arguments[:count], *outputs)


class TestMetaScheduleContract(DialectContract):
    garbage = '[["NoSuchInstruction"]]'

    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls) -> Dialect:
        return get_dialect("metaschedule")

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls, tmp_path_factory: pytest.TempPathFactory) -> Network:
        return small_network(tmp_path_factory.mktemp("network"))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect: Dialect) -> Target:
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def other_target(cls, dialect: Dialect) -> Target:
        return dialect.resolve_target("native", 2)

    @pytest.fixture(scope="class")
    @classmethod
    def other_device(cls) -> DeviceDescription:
        facts = {"arch": "aarch64", "vendor": "0x41", "model": "0xd08", "vector": ["asimd"]}
        return DeviceDescription("cpu", "a board", (0, 1, 2, 3), facts)

    @pytest.fixture(scope="class")
    @classmethod
    def task(cls, tasks: list[Task]) -> Task:
        return next(task for task in tasks if task.workload.kind == "matmul")

    def test_convolutions_are_channels_last_with_free_weights(self, tasks: list[Task]) -> None:
        conv = next(task for task in tasks if task.workload.kind == "conv2d")
        assert [spec.shape for spec in conv.workload.arguments[:2]] == [(1, 12, 12, 16), (3, 3, 16, 32)]
        assert '"layout_free_buffers"' in conv.workload.program

    def test_the_reference_computes_the_unscheduled_programs_bits(
        self, dialect: Dialect, tasks: list[Task], tmp_path: Path
    ) -> None:
        faster = 0
        for task in tasks:
            reference, baseline = dialect.reference(task), dialect.baseline(task)
            faster += reference.key != baseline.key
            inputs = make_inputs(task.workload.input_specs, 1)
            outputs = []
            for candidate in (reference, baseline):
                kernel = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu"))
                kernel.bind(inputs)
                kernel.run()
                outputs.append(kernel.outputs())
            for ours, naive in zip(*outputs, strict=True):
                np.testing.assert_array_equal(ours, naive)
        assert faster >= 2, "no reduction was reordered"

    def test_what_is_tunable_is_told_as_from_its_designs(self, tasks: list[Task]) -> None:
        from tunery.dialects.metaschedule.variants.program import space_of

        for task in tasks:
            instructions = [one for design in space_of(task).designs for one in design.trace.insts]
            assert task.tunable == any(str(one.kind.name).startswith("Sample") for one in instructions)
        assert {task.tunable for task in tasks} == {True, False}

    def test_what_may_be_timed_or_rounded_is_optimised(
        self, dialect: Dialect, tasks: list[Task], tmp_path: Path
    ) -> None:
        task = next(task for task in tasks if dialect.reference(task).key != dialect.baseline(task).key)
        reference = dialect.reference(task)
        plain = dialect.build(task, reference, tmp_path)
        assert plain.path.stem.endswith("-plain")
        as_baseline = dialect.build(task, replace(reference, origin=Origin.BASELINE), tmp_path)
        assert not as_baseline.path.stem.endswith("-plain"), "it is timed, and may be delivered"
        assert plain.path.read_bytes() != as_baseline.path.read_bytes()
        heavy = replace(task, workload=replace(task.workload, flop=1e9))
        whole = replace(task, workload=replace(task.workload, arguments=_as_integers(task)))
        for other in (heavy, whole):
            assert not dialect.build(other, reference, tmp_path).path.stem.endswith("-plain")

    def test_a_search_learns_and_keeps_to_new_programs(self, dialect: Dialect, task: Task) -> None:
        from tunery.costmodels import BoostedModel, Dataset, with_task

        proposer = dialect.open(task, [], None, 0)
        first = proposer.propose(24)
        rows = with_task(dialect.features(task, first), task)
        dataset = Dataset(rows.layout)
        for i, (candidate, row) in enumerate(zip(first, rows, strict=True)):
            dataset.add(task.key, candidate.key, row, 1e-3 * (1 + i))
        proposer.observe([Observation(c, Outcome.OK, 1e-3 * (1 + i)) for i, c in enumerate(first)])
        proposer.learn(BoostedModel.fit(dataset).dumps())
        second = proposer.propose(12)
        assert second
        assert not {c.key for c in first} & {c.key for c in second}
        assert all(c.score is not None and c.score > 0 for c in second)

    def test_a_task_that_is_opened_again_keeps_its_features(self, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
        host = ProposerHost("metaschedule")
        host.open(task, (), None, 0)
        candidates, rows = host.propose(task.key, 8, ()).worth_building
        assert candidates
        monkeypatch.setattr(FeatureCache, "_extract", lambda *_: pytest.fail("computed again"))
        assert host.open(task, [Observation(candidate, Outcome.OK, 1e-3) for candidate in candidates], None, 1) == rows

    def test_a_closed_search_leaves_no_features_behind(self, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
        dialect = MetaScheduleDialect()
        monkeypatch.setattr("tunery.runtime.services.proposer.get_dialect", lambda _: dialect)
        host = ProposerHost("metaschedule")
        host.open(task, (), None, 0)
        assert host.propose(task.key, 4, ()).candidates
        assert dialect._features
        host.close(task.key)
        assert not dialect._features

    def test_a_candidate_of_another_program_is_refused(
        self, dialect: Dialect, tasks: list[Task], tmp_path: Path
    ) -> None:
        conv, dense = (next(t for t in tasks if t.workload.kind == kind) for kind in ("conv2d", "matmul"))
        foreign = replace(dialect.open(dense, [], None, 0).propose(1)[0], task_key=conv.key)
        with pytest.raises(DialectError):
            dialect.build(conv, foreign, tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_tampered_candidate_is_refused(self, dialect: Dialect, task: Task, tmp_path: Path) -> None:
        honest = dialect.open(task, [], None, 0).propose(1)[0]
        with pytest.raises(DialectError, match="replays to another program"):
            dialect.build(task, replace(honest, key="0" * 16), tmp_path)

    def test_a_tuned_network_matches_onnx_runtime(
        self, dialect: Dialect, network: Network, target: Target, tasks: list[Task], tmp_path: Path
    ) -> None:
        import onnxruntime

        chosen = {}
        for task in tasks:
            proposed = dialect.open(task, [], None, 0).propose(1)
            if proposed:
                chosen[task.workload.key] = proposed[0]
        compiled = dialect.compile(network, target, chosen, tmp_path / "small.tunery")
        assert {key for key, candidate in compiled.coverage.items() if candidate} == set(chosen)
        ours = load_compiled(tmp_path / "small.tunery")
        image = np.random.default_rng(0).standard_normal((1, 16, 12, 12)).astype(np.float32)
        ids = np.array([7])
        session = onnxruntime.InferenceSession(network.path, providers=["CPUExecutionProvider"])
        expected = session.run(None, {"image": image, "ids": ids})[0]
        np.testing.assert_allclose(ours(image, ids)[0], expected, rtol=1e-4, atol=1e-5)

    def test_a_target_whose_instructions_this_machine_lacks_is_refused(
        self, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tunery.dialects.metaschedule.target._native", lambda: "haswell")
        with pytest.raises(TargetError, match="avx512"):
            dialect.resolve_target("znver4", 1)
        assert dialect.resolve_target("x86-64-v2", 1).config["mcpu"] == "x86-64-v2"

    def test_no_code_for_this_machine_has_instructions_that_are_hidden_from_it(
        self, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tunery.dialects.metaschedule.target._native", lambda: "alderlake")
        monkeypatch.setattr("tunery.dialects.metaschedule.target.lacking", lambda names: ["avxvnni"])
        assert "avxvnni" not in instructions(dialect.resolve_target("native", 1).config)
        assert "avxvnni" in instructions({"kind": "llvm", "mcpu": "alderlake"})

    @pytest.mark.parametrize(("name", "value"), [
        *((name, value) for name in ("num-cores", "opt-level", "vector-width")
          for value in ("9e18", "-1", "NaN", "1.5", "true", '"2"', "[]", "9" * 4000)),
        ("num-cores", "0"), ("vector-width", "0"), ("opt-level", "4"), ("mattr", '"+avx"'), ("mattr", "[1]"),
        ("mattr", '["+quick"]'),
        ("unswitch", "1"), ("cl-opt", '["-enable-nontrivial-unswitch=true"]'), ("tag", '"x"'), ("libs", '["mkl"]'),
        ("mtriple", '"x86_64-linux-gnu"'),
        ("host", '{"kind": "llvm"}'), ("device", "{}"), ("nonsense", "1"), ("x" * 5000, "true"),
    ])  # fmt: skip
    def test_every_field_of_a_target_has_a_range(self, dialect: Dialect, name: str, value: str) -> None:
        given = f'{{"kind": "llvm", "mcpu": "x86-64", {json.dumps(name)}: {value}}}'
        with pytest.raises(TargetError) as caught:
            dialect.resolve_target(given, 1)
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()

    def test_bodies_are_data(self, dialect: Dialect, task: Task) -> None:
        candidate = dialect.open(task, [], None, 0).propose(1)[0]
        assert isinstance(json.loads(candidate.body), list)

    def test_a_swapped_body_is_not_compiled_into_the_network(
        self, dialect: Dialect, network: Network, target: Target, task: Task, tmp_path: Path
    ) -> None:
        honest, other = dialect.open(task, [], None, 0).propose(2)
        for body in (other.body, "[not JSON"):
            chosen = {task.workload.key: replace(honest, body=body)}
            compiled = dialect.compile(network, target, chosen, tmp_path / "out.tunery")
            assert compiled.coverage[task.workload.key] is None


def test_timed_calls_find_weights_where_they_are_put(tmp_path: Path) -> None:
    dialect = get_dialect("metaschedule")
    tasks = dialect.extract(small_network(tmp_path), dialect.resolve_target("native", 1))
    for kind, weights in (("conv2d", 3 * 3 * 16 * 32), ("gather", 0)):
        task = next(task for task in tasks if task.workload.kind == kind)
        for candidate in (dialect.baseline(task), *dialect.open(task, [], None, 0).propose(2)):
            kernel, given = dialect.load(task, dialect.build(task, candidate, tmp_path), open_device("cpu")), []

            class Counted(AlignedZeros):
                def take(self, shape: Sequence[int], dtype: str, given: list[int] = given) -> Array:
                    given.append(int(np.prod(shape)))
                    return super().take(shape, dtype)

            kernel.bind(make_inputs(task.workload.input_specs, 0))
            kernel.use_cold_constants(Counted())
            kernel.run()
            before = kernel.outputs()
            assert not given, "what is verified reads what was bound"
            kernel.time(3)
            assert len(given) == (3 if weights else 0), "each call has its own place"
            assert all(size in {weights, weights * 16 // 9, weights * 4} for size in given), "as they are, or enlarged"
            assert any((a != b).any() for a, b in zip(before, kernel.outputs(), strict=True)) == bool(weights)


@pytest.mark.parametrize("operator", ["", "round", "floor", "ceil", "trunc", "nearbyint"])
def test_a_sum_that_is_rounded_is_known_by_its_program(operator: str) -> None:
    from tunery.dialects.metaschedule._tvm import tvm
    from tunery.dialects.metaschedule.codegen.kernel import _ROUNDING

    te = tvm.te
    x = te.placeholder((4, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    apply = getattr(tvm.tirx, operator) if operator else lambda value: value
    result = te.compute((4,), lambda i: apply(total[i]) * 2.0, name="result")
    program = tvm.ir.save_json(tvm.IRModule({"main": te.create_prim_func([x, result])}))
    assert bool(_ROUNDING.search(program)) == bool(operator)
