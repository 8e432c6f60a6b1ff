"""Dialects that each break one rule of the contract, and which test is `expected` to notice."""

import json
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from tunery._errors import DialectError, TargetError
from tunery.dialects.contract import DialectContract
from tunery.dialects.fake import FakeDialect, FakeKernel, FakeProposer, fake_network
from tunery.dialects.fake._space import FakeSpace
from tunery.domain import Outcome

NO_PARTS = MappingProxyType({})


class Base(DialectContract):
    made = FakeDialect
    options = ""

    @pytest.fixture(scope="class")
    @classmethod
    def dialect(cls):
        return cls.made()

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls):
        return fake_network("fake:contract?frozen=1&" + (cls.options or "tasks=3"))

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect):
        return dialect.resolve_target("native", 1)


class TestSound(Base):
    pass


class AnyTarget(FakeDialect):
    def resolve_target(self, spec, threads):
        try:
            return super().resolve_target(spec, threads)
        except TargetError:
            return super().resolve_target("native", threads)


class TestAnyTarget(Base):
    made = AnyTarget
    expected = "test_an_unknown_target_raises_target_error"


class ForgetsThreads(FakeDialect):
    def extract(self, network, target):
        return super().extract(network, replace(target, threads=1))


class TestForgetsThreads(Base):
    made = ForgetsThreads
    expected = "test_task_keys_change_with_the_target"


class Moody(FakeDialect):
    def extract(self, network, target):
        tasks = super().extract(network, target)
        return [replace(task, weight=task.weight + id(self) % 97 + 1) for task in tasks]


class TestMoody(Base):
    made = Moody
    expected = "test_extraction_is_deterministic"


class Lightest(FakeDialect):
    def extract(self, network, target):
        return super().extract(network, target)[::-1]


class TestLightest(Base):
    made = Lightest
    expected = "test_extraction_finds_unique_tasks_with_positive_weights"


class Forgetful(FakeDialect):
    def open(self, task, history, cost_model, seed):
        return super().open(task, [], cost_model, seed)


class TestForgetful(Base):
    made = Forgetful
    expected = "test_a_resumed_search_does_not_repeat_its_history"


class Repeater(FakeProposer):
    def propose(self, n):
        found = super().propose(n)
        self._seen.clear()
        self._rng = np.random.default_rng(0)
        return found


class Repeats(FakeDialect):
    def open(self, task, history, cost_model, seed):
        return Repeater(FakeSpace(task), history, cost_model, seed)


class TestRepeats(Base):
    made = Repeats
    options = "space=2x2x3"
    expected = "test_nothing_is_proposed_again_though_results_come_late"


class Undecided(FakeProposer):
    def refused(self):
        return [(self._space.candidate(index), "absurd") for index in sorted(self._seen)[:1]]


class RefusesItsOwn(FakeDialect):
    def open(self, task, history, cost_model, seed):
        return Undecided(FakeSpace(task), history, cost_model, seed)


class TestRefusesItsOwn(Base):
    made = RefusesItsOwn
    expected = "test_what_is_not_worth_a_build_has_a_reason_and_is_named_once"


class Sensitive(FakeProposer):
    def observe(self, results):
        assert all(told.outcome is not Outcome.CRASHED for told in results)
        super().observe(results)


class Senses(FakeDialect):
    def open(self, task, history, cost_model, seed):
        return Sensitive(FakeSpace(task), history, cost_model, seed)


class TestSenses(Base):
    made = Senses
    expected = "test_every_outcome_is_heard"


class Unseeded(FakeDialect):
    def open(self, task, history, cost_model, seed):
        return super().open(task, history, cost_model, id(self) % 1000 + 1)


class TestUnseeded(Base):
    made = Unseeded
    expected = "test_proposals_are_deterministic_for_a_seed"


class Amnesiac(FakeDialect):
    seed = 0

    def forget(self, task):
        self.seed += 1

    def open(self, task, history, cost_model, seed):
        return super().open(task, history, cost_model, seed + self.seed)


class TestAmnesiac(Base):
    made = Amnesiac
    expected = "test_a_forgotten_task_can_be_searched_again"


class Litters(FakeDialect):
    def build(self, task, candidate, directory):
        (directory / "log").touch()
        return super().build(task, candidate, directory)


class TestLitters(Base):
    made = Litters
    expected = "test_garbage_raises_dialect_error_and_leaves_no_litter"


class SaysWhere(FakeDialect):
    def build(self, task, candidate, directory):
        built = super().build(task, candidate, directory)
        built.path.write_text(json.dumps(json.loads(built.path.read_text()) | {"made in": str(directory)}))
        return built


class TestSaysWhere(Base):
    made = SaysWhere
    expected = "test_build_is_repeatable"


