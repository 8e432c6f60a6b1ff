"""What defines each strategy."""

import itertools
import math
import statistics

import pytest
import rival_strategies  # noqa: F401 - adds them
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_jobs import Mix, MockJob, Step
from simulator import simulate

from tunery.scheduling import (
    CapacityChanged,
    JobEnded,
    JobSubmitted,
    Run,
    Scheduler,
    StageFinished,
    StageReady,
    StageRequest,
)

ONE, WIDE = {"core": 1}, {"core": 2, "device:cpu": 1}


def ready(stage_id, job_id="j", at_s=0.0, kind="build", needs=ONE, **fields):
    return StageReady(at_s, StageRequest(stage_id, job_id, kind, needs=needs, **fields))


def runs(decisions):
    return [d.stage_id for d in decisions if isinstance(d, Run)]


def start(strategy, resources=None, jobs=("j",), **fields):
    scheduler = Scheduler(resources or {"core": 2, "device:cpu": 1}, strategy)
    for job in jobs:
        scheduler.handle(JobSubmitted(0, job, owner=job, **fields))
    return scheduler


def test_sequential_leaves_the_next_job_waiting_until_the_first_ends():
    scheduler = start("sequential", jobs=("j", "k"))
    assert runs(scheduler.handle(ready("a"))) == ["a"]
    assert runs(scheduler.handle(ready("b", "k"))) == []
    assert runs(scheduler.handle(StageFinished(1, "a"))) == []
    assert runs(scheduler.handle(JobEnded(2, "j"))) == ["b"]


def test_synchronous_holds_the_next_kind_until_a_step_is_over():
    scheduler = start("synchronous", {"core": 2, "device:gpu": 1})
    scheduler.handle(ready("a"), ready("b"))
    assert runs(scheduler.handle(ready("m", kind="measure", needs={"device:gpu": 1}))) == []
    assert runs(scheduler.handle(StageFinished(1, "a"))) == []
    assert runs(scheduler.handle(StageFinished(2, "b"))) == ["m"]


def test_greedy_lets_narrow_stages_pass_a_wide_one_that_fair_would_wait_for():
    for strategy, passes in (("greedy", ["c"]), ("fair", [])):
        scheduler = start(strategy)
        scheduler.handle(ready("a"), ready("w", kind="measure", needs=WIDE))
        assert runs(scheduler.handle(ready("c"))) == passes


def stream(strategy, until_s):
    """Feed two endless, staggered streams of builds; return when a wide stage that is ready at 0.5 starts."""
    scheduler = start(strategy)
    running = {stage: 1.0 + 0.5 * n for n, stage in enumerate(runs(scheduler.handle(ready("0"), ready("1"))))}
    scheduler.handle(ready("w", at_s=0.5, kind="measure", needs=WIDE))
    count = 1
    while running:
        stage = min(running, key=running.__getitem__)
        now_s = running.pop(stage)
        if now_s > until_s:
            return None
        count += 1
        started = runs(scheduler.handle(StageFinished(now_s, stage), ready(str(count), at_s=now_s)))
        if "w" in started:
            return now_s
        running.update((name, now_s + 1.0) for name in started)
    return None


def test_predictive_reserves_room_for_a_wide_stage_that_greedy_starves():
    assert stream("greedy", 200.0) is None
    assert 10.0 < stream("predictive", 200.0) < 20.0


def test_predictive_fills_the_wait_for_a_reservation_only_with_what_ends_in_time():
    scheduler = start("predictive")
    for kind, seconds in (("train", 100.0), ("build", 50.0)):
        scheduler.durations.observe(kind, "", 1, seconds)
    scheduler.handle(ready("first", kind="train"))
    scheduler.handle(ready("wide", kind="measure", needs=WIDE))
    assert runs(scheduler.handle(ready("short", at_s=20.0, kind="build"))) == ["short"]
    assert runs(scheduler.handle(StageFinished(20.5, "short"))) == []
    assert runs(scheduler.handle(ready("long", at_s=21.0, kind="train"))) == []
    assert runs(scheduler.handle(StageFinished(90.0, "first"))) == ["wide"]
    assert runs(scheduler.handle(StageFinished(91.0, "wide"))) == ["long"]


