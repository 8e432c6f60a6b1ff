from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tunery._errors import BlobNotFoundError
from tunery.domain import Candidate, Measurement, Mode, Origin, Outcome, Task, Verification
from tunery.measuring.racing import Rule
from tunery.measuring.selection import winner
from tunery.measuring.settings import MeasuringSettings
from tunery.testing.fake_blobs import FakeBlobs
from tunery.testing.fake_measuring import bimodal, gaussian

BenchMaker = Callable[..., Any]


def test_a_good_candidate_is_verified_and_sampled(bench: BenchMaker) -> None:
    machine = bench()
    result = machine.race(noise=gaussian(0.02), first=5.0)
    assert result.outcome is Outcome.OK
    assert result.mode is Mode.RACE
    assert 6 <= len(result.samples_s) <= 10
    assert result.latency_s == pytest.approx(1e-3, rel=0.02)  # the slow first run does not count
    assert result.verification.passed
    assert result.verification.inputs == Verification.FULL, "the next incumbent must be right on all inputs"
    assert machine.race(0.99e-3, noise=gaussian(0.02)).verification.inputs == 1
    assert result.measure_s >= sum(result.samples_s)
    assert result.context["affinity_held"]
    assert result.context["contaminated"] is False
    assert machine.device.conditions().items() <= result.context.items()
    assert result.context["device"] == machine.measurer.describe().fingerprint


def test_losers_cost_one_or_two_runs(bench: BenchMaker) -> None:
    machine = bench()
    unknown = machine.race(incumbent_s=1e-3, latency_s=1.9e-3, noise=gaussian(0.02))
    assert unknown.outcome is Outcome.ABANDONED
    assert len(unknown.samples_s) == 1
    far_slower = machine.race(incumbent_s=1e-3, latency_s=20e-3)
    assert far_slower.outcome is Outcome.ABANDONED
    assert machine.dialect.kernels["c"].executions == 1
    assert "warm-up-only" in far_slower.context["flags"]
    for _ in range(50):
        machine.race(incumbent_s=1e-3, noise=gaussian(0.01), first=1.3)
    known = [machine.race(incumbent_s=1e-3, latency_s=1.7e-3, noise=gaussian(0.01), first=1.3) for _ in range(16)]
    assert all(one.outcome is Outcome.ABANDONED for one in known)
    assert sum("warm-up-only" in one.context["flags"] for one in known) == 15, "one shows whether it is still so"
    cold = known[0].context["cold"]
    assert cold["warm_up"]["shift"] == pytest.approx(0.3, abs=0.01)
    assert cold["first"]["shift"] < 0.01


def test_a_warm_up_beside_others_is_judged_by_its_bare_time(bench: BenchMaker) -> None:
    machine = bench()
    for _ in range(50):
        machine.race(incumbent_s=1e-3, noise=gaussian(0.01))
    machine.device.interference = [(machine.device.now_s, machine.device.now_s + 1e-3, 4.0)]
    spared = machine.race(incumbent_s=1e-3, noise=gaussian(0.01))
    assert spared.outcome is Outcome.OK
    assert spared.context["warm_up_s"] > 2e-3


def test_a_cold_first_run_of_a_short_kernel_is_no_evidence(bench: BenchMaker) -> None:
    assert bench().race(incumbent_s=1.1e-4, latency_s=1e-4, first=15.0).outcome is Outcome.OK


@pytest.mark.parametrize(("latency_s", "samples"), [(0.12, 1), (0.06, 3)])
def test_of_a_slow_untuned_program_one_sample_is_enough(bench: BenchMaker, latency_s: float, samples: int) -> None:
    machine = bench()
    machine.dialect.scripts["reference"] = {"latency_s": latency_s}
    untuned = Candidate("reference", "task", "{}", Origin.BASELINE)
    result = machine.measurer.race(
        machine.task, machine.artifact("reference"), untuned, None, machine.artifact("reference")
    )
    assert (result.outcome, len(result.samples_s)) == (Outcome.OK, samples)
    assert result.latency_s == pytest.approx(latency_s, rel=0.02)
    assert result.verification.deliverable, "what the others are compared with is right by definition"
    assert len(machine.race(latency_s=0.12).samples_s) > 1, "of a candidate it is not"


def test_the_incumbent_must_be_a_time_to_count(bench: BenchMaker) -> None:
    assert bench().race(incumbent_s=0.0).outcome is Outcome.OK
    assert bench().race(incumbent_s=float("nan")).outcome is Outcome.OK


