"""Dialects that each break one rule of the contract, and which test is `expected` to notice."""

import itertools
import json
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from tunery._errors import DialectError, TargetError, UsageError
from tunery.costmodels.columns import FeatureRows, Layout, fold
from tunery.dialects import CrossCompiler, RecordWriter, Suggestions
from tunery.domain import Check, CheckState, Environment, Origin, Outcome
from tunery.testing.dialect_contract import DialectContract
from tunery.testing.fake_dialect import FakeDialect, FakeKernel, FakeProposer, fake_network
from tunery.testing.fake_dialect._compiled import FakeCompiledNetwork
from tunery.testing.fake_dialect._space import FEATURES, FakeSpace

NO_PARTS = MappingProxyType({})
_numbers = itertools.count(1)


def number(one):
    """Return a number that no other object has, also none that is made after this one was freed."""
    if "number" not in vars(one):
        object.__setattr__(one, "number", next(_numbers))
    return one.number


class Searching(FakeProposer):
    """A search that says with which options it was opened, in the score of what it proposes."""

    opened = 0

    def propose(self, n):
        found = super().propose(n)
        return [replace(each, score=(each.score or 0.0) + self.opened) for each in found] if self.opened else found


class Able(FakeDialect, CrossCompiler, RecordWriter):
    """A dialect that can do all that may be left out, and has a use for all that it may be given."""

    heeds = frozenset({
        "open.warm_start", "open.generic_only_reason", "suggest.transfer_states", "suggest.several_fallbacks",
        "compile.parts", "differing", "reject", "peak_flops.target", "use_cold_constants.buffers",
    })  # fmt: skip

    formats = ("lines",)

    def write_records(self, task, records, device, format_name):
        if format_name not in self.formats:
            raise UsageError(f"use {self.formats}")
        return "\n".join([task.key, device, *(one.candidate.key + one.measurement.outcome for one in records)])

    def resolve_target_of(self, spec, threads, device):
        if device.kind != self.device:
            raise TargetError(f"no code is made for {device.name}")
        return self.resolve_target(spec, threads)

    def elsewhere(self, network, target):
        return {network.name: f"for {target.threads} threads"}

    def open(self, task, history, cost_model, seed, *, warm_start=False, generic_only_reason=None):
        found = super().open(task, history, cost_model, seed, generic_only_reason=generic_only_reason)
        found.__class__ = Searching
        found.opened = warm_start + 2 * bool(generic_only_reason)
        return found

    def suggest(self, task, n, cost_model, seed, transfer_states=(), *, several_fallbacks=False):
        found = super().suggest(task, n + len(transfer_states), cost_model, seed).candidates[-n:]
        fallbacks = [self.candidate(task, 0), self.candidate(task, 1)]
        spare = [each for each in fallbacks if each.key not in {one.key for one in found}]
        return Suggestions(found, task.key, tuple(spare[: 1 + several_fallbacks]))

    def reject(self, task, candidate):
        return f"{candidate.key} of {task.key}"

    def parameters(self, task, candidate):
        return {"candidate": candidate.key, "task": task.key}

    def count(self, task):
        return 1000 + int(task.key[:6], 16)

    def differing(self, network, target, inputs):
        found = {network.name: f"for {target.threads} threads, on {len(inputs)} inputs"}
        return {} if network.name == "contract" else found

    def layout(self):
        return Layout("folded", 1, (*(f"{part}.{i}" for part in "abcd" for i in range(FEATURES)), "stores"))

    def features(self, task, candidates):
        rows = super().features(task, candidates)
        folded = [fold(np.tile(row, (0 if np.isnan(row).any() else 2, 2))) for row in rows]
        return FeatureRows(np.stack(folded), Able.layout(self))

    def buffer_store_features(self, task, candidates):
        return [np.tile(row, (2, 2)) for row in super().features(task, candidates)]

    def texts(self, path):
        return {".txt": f"made at {path}"}

    def build_part(self, task, candidate, directory):
        return self.build(task, candidate, directory)

    def peak_flops(self, target):
        return 1e9 * target.threads

    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        if not all(part.path.exists() for part in parts.values()):
            raise DialectError("a part is missing")
        return super().compile(network, target, chosen, output)

    def load(self, task, built, device):
        found = super().load(task, built, device)
        found.__class__ = Cold
        return found