@pytest.mark.parametrize(("weight", "priority", "share"), [(1.0, 0, 0.5), (3.0, 0, 0.75), (1.0, 2, 0.8)])
def test_predictive_shares_by_weight_and_priority_between_owners(weight, priority, share):
    scheduler = Scheduler({"core": 1})
    scheduler.handle(JobSubmitted(0, "j", "ann", weight, priority), JobSubmitted(0, "k", "bob"))
    events = [ready(f"{job}{n}", job) for n in range(2000) for job in "jk"]
    (running,) = runs(scheduler.handle(*events))
    served = []
    for now_s in range(1, 1000):
        served.append(running[0])
        (running,) = runs(scheduler.handle(StageFinished(now_s, running)))
    assert served.count("j") / len(served) == pytest.approx(share, abs=0.03)


@pytest.mark.jobs
@settings(max_examples=10, deadline=None)
@given(
    owners=st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(0, 2), st.integers(1, 3)), min_size=2, max_size=4
    ),
    cores=st.integers(1, 3),
    seconds=st.lists(st.floats(0.2, 3.0), min_size=1, max_size=5),
)
def test_owners_get_their_shares_of_the_time_however_many_jobs_they_have(owners, cores, seconds):
    scheduler = Scheduler({"core": cores}, keep_log=False)
    events = []
    for n, (weight, priority, jobs) in enumerate(owners):
        for job in range(jobs):
            events.append(JobSubmitted(0.0, f"{n}/{job}", f"o{n}", weight, priority, planned=100 * (job + 1)))
            events += [ready(f"{n}/{job}/{i}", f"{n}/{job}") for i in range(cores)]
    running, used, count = {}, [0.0] * len(owners), 0
    now_s = 0.0
    for _ in range(2500):
        for stage in runs(scheduler.handle(*events)):
            count += 1
            running[stage] = (now_s + seconds[count % len(seconds)], now_s)
        stage = min(running, key=running.__getitem__)
        now_s, began_s = running.pop(stage)
        owner, job, _ = stage.split("/")
        used[int(owner)] += now_s - began_s
        events = [StageFinished(now_s, stage), ready(f"{owner}/{job}/x{count}", f"{owner}/{job}", now_s)]
    shares = [weight * 2.0**priority for weight, priority, _ in owners]
    # Every job has as many stages at a time as there are cores: nobody's share is cut by having too few.
    for mine, share in zip(used, shares, strict=True):
        assert mine / sum(used) == pytest.approx(share / sum(shares), abs=0.05)


def test_predictive_serves_the_least_rest_first_inside_an_owner_but_not_only_that():
    scheduler = Scheduler({"core": 1})
    scheduler.handle(JobSubmitted(0, "s", "ann", planned=290), JobSubmitted(0, "l", "ann", planned=100_000))
    (running,) = runs(scheduler.handle(*(ready(f"{job}{n}", job) for n in range(300) for job in "ls")))
    order = []
    for now_s in range(1, 280):
        order.append(running[0])
        (running,) = runs(scheduler.handle(StageFinished(now_s, running)))
    assert order[1:50].count("s") > 40
    assert order.count("l") >= 3


@pytest.mark.parametrize("first", ["import", "build"])
def test_one_slow_stage_makes_no_job_of_its_owner_wait_for_long(first):
    scheduler = Scheduler({"core": 1})
    scheduler.handle(*(JobSubmitted(0, job, "ann", planned=100_000 * (n + 1)) for n, job in enumerate("abc")))
    scheduler.handle(ready("a:first", "a", kind=first))
    now_s = 1000.0
    (running,) = runs(scheduler.handle(StageFinished(now_s, "a:first"), *(ready(f"{j}:0", j, now_s) for j in "abc")))
    served = []
    for n in range(1, 600):
        now_s += 1
        job = running[0]
        served.append(job)
        (running,) = runs(scheduler.handle(StageFinished(now_s, running), ready(f"{job}:{n}", job, now_s)))
    for job in "abc":
        turns = [-1, *(at for at, one in enumerate(served) if one == job), len(served)]
        assert max(later - turn for turn, later in itertools.pairwise(turns)) <= 64 + 64 + 3


def builds(job_id, count, in_flight, seconds=1.0):
    step = Step("build", "", ONE, 1, seconds)
    return MockJob(job_id, ((step,),) * count, in_flight, owner="ann")