@pytest.mark.parametrize(
    "compute",
    [
        lambda inputs: [inputs[0] * 2.01],
        lambda inputs: [None],
        lambda inputs: [np.zeros_like(inputs[0])],
        lambda inputs: [np.full_like(inputs[0], np.nan)],
        lambda inputs: [(inputs[0] * 2).astype(np.float64)],
        lambda inputs: [(inputs[0] * 2).T],
    ],
    ids=["wrong", "writes nothing", "constant", "nan", "dtype", "shape"],
)
def test_a_wrong_kernel_is_an_outcome_without_a_time(bench: BenchMaker, compute: Any) -> None:
    result = bench().race(compute=compute, latency_s=1e-6)
    assert result.outcome is Outcome.WRONG_RESULT
    assert result.samples_s == ()
    assert result.detail
    assert not result.verification.passed


def test_whatever_a_kernel_raises_is_an_outcome(bench: BenchMaker) -> None:
    machine = bench()
    result = machine.race(error=RuntimeError("illegal access"))
    assert result.outcome is Outcome.RUN_FAILED
    assert "illegal access" in result.detail
    machine.dialect.scripts["c"] = OSError("no such file")
    assert machine.race(error=OSError("no such file")).outcome is Outcome.RUN_FAILED
    assert machine.race().outcome is Outcome.OK  # and the next measurement is clean


@pytest.mark.parametrize("times", [[0.0] * 99, [float("nan")], [1e-3, float("inf")], [1e-3, 0.0]])
def test_impossible_times_never_become_samples(bench: BenchMaker, times: list[float]) -> None:
    result = bench().race(times=times)
    assert result.outcome is Outcome.RUN_FAILED
    assert result.samples_s == ()
    assert "clock" in result.detail


def test_a_failing_reference_is_named(bench: BenchMaker) -> None:
    machine = bench()
    machine.dialect.scripts["reference"] = RuntimeError("boom")
    result = machine.race()
    assert result.outcome is Outcome.RUN_FAILED
    assert result.detail.startswith("the reference failed")


def test_a_restarted_worker_does_not_pay_for_the_reference_again(bench: BenchMaker) -> None:
    blobs = FakeBlobs()
    first, second = (bench(blobs) for _ in range(2))
    first.race()
    first.race()
    second.race()
    assert sorted(first.dialect.loaded) == ["c", "c", *["reference"] * Verification.FULL]
    assert second.dialect.loaded == ["c"]


def test_an_artifact_that_is_not_on_this_host_is_no_outcome_of_its_candidate(bench: BenchMaker) -> None:
    machine = bench()
    machine.dialect.scripts["c"] = {}
    mine, reference = machine.artifact("c"), machine.artifact("reference")
    for absent, arguments in (
        ("1" * 64, (replace(mine, blob="1" * 64), Candidate("c", "t", "{}"), None, reference)),
        ("2" * 64, (mine, Candidate("c", "t", "{}"), None, replace(reference, blob="2" * 64))),
    ):
        with pytest.raises(BlobNotFoundError) as caught:
            machine.measurer.race(machine.task, *arguments)
        assert caught.value.digest == absent
        with pytest.raises(BlobNotFoundError):
            machine.measurer.finals(machine.task, [arguments[0]], [arguments[1]], arguments[3], 3)


def test_the_machine_s_noise_is_learned(bench: BenchMaker) -> None:
    machine = bench()
    for _ in range(30):
        last = machine.race(noise=bimodal(0.4, 0.5))
    assert last.context["noise"] > 3 * Rule().noise


def test_load_is_marked_and_repeated_and_a_constant_one_is_confessed(bench: BenchMaker) -> None:
    spell = bench(interference=[(0.103, 0.106, 3.0)]).race(noise=gaussian(0.05))
    assert spell.context["contaminated_s"]
    assert spell.context["contaminated"] is False
    assert max(spell.samples_s) < 1.5e-3
    constant = bench(interference=[(0.0, 1e9, 1.5)]).race(noise=gaussian(0.05))
    assert constant.outcome is Outcome.OK
    assert constant.context["contaminated"] is True


def test_results_cross_the_border_as_json(bench: BenchMaker) -> None:
    machine = bench()
    adapter = TypeAdapter(Measurement)
    finals = machine.finals(a={}, b={"compute": lambda inputs: [inputs[0]]}, rounds=3)
    for result in (machine.race(), machine.race(compute=lambda inputs: [inputs[0] * np.nan]), *finals):
        assert adapter.validate_json(adapter.dump_json(result)) == result
    task = machine.task
    assert TypeAdapter(Task).validate_json(TypeAdapter(Task).dump_json(task)).key == task.key