class Cold(FakeKernel):
    def use_cold_constants(self, buffers):
        buffers.take((1,), "float32")


class Base(DialectContract):
    made = Able
    options = ""
    heeds = Able.heeds

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
    def other_network(cls):
        return fake_network("fake:other?tasks=2&size=4")

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, dialect):
        return dialect.resolve_target("native", 1)

    @pytest.fixture(scope="class")
    @classmethod
    def cost_model(cls):
        return json.dumps({"weights": [1.0] * FEATURES})

    @pytest.fixture(scope="class")
    @classmethod
    def other_cost_model(cls):
        return json.dumps({"weights": [-1.0] * FEATURES})


class TestSound(Base):
    pass


class AnyTarget(Able):
    def resolve_target(self, spec, threads):
        try:
            return super().resolve_target(spec, threads)
        except TargetError:
            return super().resolve_target("native", threads)


class TestAnyTarget(Base):
    made = AnyTarget
    expected = "test_an_unknown_target_raises_target_error"


class ForgetsThreads(Able):
    def extract(self, network, target):
        return super().extract(network, replace(target, threads=1))


class TestForgetsThreads(Base):
    made = ForgetsThreads
    expected = "test_task_keys_change_with_the_target"


class ForEverything(Able):
    def resolve_target_of(self, spec, threads, device):
        return self.resolve_target(spec, threads)


class TestForEverything(Base):
    made = ForEverything
    expected = "test_code_for_another_machine_is_for_its_device"


class Moody(Able):
    def extract(self, network, target):
        tasks = super().extract(network, target)
        return [replace(task, weight=task.weight + number(self)) for task in tasks]


class TestMoody(Base):
    made = Moody
    expected = "test_extraction_is_deterministic"


class Lightest(Able):
    def extract(self, network, target):
        return super().extract(network, target)[::-1]


class TestLightest(Base):
    made = Lightest
    expected = "test_extraction_finds_unique_tasks_with_positive_weights"


class Forgetful(Able):
    def open(self, task, history, cost_model, seed, **options):
        return super().open(task, [], cost_model, seed, **options)


class TestForgetful(Base):
    made = Forgetful
    expected = "test_a_resumed_search_does_not_repeat_its_history"


class Repeater(FakeProposer):
    def propose(self, n):
        found = super().propose(n)
        self._seen.clear()
        self._rng = np.random.default_rng(0)
        return found


class Repeats(Able):
    def open(self, task, history, cost_model, seed, **options):
        return Repeater(FakeSpace(task), history, cost_model, seed)


class TestRepeats(Base):
    made = Repeats
    options = "space=2x2x3"
    expected = "test_nothing_is_proposed_again_though_results_come_late"


class Undecided(FakeProposer):
    def refused(self):
        return [(self._space.candidate(index), "absurd") for index in sorted(self._seen)[:1]]


class RefusesItsOwn(Able):
    def open(self, task, history, cost_model, seed, **options):
        return Undecided(FakeSpace(task), history, cost_model, seed)


class TestRefusesItsOwn(Base):
    made = RefusesItsOwn
    expected = "test_what_is_not_worth_a_build_has_a_reason_and_is_named_once"


class Sensitive(FakeProposer):
    def observe(self, results):
        assert all(told.outcome is not Outcome.CRASHED for told in results)
        super().observe(results)


class Senses(Able):
    def open(self, task, history, cost_model, seed, **options):
        return Sensitive(FakeSpace(task), history, cost_model, seed)


class TestSenses(Base):
    made = Senses
    expected = "test_every_outcome_is_heard"


class Unseeded(Able):
    def open(self, task, history, cost_model, seed, **options):
        return super().open(task, history, cost_model, number(self), **options)


class TestUnseeded(Base):
    made = Unseeded
    expected = "test_proposals_are_deterministic_for_a_seed"


