"""What every dialect must keep, as a pytest suite that a plug-in's author runs on their own dialect.

    import pytest
    from tunery.testing.dialect_contract import DialectContract

    class TestMyDialect(DialectContract):
        @pytest.fixture(scope="class")
        @classmethod
        def dialect(cls): return MyDialect()

        @pytest.fixture(scope="class")
        @classmethod
        def network(cls): return small_network()

        @pytest.fixture(scope="class")
        @classmethod
        def target(cls, dialect): return dialect.resolve_target("native", 1)

The three fixtures have class scope or wider, so a slow compiler extracts and builds once. Class attributes set how much
is tried, and what the dialect `heeds`; `task` (the task that is searched), the fixtures whose names begin with
`other_`, `cost_model` and `inputs` may be overridden. Tests of what a dialect cannot do are skipped; one that takes no
tasks from networks gives a fixture `tasks` instead of `network`.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tunery._archive import Archive, new_archive
from tunery._errors import DialectError, ModelError, TargetError, UsageError
from tunery.costmodels.columns import fold
from tunery.devices import Device, device_class
from tunery.dialects import (
    Built,
    Codegen,
    Compiled,
    CompiledNetwork,
    CrossCompiler,
    NetworkCompiler,
    Observation,
    RecordChecker,
    RecordWriter,
    Space,
    Suggestions,
    TaskSource,
)
from tunery.domain import (
    Candidate,
    CheckState,
    DeviceDescription,
    Environment,
    Measurement,
    Mode,
    Network,
    OperatorKey,
    OperatorKeyError,
    Origin,
    Outcome,
    Provenance,
    Record,
    Target,
    Task,
)
from tunery.testing._dialect_help import (
    AlignedZeros,
    ContractFixtures,
    Loaded,
    NoDevice,
    WholeDialect,
    is_poison,
    keys,
    load,
    needs,
    outputs_of,
    random_array,
    tell_tale,
)


class DialectContract(ContractFixtures):
    """Inherit in a class named `Test...`, give the fixtures `dialect`, `network` and `target`, and run pytest."""

    # Who it is

    def test_its_processes_are_described_as_plain_data(self, dialect: WholeDialect) -> None:
        """Workers are started by it on any host, and those that are alike share a process to start from."""
        environment = dialect.environment()
        adapter = TypeAdapter(Environment)
        assert adapter.validate_json(adapter.dump_json(environment)) == environment, "it does not survive JSON"
        assert type(dialect)().environment().key == environment.key, "two instances want two kinds of process"

    def test_its_checks_say_what_to_do(self, dialect: WholeDialect) -> None:
        """`tunery doctor` prints one line for each, with advice where something is amiss."""
        for check in dialect.doctor():
            assert check.name, "a check without a name"
            assert check.found, f"the check {check.name} says nothing"
            assert check.advice or check.state is CheckState.OK, f"the check {check.name} fails without advice"

    def test_its_packages_are_installed(self, dialect: WholeDialect) -> None:
        """Their versions are what `tunery version` prints."""
        for package in dialect.packages:
            assert version(package), f"{package} has no version"

    def test_it_says_whether_models_script_it(self, dialect: WholeDialect) -> None:
        assert dialect.scripted in {True, False}

    def test_it_names_a_device_that_is_installed(self, dialect: WholeDialect) -> None:
        """Measurers open it by its kind."""
        try:
            found = device_class(dialect.device).kind
        except UsageError as error:
            raise AssertionError(f"its device: {error}") from error
        assert found == dialect.device

    def test_what_its_own_environment_holds_is_pinned(self, dialect: WholeDialect) -> None:
        """An environment that is made again has the same versions."""
        assert [one for one in dialect.requirements if "==" not in one] == []

    def test_it_says_whether_it_runs_code_of_its_users(self, dialect: WholeDialect) -> None:
        """Jobs of one that does are measured in processes of their own; a text such as `"no"` would count as yes."""
        assert dialect.runs_users_code in {True, False}, f"{dialect.runs_users_code!r} is neither True nor False"

    # Targets and tasks

    @pytest.mark.parametrize("spec", ["no-such-target", '{"kind":', '{"kind": "no-such-kind"}', ""])
    def test_an_unknown_target_raises_target_error(self, dialect: WholeDialect, spec: str) -> None:
        """A user's mistake in a target is told as such."""
        with pytest.raises(TargetError):
            dialect.resolve_target(spec, 1)

    def test_a_target_is_plain_data_that_resolves_to_itself(self, dialect: WholeDialect, target: Target) -> None:
        """`native` is known, threads are kept, and a stored target can be read again from its JSON."""
        native = dialect.resolve_target("native", 2)
        assert native.dialect == dialect.name, f"target of dialect {native.dialect!r}, not {dialect.name!r}"
        assert native.threads == 2, f"asked for 2 threads, got {native.threads}"
        again = dialect.resolve_target(json.dumps(dict(target.config)), target.threads)
        assert again.key == target.key, f"{target.config} resolves to {again.config}"

    @needs(CrossCompiler)
    def test_code_for_another_machine_is_for_its_device(
        self, dialect: WholeDialect, other_device: DeviceDescription
    ) -> None:
        """Its targets are as those of this machine; what no code is made for is refused."""
        native = dialect.resolve_target_of("native", 2, other_device)
        assert (native.dialect, native.threads) == (dialect.name, 2), f"asked for 2 threads, got {native}"
        assert dialect.resolve_target_of("native", 1, other_device).threads == 1, "asked for 1 thread"
        assert type(dialect)().resolve_target_of("native", 2, other_device) == native, "each instance has another"
        again = dialect.resolve_target_of(json.dumps(dict(native.config)), 2, other_device)
        assert again.key == native.key, f"{native.config} resolves to {again.config}"
        nothing = DeviceDescription("no-such-kind", "no such device", (0,), {})
        for spec, told in (("no-such-target", other_device), ("native", nothing)):
            with pytest.raises(TargetError):
                dialect.resolve_target_of(spec, 2, told)

    def test_a_target_is_of_a_family_of_processors(
        self, dialect: WholeDialect, target: Target, other_target: Target
    ) -> None:
        """One word, part of a file's name, that depends on the target alone."""
        used, kind = type(dialect)(), {"kind": "other", "mcpu": "other"}
        configs: tuple[Mapping[str, Any], ...] = ({}, target.config, other_target.config, kind)
        for config in configs:
            family = used.family(config)
            assert re.fullmatch(r"[\w.+-]+", family), f"{family!r} cannot be part of a file's name"
            assert type(dialect)().family(config) == family, f"{dict(config)} is of two families"

    def test_the_compiler_is_named_the_same_by_each_instance(self, dialect: WholeDialect) -> None:
        """Provenance of records: the compiler's name and version do not depend on the process."""
        assert dialect.compiler, "the compiler has no name"
        assert type(dialect)().compiler == dialect.compiler, "two instances name two compilers"

    def test_extraction_finds_unique_tasks_with_positive_weights(self, tasks: list[Task], target: Target) -> None:
        """Tasks are merged by key, each with its call sites."""
        assert tasks, "no tasks were extracted"
        assert len({task.key for task in tasks}) == len(tasks), "two tasks have one key"
        assert len({task.workload.key for task in tasks}) == len(tasks), "two tasks have one workload"
        for task in tasks:
            assert task.weight >= 1, f"{task.workload.name} has weight {task.weight}"
            assert task.target == target, f"{task.workload.name} has another target"
            assert task.workload.output_specs, f"{task.workload.name} has no outputs"
            assert 0 <= task.workload.flop < math.inf, f"{task.workload.name} counts {task.workload.flop} operations"
        work = [task.weight * task.workload.flop for task in tasks]
        assert work == sorted(work, reverse=True), "the heaviest work does not come first"

    @needs(TaskSource)
    def test_extraction_is_deterministic(
        self, dialect: WholeDialect, network: Network, target: Target, tasks: list[Task]
    ) -> None:
        """The same request in another process must find its records: a new instance gives the same tasks."""
        assert type(dialect)().extract(network, target) == tasks, "a second instance extracted other tasks"

    def test_operator_keys_are_canonical(self, tasks: list[Task]) -> None:
        """They are compared as text with those of other dialects; a task without one is None."""
        keys = [task.workload.operator for task in tasks if task.workload.operator is not None]
        for key in keys:
            try:
                same = str(OperatorKey.parse(key))
            except OperatorKeyError as error:
                raise AssertionError(f"{key!r} {error}") from error
            assert same == key, f"{key} should be written as {same}"

    @needs(TaskSource)
    def test_task_keys_change_with_the_target(
        self, dialect: WholeDialect, network: Network, tasks: list[Task], other_target: Target
    ) -> None:
        """Records of one target are never served for another, while workloads are independent of it."""
        others = dialect.extract(network, other_target)
        assert not {task.key for task in tasks} & {task.key for task in others}, "two targets share a task key"
        if other_target.config == tasks[0].target.config:
            mine, theirs = ({task.workload.key for task in side} for side in (tasks, others))
            assert mine == theirs, "the number of threads changed a workload's key"

    @needs(TaskSource)
    def test_nodes_left_to_onnx_runtime_have_reasons(
        self, dialect: WholeDialect, network: Network, target: Target
    ) -> None:
        """Users are told of each, the same whoever asks."""
        told = dialect.elsewhere(network, target)
        assert all(told.values()), "a node is left to ONNX Runtime without a reason"
        assert type(dialect)().elsewhere(network, target) == told, "a second instance leaves other nodes"

    @needs(TaskSource)
    def test_a_network_of_its_own_has_a_name_that_is_found_again(self, dialect: WholeDialect, network: Network) -> None:
        """What is none of its networks is a user's mistake; one that comes from no file is known by its source."""
        if network.source.startswith(f"{dialect.name}:"):
            assert dialect.own_network(network.source) == network, f"{network.source} is another network"
        with pytest.raises(ModelError):
            dialect.own_network(f"{dialect.name}:")

    # Search

    @needs(Space)
    def test_proposals_are_unique_and_belong_to_the_task(self, task: Task, proposed: list[Candidate]) -> None:
        """No candidate is paid for twice."""
        assert len(proposed) <= self.proposals, f"asked for {self.proposals}, got {len(proposed)}"
        assert len({candidate.key for candidate in proposed}) == len(proposed), "a candidate was proposed twice"
        assert {candidate.task_key for candidate in proposed} <= {task.key}, "a candidate of another task"
        assert all(candidate.origin is Origin.SEARCH for candidate in proposed), "a proposal that was not searched for"

    @needs(Space)
    def test_proposals_are_deterministic_for_a_seed(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """A recorded run can be replayed."""
        again = type(dialect)().open(task, [], None, 0).propose(self.proposals)
        assert keys(again) == keys(proposed), "the same seed proposed other candidates"

    @needs(Space)
    def test_nothing_is_proposed_again_though_results_come_late(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """Pipelining asks before it tells; results come out of order, and not for all."""
        proposer = dialect.open(task, [], None, 1)
        assert proposer.propose(0) == [], "asked for none, got some"
        proposer.observe([])
        waiting = proposer.propose(self.proposals)
        assert waiting or not proposed, "a search that is asked for none says that it is over"
        batch = proposer.propose(self.proposals)
        proposer.observe(tell_tale(batch, [Outcome.OK])[::-2])
        after = proposer.propose(self.proposals)
        seen = keys([*waiting, *batch, *after])
        assert len(set(seen)) == len(seen), "a candidate was proposed twice"

    @needs(Space)
    def test_what_is_observed_is_not_proposed(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """Somebody else has paid for it: another search of the task, or an earlier process."""
        proposer = dialect.open(task, [], None, 0)
        proposer.observe([])
        proposer.observe(tell_tale(proposed, [Outcome.OK]))
        again = proposer.propose(self.proposals)
        assert not set(keys(again)) & set(keys(proposed)), "what was observed is proposed"

    @needs(Space)
    def test_what_is_not_worth_a_build_has_a_reason_and_is_named_once(self, dialect: WholeDialect, task: Task) -> None:
        """What a search refuses is recorded beside what it proposes; no judgement breaks the search."""
        proposer = dialect.open(task, [], None, 3)
        offered = proposer.propose(self.proposals)
        refused = [*proposer.refused(), *proposer.refused()]
        assert all(why and candidate.task_key == task.key for candidate, why in refused), "refused without a reason"
        seen = keys([*offered, *(candidate for candidate, _ in refused), *proposer.propose(self.proposals)])
        assert len(set(seen)) == len(seen), "one was refused and proposed, or refused twice"
        assert all(dialect.reject(task, candidate) != "" for candidate in offered), "rejected without a reason"

    @needs(Space, Codegen)
    def test_every_outcome_is_heard(self, dialect: WholeDialect, task: Task) -> None:
        """No outcome breaks the search, nor does a candidate that was not proposed here."""
        proposer = dialect.open(task, [], None, 2)
        batch = proposer.propose(len(Outcome))
        proposer.observe([*tell_tale(batch, list(Outcome)), Observation(dialect.baseline(task), Outcome.OK, 1e-3)])
        assert not set(keys(proposer.propose(self.proposals))) & set(keys(batch)), "a candidate was proposed twice"

    @needs(Space, Codegen)
    def test_a_resumed_search_does_not_repeat_its_history(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """Whatever was measured before a process was lost is not paid for again, with the same seed."""
        history = [*tell_tale(proposed, list(Outcome)), Observation(dialect.baseline(task), Outcome.OK, 1e-3)]
        resumed = dialect.open(task, history, None, 0).propose(self.proposals)
        assert not set(keys(resumed)) & set(keys(proposed)), "a candidate of the history was proposed again"

    @needs(Space)
    def test_a_forgotten_task_can_be_searched_again(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """What is dropped between two searches of a task is a matter of memory and time only."""
        fresh = type(dialect)()
        fresh.forget(task)
        batch = fresh.open(task, [], None, 0).propose(self.proposals)
        rows = fresh.features(task, batch)
        fresh.forget(task)
        if rows is not None:
            afresh = fresh.features(task, batch)
            assert afresh is not None, "no features"
            np.testing.assert_array_equal(afresh.values, rows.values)
        again = fresh.open(task, [], None, 0).propose(self.proposals)
        assert keys(again) == keys(proposed), "the same seed proposed other candidates after the task was forgotten"

    @needs(Space)
    def test_a_search_takes_every_option(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate], cost_model: str
    ) -> None:
        """With whatever it is opened, it proposes new candidates of its task, the same ones in every new process."""
        history = tell_tale(proposed, [Outcome.OK])
        options: list[dict[str, Any]] = [{"warm_start": True}, {"generic_only_reason": "a search of more has crashed"}]
        for more in options:
            first, again = (
                type(dialect)().open(task, history, cost_model, 5, **more).propose(self.proposals) for _ in range(2)
            )
            assert keys(again) == keys(first), f"with {more} the same seed proposed other candidates"
            assert {candidate.task_key for candidate in first} <= {task.key}, f"with {more}: of another task"
            seen = keys([*proposed, *first])
            assert len(set(seen)) == len(seen), f"with {more} a candidate was proposed twice"

    @needs(Space)
    def test_a_search_uses_the_cost_model_it_is_given(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate], cost_model: str
    ) -> None:
        """From the start or later; where the dialect has features, its proposals carry the model's scores."""
        opened, told = dialect.open(task, [], cost_model, 6), dialect.open(task, [], None, 6)
        told.propose(self.proposals)
        told.learn(cost_model)
        for proposer in (opened, told):
            batch = proposer.propose(self.proposals)
            assert len(set(keys(batch))) == len(batch), "a candidate was proposed twice"
            assert all(c.score is None or math.isfinite(c.score) for c in batch), "a score is no number"
            if proposed and dialect.features(task, proposed) is not None:
                assert any(candidate.score is not None for candidate in batch), "the cost model was ignored"

    @needs(Space)
    def test_a_search_uses_the_cost_model_that_it_was_given_last(
        self, dialect: WholeDialect, task: Task, cost_model: str, other_cost_model: str
    ) -> None:
        """It learns as often as a job does."""
        batches = []
        for models in ((cost_model,), (cost_model, other_cost_model)):
            proposer = dialect.open(task, [], None, 6)
            for model in models:
                proposer.learn(model)
            batches.append([(candidate.key, candidate.score) for candidate in proposer.propose(self.proposals)])
        if any(score is not None for _, score in batches[0]) and other_cost_model != cost_model:
            assert batches[0] != batches[1], "the second cost model was ignored"

    @needs(Space)
    def test_an_answer_is_of_what_was_asked_alone(
        self, dialect: WholeDialect, task: Task, other_task: Task, cost_model: str, other_cost_model: str
    ) -> None:
        """One process serves many tasks: one that was used for others answers as a new one does."""
        used, fresh = (type(dialect)() for _ in range(2))
        used.open(task, [], cost_model, 0).propose(1)
        used.suggest(task, 1, cost_model, 0)
        mine, theirs = (one.open(other_task, [], other_cost_model, 9).propose(self.proposals) for one in (used, fresh))
        assert mine == theirs, "a search proposes by what was asked for another task"
        suggested = [one.suggest(other_task, 2, other_cost_model, 9) for one in (used, fresh)]
        assert suggested[0] == suggested[1], "candidates are suggested by what was asked for another task"
        looks = used.open(task, [], None, 0).propose(self.proposals), used.open(other_task, [], None, 0).propose(2)
        for each, candidates in zip((task, other_task), looks, strict=True):
            if "reject" in self.heeds:
                found = [(used.reject(each, one), type(dialect)().reject(each, one)) for one in candidates]
                assert all(mine == theirs for mine, theirs in found), "a candidate is judged as another one"
            for method in ("features", "buffer_store_features"):
                left, right = (getattr(one, method)(each, candidates) for one in (used, type(dialect)()))
                left, right = (getattr(rows, "values", rows) for rows in (left, right))
                np.testing.assert_equal(left, right, err_msg=f"{method} of another task")
            assert used.count(each) == type(dialect)().count(each), "another task's candidates are counted"
            chosen = [(used.parameters(each, one), type(dialect)().parameters(each, one)) for one in candidates]
            assert all(mine == theirs for mine, theirs in chosen), "a candidate is told as another one"

    @needs(Space)
    def test_what_candidates_choose_tells_one_from_another(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """They are plain data, or none, and there are no more than it counts."""
        told = [json.dumps(dict(dialect.parameters(task, one)), sort_keys=True) for one in proposed]
        assert set(told) == {"{}"} or len(set(told)) == len(proposed), "two candidates are told by the same parameters"
        number = dialect.count(task)
        assert number is None or number >= len(proposed), "there are more candidates than it counts"

    @needs(Space)
    @pytest.mark.parametrize("option", ["warm_start", "generic_only_reason"])
    def test_what_a_search_heeds_makes_a_difference(self, dialect: WholeDialect, task: Task, option: str) -> None:
        """An author says which options these are; no dialect needs to have a use for each."""
        if f"open.{option}" not in self.heeds:
            pytest.skip(f"this dialect has no use for {option}")
        more: dict[str, Any] = {option: True if option == "warm_start" else "a search of more has crashed"}
        plain, other = (type(dialect)().open(task, [], None, 0, **given) for given in ({}, more))
        assert plain.propose(self.proposals) != other.propose(self.proposals), f"{option} is ignored"

    @needs(Space)
    @pytest.mark.parametrize("option", ["transfer_states", "several_fallbacks"])
    def test_what_suggestions_heed_makes_a_difference(
        self, dialect: WholeDialect, task: Task, other_task: Task, cost_model: str, option: str
    ) -> None:
        """As for searches."""
        if f"suggest.{option}" not in self.heeds:
            pytest.skip(f"this dialect has no use for {option}")
        state = dialect.suggest(other_task, self.proposals, cost_model, 7).transfer_state
        more: dict[str, Any] = {option: True if option == "several_fallbacks" else (state,)}
        found = [dialect.suggest(task, self.proposals, cost_model, 7, **given) for given in ({}, more)]
        assert found[0] != found[1], f"{option} is ignored"

    @needs(Space)
    def test_suggestions_are_candidates_of_the_task(self, dialect: WholeDialect, task: Task, cost_model: str) -> None:
        """They are few, the same in every process, and what one task taught is taken in for the next."""
        found = dialect.suggest(task, self.proposals, cost_model, 7)
        again = type(dialect)().suggest(task, self.proposals, cost_model, 7)
        assert keys(again.candidates) == keys(found.candidates), "the same seed suggested other candidates"
        more = dialect.suggest(task, self.proposals, cost_model, 7, (found.transfer_state,), several_fallbacks=True)
        adapter = TypeAdapter(Suggestions)
        for each in (found, more):
            candidates = [*each.candidates, *each.fallbacks]
            assert len(each.candidates) <= self.proposals, f"asked for {self.proposals}, got {len(each.candidates)}"
            assert len(set(keys(candidates))) == len(candidates), "a candidate was suggested twice"
            assert {candidate.task_key for candidate in candidates} <= {task.key}, "a candidate of another task"
            assert adapter.validate_json(adapter.dump_json(each)) == each, "they do not survive JSON"

    @needs(Space)
    def test_calibration_tasks_are_of_known_kinds_and_can_be_searched(
        self, dialect: WholeDialect, target: Target, other_target: Target
    ) -> None:
        """A device is calibrated with their candidates, for the target that was asked for."""
        found = dialect.calibration_tasks(target)
        assert set(found) <= {"compute", "memory"}, f"tasks of the kinds {sorted(found)}"
        others = dialect.calibration_tasks(other_target).values()
        assert all(task.target == other_target for task in others), "they are for another target"
        for kind, task in found.items():
            assert task.target == target, f"the task of the kind {kind} has another target"
            assert task.tunable, f"the task of the kind {kind} has no candidates"
            assert dialect.open(task, [], None, 0).propose(1), f"the task of the kind {kind} has no candidates"

    # What comes from elsewhere

    @needs(Codegen, RecordWriter)
    def test_records_are_written_in_the_formats_that_it_names(
        self, dialect: WholeDialect, task: Task, other_task: Task
    ) -> None:
        """The same text for the same records; a format that it does not know is a user's mistake."""
        where = Provenance(dialect.name, dialect.compiler, "a device", "settings")
        records, others = (
            [Record(dialect.baseline(each), Measurement(outcome, (1e-3,), Mode.RACE), where) for outcome in Outcome]
            for each in (task, other_task)
        )
        assert dialect.formats, "it can write, and knows no format"
        for name in dialect.formats:
            text = dialect.write_records(task, records, "a device", name)
            assert text == type(dialect)().write_records(task, records, "a device", name), "another text"
            assert text != dialect.write_records(task, [], "a device", name), "records are not written"
            told = [one.write_records(other_task, others, "another device", name) for one in (dialect, type(dialect)())]
            assert told[0] == told[1], "they are written as records of another task or device"
        with pytest.raises(UsageError):
            dialect.write_records(task, records, "a device", "no-such-format")

    @needs(Space, RecordChecker)
    def test_its_own_workloads_and_candidates_pass_the_checks(
        self, dialect: WholeDialect, tasks: list[Task], task: Task, other_task: Task, proposed: list[Candidate]
    ) -> None:
        """Records are exchanged between stores: what one search made is accepted by another, under the same keys."""
        for one in tasks:
            dialect.check_workload(one.workload)
        for candidate in proposed:
            dialect.check_body(candidate.body)
            assert dialect.identify(task, candidate.body).key == candidate.key
        for candidate in dialect.open(other_task, [], None, 0).propose(1):
            assert dialect.identify(other_task, candidate.body).task_key == other_task.key, "it is another task's"

    @needs(RecordChecker)
    def test_a_workload_with_anothers_key_is_refused(self, dialect: WholeDialect, tasks: list[Task]) -> None:
        """A key is computed from the program: what a file claims of itself decides nothing."""
        workload = tasks[0].workload
        with pytest.raises(DialectError):
            dialect.check_workload(replace(workload, key="0123456789abcdef"))
        with pytest.raises(DialectError):
            dialect.check_workload(replace(workload, program=f"{workload.program} "[1:]))

    @needs(Space)
    def test_candidates_from_elsewhere_are_known_by_what_they_are_or_refused(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """Whoever sends a candidate, or a record of one, decides neither its key nor what else is in it."""
        for candidate in proposed:
            try:
                found = dialect.identify(task, candidate.body)
            except DialectError:  # it takes none
                continue
            assert (found.key, found.task_key) == (candidate.key, task.key), f"{candidate.key} is now {found.key}"
        for text in (self.garbage, "[" * 100_000, '{"a": 1, "a": 2}', "[[1], 2]"):
            with pytest.raises(DialectError):
                dialect.identify(task, text)

    @needs(RecordChecker)
    def test_garbage_from_elsewhere_is_refused(self, dialect: WholeDialect, task: Task) -> None:
        """Whatever text a file holds in the place of a program or of a body, there is one kind of error for it."""
        for text in (self.garbage, "[" * 100_000, '{"a": 1, "a": 2}', "[[1], 2]"):
            with pytest.raises(DialectError):
                dialect.check_workload(replace(task.workload, program=text))
            with pytest.raises(DialectError):
                dialect.check_body(text)

    # Build and load

    @needs(Codegen)
    def test_baseline_and_reference_are_stable_candidates(self, dialect: WholeDialect, tasks: list[Task]) -> None:
        """They are compared with records from other processes."""
        fresh = type(dialect)()
        for task in tasks[: self.kernels]:
            baseline, reference = dialect.baseline(task), dialect.reference(task)
            assert baseline.origin is Origin.BASELINE, f"the baseline of {task.workload.name} is not marked as such"
            assert {baseline.task_key, reference.task_key} == {task.key}, f"{task.workload.name}: foreign candidates"
            assert fresh.baseline(task) == baseline, f"{task.workload.name} has two baselines"
            assert fresh.reference(task) == reference, f"{task.workload.name} has two references"

    @needs(Codegen)
    def test_build_is_repeatable(self, dialect: WholeDialect, task: Task, tmp_path: Path) -> None:
        """A candidate has one artifact by content, so two builds of it are one blob."""
        candidate = dialect.baseline(task)
        built = []
        for name in ("first", "second"):
            directory = tmp_path / name
            directory.mkdir()
            built.append(dialect.build(task, candidate, directory))
            assert built[-1].candidate_key == candidate.key, "the artifact names another candidate"
            assert built[-1].path.parent == directory, f"{built[-1].path} lies outside of {directory}"
        first, second = built
        assert first.path.read_bytes() == second.path.read_bytes(), "the same build has two contents"
        assert first.manifest == second.manifest, "the same build has two manifests"

    @needs(Codegen)
    def test_a_built_candidate_is_known_by_its_content(
        self, dialect: WholeDialect, task: Task, device: Device, tmp_path: Path
    ) -> None:
        """It is loaded under another name, apart from all else of its build; what is torn is refused."""
        built = dialect.build(task, dialect.baseline(task), tmp_path)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        moved = replace(built, path=built.path.rename(elsewhere / ("0" * 64)))
        inputs = self.inputs(task, seed=0)
        expected = outputs_of(load(dialect, task, dialect.reference(task), tmp_path, device), inputs)
        self.check(outputs_of(type(dialect)().load(task, moved, device), inputs), expected, task.workload.output_specs)
        torn = elsewhere / ("1" * 64)
        whole = moved.path.read_bytes()
        torn.write_bytes(whole[: len(whole) // 2])
        for path in (torn, elsewhere / "missing"):
            with pytest.raises(DialectError):
                dialect.load(task, replace(moved, path=path), device)

    @needs(Codegen)
    def test_a_device_of_an_unknown_kind_is_refused(
        self, dialect: WholeDialect, task: Task, device: Device, tmp_path: Path
    ) -> None:
        """A kernel that was built for one kind of device is not run on whatever there is."""
        built = dialect.build(task, dialect.baseline(task), tmp_path)
        dialect.load(task, built, device)
        with pytest.raises(DialectError):
            dialect.load(task, built, NoDevice())

    @needs(NetworkCompiler)
    def test_a_part_is_of_what_was_asked(  # noqa: PLR0917 - pytest passes fixtures by name
        self, dialect: WholeDialect, network: Network, target: Target, task: Task, other_task: Task, tmp_path: Path
    ) -> None:
        """Another task's, in another directory; a network that heeds parts cannot do without the file of one."""
        made = []
        for number, each in enumerate((task, other_task)):
            chosen, directory = dialect.baseline(each), tmp_path / str(number)
            directory.mkdir()
            part = dialect.build_part(each, chosen, directory)
            if part is None:
                pytest.skip("this dialect has no parts")
            assert part.candidate_key == chosen.key, "the part names another candidate"
            assert part.path.parent == directory, f"{part.path} lies outside of {directory}"
            alone = tmp_path / f"{number} alone"
            alone.mkdir()
            again = type(dialect)().build_part(each, chosen, alone)
            assert again is not None, "a second instance has no parts"
            assert again.path.read_bytes() == part.path.read_bytes(), "a part is of another task"
            made.append(part)
        if "compile.parts" in self.heeds:
            part = made[0]
            part.path.unlink()
            with pytest.raises(DialectError):
                dialect.compile(
                    network, target, {task.workload.key: dialect.baseline(task)}, tmp_path / "network.bin",
                    {task.workload.key: part},
                )  # fmt: skip

    @needs(NetworkCompiler)
    def test_a_part_spares_nothing_but_time(  # noqa: PLR0917 - pytest passes fixtures by name
        self, dialect: WholeDialect, network: Network, target: Target, task: Task, compiled: Compiled, tmp_path: Path
    ) -> None:
        """What `build_part` leaves is taken into a network, or not; what the network computes is the same."""
        chosen = dialect.baseline(task)
        part = dialect.build_part(task, chosen, tmp_path)
        if part is None:
            pytest.skip("this dialect has no parts")
        assert part.candidate_key == chosen.key, "the part names another candidate"
        moved = replace(part, path=part.path.rename(tmp_path / ("0" * 64)))
        key = task.workload.key
        made = dialect.compile(network, target, {key: chosen}, tmp_path / "network.bin", {key: moved})
        assert made.coverage[key] == chosen.key, "the chosen candidate is not used"
        rng = np.random.default_rng(0)
        given = [random_array(spec, rng) for spec in network.inputs]
        found = _load_network(dialect, Path(made.path))(*given)
        self.check(found, _load_network(dialect, Path(compiled.path))(*given), network.outputs)

    @needs(Codegen)
    def test_garbage_raises_dialect_error_and_leaves_no_litter(
        self, dialect: WholeDialect, task: Task, tmp_path: Path
    ) -> None:
        """A broken record is an outcome, not a crash."""
        with pytest.raises(DialectError):
            dialect.build(task, Candidate("0" * 16, task.key, self.garbage), tmp_path)
        assert not list(tmp_path.iterdir()), "a failed build left files"

    @needs(Space, Codegen)
    def test_a_proposal_computes_what_the_reference_computes(
        self, dialect: WholeDialect, device: Device, task: Task, proposed: list[Candidate], tmp_path: Path
    ) -> None:
        """At least one of the first proposals builds, and its outputs are right."""
        inputs = self.inputs(task, seed=2)
        expected = outputs_of(load(dialect, task, dialect.reference(task), tmp_path, device), inputs)
        for candidate in proposed:
            try:
                built = dialect.build(task, candidate, tmp_path)
            except DialectError:
                continue
            self.check(outputs_of(dialect.load(task, built, device), inputs), expected, task.workload.output_specs)
            return
        assert not proposed, "none of the first proposals builds"
        pytest.skip("this space proposed nothing")

    # Kernels

    @needs(Codegen)
    def test_the_baseline_agrees_with_the_reference(self, loaded: list[Loaded]) -> None:
        """The compiler's default is right, in the specs' shapes and types."""
        for item in loaded:
            found = outputs_of(item.kernel, item.inputs)
            described = [(array.shape, str(array.dtype)) for array in found]
            assert described == [(spec.shape, spec.dtype) for spec in item.task.workload.output_specs]
            self.check(found, item.expected, item.task.workload.output_specs)

    @needs(Codegen)
    def test_bind_copies_its_inputs(self, loaded: list[Loaded]) -> None:
        """What happens to the caller's arrays after bind changes nothing; a second bind replaces the first."""
        for item in loaded:
            inputs = [array.copy() for array in item.inputs]
            outputs = item.task.workload.output_specs
            self.check(outputs_of(item.kernel, self.inputs(item.task, seed=1)), item.expected_of_others, outputs)
            item.kernel.bind(inputs)
            for array in inputs:
                array.fill(0)
            item.kernel.poison()
            item.kernel.run()
            self.check(item.kernel.outputs(), item.expected, item.task.workload.output_specs)

    @needs(Codegen)
    def test_poison_overwrites_outputs_and_run_overwrites_poison(self, loaded: list[Loaded]) -> None:
        """A kernel that writes only a part cannot pass on what another left in its buffers."""
        for item in loaded:
            outputs_of(item.kernel, item.inputs)
            item.kernel.poison()
            poisoned = item.kernel.outputs()
            for array in poisoned:
                assert is_poison(array).all(), f"{item.task.workload.name}: poison left some of an output as it was"
            item.kernel.run()
            item.kernel.run()
            self.check(item.kernel.outputs(), item.expected, item.task.workload.output_specs)
            assert all(is_poison(array).all() for array in poisoned), "outputs() returned the buffers, not copies"

    @needs(Codegen)
    def test_outputs_are_copies(self, loaded: list[Loaded]) -> None:
        """Changing what was returned does not change the kernel's buffers."""
        for item in loaded:
            for array in outputs_of(item.kernel, item.inputs):
                array.fill(1)
            self.check(item.kernel.outputs(), item.expected, item.task.workload.output_specs)

    @needs(Codegen)
    def test_time_is_positive_and_finite_and_leaves_results_right(self, loaded: list[Loaded]) -> None:
        """A clock that says zero or NaN would win or break every comparison."""
        for item in loaded:
            outputs_of(item.kernel, item.inputs)
            for calls in (1, 3):
                elapsed_s = item.kernel.time(calls)
                assert 0 < elapsed_s < math.inf, f"{item.task.workload.name}: {calls} calls took {elapsed_s} s"
            self.check(item.kernel.outputs(), item.expected, item.task.workload.output_specs)
        self.check_calls(loaded[0].kernel.time)

    @needs(Codegen)
    def test_only_time_reads_weights_from_elsewhere(self, loaded: list[Loaded]) -> None:
        """What is verified computes with the inputs that were bound, whatever was timed before."""
        for item in loaded:
            item.kernel.bind(item.inputs)
            for buffers in (AlignedZeros(), AlignedZeros()):
                item.kernel.use_cold_constants(buffers)
            assert 0 < item.kernel.time(2) < math.inf, f"{item.task.workload.name}: 2 calls took no time"
            assert buffers.taken or "use_cold_constants.buffers" not in self.heeds, "no constant is read from there"
            item.kernel.poison()
            item.kernel.run()
            self.check(item.kernel.outputs(), item.expected, item.task.workload.output_specs)

    @needs(Codegen)
    def test_what_a_kernel_says_of_itself_can_be_recorded(self, loaded: list[Loaded]) -> None:
        """Its tolerance is a number of times the usual one, its samples are short, and its traits are plain data."""
        for item in loaded:
            slack, traits = item.kernel.slack, dict(item.kernel.traits)
            assert 1 <= slack < math.inf, f"{item.task.workload.name}: {slack} times the usual tolerance"
            least_s = item.kernel.least_sample_s
            assert 0 <= least_s <= 1, f"{item.task.workload.name}: samples of {least_s} s are no time, or too long"
            assert json.loads(json.dumps(traits)) == traits, f"{item.task.workload.name}: traits do not survive JSON"

    @needs(Codegen)
    def test_the_peak_is_a_number_of_operations(
        self, dialect: WholeDialect, target: Target, other_target: Target
    ) -> None:
        """A roof that is zero or NaN would break every comparison with it."""
        peak = dialect.peak_flops(target)
        assert peak is None or 0 < peak < math.inf, f"{peak} operations in a second"
        if "peak_flops.target" in self.heeds:
            assert dialect.peak_flops(other_target) != peak, "the target is ignored"

    # Features

    @needs(Space)
    def test_features_of_stores_are_those_that_rows_are_folded_from(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """One array per candidate, a row of it for each store, and its fold begins the candidate's own row."""
        stores = dialect.buffer_store_features(task, proposed)
        if stores is None:
            pytest.skip("this dialect has no features of stores")
        rows = dialect.features(task, proposed)
        assert rows is not None, "features of stores, but none of candidates"
        assert len(stores) == len(proposed), f"{len(proposed)} candidates gave {len(stores)} arrays"
        for row, each in zip(rows, stores, strict=True):
            folded = fold(each)
            np.testing.assert_allclose(row[: len(folded)], folded, rtol=1e-6, err_msg="a row is folded from others")

    @needs(Space, Codegen)
    def test_features_have_a_row_per_candidate(
        self, dialect: WholeDialect, task: Task, proposed: list[Candidate]
    ) -> None:
        """Rows are finite or all NaN, of one width, and do not depend on what else was asked."""
        candidates = [dialect.baseline(task), *proposed, Candidate("0" * 16, task.key, self.garbage)]
        rows = dialect.features(task, candidates)
        if rows is None:
            assert dialect.layout() is None, "a layout without features"
            pytest.skip("this dialect has no features")
        layout = dialect.layout()
        assert layout is not None, "features without a layout"
        assert type(dialect)().layout() == layout, "a second instance has another layout"
        assert rows.layout == layout, f"rows of {rows.layout}, not of {layout}"
        assert rows.values.dtype == np.float32, f"features are {rows.values.dtype}"
        assert len(set(layout.columns)) == len(layout.columns), "two columns have one name"
        assert len(rows) == len(candidates), f"{len(candidates)} candidates gave {len(rows)} rows"
        assert np.isnan(rows.values[-1]).all(), "garbage has features"
        for row in rows:
            assert np.isfinite(row).all() or np.isnan(row).all(), "a row is neither finite nor all NaN"
        if proposed:
            alone = dialect.features(task, proposed[:1])
            assert alone is not None, "no features"
            np.testing.assert_array_equal(alone.values[0], rows.values[1])

    # Networks

    @needs(NetworkCompiler)
    def test_compile_covers_every_task(self, dialect: WholeDialect, compiled: Compiled, tasks: list[Task]) -> None:
        """Coverage names each workload, with its candidate or None; unknown workloads in `chosen` are ignored."""
        data = Path(compiled.path).read_bytes()
        assert data, "the compiled file is empty"
        assert compiled.digest in {"", hashlib.sha256(data).hexdigest()}, "its digest is another file's"
        assert set(compiled.coverage) == {task.workload.key for task in tasks}, "coverage names other workloads"
        chosen = dialect.baseline(tasks[0]).key
        assert compiled.coverage[tasks[0].workload.key] == chosen, "the chosen candidate is not used"
        assert not [key for task in tasks[1:] if (key := compiled.coverage[task.workload.key])], "covered unasked"

    @needs(NetworkCompiler)
    def test_a_file_is_of_what_was_asked_alone(  # noqa: PLR0917 - pytest passes fixtures by name
        self,
        dialect: WholeDialect,
        network: Network,
        other_network: Network,
        other_target: Target,
        compiled: Compiled,
        tmp_path: Path,
    ) -> None:
        """Another network's, for another target, without what was chosen before, where it was asked for."""
        path = tmp_path / "network.bin"
        made = dialect.compile(other_network, other_target, {}, path)
        assert Path(made.path) == path, f"asked for {path}, got {made.path}"
        assert not [key for key in made.coverage.values() if key], "covered unasked"
        first, second = (_load_network(dialect, Path(each.path)) for each in (compiled, made))
        dialect.texts(Path(compiled.path))
        assert dialect.texts(path) == type(dialect)().texts(path), "texts of another file"
        assert second.threads == other_target.threads, "it is for another target"
        for loaded, asked in ((first, network), (second, other_network)):
            described = [(spec.name, spec.shape, spec.dtype) for spec in loaded.inputs]
            assert described == [(spec.name, spec.shape, spec.dtype) for spec in asked.inputs], "another network"

    @needs(TaskSource)
    def test_tasks_are_of_the_network_that_was_asked_for(
        self, dialect: WholeDialect, network: Network, other_network: Network, target: Target, other_target: Target
    ) -> None:
        """One process takes tasks from many networks."""
        used = type(dialect)()
        used.extract(network, target)
        used.elsewhere(network, target)
        asked = other_network, other_target
        assert used.extract(*asked) == type(dialect)().extract(*asked), "another network's tasks"
        fresh = type(dialect)()
        fresh.extract(*asked)
        assert used.elsewhere(*asked) == fresh.elsewhere(*asked), "another network's nodes"

    @needs(NetworkCompiler)
    def test_a_compiled_network_runs(
        self, dialect: WholeDialect, network: Network, target: Target, compiled: Compiled
    ) -> None:
        """It takes and returns what the network says, the same each time, and takes a positive time."""
        loaded = _load_network(type(dialect)(), Path(compiled.path))
        assert loaded.threads == target.threads, f"tuned for {target.threads} threads, loaded for {loaded.threads}"
        for mine, theirs in ((loaded.inputs, network.inputs), (loaded.outputs, network.outputs)):
            assert [(s.shape, s.dtype) for s in mine] == [(s.shape, s.dtype) for s in theirs], f"{mine} is not {theirs}"
        rng = np.random.default_rng(0)
        given = [random_array(spec, rng) for spec in network.inputs]
        found, again = loaded(*given), loaded(*given)
        assert [(a.shape, str(a.dtype)) for a in found] == [(s.shape, s.dtype) for s in network.outputs]
        self.check(again, found, network.outputs)
        places = [np.zeros_like(one) for one in found]
        assert all(np.shares_memory(a, b) for a, b in zip(loaded(*given, out=places), places, strict=True) if b.size)
        self.check(places, found, network.outputs)
        with pytest.raises(UsageError):
            loaded(*given, out=places[1:])
        self.check(loaded(*given), found, network.outputs)
        assert 0 < loaded.time(given, 2) < math.inf, "two calls took no time"
        self.check_calls(lambda calls: loaded.time(given, calls))
        assert list(loaded.checked(given)) == given, "inputs that fit are changed"
        for wrong in ([*given, given[0]], [given[0][..., None], *given[1:]]):
            with pytest.raises(UsageError):
                loaded(*wrong)
            with pytest.raises(UsageError):
                loaded.checked(wrong)
            with pytest.raises(UsageError):
                loaded.time(wrong, 1)
        with pytest.raises(UsageError):
            loaded(*given, first=given[0])
        other = _load_network(dialect, Path(compiled.path), target.threads + 1)
        assert other.threads == target.threads + 1, "`threads` is accepted and ignored"
        self.check(other(*given), found, network.outputs)

    @needs(NetworkCompiler)
    def test_a_bundle_is_written_or_refused(self, dialect: WholeDialect, compiled: Compiled, tmp_path: Path) -> None:
        """A network that cannot be bundled is refused."""
        places = [tmp_path / name for name in ("bundle", "foreign")]
        for place in places:
            place.mkdir()
        copy = tmp_path / "copy"
        copy.write_bytes(Path(compiled.path).read_bytes())
        with Archive(copy) as archive, pytest.raises((UsageError, DialectError)):
            dialect.bundle(archive, places[1], runtime=tmp_path / "nowhere")
        copy.unlink()
        try:
            with Archive(Path(compiled.path)) as archive:
                dialect.bundle(archive, places[0])
        except DialectError:
            return
        assert list(places[0].iterdir()), "nothing is written, and nothing said"

    @needs(NetworkCompiler)
    def test_files_are_combined_for_several_targets_or_refused(
        self, dialect: WholeDialect, network: Network, target: Target, compiled: Compiled, tmp_path: Path
    ) -> None:
        """Files of different targets become one, or are refused; a file is not combined with itself."""
        path, copy, other = Path(compiled.path), tmp_path / "copy", tmp_path / "other"
        copy.write_bytes(path.read_bytes())
        dialect.compile(network, replace(target, threads=target.threads + 1), {}, other)
        with suppress(UsageError, DialectError):
            _combine(dialect, [path, other], tmp_path / "combined")
        with pytest.raises((UsageError, DialectError)):
            _combine(dialect, [path, copy], tmp_path / "twice")
        if not (tmp_path / "combined").exists():
            return
        given = [random_array(spec, np.random.default_rng(0)) for spec in network.inputs]
        alone, both = _load_network(dialect, path), _load_network(dialect, tmp_path / "combined")
        self.check(both(*given), alone(*given), network.outputs)
        _combine(dialect, [path, other], tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "combined").read_bytes(), "the same files, another file"

    @needs(NetworkCompiler)
    def test_a_profile_is_of_times(self, dialect: WholeDialect, network: Network, compiled: Compiled) -> None:
        """Each kernel has its seconds, in one execution however often it is called for it."""
        rng = np.random.default_rng(0)
        loaded = _load_network(dialect, Path(compiled.path))
        given = [random_array(spec, rng) for spec in network.inputs]
        profile = loaded.profile(given)
        assert all(profile), "a kernel without a name"
        assert all(0 <= seconds < math.inf for seconds in profile.values()), f"no times: {dict(profile)}"
        with pytest.raises(UsageError):
            loaded.profile([*given, given[0]])

    @needs(NetworkCompiler)
    def test_texts_of_a_file_are_known_by_their_endings(self, dialect: WholeDialect, compiled: Compiled) -> None:
        """They are written beside the file, each under its own ending."""
        texts = dialect.texts(Path(compiled.path))
        assert all(ending.startswith(".") and "/" not in ending for ending in texts), f"endings {sorted(texts)}"
        assert all(texts.values()), "a text without words"

    @needs(NetworkCompiler)
    def test_no_node_differs_in_a_network_that_is_right(
        self, dialect: WholeDialect, network: Network, other_network: Network, target: Target, other_target: Target
    ) -> None:
        """A node that is named is no longer tuned, so it has to be one at fault."""
        rng = np.random.default_rng(0)
        given, others = ([random_array(spec, rng) for spec in each.inputs] for each in (network, other_network))
        told = dialect.differing(network, target, given)
        if "differing" in self.heeds:
            found = (one.differing(other_network, other_target, others) for one in (dialect, type(dialect)()))
            assert next(found) == next(found), "another network's nodes differ"
        assert not told, f"nodes of a network that is right are said to differ: {sorted(told)}"

    @needs(NetworkCompiler)
    def test_a_failed_compile_leaves_nothing(
        self, dialect: WholeDialect, network: Network, target: Target, task: Task, tmp_path: Path
    ) -> None:
        """A choice that cannot be honoured is refused, or the coverage says that the default was used instead."""
        chosen = {task.workload.key: Candidate("0" * 16, task.key, self.garbage)}
        try:
            compiled = dialect.compile(network, target, chosen, tmp_path / "network.bin")
        except DialectError:
            assert not list(tmp_path.iterdir()), "a failed compile left files"
        else:
            assert compiled.coverage[task.workload.key] is None, "a choice that was not used counts as covered"

    # Borders between processes

    @needs(NetworkCompiler)
    def test_networks_round_trip_as_json(self, network: Network, compiled: Compiled) -> None:
        """As all else does."""
        for kind, value in ((Network, network), (Compiled, compiled)):
            adapter = TypeAdapter[object](kind)
            assert adapter.validate_json(adapter.dump_json(value)) == value, f"{kind} does not survive JSON"

    @needs(Space, Codegen)
    def test_everything_round_trips_as_json(
        self, dialect: WholeDialect, device: Device, loaded: list[Loaded], proposed: list[Candidate], tmp_path: Path
    ) -> None:
        """Any method may run in another process: arguments and results survive the border unchanged."""
        tasks = [item.task for item in loaded]
        task = tasks[0]
        baseline = dialect.baseline(task)
        built = dialect.build(task, baseline, tmp_path)
        values: list[tuple[Any, object]] = [
            (list[Task], tasks),
            (list[Candidate], [*proposed, baseline, dialect.reference(task)]),
            (list[Observation], tell_tale(proposed, list(Outcome))),
            (Built, built),
        ]
        for kind, value in values:
            adapter = TypeAdapter[object](kind)
            again = adapter.validate_json(adapter.dump_json(value))
            assert again == value, f"{kind} does not survive JSON"
        returned: list[Task] = TypeAdapter(list[Task]).validate_json(TypeAdapter(list[Task]).dump_json(tasks))
        assert [t.key for t in returned] == [t.key for t in tasks], "a task's key does not survive JSON"
        kernel = type(dialect)().load(returned[0], built, device)
        self.check(outputs_of(kernel, loaded[0].inputs), loaded[0].expected, task.workload.output_specs)


def _load_network(dialect: WholeDialect, path: Path, threads: int | None = None) -> CompiledNetwork:
    with Archive(path) as archive:
        return dialect.load_network(archive, threads)


def _combine(dialect: WholeDialect, paths: Sequence[Path], output: Path) -> None:
    with ExitStack() as stack, new_archive(output) as writer:
        archives = [stack.enter_context(Archive(path)) for path in paths]
        writer.finish(*dialect.combine(archives, writer))