def test_finals_verify_fully_and_interleave(bench: BenchMaker) -> None:
    machine = bench()
    results = machine.finals(rounds=12, a={"noise": gaussian(0.01)}, b={"noise": gaussian(0.01), "latency_s": 1.1e-3})
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK]
    assert all(result.mode is Mode.FINAL and result.verification.deliverable for result in results)
    assert all(len(result.samples_s) == 12 for result in results)
    assert results[0].latency_s < results[1].latency_s
    assert results[0].verification.inputs == Verification.FULL
    assert all(result.context["isolated"] for result in results)
    assert results[0].context["energy"]["joules"] >= 0


def test_drift_hits_all_finalists_alike(bench: BenchMaker) -> None:
    machine = bench(interference=[(start, start + 0.05, 1.015) for start in np.arange(0.2, 5, 0.1).tolist()])
    results = machine.finals(rounds=40, a={"latency_s": 2e-3}, b={"latency_s": 1.97e-3})
    assert results[1].latency_s < results[0].latency_s
    assert winner([Candidate("a", "t", ""), Candidate("b", "t", "")], results) is not None


def test_one_bad_finalist_does_not_stop_the_others(bench: BenchMaker) -> None:
    results = bench().finals(
        rounds=5,
        good={},
        wrong={"compute": lambda inputs: [inputs[0]]},
        crashing={"error": RuntimeError("boom")},
        late={"times": [1e-3, 1e-3, 1e-3, 1e-3, float("nan")]},
    )
    expected = [Outcome.OK, Outcome.WRONG_RESULT, Outcome.RUN_FAILED, Outcome.RUN_FAILED]
    assert [result.outcome for result in results] == expected
    assert [len(result.samples_s) for result in results] == [5, 0, 0, 0]


def test_a_kernel_right_on_the_first_input_only_is_wrong_in_the_finals(bench: BenchMaker) -> None:
    answers: list[Any] = []

    def remembers(inputs: Any) -> Any:
        answers.append(inputs[0] * 2)
        return [answers[0]]

    (result,) = bench().finals(rounds=3, a={"compute": remembers})
    assert result.outcome is Outcome.WRONG_RESULT


def test_a_contaminated_round_is_repeated_as_a_whole(bench: BenchMaker) -> None:
    machine = bench(interference=[(0.12, 0.125, 4.0)])
    slower = {"noise": gaussian(0.01), "latency_s": 1.5e-3}
    fast, slow = machine.finals(rounds=12, a={"noise": gaussian(0.01)}, b=slower)
    assert fast.context["repeated_rounds"] >= 1
    assert len(fast.context["contaminated_s"]) == fast.context["repeated_rounds"]
    assert len(slow.context["contaminated_s"]) == fast.context["repeated_rounds"] + 1, "it was disturbed: again at once"
    assert len(fast.samples_s) == len(slow.samples_s) == 12
    assert fast.context["contaminated"] is False


def test_finals_on_a_constantly_loaded_machine_end_and_say_so(bench: BenchMaker) -> None:
    (result,) = bench(interference=[(0.0, 1e9, 2.0)]).finals(rounds=6, a={})
    assert result.outcome is Outcome.OK
    assert len(result.samples_s) == 6
    assert result.context["contaminated"] is True


def test_a_slow_baseline_takes_few_samples(bench: BenchMaker) -> None:
    fast, slow = bench().finals(rounds=20, fast={}, slow={"latency_s": 3e-3})
    assert len(fast.samples_s) == 20
    assert len(slow.samples_s) == MeasuringSettings().final_least


def test_naive_loops_run_once_in_a_race_and_once_in_the_finals(bench: BenchMaker) -> None:
    machine = bench()
    raced = machine.race(latency_s=1.0)
    assert (raced.outcome, raced.samples_s) == (Outcome.OK, (1.0,))
    fast, naive = machine.finals(rounds=20, fast={}, c={"latency_s": 1.0})
    assert len(fast.samples_s) == 20
    assert naive.samples_s == (1.0,)
    assert not naive.verification.deliverable
    assert machine.device.now_s < 2.5, "it ran more often than it was counted"


def test_a_slow_finalist_that_may_win_is_verified_fully(bench: BenchMaker) -> None:
    slow, slower = bench().finals(slow={"latency_s": 0.4}, slower={"latency_s": 0.6})
    assert slow.verification.deliverable
    assert slower.verification.deliverable
    answers: list[Any] = []

    def remembers(inputs: Any) -> Any:
        answers.append(inputs[0] * 2)
        return [answers[0]]

    (wrong,) = bench().finals(a={"latency_s": 0.4, "compute": remembers})
    assert wrong.outcome is Outcome.WRONG_RESULT


def test_threads_that_stray_while_timing_contaminate(bench: BenchMaker) -> None:
    machine = bench()
    machine.device.strays = iter([False, True, False, True])
    raced, (final,) = machine.race(), machine.finals(rounds=3, a={})
    for result in (raced, final):
        assert result.outcome is Outcome.OK
        assert result.context["affinity_held"] is False
        assert result.context["contaminated"] is True