class Amnesiac(Able):
    seed = 0

    def forget(self, task):
        self.seed += 1

    def open(self, task, history, cost_model, seed, **options):
        return super().open(task, history, cost_model, seed + self.seed, **options)


class TestAmnesiac(Base):
    made = Amnesiac
    expected = "test_a_forgotten_task_can_be_searched_again"


class Litters(Able):
    def build(self, task, candidate, directory):
        (directory / "log").touch()
        return super().build(task, candidate, directory)


class TestLitters(Base):
    made = Litters
    expected = "test_garbage_raises_dialect_error_and_leaves_no_litter"


class SaysWhere(Able):
    def build(self, task, candidate, directory):
        built = super().build(task, candidate, directory)
        built.path.write_text(json.dumps(json.loads(built.path.read_text()) | {"made in": str(directory)}))
        return built


class TestSaysWhere(Base):
    made = SaysWhere
    expected = "test_build_is_repeatable"


class KeepsNotesBeside(Able):
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


class BelievesTornFiles(Able):
    def load(self, task, built, device):
        try:
            return super().load(task, built, device)
        except DialectError as error:
            raise ValueError("torn") from error


class TestBelievesTornFiles(Base):
    made = BelievesTornFiles
    expected = "test_a_built_candidate_is_known_by_its_content"


class TakesAPartForAnother(Able):
    def build_part(self, task, candidate, directory):
        return self.build(task, candidate, directory)

    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        return super().compile(network, target, {} if parts else chosen, output)


class TestTakesAPartForAnother(Base):
    made = TakesAPartForAnother
    expected = "test_a_part_spares_nothing_but_time"


class Kernels(Able):
    kernel = FakeKernel

    def load(self, task, built, device):
        found = super().load(task, built, device)
        found.__class__ = self.kernel
        return found


class Aliasing(Cold):
    def bind(self, inputs):
        super().bind(inputs)
        self._inputs = list(inputs)


class Aliases(Kernels):
    kernel = Aliasing


class TestAliases(Base):
    made = Aliases
    expected = "test_bind_copies_its_inputs"


class Immune(Cold):
    def poison(self):
        pass


class IsImmune(Kernels):
    kernel = Immune


class TestImmune(Base):
    made = IsImmune
    expected = "test_poison_overwrites_outputs_and_run_overwrites_poison"


class MeasurementConcurrency(Cold):
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


class HalfFeatures(Able):
    def features(self, task, candidates):
        rows = super().features(task, candidates)
        rows.values[0, 0] = np.nan
        return rows


class TestHalfFeatures(Base):
    made = HalfFeatures
    expected = "test_features_have_a_row_per_candidate"


class Narrower(Able):
    def layout(self):
        return Layout("narrower", 1, ("a", "b"))


class TestNarrower(Base):
    made = Narrower
    expected = "test_features_have_a_row_per_candidate"


class DropsChoices(Able):
    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        readable = {key: candidate for key, candidate in chosen.items() if "schedule" in candidate.body}
        compiled = super().compile(network, target, readable, output)
        claimed = {key: chosen[key].key for key in compiled.coverage if key in chosen}
        return replace(compiled, coverage={**compiled.coverage, **claimed})


class TestDropsChoices(Base):
    made = DropsChoices
    expected = "test_a_failed_compile_leaves_nothing"


class Uncovered(Able):
    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        return super().compile(network, target, {}, output)


class TestUncovered(Base):
    made = Uncovered
    expected = "test_compile_covers_every_task"


class AnotherDigest(Able):
    def compile(self, network, target, chosen, output, parts=NO_PARTS):
        return replace(super().compile(network, target, chosen, output, parts), digest="0" * 64)


class TestAnotherDigest(Base):
    made = AnotherDigest
    expected = "test_compile_covers_every_task"


class OneThread(Able):
    def load_network(self, archive, threads=None):
        return super().load_network(archive, 1)


class TestOneThread(Base):
    made = OneThread
    expected = "test_a_compiled_network_runs"


class Tuples(Able):
    def extract(self, network, target):
        # A tuple inside plain data comes back from JSON as a list, and the keys no longer match.
        return super().extract(network, replace(target, config={**target.config, "isa": ("avx2",)}))


