"""Who begins next where there is no place for all: no owner's queue and no stream of urgent jobs shuts others out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from tunery.domain import Budget
from tunery.domain.request import ShareRequest
from tunery.service.queue_policy import JobQueue, QueuedJob, has_place, hold_back_s, size_s

NOBODY: Mapping[str, int] = MappingProxyType({})


def queue_of(jobs: Iterable[QueuedJob]) -> JobQueue:
    queue = JobQueue()
    for job in jobs:
        queue.add(job)
    return queue


def jobs_of(claims: Iterable[ShareRequest]) -> list[QueuedJob]:
    return [QueuedJob(str(order), claim, order) for order, claim in enumerate(claims)]


def next_of(queue: JobQueue, at_work: Mapping[str, int] = NOBODY) -> QueuedJob:
    one = queue.next_turn(at_work, lambda _: True)
    assert one is not None
    return one


def emptied(queue: JobQueue) -> list[int]:
    order = []
    while len(queue):
        one = next_of(queue)
        order.append(one.order)
        assert queue.discard(one.job_id) == one
    assert queue.next_turn(NOBODY, lambda _: True) is None
    return order


def test_the_urgent_then_the_oldest() -> None:
    claims = [ShareRequest(), ShareRequest(priority=1), ShareRequest(priority=2), ShareRequest(priority=2)]
    assert emptied(queue_of(jobs_of(claims))) == [2, 3, 1, 0]


def test_the_short_before_the_long_that_came_a_little_earlier() -> None:
    sizes = [3600.0, 60.0, 60.0]
    jobs = [QueuedJob(str(order), ShareRequest("ann"), order, size) for order, size in enumerate(sizes)]
    queue = queue_of(jobs)
    assert [queue.before(job.job_id) for job in jobs] == [2, 0, 1]
    assert emptied(queue) == [1, 2, 0]


def test_sizes_follow_what_is_asked_for() -> None:
    assert size_s(Budget(seconds=600.0), "full") == 600.0
    assert size_s(Budget(trials=10), "full") < size_s(Budget(trials=100), "quick")
    assert size_s(Budget(), "quick") < size_s(Budget(), "full")
    assert size_s(Budget(seconds=5.0, trials=10_000), "quick") == 5.0


def test_one_owners_queue_does_not_make_another_wait() -> None:
    jobs = jobs_of([ShareRequest("ann")] * 500 + [ShareRequest("bob")])
    queue = queue_of(jobs)
    assert next_of(queue, {"ann": 31}) == jobs[-1]
    assert next_of(queue, {"ann": 3, "bob": 4}) == jobs[0]
    assert queue.before(jobs[-1].job_id) == 0, "its owner has no other"
    local = queue_of(jobs_of([ShareRequest()] * 500 + [ShareRequest("ann")]))
    assert next_of(local, {"": 2, "ann": 1}).owner == "ann", "jobs without an owner are one user's"
    heavy = queue_of(jobs_of([ShareRequest("ann"), ShareRequest("bob", weight=4.0)]))
    assert next_of(heavy, {"ann": 2, "bob": 4}).owner == "bob"


@given(
    places=st.integers(1, 4), priority=st.integers(0, 10), owned=st.booleans(), size=st.sampled_from([1.0, 60.0, 1e6])
)
def test_an_endless_stream_of_urgent_short_jobs_overtakes_only_so_many_times(
    places: int, priority: int, owned: bool, size: float
) -> None:
    queue = queue_of([QueuedJob("patient", ShareRequest("ann"), 0, size)])
    at_work: list[QueuedJob] = []
    for order in range(1, 1400):
        queue.add(QueuedJob(str(order), ShareRequest("bob" if owned else "", priority=priority), order))
        if len(at_work) == places:
            at_work.pop(0)
        one = next_of(queue, Counter(job.owner for job in at_work))
        if one.job_id == "patient":
            return
        queue.discard(one.job_id)
        at_work.append(one)
    raise AssertionError("it starved")


def test_few_begin_on_few_cores_but_each_owner_has_a_place_of_each_kind() -> None:
    for quick in (False, True):
        anns, local = (
            QueuedJob("a", ShareRequest("ann"), 0, quick=quick),
            QueuedJob("b", ShareRequest(), 1, quick=quick),
        )
        begun = next(count for count in range(1000) if not has_place(local, {("", quick): count}, cores=2))
        assert 2 <= begun < 32
        assert not has_place(anns, {("ann", quick): begun}, cores=2)
        assert has_place(anns, {("", quick): 1000}, cores=2), "ann has none at work"
        assert has_place(anns, {("ann", not quick): 1000}, cores=2), "nor one of this kind"
        assert not has_place(anns, {}, cores=2, most=0)
        assert not has_place(anns, {("", quick): 1}, cores=2, most=1)
    assert has_place(QueuedJob("b", ShareRequest(), 1), {("", False): 8}, cores=4)


def test_who_may_not_begin_is_passed_over() -> None:
    jobs = [QueuedJob("long", ShareRequest("ann"), 0), QueuedJob("quick", ShareRequest("ann"), 1, quick=True)]
    assert queue_of(jobs).next_turn(NOBODY, lambda one: one.quick) == jobs[1]


def test_who_has_more_at_work_leaves_a_job_to_others_for_longer() -> None:
    assert hold_back_s(0) == 0.0 < hold_back_s(1) < hold_back_s(8)