def test_predictive_ends_short_jobs_early_and_leaves_no_long_one_to_run_alone():
    short = tuple(builds(f"short{n}", 25, in_flight=4) for n in range(4))
    mix = Mix({"core": 2}, (builds("slow", 100, in_flight=1), builds("large", 100, in_flight=8), *short))
    ours, greedy = simulate(mix, "predictive"), simulate(mix, "greedy")
    assert ours.ratio < 1.05
    assert ours.ratio < greedy.ratio
    assert statistics.mean(ours.finished_s.values()) < 0.9 * statistics.mean(greedy.finished_s.values())


def test_a_shape_waits_for_its_own_host_only():
    scheduler = Scheduler({"a/core": 1, "b/core": 1, "b/device:cpu": 1})
    scheduler.handle(JobSubmitted(0, "j"))
    assert runs(scheduler.handle(ready("1", needs={"a/core": 1}), ready("2", needs={"b/core": 1}))) == ["1", "2"]
    wide = {"b/core": 1, "b/device:cpu": 1}
    assert runs(scheduler.handle(ready("3", needs={"a/core": 1}), ready("4", kind="measure", needs=wide))) == []
    assert runs(scheduler.handle(CapacityChanged(1, "a/core", 2))) == ["3"]
    assert runs(scheduler.handle(StageFinished(2, "1"))) == []
    assert runs(scheduler.handle(StageFinished(3, "2"))) == ["4"]


def test_the_oldest_stage_is_next_inside_a_job():
    scheduler = start("predictive", {"core": 1})
    scheduler.handle(ready("a"))
    scheduler.handle(ready("old"), ready("new"))
    assert runs(scheduler.handle(StageFinished(1, "a"))) == ["old"]


def longest_wait(strategy, floods, seconds, modest):
    """Return the modest job's longest wait, and what bounds it, while others keep more ready than ever runs.

    `floods` are (owner, weight, priority) of jobs with three builds ready at any time; the `modest` one, of owner 0 or
    of one of theirs, has one stage at a time, narrow or wide. Stages take `seconds` in turn.
    """
    scheduler = Scheduler({"core": 2, "device:cpu": 1}, strategy, keep_log=False)
    owner, wide = modest
    events = []
    for n, (other, weight, priority) in enumerate(floods):
        events.append(JobSubmitted(0.0, str(n), f"o{other}", weight, priority, planned=100_000))
        events += [ready(f"{n}/-{i}", str(n)) for i in range(1, 4)]
    # 16 typical stages of patience between shapes, 64 inside an owner, and what shares of 1 in 17 wait for.
    bound_s = (16 + 64 + 2 * 17) * max(seconds)
    names, count, worst_s, since_s = itertools.count(1), 0, 0.0, 0.0
    running = {stage: seconds[n] for n, stage in enumerate(runs(scheduler.handle(*events)))}
    events = [JobSubmitted(0.0, "modest", f"o{owner}", planned=10), ready("modest/0", "modest", 0.0, *stage_of(wide))]
    now_s = 0.0
    while now_s < 2.5 * bound_s:
        for stage in runs(scheduler.handle(*events)):
            count += 1
            running[stage] = now_s + seconds[count % len(seconds)]
            if stage.startswith("modest"):
                worst_s = max(worst_s, now_s - since_s)
                since_s = math.inf
        stage = min(running, key=running.__getitem__)
        now_s = running.pop(stage)
        job = stage.split("/")[0]
        more = stage_of(wide) if job == "modest" else ("build", ONE)
        since_s = now_s if job == "modest" else since_s
        events = [StageFinished(now_s, stage), ready(f"{job}/{next(names)}", job, now_s, *more)]
    return max(worst_s, now_s - since_s), bound_s


def stage_of(wide):
    return ("measure", WIDE) if wide else ("build", ONE)


@pytest.mark.parametrize("strategy", ["fair", "predictive"])
@settings(max_examples=15, deadline=None)
@given(
    floods=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 1)), min_size=1, max_size=5
    ),
    seconds=st.lists(st.floats(1.0, 3.0), min_size=2, max_size=7),
    modest=st.tuples(st.integers(0, 2), st.booleans()),
)
def test_no_job_waits_without_bound_while_others_flood_the_queue(strategy, floods, seconds, modest):
    worst_s, bound_s = longest_wait(strategy, floods, seconds, modest)
    assert worst_s <= bound_s


def test_the_bound_on_waiting_is_one_that_greedy_breaks():
    worst_s, bound_s = longest_wait("greedy", [(1, 1.0, 0)], [1.0, 1.7, 2.3], (0, True))
    assert worst_s > 2 * bound_s