class TestTuples(Base):
    made = Tuples
    expected = "test_everything_round_trips_as_json"


class BelievesKeys(Able):
    def check_workload(self, workload):
        pass


class TestBelievesKeys(Base):
    made = BelievesKeys
    expected = "test_a_workload_with_anothers_key_is_refused"


class RefusesAll(Able):
    def check_body(self, body):
        raise DialectError("no")


class TestRefusesAll(Base):
    made = RefusesAll
    expected = "test_its_own_workloads_and_candidates_pass_the_checks"


class AcceptsAll(Able):
    def check_body(self, body):
        pass


class TestAcceptsAll(Base):
    made = AcceptsAll
    expected = "test_garbage_from_elsewhere_is_refused"


class KnowsNoFormat(Able):
    formats = ()


class TestKnowsNoFormat(Base):
    made = KnowsNoFormat
    expected = "test_records_are_written_in_the_formats_that_it_names"


class WritesNothing(Able):
    def write_records(self, task, records, device, format_name):
        return super().write_records(task, [], device, format_name)


class TestWritesNothing(Base):
    made = WritesNothing
    expected = "test_records_are_written_in_the_formats_that_it_names"


class Renamed(Able):
    @property
    def compiler(self):
        return f"fake {number(self)}"


class TestRenamed(Base):
    made = Renamed
    expected = "test_the_compiler_is_named_the_same_by_each_instance"


class Misnamed(Able):
    name = "misnamed"

    def resolve_target(self, spec, threads):
        return replace(super().resolve_target(spec, threads), dialect="fake")


class TestMisnamed(Base):
    made = Misnamed
    expected = "test_a_target_is_plain_data_that_resolves_to_itself"


class Homeless(Able):
    def family(self, config):
        return ""


class TestHomeless(Base):
    made = Homeless
    expected = "test_a_target_is_of_a_family_of_processors"


class Unpacked(Able):
    packages = ("there-is-no-such-distribution",)


class TestUnpacked(Base):
    made = Unpacked
    expected = "test_its_packages_are_installed"


class Abacus(Able):
    device = "abacus"


class TestAbacus(Base):
    made = Abacus
    expected = "test_it_names_a_device_that_is_installed"


class OfAnyVersion(Able):
    requirements = ("iree-base-compiler",)


class TestOfAnyVersion(Base):
    made = OfAnyVersion
    expected = "test_what_its_own_environment_holds_is_pinned"


class SaysNo(Able):
    runs_users_code = "no"


class TestSaysNo(Base):
    made = SaysNo
    expected = "test_it_says_whether_it_runs_code_of_its_users"


class LivesAlone(Able):
    def environment(self):
        return Environment(variables={"OWNER": str(number(self))})


class TestLivesAlone(Base):
    made = LivesAlone
    expected = "test_its_processes_are_described_as_plain_data"


class Complains(Able):
    def doctor(self):
        return [Check("compiler", CheckState.FAIL, "it does not load")]


class TestComplains(Base):
    made = Complains
    expected = "test_its_checks_say_what_to_do"


class SilentAboutNodes(Able):
    def elsewhere(self, network, target):
        return {"node": ""}


class TestSilentAboutNodes(Base):
    made = SilentAboutNodes
    expected = "test_nodes_left_to_onnx_runtime_have_reasons"


class NamelessTexts(FakeDialect):
    def texts(self, path):
        return {"": "int x;"}


class TestNamelessTexts(Base):
    made = NamelessTexts
    expected = "test_texts_of_a_file_are_known_by_their_endings"


class SuspectsAll(Able):
    def differing(self, network, target, inputs):
        return {"node": "it differs"}


class TestSuspectsAll(Base):
    made = SuspectsAll
    expected = "test_no_node_differs_in_a_network_that_is_right"


class AnyNetwork(Able):
    def own_network(self, source):
        return super().own_network("fake:any")


class TestAnyNetwork(Base):
    made = AnyNetwork
    expected = "test_a_network_of_its_own_has_a_name_that_is_found_again"