def test_the_settings_key_names_every_setting() -> None:
    base = MeasuringSettings()
    changed = [
        replace(base, retries=6),
        replace(base, least_sample_s=1e-3),
        replace(base, rule=Rule(error=0.02)),
        replace(base, seed=1),
    ]
    assert len({settings.key for settings in (base, *changed)}) == 5
    assert MeasuringSettings().key == base.key


def test_a_clock_that_shows_everybody_the_same_times_is_refused(bench: BenchMaker) -> None:
    machine = bench()
    same = {"times": [1e-3, 1.1e-3, 1.2e-3] * 8}
    assert machine.race(**same).outcome is Outcome.OK
    machine.dialect.scripts["d"] = same
    built, reference = machine.artifact("d"), machine.artifact("reference")
    second = machine.measurer.race(machine.task, built, Candidate("d", "t", "{}"), None, reference)
    assert second.outcome is Outcome.RUN_FAILED
    assert "candidate c" in second.detail
    finals = machine.finals(a={"times": [1e-3] * 99}, b={"times": [1e-3] * 99}, c={"noise": gaussian(0.01)})
    assert [one.outcome for one in finals] == [Outcome.RUN_FAILED, Outcome.RUN_FAILED, Outcome.OK]


def test_on_a_coarse_clock_equal_times_are_no_sign_of_a_broken_one(bench: BenchMaker) -> None:
    machine = bench()
    machine.measurer._overhead_s = 1e-4
    steps = {"times": [2e-3, 2.1e-3, 2e-3] * 8, "latency_s": 2e-3}
    for key in ("c", "d"):
        machine.dialect.scripts[key] = steps
        built, reference, candidate = machine.artifact(key), machine.artifact("reference"), Candidate(key, "t", "{}")
        assert machine.measurer.race(machine.task, built, candidate, None, reference).outcome is Outcome.OK


def test_a_measurement_beside_others_is_marked_and_allowed_their_disturbance(bench: BenchMaker) -> None:
    machine = bench(sharing={2: 1.2})
    machine.dialect.scripts["c"] = {"latency_s": 0.99e-3, "noise": gaussian(0.002)}
    machine.device.busy = 2
    arguments = (
        machine.task, machine.artifact("c"), Candidate("c", "t", "{}"), 1e-3, machine.artifact("reference"), 2,
    )  # fmt: skip
    strict, shared = (machine.measurer.race(*arguments, deviation) for deviation in (0.0, 0.2))
    assert strict.outcome is Outcome.ABANDONED, "a true winner is lost if the disturbance is not allowed for"
    assert shared.outcome is Outcome.OK
    assert shared.mode is Mode.SHARED
    assert (shared.context["degree"], shared.context["isolated"], shared.context["deviation"]) == (2, False, 0.2)
    machine.device.busy = 1
    alone = machine.race(1e-3, noise=gaussian(0.002))
    assert (alone.mode, alone.context["degree"], alone.context["isolated"]) == (Mode.RACE, 1, True)


def test_the_finals_say_how_far_the_machine_drifted(bench: BenchMaker) -> None:
    ramp = [1e-3 * (1 + i / 100) for i in range(99)]
    result = bench().finals(a={"times": ramp, "noise": gaussian(0.01)})
    assert result[0].context["drift"] > 0.02


def test_with_cold_caches_kernels_are_timed_after_a_flush(bench: BenchMaker) -> None:
    machine = bench(settings=MeasuringSettings(cache="cold"))
    result = machine.race(noise=gaussian(0.01))
    assert result.context["cache"] == "cold"
    assert result.context["calls"] == 1
    assert machine.device.flushes >= len(result.samples_s)


def test_finals_find_weights_elsewhere_and_races_do_not(bench: Callable[..., Any]) -> None:
    for cache, rotates in (("network", True), ("warm", False), ("cold", False)):
        machine = bench(settings=MeasuringSettings(cache=cache))
        assert machine.race().context["cache"] == cache
        assert machine.dialect.kernels["c"].buffers is None
        machine.finals(a={})
        assert (machine.dialect.kernels["a"].buffers is not None) == rotates


def test_a_kernel_that_loses_infinities_is_wrong(bench: BenchMaker) -> None:
    def bounded(inputs: list[np.ndarray]) -> list[np.ndarray]:
        return [np.clip(2 * inputs[0], -1e30, 1e30)]

    raced, (final,) = bench().race(compute=bounded), bench().finals(a={"compute": bounded})
    assert (raced.outcome, final.outcome) == (Outcome.WRONG_RESULT, Outcome.WRONG_RESULT)