class KeepsNotesBeside(FakeDialect):
    def build(self, task, candidate, directory):
        built = super().build(task, candidate, directory)
        built.path.with_suffix(".notes").touch()
        return built

    def load(self, task, built, device):
        if not built.path.with_suffix(".notes").exists():
            raise DialectError("its notes are missing")
        return super().load(task, built, device)


class TestKeepsNotesBeside(Base):
    made = KeepsNotesBeside
    expected = "test_a_built_candidate_is_known_by_its_content"


class BelievesTornFiles(FakeDialect):
    def load(self, task, built, device):
        try:
            return super().load(task, built, device)
        except DialectError as error:
            raise ValueError("torn") from error


class TestBelievesTornFiles(Base):
    made = BelievesTornFiles
    expected = "test_a_built_candidate_is_known_by_its_content"


class TakesAPartForAnother(FakeDialect):
    def build_part(self, task, candidate, directory):
        return self.build(task, candidate, directory)

    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        return super().compile(network, target, {} if parts else chosen, output)


class TestTakesAPartForAnother(Base):
    made = TakesAPartForAnother
    expected = "test_a_part_spares_nothing_but_time"


class Kernels(FakeDialect):
    kernel = FakeKernel

    def load(self, task, built, device):
        found = super().load(task, built, device)
        found.__class__ = self.kernel
        return found


class Aliasing(FakeKernel):
    def bind(self, inputs):
        super().bind(inputs)
        self._inputs = list(inputs)


class Aliases(Kernels):
    kernel = Aliasing


class TestAliases(Base):
    made = Aliases
    expected = "test_bind_copies_its_inputs"


class Immune(FakeKernel):
    def poison(self):
        pass


class IsImmune(Kernels):
    kernel = Immune


class TestImmune(Base):
    made = IsImmune
    expected = "test_poison_overwrites_outputs_and_run_overwrites_poison"


class MeasurementConcurrency(FakeKernel):
    def outputs(self):
        return self._outputs


class Shares(Kernels):
    kernel = MeasurementConcurrency


class TestShares(Base):
    made = Shares
    expected = "test_outputs_are_copies"


class TestPartialBaseline(Base):
    options = "baseline_fault=partial"
    expected = "test_the_baseline_agrees_with_the_reference"


class TestZeroTime(Base):
    options = "baseline_fault=zero_time"
    expected = "test_time_is_positive_and_finite_and_leaves_results_right"


class TestWrongProposals(Base):
    options = "one_off=1.0"
    expected = "test_a_proposal_computes_what_the_reference_computes"


class HalfFeatures(FakeDialect):
    def features(self, task, candidates):
        rows = super().features(task, candidates)
        rows[0, 0] = np.nan
        return rows


class TestHalfFeatures(Base):
    made = HalfFeatures
    expected = "test_features_have_a_row_per_candidate"


class DropsChoices(FakeDialect):
    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        readable = {key: candidate for key, candidate in chosen.items() if "schedule" in candidate.body}
        compiled = super().compile(network, target, readable, output)
        claimed = {key: chosen[key].key for key in compiled.coverage if key in chosen}
        return replace(compiled, coverage={**compiled.coverage, **claimed})


class TestDropsChoices(Base):
    made = DropsChoices
    expected = "test_a_failed_compile_leaves_nothing"


class Uncovered(FakeDialect):
    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        return super().compile(network, target, {}, output)


class TestUncovered(Base):
    made = Uncovered
    expected = "test_compile_covers_every_task"


class OneThread(FakeDialect):
    def load_network(self, path, threads=None, digest=""):
        return super().load_network(path, 1, digest)


class TestOneThread(Base):
    made = OneThread
    expected = "test_a_compiled_network_runs"


class Tuples(FakeDialect):
    def extract(self, network, target):
        # A tuple inside plain data comes back from JSON as a list, and the keys no longer match.
        return super().extract(network, replace(target, config={**target.config, "isa": ("avx2",)}))


class TestTuples(Base):
    made = Tuples
    expected = "test_everything_round_trips_as_json"


class BelievesKeys(FakeDialect):
    def check_workload(self, workload):
        pass


class TestBelievesKeys(Base):
    made = BelievesKeys
    expected = "test_a_workload_with_anothers_key_is_refused"


class RefusesAll(FakeDialect):
    def check_body(self, body):
        raise DialectError("no")


class TestRefusesAll(Base):
    made = RefusesAll
    expected = "test_its_own_workloads_and_candidates_pass_the_checks"


class AcceptsAll(FakeDialect):
    def check_body(self, body):
        pass


class TestAcceptsAll(Base):
    made = AcceptsAll
    expected = "test_garbage_from_elsewhere_is_refused"