class ForgetsWarm(Able):
    def open(self, task, history, cost_model, seed, *, warm_start=False, **options):
        return super().open(task, [] if warm_start else history, cost_model, seed, **options)


class TestForgetsWarm(Base):
    made = ForgetsWarm
    options = "space=2x2x2"
    expected = "test_a_search_takes_every_option"


class ForgetsPlain(Able):
    def open(self, task, history, cost_model, seed, *, generic_only_reason=None, **options):
        return super().open(task, [] if generic_only_reason else history, cost_model, seed, **options)


class TestForgetsPlain(Base):
    made = ForgetsPlain
    options = "space=2x2x2"
    expected = "test_a_search_takes_every_option"


class NoOptions(Able):
    def open(self, task, history, cost_model, seed):
        return super().open(task, history, cost_model, seed)


class TestNoOptions(Base):
    made = NoOptions
    expected = "test_a_search_takes_every_option"


class Unmodelled(Able):
    def open(self, task, history, cost_model, seed, **options):
        return super().open(task, history, None, seed, **options)


class TestUnmodelled(Base):
    made = Unmodelled
    expected = "test_a_search_uses_the_cost_model_it_is_given"


class Unteachable(FakeProposer):
    def learn(self, cost_model):
        pass


class DoesNotLearn(Able):
    def open(self, task, history, cost_model, seed, **options):
        return Unteachable(FakeSpace(task), history, cost_model, seed)


class TestDoesNotLearn(Base):
    made = DoesNotLearn
    expected = "test_a_search_uses_the_cost_model_it_is_given"


class Generous(Able):
    def suggest(self, task, n, *others, **options):
        return super().suggest(task, n + 1, *others, **options)


class TestGenerous(Base):
    made = Generous
    expected = "test_suggestions_are_candidates_of_the_task"


class KeepsToItself(Able):
    def suggest(self, task, n, cost_model, seed, *, several_fallbacks=False):
        return super().suggest(task, n, cost_model, seed)


class TestKeepsToItself(Base):
    made = KeepsToItself
    expected = "test_suggestions_are_candidates_of_the_task"


class OneFallback(Able):
    def suggest(self, task, n, cost_model, seed, transfer_states=()):
        return super().suggest(task, n, cost_model, seed, transfer_states)


class TestOneFallback(Base):
    made = OneFallback
    expected = "test_suggestions_are_candidates_of_the_task"


class RejectsWithoutAReason(Able):
    def reject(self, task, candidate):
        return ""


class TestRejectsWithoutAReason(Base):
    made = RejectsWithoutAReason
    expected = "test_what_is_not_worth_a_build_has_a_reason_and_is_named_once"


class CalibratesAnother(Able):
    def calibration_tasks(self, target):
        return super().calibration_tasks(replace(target, threads=target.threads + 1))


class TestCalibratesAnother(Base):
    made = CalibratesAnother
    expected = "test_calibration_tasks_are_of_known_kinds_and_can_be_searched"


class OtherStores(Able):
    def buffer_store_features(self, task, candidates):
        return [np.ones((2, 4), np.float32) for _ in candidates]


class TestOtherStores(Base):
    made = OtherStores
    expected = "test_features_of_stores_are_those_that_rows_are_folded_from"


class WrongWay(Able):
    def identify(self, task, body):
        return replace(super().identify(task, body), key="0" * 16)


class TestWrongWay(Base):
    made = WrongWay
    expected = "test_its_own_workloads_and_candidates_pass_the_checks"


class AnyReference(Able):
    def reference(self, task):
        return replace(super().reference(task), key=f"{number(self):016x}")


class TestAnyReference(Base):
    made = AnyReference
    expected = "test_baseline_and_reference_are_stable_candidates"


class FoundBaseline(Able):
    def baseline(self, task):
        return replace(super().baseline(task), origin=Origin.SEARCH)


class TestFoundBaseline(Base):
    made = FoundBaseline
    expected = "test_baseline_and_reference_are_stable_candidates"


class NoPeak(Able):
    def peak_flops(self, target):
        return 0.0


