"""The virtual clock: deterministic, within its bound, and robust to losses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_jobs import (
    Mix,
    MockHost,
    MockJob,
    Rates,
    Step,
    cpu_mix,
    gpu_mix,
    hosts_mix,
    recorded_unit_s,
    tuning_job,
)
from rival_strategies import STRATEGIES
from scheduler_tools import replay, validate
from simulator import Loss, lower_bound_s, simulate
from studies.mixes import simulate_mixes, summarize

from tunery.scheduling import Scheduler

ONE = {"core": 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_stage_runs_once_within_capacity_and_not_below_the_bound(strategy):
    mix = gpu_mix(13)
    run = simulate(mix, strategy, keep_log=True)
    assert len(run.gantt) == len({row.stage_id for row in run.gantt}) == sum(len(c) for j in mix.jobs for c in j.chains)
    assert run.makespan_s >= run.bound_s * 0.999999
    edges = sorted([(r.end_s, 0, r) for r in run.gantt] + [(r.start_s, 1, r) for r in run.gantt], key=lambda e: e[:2])
    used = dict.fromkeys(mix.resources, 0)
    for _, begins, row in edges:
        for name, amount in row.needs.items():
            used[name] += amount if begins else -amount
            assert used[name] <= mix.resources[name]
    replay(run.log)


def test_the_same_mix_gives_the_same_run():
    one, two = (simulate(cpu_mix(3), keep_log=True) for _ in range(2))
    assert one == two
    assert simulate(cpu_mix(4)).makespan_s != one.makespan_s


def test_lower_bound_is_work_path_or_late_arrival():
    step = Step("build", "", {"core": 1}, 1, 2.0)
    assert lower_bound_s(Mix({"core": 2}, (MockJob("a", ((step,),) * 6, in_flight=9),))) == 6.0
    assert lower_bound_s(Mix({"core": 9}, (MockJob("a", ((step,),) * 6, in_flight=2),))) == 6.0
    assert (
        lower_bound_s(Mix({"core": 2}, (MockJob("a", ((step,),) * 2, 9), MockJob("b", ((step,),) * 6, 9, at_s=5.0))))
        == 11.0
    )


def test_lost_devices_cost_time_and_no_stage():
    mix = gpu_mix(13)
    whole = simulate(mix)
    losses = [Loss(float(at_s), "device:gpu", 30.0) for at_s in range(5, 60, 5)]
    hurt = simulate(mix, losses=losses, keep_log=True)
    assert {row.stage_id for row in hurt.gantt} == {row.stage_id for row in whole.gantt}
    assert hurt.finished_s.keys() == whole.finished_s.keys()
    replay(hurt.log)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    losses=st.lists(st.tuples(st.floats(0.0, 60.0), st.booleans(), st.floats(0.1, 40.0)), max_size=5),
)
def test_any_mix_with_losses_keeps_every_state_valid_and_replays(strategy, seed, losses):
    rng = np.random.default_rng(seed)
    needs = {"propose": ONE, "build": ONE, "measure": {"device:gpu": 1}, "learn": ONE}
    jobs = tuple(
        tuning_job(
            rng, f"job{n}", needs, tasks=2, batches=3, size=4, in_flight=3, scale=Rates(0.1, 0.5, 0.3, 0.02),
            owner=f"o{n % 2}", priority=n % 3, at_s=float(rng.uniform(0, 20)), stragglers=0.1,
        )
        for n in range(3)
    )  # fmt: skip
    handle = Scheduler.handle

    def checked(self, *events):
        decisions = handle(self, *events)
        validate(self)
        return decisions

    mix = Mix({"core": 3, "device:gpu": 2}, jobs)
    lost = [Loss(at_s, "core" if core else "device:gpu", back_s) for at_s, core, back_s in losses]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "handle", checked)
        run = simulate(mix, strategy, losses=lost, keep_log=True)
    refused = {refusal.subject for refusal in run.refused}
    ended = {row.stage_id for row in run.gantt}
    assert refused.isdisjoint(ended)
    assert refused or len(ended) == sum(len(c) for j in jobs for c in j.chains)
    assert replay(run.log).log == run.log


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [3, 12])
def test_over_hosts_that_join_and_leave_every_stage_ends_once_and_where_it_can(strategy, seed):
    mix = hosts_mix(seed)
    hosts = {host.core: host for host in mix.hosts}
    run = simulate(mix, strategy, keep_log=True)
    assert len(run.gantt) == len({row.stage_id for row in run.gantt}) == sum(len(c) for j in mix.jobs for c in j.chains)
    assert run.finished_s.keys() == {job.job_id for job in mix.jobs}
    assert run.makespan_s >= run.bound_s * 0.999999
    further = [(row, hosts[name]) for row in run.gantt for name in row.needs if name in hosts]
    assert further
    for row, host in further:
        assert row.kind == "build"
        assert host.joins_s <= row.start_s <= row.end_s <= host.leaves_s
    replay(run.log)


def test_builds_run_at_the_pace_and_distance_of_their_host_and_bring_the_end_forward():
    chain = (Step("build", "", {"core": 1}, 1, 2.0, roams=True),)
    job = MockJob("a", (chain,) * 12, in_flight=12)
    alone = simulate(Mix({"core": 2}, (job,)))
    assert alone.makespan_s == alone.bound_s == 12.0
    fast = MockHost("fast", cores=2, speed=2.0, delay_s=0.5)
    run = simulate(Mix({"core": 2}, (job,), (fast,)))
    assert run.makespan_s == pytest.approx(6.0)
    assert run.bound_s == pytest.approx(12 * 2.0 / (2 + 2 * 2.0 / 1.5))
    assert {row.end_s - row.start_s for row in run.gantt if "fast/core" in row.needs} == {1.5}
    assert 0.0 < run.busy["fast/core"] <= 1.0
    late = simulate(Mix({"core": 2}, (job,), (MockHost("late", 4, joins_s=4.0),)))
    assert late.makespan_s == 8.0, "what waits goes to a host that comes"
    gone = simulate(Mix({"core": 2}, (job,), (MockHost("gone", 4, leaves_s=1.0),)))
    assert gone.makespan_s == pytest.approx(12.0)
    assert len(gone.gantt) == 12


def test_recorded_durations_drive_a_mix():
    unit_s = recorded_unit_s(simulate(cpu_mix(1), keep_log=True).log)
    assert set(unit_s) == {f"kind{n}" for n in range(5)}
    assert all(set(kinds) == {"propose", "build", "measure", "learn"} for kinds in unit_s.values())
    mix = gpu_mix(13, [{"build": [0.5]}])
    builds = {s.duration_s for j in mix.jobs for c in j.chains for s in c if s.kind == "build"}
    assert builds == {8.0}


@pytest.mark.jobs
@pytest.mark.parametrize(("mixes", "bound"), [(8, 1.06), pytest.param(40, 1.05, marks=pytest.mark.slow)])
def test_predictive_beats_greedy_over_mixes(mixes, bound):
    summary = {s.strategy: s for s in summarize(simulate_mixes(range(mixes), ("greedy", "predictive")))}
    assert summary["predictive"].mixes == mixes
    assert summary["predictive"].ratio_median <= bound, "the median of a few mixes is chance"
    assert summary["predictive"].ratio_median < summary["greedy"].ratio_median
    assert summary["predictive"].finish_of_greedy <= 1.0, "the mean job ends no later"
    assert summary["predictive"].of_greedy_worst <= 1.07
    assert summary["predictive"].owner_wait_worst <= 0.15
    assert summary["greedy"].of_greedy_worst == 1.0


@pytest.mark.jobs
def test_one_users_jobs_end_one_after_the_other_where_measuring_needs_all_cores():
    def make(seed, recorded):
        return cpu_mix(seed, recorded, jobs=4, owners=1)

    found = simulate_mixes(range(6), ("greedy", "predictive", "sequential"), make=make)
    summary = {s.strategy: s for s in summarize(found)}
    assert summary["predictive"].of_greedy_median <= 1.03
    assert summary["predictive"].finish_of_greedy <= 0.85
    assert summary["predictive"].of_greedy_median < summary["sequential"].of_greedy_median


def test_a_job_nobody_can_run_is_refused_and_others_finish():
    good = Step("build", "", {"core": 1}, 1, 1.0)
    bad = Step("measure", "", {"device:tpu": 1}, 1, 1.0)
    jobs = (MockJob("good", ((good,),)), MockJob("bad", ((bad,),)), MockJob("worse", ((good,),), priority=-1))
    run = simulate(Mix({"core": 1}, jobs))
    assert set(run.finished_s) == {"good"}
    assert [refusal.subject for refusal in run.refused] == ["bad/0/0", "worse"]
    assert "'device:tpu', which does not exist" in run.refused[0].reason