class TestNoPeak(Base):
    made = NoPeak
    expected = "test_the_peak_is_a_number_of_operations"


class Lenient(Cold):
    slack = float("nan")


class IsLenient(Kernels):
    kernel = Lenient


class TestLenient(Base):
    made = IsLenient
    expected = "test_what_a_kernel_says_of_itself_can_be_recorded"


class Slow(Cold):
    least_sample_s = float("nan")


class IsSlow(Kernels):
    kernel = Slow


class TestSlow(Base):
    made = IsSlow
    expected = "test_what_a_kernel_says_of_itself_can_be_recorded"


class Traited(Cold):
    traits = MappingProxyType({"tile": (4, 8)})  # a tuple comes back from JSON as a list


class IsTraited(Kernels):
    kernel = Traited


class TestTraited(Base):
    made = IsTraited
    expected = "test_what_a_kernel_says_of_itself_can_be_recorded"


class Lazy(Cold):
    def run(self):
        pass


class IsLazy(Kernels):
    kernel = Lazy


class TestLazy(Base):
    made = IsLazy
    expected = "test_poison_overwrites_outputs_and_run_overwrites_poison"


class Timeless(Cold):
    def time(self, calls):
        return float("nan")


class IsTimeless(Kernels):
    kernel = Timeless


class TestTimeless(Base):
    made = IsTimeless
    expected = "test_time_is_positive_and_finite_and_leaves_results_right"


class StaysCold(Cold):
    def use_cold_constants(self, buffers):
        self._inputs = [np.zeros_like(array) for array in self._inputs]


class IsCold(Kernels):
    kernel = StaysCold


class TestStaysCold(Base):
    made = IsCold
    expected = "test_only_time_reads_weights_from_elsewhere"


class Networks(Able):
    network = FakeCompiledNetwork

    def load_network(self, archive, threads=None):
        found = super().load_network(archive, threads)
        found.__class__ = self.network
        return found


class BundlesNothing(FakeDialect):
    def bundle(self, archive, directory, runtime=None):
        pass


class TestBundlesNothing(Base):
    made = BundlesNothing
    expected = "test_a_bundle_is_written_or_refused"


class CombinesAnything(FakeDialect):
    def combine(self, parts, writer):
        return [writer.copy_part(parts[0], "0")]


class TestCombinesAnything(Base):
    made = CombinesAnything
    expected = "test_files_are_combined_for_several_targets_or_refused"


class Unordered(FakeCompiledNetwork):
    def __call__(self, *arrays):
        return super().__call__(*arrays)[::-1]


class IsUnordered(Networks):
    network = Unordered


class TestUnordered(Base):
    made = IsUnordered
    expected = "test_a_compiled_network_runs"


class Unchecked(FakeCompiledNetwork):
    def checked(self, arrays):
        return arrays[: len(self.inputs)]


class IsUnchecked(Networks):
    network = Unchecked


class TestUnchecked(Base):
    made = IsUnchecked
    expected = "test_a_compiled_network_runs"


class Elsewhere(FakeCompiledNetwork):
    def __call__(self, *arrays, out=None):
        return super().__call__(*arrays)


class IsElsewhere(Networks):
    network = Elsewhere


class TestElsewhere(Base):
    made = IsElsewhere
    expected = "test_a_compiled_network_runs"


class Instant(FakeCompiledNetwork):
    def time(self, arrays, calls):
        return 0.0


class IsInstant(Networks):
    network = Instant


class TestInstant(Base):
    made = IsInstant
    expected = "test_a_compiled_network_runs"


class Guesses(FakeCompiledNetwork):
    def profile(self, arrays):
        return {"kernel": float("nan")}


class Guessing(Networks):
    network = Guesses


class TestGuesses(Base):
    made = Guessing
    expected = "test_a_profile_is_of_times"


class Nameless(Able):
    def load_network(self, archive, threads=None):
        found = super().load_network(archive, threads)
        found.inputs, found.outputs = found.outputs, found.inputs
        return found


class TestNameless(Base):
    made = Nameless
    expected = "test_a_compiled_network_runs"
